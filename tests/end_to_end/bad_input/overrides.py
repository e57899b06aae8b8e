"""The boundary of the command: overrides that are wrong, in value, group or syntax, and environment variables."""

import dataclasses
import os
import random
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normscope.running.options import RunOptions
from tests.end_to_end.bad_input.case import EITHER, Case
from tests.end_to_end.bad_input.stock import Stock
from tests.end_to_end.bad_input.values import VALUES


def leaves() -> Iterator[tuple[str, str]]:
    """Keys of the schema on the command line, and their types."""

    def walk(kind: Any, prefix: str) -> Iterator[tuple[str, str]]:
        for name, of in typing.get_type_hints(kind).items():
            if dataclasses.is_dataclass(of):
                yield from walk(of, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", of.__name__ if isinstance(of, type) else str(of)

    yield from walk(RunOptions, "")


LEAVES = list(leaves())
STRINGS = [key for key, kind in LEAVES if "str" in kind and "dict" not in kind and "list" not in kind]
PATHS = [key for key in STRINGS if key.endswith(("path", "source")) and "live" not in key]
PATHS += ["model.name", "model.tokenizer", "output_dir", "resume", "reproduce"]


def last(key: str) -> str:
    return key.rpartition(".")[2]


def given_with(stock: Stock, key: str) -> list[str]:
    """What a key needs beside it to be looked at."""
    if key.startswith("analysis.alignment") or key == "dataset.pair_path":
        return stock.aligning()
    extra = {"dataset.path": ["dataset=text"], "dataset.delimiter": ["dataset=text", "dataset.path=a.csv"]}
    section = key.split(".")[1] if key.startswith("analysis.") and key.count(".") > 1 else "mixing"
    return [*stock.common(), f"analysis=[{section}]", *extra.get(key, [])]


def override(draw: random.Random, stock: Stock) -> Case:
    """One override that is wrong, or may be."""
    how = draw.choices(["value", "empty", "group", "syntax", "path", "category"], [9, 4, 4, 4, 6, 4])[0]
    match how:
        case "value":
            key, value = draw.choice(LEAVES)[0], draw.choice(VALUES["any"])
        case "empty":
            key, value = draw.choice([*STRINGS, "+model.pin.name", "tracking.tags"]), draw.choice(VALUES["empty"])
            value = {"dataset.delimiter": "''", "dataset.separator": "''", "tracking.tags": "['']"}.get(key, value)
        case "group":
            key, value = draw.choice(VALUES["groups"]), draw.choice(VALUES["of_groups"])
        case "path":
            key, value = draw.choice(PATHS), draw.choice(VALUES["paths"])
            if key == "output_dir" and value == "/":
                value = "/proc"  # the run would be right to write there
        case "category":
            key = f"+dataset.categories.{draw.choice(VALUES['categories'])}"
            value = draw.choice(VALUES["of_categories"])
        case _:
            word = draw.choice(VALUES["syntax"])
            return Case(f"syntax {word!r}", [*stock.common(), word], [""], statuses=EITHER)
    texts = key in ("dataset.path", "analysis.frequency.source") and value in ("*", "**", "folder", ".", "..", "/")
    surely = how == "empty" or (how == "path" and key != "output_dir" and not texts)
    typed = '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"')) if how == "path" else value
    # `enabled=false` disables the only analysis.
    others = {"value": ["analysis=[]"] if key.endswith(".enabled") else [], "group": ["analysis"]}
    return Case(
        f"{how} {key:.40}={value!r:.40}",
        [*(stock.common() if how in ("group", "category") else given_with(stock, key)), f"{key}={typed}"],
        [last(key), *others.get(how, []), *(["categories"] if how == "category" else [])],
        odd_files,
        statuses=frozenset({2}) if surely else EITHER,
        writes=value.strip("'") if key == "output_dir" else "out",
    )


def odd_files(folder: Path) -> None:
    """What is no ordinary file, or cannot be read."""
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "empty").write_bytes(b"")
    (folder / "bad").write_bytes(b"\xff\xfe\xfd")
    (folder / "zero").symlink_to("/dev/zero")
    for name in ("wide.txt", "secret"):
        (folder / name).write_text("x")
    (folder / "secret").chmod(0)


def several(draw: random.Random, stock: Stock) -> Case:
    """Several values, each of which may be fine alone, at the edge of what numbers can be."""
    numbers = [key for key, kind in LEAVES if "int" in kind or "float" in kind]
    others = [key for key, kind in LEAVES if key not in ("output_dir", "resume", "reproduce") and key not in numbers]
    chosen = [*draw.sample(numbers, 2), draw.choice(others)]
    overrides = [f"{key}={draw.choice(VALUES['edges' if key in numbers else 'words'])}" for key in chosen]
    arguments = [*stock.common(), "analysis=[mixing,norms,frequency,outliers,score]", *overrides]
    return Case(f"values {overrides}", arguments, [last(key) for key in chosen], statuses=EITHER)


def environment(draw: random.Random, stock: Stock) -> Case:
    """An environment variable that makes no sense."""
    name, value = draw.choice(VALUES["variables"]), draw.choice(VALUES["of_variables"])
    extra = {"WORLD_SIZE": draw.choice(["1", "2"])} if name == "RANK" else {}
    what, names = f"{name}={value:.30}", [name, "WORLD_SIZE"]
    return Case(what, stock.common(), names, environment=extra | {name: value}, statuses=EITHER)
