"""The boundary of a model's folder: configs, tokenizers, weights and adapters that are broken, or of something else."""

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save, save_file

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import JUNK, as_json, spoiled, spoiled_bytes
from tests.end_to_end.bad_input.stock import Stock
from tests.end_to_end.bad_input.values import VALUES
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS

Change = Callable[[random.Random, Path], None]


def model(draw: random.Random, stock: Stock) -> Case:
    """A model's folder in which something is changed."""
    change = draw.choices([*_CHANGES], [*_CHANGES.values()])[0]
    state, translator = draw.getstate(), change in (files, beside) and draw.random() < 0.25
    options = ["model.random_init=true"] if change is of_family or (change is config and draw.random() < 0.3) else []
    if change is pickled and draw.random() < 0.8:
        options = ["model.allow_pickle=true"]

    def prepare(folder: Path) -> None:
        shutil.copytree(stock.translator if translator else stock.model, folder / "mine")
        inner = random.Random()
        inner.setstate(state)
        change(inner, folder / "mine")

    arguments = [*(stock.aligning() if translator else stock.common()), "model.name=mine", *options]
    what, names = f"model with changed {change.__name__} {options}", ["mine", "model.", *options]
    return Case(what, arguments, names, prepare, statuses=EITHER)


def _spoil(draw: random.Random, path: Path, content: bytes) -> None:
    """Break a file's bytes, remove it, or make it a folder."""
    path.unlink(missing_ok=True)
    how = draw.random()
    if how < 0.8:
        path.write_bytes(spoiled_bytes(draw, content))
    elif how < 0.9:
        path.mkdir()


def _changed(path: Path, **values: Any) -> None:
    path.write_bytes(as_json(json.loads(path.read_text()) | values))


def config(draw: random.Random, folder: Path) -> None:
    """One value, or all."""
    value = draw.choice(JUNK)
    if draw.random() < 0.1:
        (folder / "config.json").write_bytes(as_json(value))
    else:
        _changed(folder / "config.json", **{draw.choice(VALUES["config"]): value})


def of_family(draw: random.Random, folder: Path) -> None:
    """The config of a model of any family, with a bad value."""
    settings: dict[str, Any] = dict(draw.choice([*FAMILY_CONFIGS.values(), *STACK_CONFIGS.values()]))
    others = ["hidden_act", "activation_function", "rope_parameters", "layer_types", "sliding_window"]
    changed = {draw.choice([*settings, *others]): draw.choice(VALUES["of_config"])}
    (folder / "config.json").write_bytes(as_json(settings | {"vocab_size": 31_000} | changed))


def files(draw: random.Random, folder: Path) -> None:
    """One of the files, or one that it lacks."""
    path = folder / draw.choice([*sorted(path.name for path in folder.iterdir()), "special_tokens_map.json"])
    _spoil(draw, path, path.read_bytes() if path.exists() else b"{}")


def tokenizer(draw: random.Random, folder: Path) -> None:
    """One value of a tokenizer's files."""
    settings = ["model_max_length", "tokenizer_class", "pad_token", "cls_token", "sep_token"]
    if draw.random() < 0.3:
        _changed(folder / "tokenizer_config.json", **{draw.choice(settings): draw.choice(JUNK)})
        return
    path = folder / draw.choice(["tokenizer.json", "tokenizer_config.json"])
    broken, _ = spoiled(draw, json.loads(path.read_text()), keep=("vocab",))
    path.write_bytes(as_json(broken))


