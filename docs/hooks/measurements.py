"""The page of costs, with its tables from the measurements of `make bench`."""

from typing import Any

import pandas as pd

from docs.hooks.markdown import ROOT, table

MEASURED = ROOT / "benchmarks" / "measured"

FOUR = "mixing+norms+outliers+score"
WAYS = {
    "norms, exact": "norms, every pair kept",
    "outliers+score": "outliers and score",
    "mixing+norms+frequency+outliers+score": "all five",
    "straightforward": "mixing, straightforward",
}
"""What the measurements call combinations of analyses, in words."""


def page() -> str:
    """The page in Markdown."""
    text = (ROOT / "docs" / "guides" / "cost.md").read_text()
    for marker, content in (("shapes", _shapes()), ("lengths", _lengths()), ("corpora", _corpora())):
        text = text.replace(f"<!-- {marker} -->", content)
    return text


def _read(suite: str) -> pd.DataFrame:
    return pd.read_csv(MEASURED / f"{suite}.csv")


def _tokens(row: Any) -> str:
    return f"{row.sequences} × {row.length:,}"


def _shapes() -> str:
    rows = [
        (
            row.shape,
            _tokens(row),
            WAYS.get(str(row.way), str(row.way)),
            f"{row.time_ratio:.2f}",
            f"{row.memory_ratio:.2f}",
        )
        for row in _read("shapes").itertuples()
        if row.way != "bare"
    ]
    return table(("shapes", "batch", "analyses", "time / bare", "memory / bare"), rows)


def _lengths() -> str:
    rows = []
    for _, same in _read("lengths").groupby(["shape", "sequences", "length"], sort=False):
        first = next(same.itertuples())
        by_way = same.set_index("way")
        times = [f"{by_way.loc[way, 'time_ratio']:.2f}" for way in ("mixing", "norms", "outliers", FOUR)]
        memory = [f"{by_way.loc[way, 'memory_ratio']:.2f}" for way in ("mixing", FOUR)]
        rows.append((str(first.shape), _tokens(first), *times, *memory))
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


def _corpora() -> str:
    rows = [
        (
            str(row.processes),
            f"{row.sentences:,}",
            f"{row.seconds:.0f}",
            "" if pd.isna(row.seconds_per_thousand) else f"{row.seconds_per_thousand:.2f}",
            f"{row.mebibytes:,}",
        )
        for row in _read("corpora").itertuples()
    ]
    return table(("processes", "examples", "seconds", "seconds per thousand", "peak MiB of a process"), rows)
