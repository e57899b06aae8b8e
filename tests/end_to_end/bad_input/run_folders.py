"""Damaged run folders: what every file of a run may turn out to be, and every command that reads it."""

import dataclasses
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save

from normscope.analyses.registry import analyses
from normscope.running.checkpoint import checksum
from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import as_json
from tests.end_to_end.bad_input.stock import Stock, succeed

_WRONG = {
    "null": None,
    "true": True,
    "negative": -1,
    "fraction": 2.5,
    "text": "foo",
    "list": [[1, "a"]],
    "mapping": {"a": {"b": None}},
    "infinity": float("inf"),
    "nan": float("nan"),
    "10^40": 10**40,
    "huge": "@huge@",
    "deep": "@deep@",
    "surrogate": "\ud800",
    "long": "x" * 2_000_000,
}
"""Values that are wrong in most places."""


@dataclasses.dataclass(frozen=True)
class Damage:
    """One damaged file."""

    what: str
    file: str
    """Its place in the run folder."""
    damage: Callable[[Path], None]
    """Spoils the file at a path."""


@dataclasses.dataclass(frozen=True)
class Runs:
    """Good runs, by the commands that read them."""

    stock: Stock

    def __getitem__(self, name: str) -> Path:
        return self.stock.folder / "runs" / name

    @classmethod
    def made(cls, stock: Stock) -> "Runs":
        """Make the runs beside the models of a stock."""
        runs = cls(stock)
        few = [*stock.common(), "analysis=[mixing,norms,score,feedforward]", "analysis.outliers.dimensions=[3,5]"]
        succeed(runs["finished"], [*few, f"output_dir={runs['finished']}"], 0)
        return runs


def cases(runs: Runs, command: str) -> Iterator[Case]:
    """Every file that a command reads, damaged in every way."""
    for file in _READ_BY[command]:
        for damage in [*_whole(file), *([] if command == "report" else _inside(file, command))]:
            yield _CASES[command](runs, damage)


def _whole(file: str) -> Iterator[Damage]:
    """What any file may be."""

    def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
        def damage(path: Path) -> None:
            path.unlink()
            make(path)

        return damage

    def sparse(path: Path) -> None:
        with path.open("wb") as stream:
            stream.truncate(40 * 2**30)

    ways: dict[str, Callable[[Path], None]] = {
        "missing": lambda path: path.unlink(),
        "empty": lambda path: path.write_bytes(b"") and None,
        "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]) and None,
        "cut at the end": lambda path: path.write_bytes(path.read_bytes()[:-9]) and None,
        "flipped": lambda path: path.write_bytes(_flipped(path.read_bytes())) and None,
        "binary": lambda path: path.write_bytes(bytes(range(256)) * 8) and None,
        "UTF-16": lambda path: path.write_bytes("{}".encode("utf-16")) and None,
        "brackets": lambda path: path.write_bytes(b"[" * 200_000) and None,
        "of 40 GiB": replaced(sparse),
        "a folder": replaced(Path.mkdir),
        "a pipe": replaced(os.mkfifo),
        "a link to itself": replaced(lambda path: path.symlink_to(path.name)),
        "a link to nothing": replaced(lambda path: path.symlink_to("nowhere")),
        "a link to /dev/zero": replaced(lambda path: path.symlink_to("/dev/zero")),
    }
    for what, damage in ways.items():
        yield Damage(what, file, damage)


