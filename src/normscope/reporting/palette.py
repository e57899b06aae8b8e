"""Colours and text style of all figures."""

from typing import Any

import matplotlib as mpl

# Perceptually uniform and safe for colour-blind readers; darker means larger, as in print.
COLOURS = mpl.colormaps["viridis_r"]
# For maps in which most cells are close to zero: zero is white.
FROM_WHITE = mpl.colormaps["Blues"]
DIVERGING = mpl.colormaps["RdBu_r"]
# Okabe and Ito's palette: distinct for all common kinds of colour vision.
LINE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#F0E442")
MARKERS = "osD^vPX*"

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "text.parse_math": False,  # tokens and model names may contain dollar signs
    "svg.fonttype": "none",  # keep text selectable
    "svg.hashsalt": "normscope",  # reproducible bytes
}
