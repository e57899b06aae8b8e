"""Matrices of words by words."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from normscope.reporting.figure_text import word_label
from normscope.reporting.figures.heatmaps import colour_scale, scale_beside, write_numbers
from normscope.reporting.figures.layout import POINTS_PER_INCH, TALLEST, every, fitted, text_width
from normscope.reporting.figures.style import SMALL, accent, magnitudes, points
from normscope.reporting.palette import DIVERGING, GRID, ON_MUCH
from normscope.results.figures import WordMaps, end_of_scale
from normscope.rounding import brief

_CELL = 0.2
_NUMBERED_CELL = 0.42
"""Inches: wide enough for a sign and three decimals."""
_EASY = 0.8
"""As many maps as possible stand side by side, with cells of at least this share of the largest size in any arrangement."""
_BAR = 0.3
"""Inches of the colour scale below the maps, without its text."""
_BESIDE = 0.45
"""Inches of a colour scale beside a map."""
_TITLE = 1.8
"""The height of a line of the titles as a multiple of its letters' size."""
_SMALLEST_CELL = 0.01
"""Inches."""
_SMALLEST_TEXT = 6.0
"""Points. Where cells are too small for it, every second word is written, or every third, and so on."""
_EMPTY = "/////"
"""The hatching of cells without a value."""
_LINE = 0.75
"""The size of a label as a part of the line that it takes."""


def _write_beyond(axes: Axes, values: np.ndarray, beyond: Sequence[tuple[int, int]], cell: float) -> None:
    """Write the values of the cells beyond the scale into them."""
    for row, column in beyond:
        text = brief(float(values[row, column]))
        size = min(points("xtick.labelsize"), POINTS_PER_INCH * cell / (0.62 * len(text)))
        axes.text(column, row, text, ha="center", va="center", color=ON_MUCH, fontsize=size, parse_math=False)