def _flipped(content: bytes) -> bytes:
    spoiled = bytearray(content)
    for place in range(1, len(spoiled), max(1, len(spoiled) // 40)):
        spoiled[place] ^= 0xFF
    return bytes(spoiled)


def _inside(file: str, command: str) -> Iterator[Damage]:
    """What is wrong with a file of this kind."""
    if file == "results.json":
        yield from _results(_RESULTS if command == "compare" else _RESULTS[:1])
    elif file == "config.yaml":
        yield from _configs(_CONFIG_KEYS[:: 1 if command == "compare" else 4])
    elif file == "failures.jsonl":
        for name, line in {"null": "null", "list": '["job", "error"]', "numbers": '{"job": 1, "error": 2}'}.items():
            yield Damage(name, file, lambda path, line=line: path.write_text(line + "\n") and None)
    elif file.endswith(".parquet"):
        yield from _tables(file)
    else:
        yield from _states(file)


_RESULTS: Sequence[Sequence[str]] = (
    (),
    ("status",),
    ("metrics",),
    ("metrics", "mixing/attn_n/mean"),
    ("facts",),
    *(("facts", name) for name in ("model", "sequences", "tokens", "seconds", "training_step")),
)


def _results(places: Sequence[Sequence[str]]) -> Iterator[Damage]:
    for place in places:
        for name, value in _WRONG.items():
            yield Damage(f"{'/'.join(place)} {name}", "results.json", _json_with(place, value))
        if place:
            yield Damage(f"without {'/'.join(place)}", "results.json", _json_without(place))
    others = {"no metric": {}, "other metrics": {"a\x1b[31m": 1, "": 2.0}, "a long name": {"m" * 100_000: 1.0}}
    for name, metrics in others.items():
        yield Damage(name, "results.json", _json_with(("metrics",), metrics))
    many = {f"mixing/x/{number}": 1e300 for number in range(100_000)}
    yield Damage("many metrics", "results.json", _json_with(("metrics",), many))


def _json_with(place: Sequence[str], value: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content: Any = {"": json.loads(path.read_text())}
        node, names = content, ["", *place]
        for name in names[:-1]:
            node = node[name]
        node[names[-1]] = value
        # Half a surrogate pair is valid JSON as an escape.
        text = as_json(content[""]).decode() if value != "\ud800" else json.dumps(content[""])
        path.write_text(text)

    return damage


def _json_without(place: Sequence[str]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = node = json.loads(path.read_text())
        for name in place[:-1]:
            node = node[name]
        node.pop(place[-1], None)
        path.write_text(json.dumps(content))

    return damage


_LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
)
_YAML = {
    "laughs": f"{_LAUGHS}\n",
    "laughs in a mapping": "model: &m {name: x}\n" + _LAUGHS + "\ndataset: {a: *a9}\n",
    "an alias": "model: &m {name: x}\ndataset: *m\n",
    "a recursive list": "&a [*a]\n",
    "a recursive mapping": "model: &a {name: *a}\nanalysis: {b: *a}\n",
    "a recursive key": "&a {*a : 1}\n",
    "merged keys": "a: &a {x: 1}\nanalysis: {<<: [*a, *a]}\n",
    "a list": "- model\n- dataset\n",
    "nothing": "\n",
    "a number": "7\n",
    "two documents": "analysis: {}\n---\nanalysis: {}\n",
    "a function": "analysis: !!python/object/apply:os.system ['echo obeyed >obeyed']\n",
    "a set": "analysis: !!set {a, b}\n",
    "bytes": "analysis: {mixing: !!binary aGVsbG8=}\n",
    "a date": "analysis: {mixing: {enabled: 2026-01-01}}\n",
    "keys of other types": "? [1, 2]\n: x\n? {a: b}\n: y\nanalysis: {1: {2.5: x}, null: {true: y}}\n",
    "a hexadecimal number": f"analysis: {{}}\nmodel: {{name: 0x{'f' * 9000}, step: 0x{'f' * 9000}}}\n",
    "tabs": "\tanalysis: x\n",
    "an interpolation": "analysis: {mixing: {enabled: true}}\nmodel: {name: '${oc.env:HOME}'}\n",
    "a resolver": "analysis: {mixing: {enabled: true}}\nmodel: {name: '${sweep_folder:obeyed}'}\n",
    "an endless interpolation": "analysis: {mixing: {enabled: true}}\nmodel: {name: '${model.name}'}\n",
}
_CONFIG_KEYS = (
    *("model", "model.name", "model.step", "model.revision", "model.trust_remote_code"),
    *("dataset", "dataset.kind", "dataset.categories", "analysis", "analysis.mixing", "analysis.mixing.enabled"),
    *("layers", "seed", "tracking.tags", "report", "nonsense"),
)


def _configs(keys: Sequence[str]) -> Iterator[Damage]:
    for name, text in _YAML.items():
        yield Damage(name, "config.yaml", lambda path, text=text: path.write_text(text) and None)
    for key in keys:
        for name in ("null", "negative", "text", "list", "mapping", "10^40", "surrogate"):
            yield Damage(f"{key} {name}", "config.yaml", _yaml_with(key.split("."), _WRONG[name]))


def _yaml_with(place: Sequence[str], value: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = node = yaml.safe_load(path.read_text())
        for name in place[:-1]:
            node = node[name]
        node[place[-1]] = value
        path.write_text(json.dumps(content).replace("Infinity", ".inf"))  # JSON is YAML

    return damage


def _tables(file: str) -> Iterator[Damage]:
    """Parquet files with other columns and cells."""

    def changed(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
        return lambda path: change(pd.read_parquet(path)).to_parquet(path, index=False)

    whole: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
        "no rows": lambda table: table.head(0),
        "rows twice": lambda table: pd.concat([table, table]),
        "one row": lambda table: table.head(1),
        "reversed": lambda table: table.iloc[::-1],
        "an odd column": lambda table: table.assign(**{"head_x\n": "y"}),
    }
    for name, change in whole.items():
        yield Damage(name, file, changed(change))
    for column in _columns(file):
        cells: dict[str, Callable[[pd.Series, str], Any]] = {
            "dropped": lambda table, column: table.drop(columns=column),
            "null": lambda table, column: table.assign(**{column: pd.NA}),
            "a null": lambda table, column: table.assign(**{column: table[column].astype(object).where(table.index > 0, None)}),
            "numbers": lambda table, column: table.assign(**{column: np.arange(len(table)) - 1.5}),
            "huge": lambda table, column: table.assign(**{column: 2**63 - 1}),
            "infinite": lambda table, column: table.assign(**{column: np.inf}),
            "texts": lambda table, column: table.assign(**{column: "\u202e<b>text</b>\n\x1b[31m"}),
            "lists": lambda table, column: table.assign(**{column: [[1, "a"][:1]] * len(table)}),
            "bytes": lambda table, column: table.assign(**{column: [b"\xff\xfe"] * len(table)}),
            "times": lambda table, column: table.assign(**{column: pd.Timestamp("2026-01-01")}),
            "constant": lambda table, column: table.assign(**{column: table[column].iloc[0]}),
        }  # fmt: skip
        for name, change in cells.items():
            if Path(file).stem not in _SHARED and name not in ("dropped", "a null", "infinite", "texts", "constant"):
                continue
            yield Damage(
                f"{column} {name}", file, changed(lambda table, change=change, column=column: change(table, column))
            )
    yield Damage("21 million rows", file, _bomb)


def _bomb(path: Path) -> None:
    """A small file with more rows than any run writes."""
    table = pq.read_table(path)
    rows = pa.table({name: pa.repeat(table.column(name)[0], 10**6) for name in table.column_names})
    with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for _ in range(21):
            writer.write_table(rows)


_SHARED = {
    "curves": ("curve", "layer", "depth", "value"),
    "sequences": ("metric", "sequence", "count", "value"),
    "heatmaps": ("figure", "panel", "row", "value", "row_title", "value_title"),
}
"""Columns of the tables that analyses share."""


def _columns(file: str) -> Sequence[str]:
    """The columns of a table that are spoiled one by one."""
    table = Path(file).stem
    if file.startswith("figures/"):
        return ()
    analysis, _, name = table.partition("_")
    declared = analyses()[analysis].published.tables[name].columns if table not in _SHARED else ()
    return _SHARED.get(table) or [column for column in declared if "<" not in column]


def _states(file: str) -> Iterator[Damage]:
    """Files of tensors with another header or other tensors, and with checksums that fit."""
    wrong = [(name, value) for name, value in _WRONG.items() if name not in ("huge", "deep", "long")]
    for key in _HEADERS[file]:
        for name, value in [*wrong, ("a thousand million", 10**9)]:
            yield Damage(
                f"{key} {name}", file, _forged(lambda content, _, key=key, value=value: content | {key: value})
            )
        yield Damage(
            f"without {key}",
            file,
            _forged(lambda content, _, key=key: {name: value for name, value in content.items() if name != key}),
        )

    def without(content: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> Mapping[str, Any]:
        del tensors[sorted(tensors)[0]]
        return content

    def reshaped(content: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> Mapping[str, Any]:
        name = sorted(tensors)[0]
        tensors[name] = torch.zeros(3, 1, dtype=torch.int8)
        return content

    yield Damage("a tensor fewer", file, _forged(without))
    yield Damage("a tensor of another shape", file, _forged(reshaped))
    yield Damage("a header of 2^60 bytes", file, lambda path: _write(path, struct.pack("<Q", 2**60) + b"{}"))
    yield Damage(
        "a tensor of 2^60 bytes",
        file,
        lambda path: _write(
            path, _framed({"a": {"dtype": "F64", "shape": [2**57], "data_offsets": [0, 2**60]}}) + bytes(64)
        ),
    )


_HEADERS = {
    "checkpoint.safetensors": ("identity", "batches", "digest"),
}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _framed(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def _forged(change: Callable[[Any, dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with safe_open(path, framework="pt") as file:
            content = json.loads(file.metadata()["normscope"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        text = json.dumps(change(content, tensors))
        path.write_bytes(save(tensors, {"normscope": text, "sha256": checksum(text, tensors)}))

    return damage


def _damaged(source: Path, damage: Damage) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        shutil.copytree(source, folder / "before")
        damage.damage(folder / "before" / damage.file)

    return prepare


def _compared(runs: Runs, damage: Damage) -> Case:
    def prepare(folder: Path) -> None:
        shutil.copytree(runs["finished"], folder / "before")
        if damage.file == "failures.jsonl":
            (folder / "before" / damage.file).write_text('{"job": "seed=1", "error": "x"}\n')
        damage.damage(folder / "before" / damage.file)

    return Case(
        f"compare: {damage.file}: {damage.what}",
        ["compare", "before", str(runs["finished"]), "--output", "out"],
        ["before", "run"],
        prepare,
        statuses=EITHER,
    )


def _drawn(runs: Runs, damage: Damage) -> Case:
    return Case(
        f"page: {damage.file}: {damage.what}",
        ["page", "before"],
        ["before", "recipe.paper", "figures."],
        _damaged(runs["finished"], damage),
        statuses=EITHER,
        writes="before",
    )


def _reported(runs: Runs, damage: Damage) -> Case:
    return Case(
        f"compare --wandb: {damage.file}: {damage.what}",
        ["compare", "before", "--wandb", "e", "--group", "g", "--output", "out"],
        ["before", "wandb", "run"],
        _damaged(runs["finished"], damage),
        statuses=EITHER,
    )


def _reproduced(runs: Runs, damage: Damage) -> Case:
    return Case(
        f"reproduce: {damage.file}: {damage.what}",
        ["reproduce=before", "output_dir=out"],
        ["before", *_NAMED],
        _damaged(runs.stock.finished, damage),
        statuses=frozenset({0, 1, 2}),
    )


def _resumed(runs: Runs, damage: Damage) -> Case:
    return Case(
        f"resume: {damage.file}: {damage.what}",
        ["resume=before"],
        ["before", "resume", *_NAMED],
        _damaged(runs.stock.stopped, damage),
        statuses=EITHER,
        writes="before",
    )


_NAMED = (
    *("model.", "dataset.", "dataset=", "analysis", "device.", "layers", "categories", "seed", "shard", "tracking"),
    *("checkpoint", "report", "figures", "level"),
)
"""What a message may name instead of the file: a key with a value that no run accepts."""

_CASES: Mapping[str, Callable[[Runs, Damage], Case]] = {
    "compare": _compared,
    "page": _drawn,
    "report": _reported,
    "reproduce": _reproduced,
    "resume": _resumed,
}
_READ_BY: Mapping[str, Sequence[str]] = {
    "compare": (
        *("results.json", "config.yaml", "failures.jsonl"),
        *(f"tables/{name}.parquet" for name in (*_SHARED, "score_concentration", "mixing_by_layer")),
    ),
    "page": (
        *("results.json", "config.yaml", "tables/mixing_by_layer.parquet"),
        *("figures/mixing_heatmap.parquet", "figures/norms_scatter.parquet"),
    ),
    "report": ("results.json", "config.yaml", "tables/curves.parquet"),
    "reproduce": ("config.yaml", "results.json"),
    "resume": ("config.yaml", "results.json", "checkpoint.safetensors"),
}

COMMANDS = tuple(_READ_BY)
"""The commands that read what runs have left."""
