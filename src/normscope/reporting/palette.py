"""Colours and text style of all figures."""

from typing import Any

import matplotlib as mpl

# Magnitudes: little is light, much is dark, in print as on the page (`page/page.css`).
COLOURS = mpl.colormaps["Blues"]
# Differences: zero is white.
DIVERGING = mpl.colormaps["PuOr_r"]
# Okabe and Ito's palette: distinct for all common kinds of colour vision.
LINE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
CATEGORY_COLOURS = {
    "cls": "#0072B2",
    "sep": "#E69F00",
    "punctuation": "#009E73",
    "other": "#D55E00",
    "mask": "#CC79A7",
    "all": "#000000",
}
"""The same colour for the same category of tokens in every chart."""
MARKERS = "osD^vPX*"
# The same markers, by the names that Vega gives them.
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right", "triangle-left")

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "text.parse_math": False,  # tokens and model names may contain dollar signs
    "svg.fonttype": "none",  # keep text selectable
    "svg.hashsalt": "normscope",  # reproducible bytes
}
