"""Curves of groups of runs, by layer or by training step: a figure for each family of measures."""

import pandas as pd

from normscope.reporting.comparison.significance import is_extreme, over_seeds
from normscope.reporting.page.sections import Measure
from normscope.results.figures import Lines
from normscope.results.measures import Family, families

_FLATTEST = 5
"""Panels share an axis unless the curves of one reach less than this part of the furthest."""

_AXES = {"layer": "layer", "depth": "relative depth", "step": "training step"}


def by_layer(values: pd.DataFrame) -> list[Measure]:
    """Curves by layer, or by relative depth if the models differ in depth. Runs that differ only in their seeds are one line.

    Args:
        values: The `values` of a comparison.
    """
    layers = values[values["layer"] > 0]
    rows = over_seeds(layers, ["group", "metric", "layer", "depth"])
    differ = (layers["layer"] / layers["depth"]).round().nunique() > 1
    return _by_family(rows, "depth" if differ else "layer")


def over_steps(training: pd.DataFrame) -> list[Measure]:
    """Metrics of whole models over training steps, apart from minima and maxima.

    Args:
        training: Means over seeds at every training step; see `over_training`.
    """
    return _by_family(training[(training["layer"] == 0) & ~training["metric"].map(is_extreme).astype(bool)], "step")


def _by_family(rows: pd.DataFrame, x: str) -> list[Measure]:
    """A figure for each family.

    Args:
        rows: group, metric, mean, low and high (missing for one run), and what lies along x.
        x: `layer`, `depth` or `step`.
    """
    return [
        Measure([figure], family.title, _values(figure, x))
        for family in families(map(str, rows["metric"].unique()), together=True)
        for figure in [_lines(rows, family, x)]
    ]


def _lines(rows: pd.DataFrame, family: Family, x: str) -> Lines:
    own = rows[rows["metric"].isin(list(family.panels))]
    factors = own["metric"].map({name: panel.factor for name, panel in family.panels.items()}).astype(float)
    own = own.assign(**{name: own[name].astype(float) * factors for name in ("mean", "low", "high")})
    reach = own["mean"].abs().groupby(own["metric"]).max()
    single = len(family.panels) == 1 and bool(family.label)
    return Lines(
        own,
        x,
        "mean",
        "group",
        family.meaning or f"{family.title}, by {_AXES[x]}.",
        family.label,
        series_titles={name: name for name in own["group"].unique()},
        panel=None if single else "metric",
        panel_titles=None if single else family.titles(),
        sharey=bool(family.label) and bool(reach.min() >= reach.max() / _FLATTEST),
        band=("low", "high"),
        x_label=_AXES[x],
        steps=x == "step",
    )


def _values(figure: Lines, x: str) -> pd.DataFrame:
    titles = figure.panel_titles or {}
    columns = {"measure": figure.table["metric"].map(lambda name: titles.get(name, figure.y_label))}
    places = ["layer", "depth"] if x == "depth" else [x]
    columns |= {name: figure.table[name] for name in ("group", *places, "mean", "low", "high")}
    return pd.DataFrame(columns).dropna(axis="columns", how="all")
