"""Curves as charts that a person would draw: one for each measure, with layers across and methods or categories as lines."""

import dataclasses
from collections.abc import Mapping

import pandas as pd

from normscope.analyses.registry import analyses
from normscope.results.declare import Published, Rollup


@dataclasses.dataclass
class LayerChart:
    """The curves of one measure."""

    analysis: str
    name: str
    """`mixing/share`: the curves' names without what tells them apart."""
    title: str
    lines: "dict[str, pd.Series[float]]" = dataclasses.field(default_factory=dict)
    """Values by layer, by the title of the line; in per cent if the title of the chart says so."""

    @property
    def key(self) -> str:
        """`mixing/share by layer`: a tracker has a section for what its keys begin with."""
        return f"{self.name} by layer"


def layer_charts(curves: "Mapping[str, pd.Series[float]]") -> list[LayerChart]:
    """The charts of all curves, in the order in which their analyses declare them.

    Args:
        curves: Values by layer, by full name. Those that an analysis does not declare, as those of other packages' analyses may
            be, are charts of their own.
    """
    charts: dict[str, LayerChart] = {}
    for full, values in curves.items():
        analysis, _, name = full.partition("/")
        info = analyses().get(analysis)
        published = Published() if info is None else info.published
        rollup, _ = published.curve(name) or (Rollup(name, ""), {})
        panel = published.panel(name)
        key, title = f"{analysis}/{rollup.plain_name}", analysis if info is None else info.title
        chart = charts.setdefault(key, LayerChart(analysis, key, f"{title}: {panel.label or panel.title}"))
        chart.lines[panel.title or panel.words] = panel.factor * values
    return list(charts.values())


def figure_key(analysis: str, figure: str) -> str:
    """`mixing/heatmap figure` for `mixing_heatmap`. No number has such a name."""
    return f"{analysis}/{figure.removeprefix(f'{analysis}_').replace('_', ' ')} figure"
