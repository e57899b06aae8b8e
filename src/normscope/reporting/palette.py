"""Colours and text style of all figures."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import rcsetup

# Magnitudes: little is light, much is dark, in print as on the page (`page/page.css`).
COLOURS = mpl.colormaps["Blues"]
# Differences: zero is white.
DIVERGING = mpl.colormaps["PuOr_r"]
# Cells without a value, as on the page: no colour of either scale, least of all that of zero.
MISSING = "#a4a49c"
# Numbers on cells. The first differs from all other text, since pages with a dark ground turn both round with the scale.
ON_LITTLE, ON_MUCH = "#111111", "#ffffff"
# Text and strong lines; axes and their ticks; the grid.
INK, FAINT, GRID = "#1a1a1a", "#5a5f66", "#e3e5e8"
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
"""The same colour for the same category of tokens in every figure."""
MARKERS = "osD^vPX*"

# Dashes for lines in the order of the palette, so that no line is known by its colour alone.
LINE_STYLES = ("solid", (0, (5, 1.5)), (0, (2, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (1, 1)), (0, (8, 2)))


def ink_on(ground: Sequence[float] | np.ndarray) -> str:
    """The colour of numbers and tokens on a ground, given its red, green and blue in [0, 1]."""
    red, green, blue = ground[:3]
    return ON_MUCH if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else ON_LITTLE


STYLE: dict[Any, Any] = {
    "image.cmap": COLOURS.name,
    "axes.prop_cycle": rcsetup.cycler(color=LINE_COLOURS),
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "svg.fonttype": "none",  # keep text selectable
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's Type 3 fonts
    "svg.hashsalt": "normscope",  # reproducible bytes
}

# On a page, whatever a user's style says: the page replaces these colours by its own, and lets its ground show through.
ON_PAGE: dict[Any, Any] = {
    **{name: STYLE[name] for name in STYLE if name.endswith("color")},
    "axes.titlecolor": "auto",
    "xtick.labelcolor": "inherit",
    "ytick.labelcolor": "inherit",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "auto",
    "font.family": ["DejaVu Sans"],  # wider than the fonts of most systems, so that theirs have room
    "svg.fonttype": "none",
}
