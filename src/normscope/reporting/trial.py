"""Small figures, drawn before a run to see whether a user's style works."""

import dataclasses

import numpy as np
import pandas as pd

from normscope.analyses.findings import Figure, HeatmapPanels, Lines, Scatter, WordMaps
from normscope.reporting.appearance import Appearance
from normscope.reporting.drawing import drawn


def try_style(look: Appearance) -> None:
    """Draw what figures consist of, in the formats of the run: maps and their scales, numbers, lines, bands, points, frames.

    Raises:
        InputError: If matplotlib cannot draw in this style.
    """
    coarse = dataclasses.replace(look, dpi=50)  # which is quick, and no style sets it
    for figure in _figures():
        drawn(figure, look.formats, coarse)


def _figures() -> list[Figure]:
    grid = pd.DataFrame([(layer, head) for layer in (1, 2) for head in (1, 2)], columns=["layer", "head"])
    grid = grid.assign(value=[-0.5, 0.1, 0.5, 1.0], panel="a")
    points = pd.DataFrame({"layer": np.arange(1, 9), "value": np.arange(1.0, 9) ** 2, "category": list("aabbccaa")})
    points = points.assign(low=points["value"] - 0.5, high=points["value"] + 0.5, panel="a")
    words = grid.assign(query=grid["layer"], key=grid["head"], query_token="‖αf(x)‖", key_token="[CLS]")
    words["frame"] = ["sure", "possible", "", ""]
    series, caption = {"a": "cls", "b": "sep", "c": "other"}, "A figure that tries a style."
    return [
        HeatmapPanels(grid, "panel", "layer", "head", "value", caption, {"a": "weights"}, "mixing ratio (%)", (-1, 1)),
        Lines(points, "layer", "value", "category", caption, "‖f(x)‖", series, band=("low", "high")),
        Scatter(points, "layer", "value", "panel", {"a": "a"}, "x", "y", caption, log_x=True, log_y=True, medians=True),
        WordMaps(words, "panel", {"a": "α"}, caption, digits=2),
    ]
