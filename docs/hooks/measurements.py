"""Tables of measurements on the pages: a page says `<!-- shapes -->` where the table of what `make bench` wrote belongs, and
`<!-- machine of shapes -->` where the machine belongs that it was measured on.
"""

import contextlib
import csv
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.answers import INTEGRATED_GRADIENTS
from benchmarks.answers import WAYS as PREDICTED
from benchmarks.commands import PHASES as COMMAND_PHASES
from benchmarks.commands import TOGETHER
from docs.hooks import tables_in_parts
from docs.hooks.markdown import ROOT, table
from normscope.analyses.attribution.published import METHODS

MEASURED = ROOT / "benchmarks" / "measured"

FOUR = "mixing+norms+outliers+score"
WAYS = {
    "outliers+score": "outliers and score",
    "mixing+norms+frequency+outliers+score": "all five",
    "straightforward": "mixing, straightforward",
    "feedforward": "feedforward (whole layers)",
}
"""What the measurements call combinations of analyses, in words."""


PHASES = ("to_first_batch", "pass", "after_last_batch", "whole")


def with_tables(page: str) -> str:
    """A page in Markdown, with the tables and the machines that it asks for."""
    return _MARKER.sub(lambda found: TABLES[found[1]](), _MACHINE.sub(lambda found: _machine(found[1]), page))


def _machine(suite: str) -> str:
    """The machine of a suite, or the machines."""
    if not (MEASURED / f"{suite}.csv").exists():
        return "no machine yet"
    return "; ".join(dict.fromkeys(str(row["machine"]) for row in _rows(suite)))


