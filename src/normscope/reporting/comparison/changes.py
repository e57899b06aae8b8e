"""Which curves and maps of runs differ at all: a picture in which nothing changes says nothing."""

from collections.abc import Collection, Iterable

import pandas as pd

from normscope.reporting.comparison.effects import natural_range
from normscope.reporting.comparison.significance import over_seeds
from normscope.results.codes import bracketed, category_name, panel_title
from normscope.results.declare import unitless
from normscope.results.measures import Family, families, heading, panel_of
from normscope.rounding import enumeration

UNSEEN = 0.02
"""The part of a measure's natural range by which curves differ that a reader still sees as one: about the width of a line."""

_CELLS = ["figure", "value_title", "panel"]


def unchanged_curves(values: pd.DataFrame) -> list[str]:
    """The measures whose curves by layer are the same in all groups of runs, up to what seeds and a reader's eye tell apart.

    A curve differs in a layer where the intervals of two groups over their seeds have nothing in common, and their means
    are further apart than a line is wide. Models of different depth have no layers in common, so all of theirs differ, as do
    curves that only one group has.

    Args:
        values: The `values` of a comparison.
    """
    layers = values[values["layer"] > 0]
    if layers["group"].nunique() < 2 or (layers["layer"] / layers["depth"]).round().nunique() > 1:
        return []
    rows = over_seeds(layers, ["group", "metric", "layer"])
    rows = rows[rows.groupby("metric")["group"].transform("nunique") > 1]
    ends = rows.assign(low=rows["low"].fillna(rows["mean"]), high=rows["high"].fillna(rows["mean"]))
    at = ends.groupby(["metric", "layer"], sort=False)
    apart = at["low"].max() > at["high"].min()
    spread = (at["mean"].max() - at["mean"].min()).where(apart, 0.0)
    return _still(spread.groupby("metric", sort=False).max(), rows.groupby("metric")["mean"].agg(_reach))


def unchanged_over_steps(training: pd.DataFrame) -> list[str]:
    """The measures that no training moves, in the whole model or in a layer, by more than a line is wide.

    Args:
        training: Means over seeds at every training step; see `along.over_training`.
    """
    along = training.groupby(["metric", "group", "layer"], sort=False)["mean"]
    spread = (along.max() - along.min()).groupby("metric", sort=False).max()
    return _still(spread, training.groupby("metric")["mean"].agg(_reach))


def _reach(values: "pd.Series[float]") -> float:
    return float(values.abs().max())


def _still(spread: "pd.Series[float]", reach: "pd.Series[float]") -> list[str]:
    """The metrics whose spread is less than can be seen in their range."""
    panels = {str(metric): panel_of(str(metric)) for metric in spread.index}
    return [
        metric
        for metric, panel in panels.items()
        if panel.factor * spread[metric] < UNSEEN * natural_range(panel.label, panel.factor * reach[metric])
        or spread[metric] == 0
    ]


def changed_maps(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells of heat maps without the panels that look alike in all groups of runs; see `map_figures.maps_of_groups`.

    Maps of one group, or of models of different depth, stay as they are.
    """
    if cells["group"].nunique() < 2 or cells["depth"].nunique() > 1:
        return cells
    at = cells.groupby([*_CELLS, "row", "column"], dropna=False)["value"]
    spread = (at.max() - at.min()).groupby(_CELLS, dropna=False).max().rename("spread").reset_index()
    groups = cells.groupby(_CELLS, dropna=False)["group"].nunique().rename("groups").reset_index()
    reach = cells.groupby(_CELLS[:2])["value"].agg(_reach).rename("reach").reset_index()
    panels = spread.merge(groups, on=_CELLS).merge(reach, on=_CELLS[:2])
    enough = [
        UNSEEN * natural_range(label, reach)
        for label, reach in zip(panels["value_title"], panels["reach"], strict=True)
    ]
    changed = panels[(panels["groups"] < 2) | ((panels["spread"] > 0) & (panels["spread"] >= enough))]
    return cells[pd.MultiIndex.from_frame(cells[_CELLS]).isin(pd.MultiIndex.from_frame(changed[_CELLS]))]


def in_one_line(metrics: Collection[str], *, every: Iterable[str]) -> list[str]:
    """Which measures are not drawn, in a line: `Not drawn, since nothing changes: Mixing ratios (attention weights, Attn-W).`

    No line if all change.

    Args:
        metrics: Those that do not change.
        every: All measures that could be drawn. A family that does not change at all is named without its members.
    """
    parts = [
        family.title if len(still) == len(family.panels) else f"{family.title} {bracketed(_members(family, still))}"
        for family in families(every, together=True)
        if (still := [name for name in family.panels if name in metrics])
    ]
    return _line(parts)


def _members(family: Family, names: Iterable[str]) -> str:
    return ", ".join(category_name(family.titles()[name] or unitless(family.label)) for name in names)


def maps_in_one_line(every: pd.DataFrame, drawn: pd.DataFrame) -> list[str]:
    """Which heat maps are not drawn, in a line; none if all change.

    Args:
        every: The cells of all heat maps.
        drawn: Those that `changed_maps` has left.
    """
    kept = {*zip(*(drawn[name] for name in _CELLS), strict=True)}
    parts = []
    for (figure, label), own in every.groupby(_CELLS[:2], sort=False):
        panels = list(own["panel"].unique())
        still = [panel_title(str(panel)) for panel in panels if (figure, label, panel) not in kept]
        title = heading(str(figure).partition("/")[0], unitless(str(label)))
        if still:
            parts.append(title if len(still) == len(panels) else f"{title} {bracketed(enumeration(still))}")
    return _line(parts)


def _line(parts: Iterable[str]) -> list[str]:
    named = list(dict.fromkeys(parts))
    return [f"Not drawn, since nothing changes: {'; '.join(named)}."] if named else []
