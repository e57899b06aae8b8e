"""What all kinds of figures share: panels, ticks, the colours of series, and text that must not overlap."""

import re
import textwrap
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

from normscope.reporting.figures.style import category_colour, line_colours, points
from normscope.reporting.palette import CATEGORY_COLOURS, FAINT, LINE_COLOURS, LINE_STYLES, MARKERS

POINTS_PER_INCH = 72


class SeriesStyle(NamedTuple):
    """How a line looks. Colour is never the only difference."""

    color: str
    marker: str
    linestyle: Any


def series_styles(
    keys: Sequence[Hashable], leading: Hashable = None, behind: Collection[Hashable] = ()
) -> dict[Hashable, SeriesStyle]:
    """A style for each series. A category of tokens has the same one in every figure.

    Args:
        keys: The series, in order.
        leading: The one that the figure is about, if there is one: a solid line in the colour of text.
        behind: Those that it is not about: grey.
    """
    order = list(CATEGORY_COLOURS)
    spare = [number for number, colour in enumerate(LINE_COLOURS) if colour not in CATEGORY_COLOURS.values()]
    named = [key for key in keys if key in CATEGORY_COLOURS]
    colours = line_colours()
    styles = {}
    for position, key in enumerate(keys):
        color = category_colour(key)
        if color is not None:
            number = order.index(str(key))
        else:
            number = spare[position % len(spare)] if named else position
            color = colours[number % len(colours)]
        styles[key] = SeriesStyle(color, MARKERS[number % len(MARKERS)], LINE_STYLES[number % len(LINE_STYLES)])
        if key == leading:
            styles[key] = styles[key]._replace(color=str(mpl.rcParams["text.color"]), linestyle="solid")
        if key in behind:
            styles[key] = styles[key]._replace(color=FAINT)
    return styles


_NARROWER = 5 / 6


def panels_across(number: int, width: float, narrowest: float, *, pliable: bool = False) -> int:
    """Panels per row: as many as fit into the width, in rows as equal as possible.

    Args:
        number: Number of panels.
        width: Width of the figure in inches.
        narrowest: Smallest width of a panel in inches.
        pliable: Whether panels may be narrower by a sixth if that leaves fewer places empty, as of seven panels in two rows
            instead of three.
    """
    arrangements = []
    for least in (narrowest, narrowest * _NARROWER) if pliable else (narrowest,):
        fitting = min(max(number, 1), max(1, int(width / least)))
        down = max(1, -(-number // fitting))
        across = -(-number // down) or 1
        arrangements.append((across * down - number, across))
    return min(arrangements, key=lambda arrangement: arrangement[0])[1]


TALLEST = 8.8
"""Inches: what a page of a paper holds."""


def row_height(down: int, best: float, lowest: float = 0.95) -> float:
    """Height of a row of panels in inches, less than the best if that makes the figure fit on a page."""
    return min(best, max(lowest, TALLEST / down))


def text_width(text: str, size: float) -> float:
    """About the width of a text in inches, at a font size in points."""
    return max((len(line) for line in text.split("\n")), default=0) * 0.56 * size / POINTS_PER_INCH


def fitted(text: str, inches: float, size: float | None = None) -> str:
    """A text in lines that are not wider than this, at a font size in points; by default that of titles."""
    size = points("axes.titlesize") if size is None else size
    most = max(6, int(inches / text_width("x", size)))
    return "\n".join(part for line in textwrap.wrap(text, most, break_long_words=False) for part in _broken(line, most))


def _broken(line: str, most: int) -> list[str]:
    """A line that is longer than so many characters, such as the name of a config key, in parts that end in punctuation."""
    if len(line) <= most:
        return [line]
    lines = [""]
    for part in re.split(r"(?<=[=./_])", line):
        if lines[-1] and len(lines[-1]) + len(part) > most:
            lines.append("")
        lines[-1] += part
    return lines


def every(labels: Sequence[Any], inches: float, each: float) -> list[int]:
    """Positions of the labels to show, evenly spaced, if each one takes `each` inches."""
    step = max(1, int(np.ceil(len(labels) * each / inches)))
    return list(range(0, len(labels), step))


def integer_ticks(axes: Axes, values: Sequence[Any], inches: float) -> None:
    """Ticks at integers along x: at every value if they fit."""
    distinct = sorted(set(values))
    if len(distinct) * 0.2 <= inches:
        axes.xaxis.set_major_locator(FixedLocator(distinct))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=max(2, int(inches / 0.4)), integer=True))


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions apart so that neighbours are `gap` apart, between two bounds; the order stays."""
    order = np.argsort(positions, kind="stable")
    moved = np.asarray(positions, dtype=float)[order]
    if len(moved) * gap > high - low + gap:
        gap = (high - low) / max(1, len(moved) - 1)
    moved = np.clip(moved, low, high)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    ceiling = high
    for i in range(len(moved) - 1, -1, -1):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - gap
    result = np.empty(len(moved))
    result[order] = moved
    return result.tolist()


_KEY = 0.45
"""Inches that the line and the space of a legend's entry take."""


def legend_rows(titles: Sequence[str], width: float) -> int:
    """The fewest rows in which a legend is not wider than this. Entries go down its columns."""
    size = points("legend.fontsize")
    for rows in range(1, len(titles)):
        columns = [titles[start : start + rows] for start in range(0, len(titles), rows)]
        if sum(max(text_width(title, size) for title in column) + _KEY for column in columns) <= width:
            return rows
    return max(1, len(titles))


def legend_above(canvas: Canvas, titles: Mapping[Any, str], handles: Mapping[Hashable, Line2D]) -> None:
    """One legend above the panels, in as many columns as the figure's width holds."""
    keys = [key for key in titles if key in handles]
    if not keys:
        return
    width = canvas.get_figwidth()
    rows = legend_rows([titles[key] for key in keys], width)
    canvas.legend(
        [handles[key] for key in keys],
        [fitted(titles[key], width - 0.6, points("legend.fontsize")) for key in keys],
        loc="outside upper center",
        ncols=-(-len(keys) // rows),
        frameon=False,
        handlelength=2.0,
        handletextpad=0.6,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
