"""Captions name only what a figure shows."""

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.score import describe_figures as figures_of_scores


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
