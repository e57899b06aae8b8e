"""Texts whose tokens are coloured by their values."""

from typing import NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextToPath

from normscope.reporting.figure_text import word_label
from normscope.reporting.figures.layout import POINTS_PER_INCH, fitted, text_width
from normscope.reporting.figures.style import SMALL, points
from normscope.reporting.palette import DIVERGING, FAINT, ink_on
from normscope.results.figures import ColouredText
from normscope.rounding import number

_NUMBERED = 5
"""Tokens of each text whose values are written below them: those with the largest."""
_MARGIN = 0.1
_SCALE = 0.62
"""Inches of the colour scale with its label."""


class _Placed(NamedTuple):
    """A token in the figure: inches from the left, and from the top of the first line."""

    label: str
    value: float
    left: float
    top: float
    width: float


def coloured_text(figure: ColouredText, width: float) -> Canvas:
    """Texts below each other, broken into lines, with one colour scale; the largest values are written below their tokens."""
    size, small = points("font.size"), points(scale=SMALL)
    line = 1.5 * size / POINTS_PER_INCH
    texts = [(str(title), rows) for title, rows in figure.table.groupby(figure.text, sort=False)]
    top = 0.0
    titles, tokens, numbered = [], [], []
    for place, (title, rows) in enumerate(texts):
        if len(texts) > 1:
            top += 0.4 * line * (place > 0)
            titles.append((fitted(title, width - 2 * _MARGIN), top))
            top += line * (1 + titles[-1][0].count("\n"))
        placed, top = _placed(rows, top, width, line + 1.25 * small / POINTS_PER_INCH)
        tokens += placed
        numbered += sorted(placed, key=lambda token: -abs(token.value))[:_NUMBERED]
    canvas = Canvas(figsize=(width, top + _SCALE + _MARGIN), layout="constrained")
    axes = canvas.subplots()
    axes.set(xlim=(0, width), ylim=(top, 0))
    axes.set_axis_off()
    largest = max((abs(token.value) for token in tokens), default=0.0) or 1.0
    colours = ScalarMappable(Normalize(-largest, largest), DIVERGING)
    for title, at in titles:
        axes.text(0, at, title, va="top", fontweight="bold", fontsize=size)
    for token in tokens:
        _draw(axes, token, largest, line)
    taken: list[tuple[float, float, float]] = []
    apart = text_width("00", small)
    for token in sorted(numbered, key=lambda token: -abs(token.value)):
        text = number(token.value, digits=2)
        middle, half = token.left + token.width / 2, text_width(text, small) / 2
        if any(top == token.top and abs(middle - other) < half + reach + apart for top, other, reach in taken):
            continue  # it would touch that of a larger value
        taken.append((token.top, middle, half))
        axes.text(middle, token.top + line, text, ha="center", va="top", fontsize=small, color=FAINT)
    bar = canvas.colorbar(colours, ax=axes, location="bottom", shrink=min(1.0, 2.6 / width), aspect=24, pad=0.01)
    bar.set_label(figure.value_label)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=small)
    return canvas


def _placed(rows: pd.DataFrame, top: float, width: float, pitch: float) -> tuple[list[_Placed], float]:
    """The tokens of one text in lines, and where the last line ends.

    Args:
        rows: The columns `token` and `value`, and `side` if each side begins a line.
        top: Where the first line begins.
        width: Inches of a line.
        pitch: Inches from one line to the next.
    """
    left, placed = 0.0, []
    sides = rows["side"] if "side" in rows else [""] * len(rows)
    before = ""
    for token, value, side in zip(rows["token"], rows["value"], sides, strict=True):
        label = word_label(str(token))
        wide = _width(label) + 0.07
        if left > 0 and (left + wide > width or side != before):
            left, top = 0.0, top + pitch
        before = side
        placed.append(_Placed(label, float(value), left, top, wide))
        left += wide + 0.02
    return placed, top + pitch


def _width(label: str) -> float:
    """Inches of a label."""
    font = FontProperties(size=points("font.size"), family=mpl.rcParams["font.family"])
    across, _, _ = TextToPath().get_text_width_height_descent(label, font, ismath=False)
    return float(across) / POINTS_PER_INCH


def _draw(axes: Axes, token: _Placed, largest: float, line: float) -> None:
    ground = DIVERGING(0.5 + token.value / largest / 2)[:3]
    box = Rectangle((token.left, token.top + 0.06 * line), token.width, 0.88 * line, color=ground, linewidth=0)
    axes.add_patch(box)
    middle = (token.left + token.width / 2, token.top + 0.5 * line)
    axes.text(*middle, token.label, ha="center", va="center", color=ink_on(ground))