def word_maps(figure: WordMaps, width: float) -> Canvas:
    """Maps in a grid, with the words of the rows on the left and those of the columns at the bottom."""
    panels = list(figure.panel_titles)
    rows, columns = (
        figure.table.drop_duplicates(name).sort_values(name).set_index(name)[label].map(word_label)
        for name, label in ((figure.row, figure.row_label), (figure.column, figure.column_label))
    )
    size = points("xtick.labelsize")
    beside, below = (max(text_width(label, size) for label in labels) for labels in (rows, columns))
    largest_cell = _CELL if figure.digits is None else _NUMBERED_CELL
    across, cell = _arrangement((len(panels), len(rows), len(columns)), (width - beside - 0.3, below), largest_cell)
    down = -(-len(panels) // across)
    # A map is never stretched beyond square cells: what is left of the width stays empty beside it.
    size = min(size, max(_SMALLEST_TEXT, _LINE * POINTS_PER_INCH * cell))
    line = size / _LINE / POINTS_PER_INCH
    is_beside = figure.largest is None and down > 1
    label = figure.value_label or (f"part of the {figure.measure}" if figure.measure else "")
    scale = 0.0 if is_beside else _scale(label)
    room = width / across - 0.2 - (_BESIDE if is_beside else 0.0)
    titles = {panel: fitted(title, room) for panel, title in figure.panel_titles.items()}
    lines = max(title.count("\n") + 1 for title in titles.values())
    above = 0.1 + _TITLE * lines * points("axes.titlesize") / POINTS_PER_INCH
    # Above a place that is left empty in the last row, the words of the columns are written, too.
    labelled = 2 if down > 1 and len(panels) % across else 1
    canvas = Canvas(
        figsize=(width, down * (cell * len(rows) + above) + labelled * 0.87 * below + 0.3 + scale), layout="constrained"
    )
    grid = canvas.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for position, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        _draw(axes, figure, panel, cell)
        axes.set_title(titles[panel])
        along = every(list(columns), cell * len(columns), line) if position + across >= len(panels) else []
        up = every(list(rows), cell * len(rows), line) if position % across == 0 else []
        words = [columns.iloc[place] for place in along]
        axes.set_xticks(along, words, rotation=60, ha="right", rotation_mode="anchor", fontsize=size)
        axes.set_yticks(up, [rows.iloc[place] for place in up], fontsize=size)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    _scales(canvas, figure, grid, cell * len(rows), label)
    if lines > 1:
        # The first of two layouts finds the room for words at an angle, from which titles of several lines get theirs.
        canvas.get_layout_engine().execute(canvas)  # type: ignore[union-attr]
    return canvas


def _draw(axes: Axes, figure: WordMaps, panel: str, cell: float) -> None:
    """Draw one map, with its frames and numbers. In reading order: the first word is at the top."""
    values = figure.values_of(panel)
    axes.patch.set(hatch=_EMPTY, edgecolor=GRID, linewidth=0)
    if figure.largest is None:
        end, beyond = end_of_scale(values.to_numpy(dtype=float))
        axes.imshow(values, cmap=magnitudes(), vmin=0, vmax=end, aspect="equal")
        if figure.digits is None:
            _write_beyond(axes, values.to_numpy(dtype=float), beyond, cell)
    else:
        axes.imshow(values, cmap=DIVERGING, vmin=-figure.largest, vmax=figure.largest, aspect="equal")
    _frames(axes, figure, figure.table[figure.table[figure.panel] == panel])
    if figure.digits is not None:
        write_numbers(axes, values, figure.digits, min(points("xtick.labelsize"), 0.24 * 72 * cell))


def _scales(canvas: Canvas, figure: WordMaps, grid: np.ndarray, high: float, label: str) -> None:
    """One colour scale below all maps if they share it, else one for each: below a single row of maps, beside those of several.

    Args:
        canvas: The figure's.
        figure: What is drawn.
        grid: The axes of the maps, in rows.
        high: Height of a map in inches.
        label: What the colours mean.
    """
    shown = grid.flat[: len(figure.panel_titles)]
    if figure.largest is not None:
        colour_scale(canvas, shown[0].images[0], grid, canvas.get_figwidth(), label)
        return
    for axes in shown:
        if len(grid) == 1:
            colour_scale(canvas, axes.images[0], axes, canvas.get_figwidth() / grid.shape[1], label)
        else:
            scale_beside(canvas, axes.images[0], axes, high)


def _scale(label: str) -> float:
    """Inches of the colour scale below the maps, with its numbers and its label."""
    lines = points(scale=SMALL) + (points("axes.labelsize") if label else 0.0)
    return _BAR + 1.6 * lines / POINTS_PER_INCH


def _arrangement(sizes: tuple[int, int, int], room: tuple[float, float], largest: float) -> tuple[int, float]:
    """How many maps stand side by side, and the side of their cells in inches: nearly the largest that fits on a page.

    Args:
        sizes: Number of maps, and of rows and columns of each.
        room: Width of all maps, and height of the words below them, in inches.
        largest: Largest side of a cell, in inches.
    """
    panels, rows, columns = sizes
    width, below = room
    cells = {}
    for across in range(1, panels + 1):
        down = -(-panels // across)
        # Maps below each other share the words of their columns.
        high = TALLEST - down * 0.3 - below
        cells[across] = min(largest, (width / across - 0.1) / columns, high / down / rows)
    across = max(number for number, cell in cells.items() if cell >= _EASY * max(cells.values()))
    return across, max(_SMALLEST_CELL, cells[across])


def _frames(axes: Axes, figure: WordMaps, table: pd.DataFrame) -> None:
    for kind, style in (("sure", "solid"), ("possible", (0, (2, 1)))):
        for cell in table[table[figure.frame] == kind].itertuples():
            corner = (getattr(cell, figure.column) - 0.5, getattr(cell, figure.row) - 0.5)
            frame = Rectangle(corner, 1, 1, fill=False, edgecolor=accent(), linewidth=1.2, linestyle=style)
            frame.set_clip_on(False)
            axes.add_patch(frame)
