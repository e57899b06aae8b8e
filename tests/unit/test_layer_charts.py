"""Curves become one chart for each measure, whatever analysis they are of."""

import pandas as pd
import pytest

from normscope.analyses.registry import analyses
from normscope.reporting.layer_charts import layer_charts

VALUES = pd.Series({1: 0.25, 2: 0.5})


def test_methods_and_categories_are_lines():
    names = ["mixing/attn_w/mean", "mixing/attn_n/mean", "mixing/attn_n/share", "norms/alpha/cls", "norms/expansion"]
    charts = layer_charts(dict.fromkeys(names, VALUES))
    assert {chart.name: list(chart.lines) for chart in charts} == {
        "mixing/mean": ["Attn-W: weights", "Attn-N: vectors"],
        "mixing/share": ["Attn-N: vectors"],
        "norms/alpha": ["[CLS]"],
        "norms/expansion": ["expansion rate"],
    }
    assert [chart.analysis for chart in charts] == ["mixing", "mixing", "norms", "norms"]
    assert charts[0].lines["Attn-N: vectors"].to_dict() == {1: 25.0, 2: 50.0}, "in per cent, as the label says"
    assert charts[2].lines["[CLS]"].to_dict() == VALUES.to_dict()


def test_several_axes_are_one_line_each():
    (chart,) = layer_charts({"sinks/text/with_bos/sink_rate/first": VALUES})
    assert chart.name == "sinks/sink_rate"
    assert len(chart.lines) == 1


def test_curves_that_nobody_declares_are_charts_of_their_own():
    charts = layer_charts({"theirs/length": VALUES, "theirs/width": VALUES})
    assert [(chart.name, list(chart.lines)) for chart in charts] == [
        ("theirs/length", ["length"]),
        ("theirs/width", ["width"]),
    ]


@pytest.mark.parametrize("analysis", analyses())
def test_every_declared_curve_has_a_chart_with_a_name_of_its_own(analysis):
    """No two measures of an analysis share a chart."""
    declared = analyses()[analysis].published.curves
    filled = {rollup.name: rollup.filled(dict.fromkeys(rollup.placeholders, "x")) for rollup in declared}
    charts = layer_charts({f"{analysis}/{name}": VALUES for name in filled.values()})
    assert len(charts) == len(declared)
    assert all("<" not in chart.name and "//" not in chart.name for chart in charts)
