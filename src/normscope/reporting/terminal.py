"""What the user sees while a run goes and when it ends. Talk goes to stderr, the closing table to stdout."""

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

import pandas as pd
from tqdm import tqdm

from normscope.reporting.published import Comparison

T = TypeVar("T")

# A bar in a log file is a line every now and then, not a thousand.
_SECONDS_BETWEEN_LINES = 30.0


def say(*sentences: str) -> None:
    """One line to the user, above any progress bar."""
    tqdm.write(", ".join(sentences), file=sys.stderr)


def progress_bar(total: int | None) -> "tqdm[Any]":
    """A bar over the examples of a corpus, of known or unknown number."""
    return tqdm(total=total, unit=" examples", **_style())


def steps_bar(steps: Iterable[T], total: int, what: str) -> Iterable[T]:
    """The steps of something that takes a while, with a bar that names it."""
    return tqdm(steps, total=total, desc=what, **_style())


def _style() -> dict[str, Any]:
    quiet = not sys.stderr.isatty()
    return {
        "file": sys.stderr,
        "dynamic_ncols": not quiet,
        "ascii": True if quiet else None,
        "mininterval": _SECONDS_BETWEEN_LINES if quiet else 0.1,
    }


def show_comparison(comparison: Comparison) -> None:
    """Measured and published numbers, or why they are not compared."""
    if comparison.refusal:
        say(comparison.refusal)
        return
    for source, rows in comparison.table.groupby("source", sort=False):
        within = int(rows["within"].sum())
        title = f"{source}: {within} of {len(rows)} within {rows['tolerance'].iloc[0]:g}"
        show_table(title, rows.set_index("metric")[["value", "published", "difference", "within"]], 4)


def show_table(title: str, table: pd.DataFrame, digits: int) -> None:
    """The few numbers of one analysis."""
    text = table.to_string(float_format=lambda value: f"{value:.{digits}f}", na_rep="")
    print(f"\n{title}\n{text}\n", flush=True)
