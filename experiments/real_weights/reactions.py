"""rxnmapper and rxnfp: an ALBERT and BERTs of chemical reactions in SMILES, whose tokens are atoms, bonds and rings."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from experiments.real_weights.packages import Converted, require

REACTION = "CN(C)C=O.NCCc1ccccc1.O=C(O)c1ccc(Br)cc1>>O=C(NCCc1ccccc1)c1ccc(Br)cc1"
"""An amide from an acid and an amine."""
FEWEST_RIGHT = 0.85
"""Share of this reaction's tokens that a model must find when they are masked one by one."""


def convert(package: Path) -> Converted:
    """The one model of rxnmapper, or two of rxnfp."""
    if (package / "rxnmapper").is_dir():
        return _mapper(package / "rxnmapper")
    return _fingerprints(package / "rxnfp")


def _mapper(files: Path) -> Converted:
    (folder,) = (files / "models/transformers").iterdir()
    tokenizer = _tokenizer(folder / "vocab.txt", files / "smiles_utils.py")
    model = AlbertForMaskedLM(_config(AlbertConfig, folder, tokenizer))
    _load(model, folder)
    return Converted({"": (model, tokenizer)}, _proof(model, tokenizer))


def _fingerprints(files: Path) -> Converted:
    folders = files / "models/transformers"
    tokenizer = _tokenizer(folders / "bert_pretrained/vocab.txt", files / "tokenization.py")
    pretrained = BertForPreTraining(_config(BertConfig, folders / "bert_pretrained", tokenizer))
    _load(pretrained, folders / "bert_pretrained")
    tuned = BertForSequenceClassification(_config(BertConfig, folders / "bert_ft_10k_25s", tokenizer))
    _load(tuned, folders / "bert_ft_10k_25s")
    masked = BertForMaskedLM(pretrained.config).eval()
    masked.bert.load_state_dict(pretrained.bert.state_dict(), strict=False)
    masked.cls.predictions.load_state_dict(pretrained.cls.predictions.state_dict())
    made = {"-pretrained": (pretrained, tokenizer), "-classes": (tuned, tokenizer)}
    return Converted(made, f"of the pretrained one, {_proof(masked, tokenizer)}")


def _tokenizer(vocabulary: Path, module: Path) -> PreTrainedTokenizerFast:
    """[CLS] tokens [SEP], split by the pattern that a module of the package states, which is read and not run."""
    numbers = {token: number for number, token in enumerate(vocabulary.read_text().splitlines())}
    assignments = [node for node in ast.parse(module.read_text()).body if isinstance(node, ast.Assign)]
    pattern = next(
        ast.literal_eval(node.value) for node in assignments if ast.unparse(node.targets[0]) == "SMI_REGEX_PATTERN"
    )
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    ends = [(token, numbers[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special)


def _config(kind: Any, folder: Path, tokenizer: PreTrainedTokenizerFast) -> Any:
    """The config as the package has it, as far as this version of the class knows its keys."""
    stored = json.loads((folder / "config.json").read_text())
    known = kind().to_dict().keys() | {"num_labels"}
    kept = {
        name: value for name, value in stored.items() if name in known and name not in ("architectures", "id2label")
    }
    return kind(**kept | {"pad_token_id": tokenizer.pad_token_id, "tie_word_embeddings": True})


def _load(model: Any, folder: Path) -> None:
    state = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    missing, unexpected = model.eval().load_state_dict(state, strict=False)
    # A masked-token head has no pooler, its decoder's weights are the embeddings, and positions are no weights any more.
    expected = re.compile(r".*(pooler|decoder)\.(weight|bias)|.*pooler\.dense\..*|.*position_ids")
    lost = [name for name in [*missing, *unexpected] if not expected.fullmatch(name)]
    require(not lost, f"no place for, or no weights of, {', '.join(lost[:3])}")
    model.tie_weights()


def _proof(model: Any, tokenizer: PreTrainedTokenizerFast) -> str:
    """How many tokens of a reaction the model finds when they are masked one by one."""
    inputs = tokenizer(REACTION, return_tensors="pt")["input_ids"]
    places = torch.arange(1, inputs.shape[1] - 1)
    rows = inputs.repeat(len(places), 1)
    rows[torch.arange(len(places)), places] = tokenizer.mask_token_id
    with torch.no_grad():
        predicted = model(rows).logits[torch.arange(len(places)), places].argmax(-1)
    right = int((predicted == inputs[0, places]).sum())
    require(right >= FEWEST_RIGHT * len(places), f"{right} of {len(places)} masked tokens of a reaction are found")
    return f"{right} of {len(places)} masked tokens of a reaction are found"
