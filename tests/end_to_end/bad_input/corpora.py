"""Bad files of text."""

import contextlib
import gzip
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import JUNK, as_json, spoiled, spoiled_bytes, write
from tests.end_to_end.bad_input.stock import TEXT, Stock

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
    """A Parquet file with odd types, some of them in columns that nobody asked for, or with a damaged footer."""
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
            pq.write_table(pa.table(columns), path := folder / "odd.parquet")
            if lost:
                content = path.read_bytes()
                path.write_bytes(content[: -8 - lost] + content[-8:])

    arguments = [
        *stock.common(),
        "dataset=text",
        "dataset.path=odd.parquet",
        *draw.sample(["dataset.text_column=other"], draw.choice([0, 1])),
    ]
    lost = draw.choice([0, 0, 0, 1, 20])
    return Case(
        f"parquet {other.type} in {list(columns)}", arguments, ["odd.parquet", "text_column"], prepare, statuses=EITHER
    )


def _file_case(what: str, stock: Stock, name: str, content: bytes, options: Sequence[str]) -> Case:
    arguments = [*stock.common(), "dataset=text", f"dataset.path={name}", *options]
    names = [name, *(option.partition("=")[0] for option in options)]
    return Case(what, arguments, names, lambda folder: write(folder / name, content), statuses=EITHER)
