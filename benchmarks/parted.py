"""Suites that are measured in parts, each of which replaces its own rows of the file: peers and growth."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from benchmarks import growth, peer_tasks, peers
from benchmarks.results import machine, show, with_rows


class Asked(NamedTuple):
    """What was asked for on the command line."""

    parts: Sequence[str]
    repeats: int
    sizes: growth.Sizes


class Suite(NamedTuple):
    """A suite that is measured in parts."""

    parts: Sequence[str]
    """All of them."""
    cell: Sequence[str]
    """The columns that say what a row is about."""
    measured: Callable[[Asked], Iterable[dict[str, object]]]


SUITES: Mapping[str, Suite] = {
    "peers": Suite(tuple(peer_tasks.TASKS), peers.CELL, lambda asked: peers.measured_peers(asked.parts, asked.repeats)),
    "growth": Suite(tuple(growth.PARTS), growth.CELL, lambda asked: growth.measured_growth(asked.parts, asked.sizes)),
}
PARTS = tuple(dict.fromkeys(part for suite in SUITES.values() for part in suite.parts))


def measure(suite: str, parts: Sequence[str] | None, repeats: int, sizes: growth.Sizes, folder: Path) -> None:
    """Measure parts of a suite, and print and write each row as soon as it is known.

    Args:
        suite: One of SUITES.
        parts: Some of its parts; all by default.
        repeats: See `measured_peers`.
        sizes: See `measured_growth`.
        folder: Output folder, created if missing.
    """
    known = SUITES[suite].parts
    chosen = [part for part in known if parts is None or part in parts]
    for row in SUITES[suite].measured(Asked(chosen, repeats, sizes)):
        show([row])
        table = add(folder / f"{suite}.csv", row | {"machine": machine()}, SUITES[suite].cell)
        if suite == "growth":
            growth.draw(table, folder / "growth.png")


def add(path: Path, row: Mapping[str, object], cell: Sequence[str]) -> pd.DataFrame:
    """Write a row to a file, in place of an earlier one about the same.

    Args:
        path: The file, created if missing.
        row: The row.
        cell: The columns that say what it is about.

    Returns:
        All rows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    table = with_rows(path, pd.DataFrame([row]), cell).convert_dtypes()  # counts stay whole numbers next to empty cells
    table.to_csv(path, index=False)
    return table
