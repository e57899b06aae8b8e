"""Colours and type of all figures."""

from typing import Any

import matplotlib as mpl

# Perceptually uniform and legible to the colour-blind; light means little, dark means much, as on paper.
COLOURS = mpl.colormaps["viridis_r"]
# Where most cells are next to nothing, nothing is white.
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
    "text.parse_math": False,  # words of a corpus and names of models may have dollar signs
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "normscope",  # the same bytes for the same numbers
}
