"""Measures by layer over training: maps of layers by steps."""

import pandas as pd

from normscope.reporting.comparison.run_comparison import ends_of_scale
from normscope.reporting.figure_text import step_label
from normscope.reporting.page.sections import Measure
from normscope.results.figures import Heatmaps
from normscope.results.measures import Family, families

_MOST = 5
"""Maps of layers by steps that are legible next to each other."""

_CAPTION = "The columns are training steps, whose distances differ."


def maps_over_steps(training: pd.DataFrame) -> list[Measure]:
    """Maps for each family of curves, with a row of maps for each training if there are several.

    Args:
        training: Means over seeds at every training step; see `over_training`.
    """
    layers = training[training["layer"] > 0]
    return [
        Measure(_grids(own, family), family.title, own.rename(columns=family.titles()))
        for family in families(map(str, layers["metric"].unique()), together=True)
        for own in [_table(layers, family)]
    ]


def _table(layers: pd.DataFrame, family: Family) -> pd.DataFrame:
    """A row per training, layer and step, and a column per panel."""
    table = layers.pivot(index=["group", "layer", "step"], columns="metric", values="mean")[list(family.panels)]
    factors = {name: panel.factor for name, panel in family.panels.items()}
    return table.mul(pd.Series(factors)).rename_axis(columns=None).dropna(how="all").reset_index()


def _grids(table: pd.DataFrame, family: Family) -> list[Heatmaps]:
    """The maps of all panels, on one scale if all measure the same."""
    titles = list(family.titles().items())
    low, high = ends_of_scale(table[list(family.panels)])
    table = table.sort_values("step", kind="stable").assign(step=_labels(table["step"]))
    return [
        Heatmaps(
            table,
            dict(titles[start : start + _MOST]),
            "layer",
            "step",
            f"{family.meaning or f'{family.title}.'} {_CAPTION}",
            "group" if table["group"].nunique() > 1 else None,
            diverging=low < 0,
            limits=(low, high) if family.label else None,
            value_label=family.label,
        )
        for start in range(0, len(titles), _MOST)
    ]


def _labels(steps: "pd.Series[int]") -> "pd.Series[str]":
    """Short labels, unless two steps would share one."""
    labels = steps.map(step_label)
    return labels if labels.nunique() == steps.nunique() else steps.astype(str)
