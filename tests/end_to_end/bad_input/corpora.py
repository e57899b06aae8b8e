"""The boundary of a corpus: every key that takes a file gets one that is broken, of another kind, or odd."""

import contextlib
import gzip
import io
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import JUNK, as_json, spoiled, spoiled_bytes
from tests.end_to_end.bad_input.stock import TEXT, Stock
from tests.end_to_end.bad_input.values import VALUES

ROWS = [{"text": "A cat walks.", "text_pair": "It sleeps."}, {"text": "The river, wide."}, {"text": "No."}]


def _written(write: Callable[..., object], *given: object) -> bytes:
    content = io.BytesIO()
    write(*given, content)
    return content.getvalue()


def _zip(content: io.BytesIO) -> None:
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a.txt", TEXT)


FILES: dict[str, bytes] = {
    "text": TEXT.encode(),
    "jsonl": b"".join(as_json(row) + b"\n" for row in ROWS),
    "csv": b'"text","text_pair"\n"a, cat","b"\n',
    "tsv": b'"text"\t"text_pair"\n"a, cat"\t"b"\n',
    "parquet": _written(pq.write_table, pa.Table.from_pylist(ROWS)),
    "gzip": gzip.compress(TEXT.encode(), mtime=0),
    "gzip in gzip": gzip.compress(gzip.compress(TEXT.encode(), mtime=0), mtime=0),
    "zeros in gzip": gzip.compress(b"\0" * 30_000_000, mtime=0),
    "links": b"0-0 1-1\n0-0\n0-0\n",
    "zip": _written(_zip),
    "picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89",
    "elf": b"\x7fELF\x02\x01\x01" + b"\0" * 64,
    "json": json.dumps({"a": [1, {"b": None}]}).encode(),
    "yaml": b"a: &x [1]\nb: *x\n",
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%b]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)),
    "pickle": pickle.dumps([{"tokens": ["[CLS]", "cat", "[SEP]"]}]),
    "safetensors": save({"a": torch.ones(2)}),
    "torch": _written(torch.save, {"a": torch.ones(2)}),
    "nothing": b"",
    "empty lines": b"\n\n\n",
    "no UTF-8": b"\xff\n" * 3,
    "one long line": b"a " * 2_000_000,
    "one long word": b"a" * 4_000_000,
}
_KEYS = {
    "dataset.path": ["dataset=text"],
    "analysis.frequency.path": ["analysis=frequency"],
    "analysis.frequency.source": ["analysis=frequency"],
    "model.name": [],
    "model.tokenizer": [],
    "resume": [],
    "reproduce": [],
    "+dataset.categories.x": [],
    "report.text": ["report.enabled=true", "report.examples=0"],
}
_OF_ALIGNMENT = (
    *("dataset.path", "dataset.pair_path", "analysis.alignment.gold.path"),
    "+analysis.alignment.baselines.x",
)


