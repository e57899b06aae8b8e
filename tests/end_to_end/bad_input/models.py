"""Bad models: configs, tokenizers, weights and adapters."""

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
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS


def _with_model(
    stock: Stock, what: str, change: Callable[[Path], None], *options: str, translator: bool = False
) -> Case:
    source = stock.translator if translator else stock.model

    def prepare(folder: Path) -> None:
        shutil.copytree(source, folder / "mine")
        change(folder / "mine")

    arguments = stock.aligning() if translator else stock.common()
    names = ["mine", "model.", *options]
    return Case(what, [*arguments, "model.name=mine", *options], names, prepare, statuses=EITHER)


_FIELDS = (
    *(
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
        "vocab_size",
        "model_type",
    ),
    *(
        "max_position_embeddings",
        "pad_token_id",
        "type_vocab_size",
        "layer_norm_eps",
        "initializer_range",
        "torch_dtype",
    ),
    *("dtype", "architectures", "is_decoder", "position_embedding_type", "attention_probs_dropout_prob", "auto_map"),
    *(
        "quantization_config",
        "use_cache",
        "chunk_size_feed_forward",
        "add_cross_attention",
        "transformers_version",
        "id2label",
        "text_config",
        "return_dict",
    ),
    *("num_labels", "tie_word_embeddings", "output_attentions", "return_dict", "_attn_implementation", "rope_scaling"),
)


def model_config(draw: random.Random, stock: Stock) -> Case:
    """A config.json with a bad value."""
    key, value = draw.choice(_FIELDS), draw.choice(JUNK)
    whole = draw.random() < 0.1

    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = value if whole else json.loads(path.read_text()) | {key: value}
        path.write_bytes(as_json(config))

    options = ["model.random_init=true"] if draw.random() < 0.3 else []
    return _with_model(stock, f"config.json {'whole' if whole else key}={value!r:.40} {options}", change, *options)


def family_config(draw: random.Random, stock: Stock) -> Case:
    """The config.json of a model of any family with random weights, with a bad value."""
    config: dict[str, Any] = dict(draw.choice([*FAMILY_CONFIGS.values(), *STACK_CONFIGS.values()]))
    config["vocab_size"] = 31_000
    key = draw.choice(
        [*config, "hidden_act", "activation_function", "rope_parameters", "layer_types", "sliding_window"]
    )
    value = draw.choice([None, "foo", -1, 0, 1, 7, 3.5, 10**9, [], [1], {"a": 1}, True, "''"])
    config[key] = value

    def change(folder: Path) -> None:
        (folder / "config.json").write_bytes(as_json(config))

    return _with_model(stock, f"config.json {config['model_type']} {key}={value}", change, "model.random_init=true")


