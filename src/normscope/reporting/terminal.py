"""Terminal output: messages and progress on stderr, summary tables on stdout."""

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

import pandas as pd
from tqdm import tqdm

from normscope.reporting.published import Comparison

T = TypeVar("T")

# When stderr is not a terminal, every update of a progress bar adds a line to the log.
_SECONDS_BETWEEN_LINES = 30.0


def say(*sentences: str) -> None:
    """Print one line to stderr, above any progress bar."""
    tqdm.write(", ".join(sentences), file=sys.stderr)


def progress_bar(total: int | None) -> "tqdm[Any]":
    """A progress bar over a corpus, whose number of examples may be unknown."""
    return tqdm(total=total, unit=" examples", **_style())


def steps_bar(steps: Iterable[T], total: int, what: str) -> Iterable[T]:
    """Iterate over steps with a labelled progress bar."""
    return tqdm(steps, total=total, desc=what, **_style())


def _style() -> dict[str, Any]:
    in_log = not sys.stderr.isatty()
    return {
        "file": sys.stderr,
        "dynamic_ncols": not in_log,
        "ascii": True if in_log else None,
        "mininterval": _SECONDS_BETWEEN_LINES if in_log else 0.1,
    }


def show_comparison(comparison: Comparison) -> None:
    """Print measured beside published numbers, or why they cannot be compared."""
    if comparison.refusal:
        say(comparison.refusal)
        return
    for source, rows in comparison.table.groupby("source", sort=False):
        within = int(rows["within"].sum())
        title = f"{source}: {within} of {len(rows)} within {rows['tolerance'].iloc[0]:g}"
        show_table(title, rows.set_index("metric")[["value", "published", "difference", "within"]], 4)


def show_table(title: str, table: pd.DataFrame, digits: int) -> None:
    """Print the summary table of one analysis."""
    text = table.to_string(float_format=lambda value: f"{value:.{digits}f}", na_rep="")
    print(f"\n{title}\n{text}\n", flush=True)