def file(draw: random.Random, stock: Stock) -> Case:
    """A file for a key: broken, of another kind than expected, with a line that is wrong; under an ending that may lie."""
    aligning = draw.random() < 0.4
    key = draw.choice(_OF_ALIGNMENT if aligning else ["dataset.path"] * 6 + [*_KEYS])
    kind, name = draw.choice([*FILES]), f"other{draw.choice(VALUES['endings'])}"
    content = FILES[kind]
    if draw.random() < 0.5 and ("frequency" in key or "alignment" in key):
        kind = "links" if aligning else "frequencies"
        good = "0-0" if aligning else "1 10 5"
        content = f"{good}\n{draw.choice(VALUES[kind])}\n{good}\n".encode("utf-8", "replace")
    if draw.random() < 0.4 and len(content) < 10_000:
        content = spoiled_bytes(draw, content)
    if draw.random() < 0.1:
        content = gzip.compress(content, mtime=0)
    options = draw.sample(VALUES["reading"], draw.choice([0, 0, 1, 2])) if key == "dataset.path" else []
    value = f"'file:{name}'" if "categories" in key else name
    if "baselines" in key:
        value = draw.choice(VALUES["of_links"]).replace("NAME", name)
    return Case(
        f"{key} is {kind} called {name} {content[:20]!r} {options}",
        [*(stock.aligning() if aligning else [*stock.common(), *_KEYS[key]]), f"{key}={value}", *options],
        [name, key.rpartition(".")[2], "dataset", "alignment", *(option.partition("=")[0] for option in options)],
        lambda folder: _write(folder / name, content),
        statuses=EITHER,
    )


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def rows(draw: random.Random, stock: Stock) -> Case:
    """A well-formed file of texts that hold odd values, or characters that break what prints, splits or draws them."""
    form = draw.choice(["values", "values", "jsonl", "txt", "report", "categories"])
    options = draw.choice([[], *([f"dataset.segmentation={name}"] for name in ("sentence", "window"))])
    if draw.random() < 0.3:
        options = [*options, "analysis=[mixing,norms,frequency,outliers,score]"]
    texts = ["A small cat.", *("".join(draw.choices(VALUES["characters"], k=draw.randint(1, 3))) for _ in range(3))]
    name = "odd.jsonl" if form in ("values", "jsonl") else "odd.txt"
    lines: Any = [{"text": text} for text in texts] if name == "odd.jsonl" else texts
    if form == "values":
        lines = [dict(row) for row in ROWS]
        lines[draw.randrange(3)][draw.choice(["text", "text_pair", "other", ""])] = draw.choice(JUNK)
        if draw.random() < 0.3:
            lines, _ = spoiled(draw, lines)
    if form == "report":
        safe = texts[1].encode("utf-8", "replace").decode().replace("\\", "\\\\").replace('"', '\\"').replace("\0", "")
        options = [*options, "report.enabled=true", "report.examples=2", f'report.text="{safe}"']
    elif form == "categories":
        options = [*options, "+dataset.categories.x=file:odd.txt"]
    if not isinstance(lines, list):
        lines = [lines]
    written = [as_json(line) if name == "odd.jsonl" else line.encode("utf-8", "replace") for line in lines]
    return Case(
        f"rows in {form} {b' '.join(written)[:60]!r}",
        [*stock.common(), "dataset=text", f"dataset.path={name}", *options],
        [name, "report.text", "categories", "dataset"],
        lambda folder: _write(folder / name, b"\n".join(written)),
        statuses=EITHER,
    )


def _columns() -> list[pa.Array]:
    damaged = pa.py_buffer(struct.pack("<3i", 0, 2, 4)), pa.py_buffer(b"\xff\xfe\xfd\xfc")
    return [
        pa.array([2**62, -(2**62)], pa.timestamp("us")),
        pa.array([2**31 - 1, -(2**31)], pa.date32()),
        pa.array([2**62, 1], pa.duration("s")),
        pa.StringArray.from_buffers(2, *damaged),
        pa.array([b"\xff", b"a"], pa.binary()),
        pa.array([[1], None], pa.list_(pa.int8())),
        pa.array([{"a": 1}, None]),
        pa.array([None, None]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([1.5, float("nan")]),
        pa.array([2**62, 1], pa.timestamp("ns", tz="Nowhere/Land")),
        pa.array([b"x" * 16, None], pa.binary(16)),
    ]


def parquet(draw: random.Random, stock: Stock) -> Case:
    """A Parquet file with odd types, some of them in columns that nobody asked for, or with a damaged footer."""
    other, texts = draw.choice(_columns()), pa.array(["A cat.", "A river."])
    columns = draw.choice(
        [{"text": texts, "other": other}, {"text": other}, {"text": texts, "text_pair": other}, {"other": other}]
    )
    options, lost = draw.choice([[], ["dataset.text_column=other"]]), draw.choice([0, 0, 0, 1, 20])

    def prepare(folder: Path) -> None:
        with contextlib.suppress(pa.ArrowException):
            pq.write_table(pa.table(columns), path := folder / "odd.parquet")
            if lost:
                content = path.read_bytes()
                path.write_bytes(content[: -8 - lost] + content[-8:])

    arguments = [*stock.common(), "dataset=text", "dataset.path=odd.parquet", *options]
    what, names = f"parquet {other.type} in {list(columns)}", ["odd.parquet", "text_column"]
    return Case(what, arguments, names, prepare, statuses=EITHER)