def _rows(suite: str) -> list[dict[str, Any]]:
    with (MEASURED / f"{suite}.csv").open(newline="") as file:
        return [{name: _number(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _tokens(row: dict[str, Any]) -> str:
    return f"{row['sequences']} × {row['length']:,}"


def _shapes() -> str:
    rows = [
        (
            row["shape"],
            _tokens(row),
            WAYS.get(row["way"], row["way"]),
            f"{row['time_ratio']:.2f}",
            f"{row['memory_ratio']:.2f}",
        )
        for row in [
            *_rows("shapes"),
            *(row for row in _rows("feed-forward") if row["way"] == "feedforward"),
            *_rows("sinks"),
        ]
        if row["way"] != "bare"
    ]
    return table(("shapes", "batch", "analyses", "time / bare", "memory / bare"), rows)


def _shares() -> str:
    rows = [
        (row["shape"], _tokens(row), row["way"], f"{row['time_ratio']:.3f}")
        for row in _rows("shares")
        if "no shares" not in row["way"]
    ]
    return table(("shapes", "batch", "analyses", "time / without shares"), rows)


def _lengths() -> str:
    rows = []
    for (shape, tokens), same in itertools.groupby(_rows("lengths"), key=lambda row: (row["shape"], _tokens(row))):
        by_way = {row["way"]: row for row in same}
        times = [f"{by_way[way]['time_ratio']:.2f}" for way in ("mixing", "norms", "outliers", FOUR)]
        memory = [f"{by_way[way]['memory_ratio']:.2f}" for way in ("mixing", FOUR)]
        rows.append((shape, tokens, *times, *memory))
    header = (
        "shapes",
        "tokens",
        "mixing, time / bare",
        "norms",
        "outliers",
        "all four",
        "memory / bare, mixing",
        "all four",
    )
    return table(header, rows)


def _startup() -> str:
    rows = [
        (row["way"], *(f"{row[name]:.1f}" if row[name] != "" else "" for name in PHASES)) for row in _rows("startup")
    ]
    return table(("seconds", "to the first batch", "pass", "after the last batch", "whole"), rows)


def _corpora() -> str:
    rows = [
        (
            str(row["processes"]),
            f"{row['sentences']:,}",
            f"{row['seconds']:.0f}",
            row["seconds_per_thousand"] and f"{row['seconds_per_thousand']:.2f}",
            f"{row['mebibytes']:,}",
        )
        for row in _rows("corpora")
    ]
    return table(("processes", "examples", "seconds", "seconds per thousand", "peak MiB of a process"), rows)


def _commands() -> str:
    """Commands by model and number of examples: seconds, and what their phases cost relative to a bare pass."""
    if not (MEASURED / "commands.csv").exists():
        return tables_in_parts.NOT_RECORDED
    columns = ("ratio", *(f"{phase}_ratio" for phase in COMMAND_PHASES))
    rows = [
        (
            row["shape"],
            f"{row['examples']:,}",
            "all eight" if row["way"] == TOGETHER else row["way"],
            f"{row['seconds']:.0f}",
            f"{row['bare_pass']:.1f}",
            *(f"{row[column]:.2f}" for column in columns),
        )
        for row in _rows("commands")
    ]
    header = ("model", "examples", "analysis", "seconds", "bare pass, seconds", "all phases / bare", *COMMAND_PHASES)
    picture = "\n![The phases of commands as multiples of the bare pass](../images/commands.png)\n"
    return table(header, rows) + (picture if (ROOT / "docs" / "images" / "commands.png").exists() else "")


def _live() -> str:
    rows = [(row["where"], row["step"], f"{row['milliseconds']:.0f}", f"{row['slowest']:.0f}") for row in _rows("live")]
    return table(("where", "step", "milliseconds, median of 20", "slowest"), rows)


def _similarity() -> str:
    rows = [
        (
            row["pairs"],
            f"{row['tokens']:,}",
            f"{row['embedding_seconds']:.1f}",
            f"{row['sums_seconds']:.1f}",
            f"{row['time_ratio']:.1f}",
        )
        for row in _rows("similarity")
    ]
    return table(("pairs of texts", "tokens", "embedding, seconds", "sums, seconds", "ratio"), rows)


def _attributions() -> str:
    """What a language model predicts: one column per model and length, as multiples of the bare pass."""
    ways = (*PREDICTED, INTEGRATED_GRADIENTS)
    rows = [row for row in _rows("attributions") if row["way"] in ways and row["time_ratio"] != ""]
    columns = sorted({(row["shape"], row["length"]) for row in rows}, key=lambda column: (column[1], column[0]))
    ratios = {(row["way"], row["shape"], row["length"]): f"{row['time_ratio']:.1f}" for row in rows}
    header = ("", *(f"{shape.removesuffix(', base')}, {length:,}" for shape, length in columns))
    return table(header, [(way, *(ratios.get((way, *column), "") for column in columns)) for way in ways])


def _truth(task: str, names: dict[str, str]) -> str:
    """How well each method finds the words that decide an answer."""
    rows = [(METHODS[row["way"]], *(f"{row[name]:.3f}" for name in names)) for row in _rows(task)]
    return table(("method", *names.values()), rows)


def _retrieval() -> str:
    return _truth("retrieval", {"precision": "precision at 2", "first": "highest is right"})


def _agreement() -> str:
    return _truth("agreement", {"first": "subject scores highest"})


def _parted(suite: str, shown: Callable[[Sequence[dict[str, Any]]], str]) -> str:
    """The table of a suite that is measured in parts, with what has been measured so far."""
    return shown(_rows(suite)) if (MEASURED / f"{suite}.csv").exists() else tables_in_parts.NOT_RECORDED


TABLES: dict[str, Callable[[], str]] = {
    "shapes": _shapes,
    "shares": _shares,
    "lengths": _lengths,
    "startup": _startup,
    "corpora": _corpora,
    "commands": _commands,
    "live": _live,
    "similarity": _similarity,
    "attributions": _attributions,
    "retrieval": _retrieval,
    "agreement": _agreement,
    "peers": lambda: _parted("peers", tables_in_parts.peers),
    "growth": lambda: _parted("growth", tables_in_parts.growth),
    "plan": lambda: _parted("growth", tables_in_parts.plan),
}
"""The table of each marker."""

_MARKER = re.compile(rf"<!-- ({'|'.join(TABLES)}) -->")
_MACHINE = re.compile(r"<!-- machine of ([\w-]+) -->")