def model_file(draw: random.Random, stock: Stock) -> Case:
    """A model's file with broken bytes, gone, or not a file."""
    name = draw.choice(
        ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "special_tokens_map.json"]
    )
    state = draw.getstate()

    def change(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        path, how = folder / name, inner.random()
        content = path.read_bytes() if path.exists() else b"{}"
        path.unlink(missing_ok=True)
        if how < 0.8:
            path.write_bytes(spoiled_bytes(inner, content))
        elif how < 0.9:
            path.mkdir()

    return _with_model(stock, f"model file {name}", change, translator=draw.random() < 0.2)


def tokenizer_json(draw: random.Random, stock: Stock) -> Case:
    """A tokenizer file with one bad value."""
    name = draw.choice(["tokenizer.json", "tokenizer_config.json"])
    state, key = (
        draw.getstate(),
        draw.choice(["model_max_length", "tokenizer_class", "pad_token", "cls_token", "sep_token"]),
    )

    def change(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        path = folder / name
        value = json.loads(path.read_text())
        if name == "tokenizer_config.json" and inner.random() < 0.6:
            broken = value | {key: inner.choice(JUNK)}
        else:
            broken, _ = spoiled(inner, value, keep=("vocab",))
        path.write_bytes(as_json(broken))

    return _with_model(stock, f"{name} {key}", change)


def weights(draw: random.Random, stock: Stock) -> Case:
    """Weights of wrong shape, type or name, and headers that lie."""
    how = draw.choice(["shape", "dtype", "name", "nan", "header", "index", "empty", "scalar", "prefix", "metadata"])
    state = draw.getstate()

    def change(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        path = folder / "model.safetensors"
        tensors = load_file(path)
        key = inner.choice(sorted(tensors))
        match how:
            case "shape":
                tensors[key] = torch.zeros(inner.choice([(1,), (24, 25), (0,), (3, 3, 3), ()]))
            case "dtype":
                tensors[key] = tensors[key].to(inner.choice([torch.int8, torch.bool, torch.complex64, torch.uint8]))
            case "name":
                tensors[inner.choice(["x", "encoder.layer.9.attention.self.key.weight", ""])] = tensors.pop(key)
            case "nan":
                tensors[key].view(-1)[0] = inner.choice([float("nan"), float("inf")])
            case "empty":
                tensors = {}
            case "scalar":
                tensors = {key: torch.tensor(1.0)}
            case "prefix":
                tensors = {f"other.{name}": value for name, value in tensors.items()}
        save_file(tensors, path, {} if how == "metadata" else {"format": inner.choice(["pt", "tf", "x"])})
        if how == "header":
            content = path.read_bytes()
            length = struct.unpack("<Q", content[:8])[0]
            header, _ = spoiled(inner, json.loads(content[8 : 8 + length]))
            made = as_json(header)
            path.write_bytes(struct.pack("<Q", inner.choice([len(made), 2**63, 3])) + made + content[8 + length :])
        if how == "index":
            path.rename(folder / "model-00001-of-00001.safetensors")
            index, _ = spoiled(
                inner, {"metadata": {"total_size": 1}, "weight_map": {key: "model-00001-of-00001.safetensors"}}
            )
            (folder / "model.safetensors.index.json").write_bytes(as_json(index))

    return _with_model(stock, f"weights {how}", change)


def other_tokenizer(draw: random.Random, stock: Stock) -> Case:
    """The files of a slow, a byte-pair or a SentencePiece tokenizer, one of them broken."""
    kind, broken, state = draw.choice(["WordPiece", "BPE", "SentencePiece"]), draw.random() < 0.9, draw.getstate()

    def change(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        (folder / "tokenizer.json").unlink()
        words = sorted(vocabulary, key=vocabulary.__getitem__)
        match kind:
            case "WordPiece":
                files = {"vocab.txt": "\n".join(words).encode()}
            case "BPE":
                files = {"vocab.json": as_json(vocabulary), "merges.txt": b"#version: 0.2\nt h\nth e\n"}
            case _:
                files = {"spiece.model": b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02\n\x0c\n\x03the\x15\0\0\x80\xbf"}
        classes = {"WordPiece": "BertTokenizer", "BPE": "GPT2Tokenizer", "SentencePiece": "T5Tokenizer"}
        settings = {"tokenizer_class": inner.choice([classes[kind], classes[kind], "AutoTokenizer", "Nope"])}
        files["tokenizer_config.json"] = as_json(settings)
        spoil = inner.choice(sorted(files)) if broken else ""
        for name, content in files.items():
            how = inner.random() if name == spoil else 1.0
            (folder / name).unlink(missing_ok=True)
            if how > 0.2:
                (folder / name).write_bytes(spoiled_bytes(inner, content) if name == spoil else content)
            elif how > 0.1:
                (folder / name).mkdir()

    return _with_model(stock, f"{kind} tokenizer", change)


def side_file(draw: random.Random, stock: Stock) -> Case:
    """Junk in files that a model may bring along."""
    name = draw.choice(
        [
            *("generation_config.json", "added_tokens.json", "special_tokens_map.json", "chat_template.jinja"),
            *("model.safetensors.index.json", "adapter_config.json", "modules.json", "preprocessor_config.json"),
            *("pytorch_model.bin", "tokenizer.model", "modeling_x.py", "chat_template.json", "processor_config.json"),
        ]
    )
    junk, state = draw.choice(JUNK), draw.getstate()

    def change(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        content = as_json(inner.choice([junk, {"[CLS]": junk}, {"a": junk}, {"weight_map": junk}, {"cls_token": junk}]))
        (folder / name).write_bytes(inner.choice([content, spoiled_bytes(inner, content)]))

    return _with_model(stock, f"beside the model: {name} {junk!r:.40}", change, translator=draw.random() < 0.3)


_PICKLED: tuple[object, ...] = ({}, [], None, 3, "x", {"a": 1}, {1: torch.ones(1)}, torch.ones(2), {"": torch.ones(2)})


def pickled_weights(draw: random.Random, stock: Stock) -> Case:
    """A pickle of weights that is broken, hostile or of something else."""
    state = draw.getstate()
    options = ["model.allow_pickle=true"] if draw.random() < 0.8 else []

    def change(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        path, how = folder / "pytorch_model.bin", inner.random()
        if how < 0.3:
            torch.save(inner.choice(_PICKLED), path)
        elif how < 0.6:
            torch.save(tensors, path, _use_new_zipfile_serialization=inner.random() < 0.7)
            path.write_bytes(spoiled_bytes(inner, path.read_bytes()))
        elif how < 0.7:
            path.write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
        else:
            key = inner.choice(sorted(tensors))
            other = inner.choice([1, None, "x", [1], torch.zeros(0), torch.zeros(2, 2), torch.zeros(3).to_sparse()])
            torch.save(tensors | {key: other}, path)

    return _with_model(stock, f"pickled weights {options}", change, *options)


ADAPTER = {"base_model_name_or_path": "BASE", "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}


def adapter(draw: random.Random, stock: Stock) -> Case:
    """An adapter with a bad config or bad weights."""
    config, what = spoiled(draw, ADAPTER | {"base_model_name_or_path": str(stock.model)})
    state = draw.getstate()

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        mine = folder / "mine"
        mine.mkdir()
        (mine / "adapter_config.json").write_bytes(as_json(config))
        content = save({"base_model.model.encoder.layer.0.attention.self.query.lora_A.weight": torch.ones(2, 24)})
        if inner.random() < 0.9:
            (mine / "adapter_model.safetensors").write_bytes(inner.choice([content, spoiled_bytes(inner, content)]))

    return Case(f"adapter {what}", [*stock.common(), "model.name=mine"], ["mine", "model."], prepare)
