"""Bad pickles and files of token frequencies."""

import json
import pickle
import random
from typing import Any

from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.spoil import JUNK, spoiled_bytes, write
from tests.end_to_end.bad_input.stock import Stock

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
        lambda folder: write(folder / "a.pkl", content),
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
        lambda folder: write(folder / name, content),
        statuses=EITHER,
    )
