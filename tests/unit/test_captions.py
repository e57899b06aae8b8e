"""Captions name only what a figure shows."""

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.score import describe_figures as figures_of_scores
from normscope.analyses.sinks import describe_figures as figures_of_sinks


@pytest.mark.parametrize(
    ("inputs", "listed"),
    [
        (["text"], "on text."),
        (["text", "repeat"], "on text and one token repeated."),
        (["text", "random", "repeat"], "on text, random tokens and one token repeated."),
    ],
)
def test_sink_rates_of_the_chosen_inputs(inputs, listed):
    rows = [(name, False, 1, 1, "first", 0.5, 0.25, 0.1) for name in inputs]
    columns = ["inputs", "bos", "layer", "head", "position", "sink_rate", "mass", "contribution"]
    largest = pd.Series([1.0], index=pd.RangeIndex(1, name="layer"))
    figure = figures_of_sinks(pd.DataFrame(rows, columns=columns), largest, None, 0.3)["rate"]
    assert f"of what the head contributes: {listed} Where" in figure.caption


@pytest.mark.parametrize("controls", [0.25, np.nan])
def test_controls_are_drawn_and_described_if_there_are_any(controls):
    removed = {"removed": "outliers", "category": "cls", "layer": 1, "before": 0.5, "after": 0.25}
    row = removed | {f"controls_{end}": controls for end in ("mean", "low", "high")}
    contributions = pd.DataFrame(columns=["layer", "head", "category", "dimension", "mean"], dtype=float)
    tables = {"contributions": contributions, "intervention": pd.DataFrame([row])}
    lines = ["before", "after"]
    expected = lines if np.isnan(controls) else [*lines, "controls"]
    figure = figures_of_scores(tables, [0])["intervention"]
    assert list(figure.series_titles) == expected
    assert list(dict.fromkeys(figure.table["line"])) == expected
    assert ("random" in figure.caption) == ("controls" in expected)
    assert figure.table["alpha"].notna().all()
