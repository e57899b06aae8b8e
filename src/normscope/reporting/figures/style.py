"""The matplotlib style of figures: ours, with what a user has changed on top."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import matplotlib as mpl
import matplotlib.style
from matplotlib.colors import Colormap
from matplotlib.font_manager import FontProperties

from normscope.reporting.palette import CATEGORY_COLOURS, LINE_COLOURS, STYLE

_FIXED: dict[Any, Any] = {
    "text.parse_math": False,  # tokens and model names may contain dollar signs
    "text.usetex": False,  # and everything else that TeX would refuse
    "savefig.bbox": None,  # "tight" would change the width
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}
"""What no style may change."""

_FALLBACK_FONT = "DejaVu Sans"
"""Comes with matplotlib and has the papers' symbols, which many fonts lack."""


FontSize = Literal[
    "font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"
]
"""Parameters that set a font size."""

SMALL = 0.8125
"""Size of numbers in and beside cells, as a share of that of other text."""


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Draw in our style. What differs from matplotlib's defaults (a `matplotlibrc`, `matplotlib.rc_context`) stays on top."""
    # Of a copy: who reads the backend of the original imports pyplot.
    defaults = mpl.rcParamsDefault
    chosen: dict[str, Any] = {
        str(name): value for name, value in mpl.rcParams.copy().items() if name in defaults and value != defaults[name]
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        with warnings.catch_warnings():
            # Users may change parameters that are not about style; matplotlib ignores them.
            warnings.filterwarnings("ignore", "Style includes a parameter")
            matplotlib.style.use([STYLE, chosen, _FIXED])
        mpl.rcParams["font.family"] = _with_fallback(mpl.rcParams["font.family"])
        yield


def _with_fallback(families: Sequence[str]) -> list[str]:
    return [*(family for family in families if family != _FALLBACK_FONT), _FALLBACK_FONT]


def points(parameter: FontSize = "font.size", scale: float = 1.0) -> float:
    """The font size of a parameter in points: `axes.titlesize` may be `large`."""
    return float(FontProperties(size=mpl.rcParams[parameter]).get_size_in_points()) * scale


def line_colours() -> list[Any]:
    """The colours of lines."""
    colours: list[Any] = mpl.rcParams["axes.prop_cycle"].by_key().get("color", list(LINE_COLOURS))
    return colours


def accent() -> Any:
    """The colour of what stands out from the first colour."""
    colours = line_colours()
    return colours[3 % len(colours)]


def magnitudes() -> Colormap:
    """The colour scale of magnitudes: little is light, much is dark."""
    return mpl.colormaps[mpl.rcParams["image.cmap"]]


def category_colour(category: object) -> Any | None:
    """The colour of a category of tokens, which is the same in every figure; None for other series."""
    if category not in CATEGORY_COLOURS:
        return None
    colours = line_colours()
    return colours[LINE_COLOURS.index(CATEGORY_COLOURS[str(category)]) % len(colours)]