def kind_of_tokenizer(draw: random.Random, folder: Path) -> None:
    """The files of a slow, a byte-pair or a SentencePiece tokenizer, one of them broken."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    words = "\n".join(sorted(vocabulary, key=vocabulary.__getitem__)).encode()
    pairs = {"vocab.json": as_json(vocabulary), "merges.txt": b"#version: 0.2\nt h\nth e\n"}
    pieces = b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n\x0c\n\x03the\x15\0\0\x80\xbf"
    kinds = {"BertTokenizer": {"vocab.txt": words}, "GPT2Tokenizer": pairs, "T5Tokenizer": {"spiece.model": pieces}}
    name = draw.choice([*kinds])
    settings = as_json({"tokenizer_class": draw.choice([name, name, "AutoTokenizer", "Nope"])})
    made = kinds[name] | {"tokenizer_config.json": settings}
    for path, content in made.items():
        (folder / path).write_bytes(content)
    if draw.random() < 0.9:
        path = draw.choice(sorted(made))
        _spoil(draw, folder / path, made[path])


def weights(draw: random.Random, folder: Path) -> None:
    """Weights of wrong shape, type or name, and headers that lie."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    key = draw.choice(sorted(tensors))
    how = draw.choice(["shape", "dtype", "name", "nan", "header", "index", "empty", "scalar", "prefix", "metadata"])
    match how:
        case "shape":
            tensors[key] = torch.zeros(draw.choice([(1,), (24, 25), (0,), (3, 3, 3), ()]))
        case "dtype":
            tensors[key] = tensors[key].to(draw.choice([torch.int8, torch.bool, torch.complex64, torch.uint8]))
        case "name":
            tensors[draw.choice(["x", "encoder.layer.9.attention.self.key.weight", ""])] = tensors.pop(key)
        case "nan":
            tensors[key].view(-1)[0] = draw.choice([float("nan"), float("inf")])
        case "empty":
            tensors = {}
        case "scalar":
            tensors = {key: torch.tensor(1.0)}
        case "prefix":
            tensors = {f"other.{name}": value for name, value in tensors.items()}
    save_file(tensors, path, {} if how == "metadata" else {"format": draw.choice(["pt", "tf", "x"])})
    if how == "header":
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header, _ = spoiled(draw, json.loads(content[8 : 8 + length]))
        made = as_json(header)
        path.write_bytes(struct.pack("<Q", draw.choice([len(made), 2**63, 3])) + made + content[8 + length :])
    if how == "index":
        part = path.rename(folder / "model-00001-of-00001.safetensors").name
        index, _ = spoiled(draw, {"metadata": {"total_size": 1}, "weight_map": {key: part}})
        (folder / "model.safetensors.index.json").write_bytes(as_json(index))


def beside(draw: random.Random, folder: Path) -> None:
    """Junk in a file that a model may bring along."""
    junk = draw.choice(JUNK)
    content = as_json(draw.choice([junk, {"[CLS]": junk}, {"a": junk}, {"weight_map": junk}, {"cls_token": junk}]))
    (folder / draw.choice(VALUES["beside"])).write_bytes(draw.choice([content, spoiled_bytes(draw, content)]))


_PICKLED: tuple[object, ...] = ({}, [], None, 3, "x", {"a": 1}, {1: torch.ones(1)}, torch.ones(2), {"": torch.ones(2)})


def pickled(draw: random.Random, folder: Path) -> None:
    """Weights in a pickle that is broken, hostile or of something else."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    path, how = folder / "pytorch_model.bin", draw.random()
    if how < 0.3:
        torch.save(draw.choice(_PICKLED), path)
    elif how < 0.6:
        torch.save(tensors, path, _use_new_zipfile_serialization=draw.random() < 0.7)
        path.write_bytes(spoiled_bytes(draw, path.read_bytes()))
    elif how < 0.7:
        path.write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
    else:
        other = draw.choice([1, None, "x", [1], torch.zeros(0), torch.zeros(2, 2), torch.zeros(3).to_sparse()])
        torch.save(tensors | {draw.choice(sorted(tensors)): other}, path)


def adapter(draw: random.Random, folder: Path) -> None:
    """An adapter of the model with a bad config, or bad weights."""
    base = folder.rename(folder.parent / "base")
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}
    spoilt, _ = spoiled(draw, settings | {"base_model_name_or_path": str(base)})
    (folder / "adapter_config.json").write_bytes(as_json(spoilt))
    content = save({"base_model.model.encoder.layer.0.attention.self.query.lora_A.weight": torch.ones(2, 24)})
    if draw.random() < 0.9:
        content = draw.choice([content, spoiled_bytes(draw, content)])
        (folder / "adapter_model.safetensors").write_bytes(content)


_CHANGES: dict[Change, int] = {
    config: 7,
    of_family: 5,
    files: 4,
    tokenizer: 4,
    kind_of_tokenizer: 4,
    weights: 4,
    beside: 3,
    pickled: 4,
    adapter: 3,
}
"""How often each is drawn."""
