"""Where groups of runs are furthest apart: in which layer, and in which head or category of tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.results.codes import category_name
from normscope.results.declare import is_percentage
from normscope.results.measures import panel_of
from normscope.rounding import brief, brief_share

ROUNDING = 1e-6
"""Relative differences that rounding in single precision can cause."""

_LAYER, CELL = ["layer", "depth"], ["depth", "figure", "panel", "row_title", "row", "column_title", "column"]
"""What tells the points of a curve apart, and the cells of heat maps."""


class Place(NamedTuple):
    """A layer, or a cell of a heat map, of two groups of runs."""

    where: str
    """In words: `layer 3, [SEP]`."""
    own: float
    """The value of the group."""
    other: float
    """That of the baseline."""


def common(values: pd.DataFrame, place: Sequence[str], group: str, baseline: str) -> pd.DataFrame:
    """The means of two groups side by side, wherever both have one: `own` and `other`."""
    sides = [
        values[values["group"] == name].groupby(list(place), sort=False, dropna=False)["value"].mean()
        for name in (group, baseline)
    ]
    return pd.concat(sides, axis=1, keys=["own", "other"]).dropna()


def relative(pairs: pd.DataFrame) -> "pd.Series[float]":
    """Differences as parts of the larger value."""
    return (pairs["own"] - pairs["other"]).abs() / pairs.abs().max(axis=1).clip(lower=1e-12)


def in_words(metric: str, value: float, *beside: float, signed: bool = False) -> str:
    """A value in a sentence that compares it with others."""
    return (brief_share if is_percentage(panel_of(metric).label) else brief)(value, *beside, signed=signed)


def cell_in_words(cell: "pd.Series[str]") -> str:
    """A cell of a heat map: `layer 3, [SEP]`."""
    return ", ".join(_place(str(cell[f"{axis}_title"]), str(cell[axis])) for axis in ("row", "column"))


def furthest(comparison: RunComparison, group: str, baseline: str, metric: str) -> Place | None:
    """Where two groups are furthest apart in a measure.

    It is a cell of the heat maps that show the measure, or else a layer of its curve. None if it has neither, or if the
    models differ in depth, whose layers are others.
    """
    panel, cells = panel_of(metric), comparison.heatmaps
    own = cells["figure"].astype(str).str.startswith(f"{metric.partition('/')[0]}/")
    shown = cells[own & (cells["value_title"] == panel.label)]
    if (shown["panel"] == panel.title).any():
        shown = shown[shown["panel"] == panel.title]
    pairs = common(shown, CELL, group, baseline) / panel.factor
    if pairs.empty:
        curve = comparison.values[(comparison.values["metric"] == metric) & (comparison.values["layer"] > 0)]
        pairs = common(curve, _LAYER, group, baseline)
    if pairs.empty or not (relative(pairs) > ROUNDING).any():
        return None
    place = int((pairs["own"] - pairs["other"]).abs().to_numpy().argmax())
    at = pairs.reset_index().iloc[place]
    where = cell_in_words(at) if "row" in at else f"layer {int(at['layer'])}"
    return Place(where, float(at["own"]), float(at["other"]))


def _place(title: str, value: str) -> str:
    return (category_name(value) if value != "all" else "all tokens") if title == "category" else f"{title} {value}"
