"""Captions name only what a figure shows."""

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.score.figures import describe_figures as figures_of_scores
from normscope.analyses.sinks.figures import describe_figures as figures_of_sinks


@pytest.mark.parametrize(
    ("inputs", "listed"),
    [
        (["text"], "on text."),
        (["text", "repeat"], "on text and one token repeated."),
        (["text", "random", "repeat"], "on text, random tokens and one token repeated."),
    ],
)
def test_sink_rates_of_the_chosen_inputs(inputs, listed):
    rows = [(name, False, 1, 1, "first", 0.5, 0.25) for name in inputs]
    by_head = pd.DataFrame(rows, columns=["inputs", "bos", "layer", "head", "position", "sink_rate", "received"])
    tables = {
        "by_head": by_head,
        "norms": pd.DataFrame({"layer": [0], "position": ["1"], "norm": [1.0]}),
    }
    assert figures_of_sinks(tables, "first", None, 0.3)["rate"].caption.endswith(f"on average: {listed}")


@pytest.mark.parametrize("controls", [0.25, np.nan])
def test_controls_are_drawn_and_described_if_there_are_any(controls):
    removed = {"removed": "outliers", "category": "cls", "layer": 1, "before": 0.5, "after": 0.25}
    row = removed | {f"controls_{end}": controls for end in ("mean", "low", "high")}
    contributions = pd.DataFrame(columns=["layer", "head", "category", "dimension", "mean"], dtype=float)
    concentration = {"layer": 1, "head": 1, "half": 1.0, "ninety": 2.0, "outliers": 0.1, "key_bias": 0.0}
    tables = {
        "contributions": contributions,
        "concentration": pd.DataFrame([concentration]),
        "intervention": pd.DataFrame([row]),
        "ablation": pd.DataFrame([row | {"value": value, "from_layer": 1} for value in ("zero", "mean")]),
    }
    figures = figures_of_scores(tables, [0])
    for name, lines in (("intervention", ["before", "after"]), ("ablation", ["before", "zero", "mean"])):
        expected = lines if np.isnan(controls) else [*lines, "controls"]
        figure = figures[name]
        assert list(figure.series_titles) == expected
        assert list(dict.fromkeys(figure.table["line"])) == expected
        assert ("random" in figure.caption) == ("controls" in expected)
        assert figure.table["alpha"].notna().all()
