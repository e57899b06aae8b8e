"""Heat maps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from normscope.reporting.figures.layout import every, fitted, panels_across
from normscope.reporting.figures.style import SMALL, magnitudes, points
from normscope.reporting.options import ACROSS
from normscope.reporting.palette import DIVERGING, MISSING, ink_on
from normscope.results.figures import Heatmaps
from normscope.rounding import MINUS


def heatmaps(figure: Heatmaps, width: float) -> Canvas:
    """Heat maps in rows and columns; with their numbers, if these have room."""
    return _numbered(figure, width) if figure.numbered else _grid(figure, width)


def _numbered(figure: Heatmaps, width: float) -> Canvas:
    """Maps in as many columns as fit, with one colour scale: beside them, or in the slot that an incomplete row leaves, or
    below.
    """
    panels = figure.maps()
    rows = sorted(figure.table[figure.row].unique())
    columns = list(dict.fromkeys(figure.table[figure.column]))
    narrowest = max(0.75, 0.18 * len(columns) + 0.08)
    across = panels_across(len(panels), width - 0.9, narrowest)
    if across < len(panels):
        across = panels_across(len(panels), width - 0.35, narrowest)
    down = -(-len(panels) // across)
    empty = across * down - len(panels)
    cell = min(0.19, 8.0 / len(rows) / down)
    titles = [fitted(title, (width - (1.1 if down == 1 else 0.5)) / across) for title, _, _ in panels]
    above = 0.16 * max(title.count("\n") + 1 for title in titles)
    # At most three digits, in a cell as wide as the panel allows.
    size = min(points(scale=SMALL), 0.75 * 72 * cell, 72 * (width - 0.5) / across / len(columns) / (3 * 0.62))
    scale = 0.45 if down > 1 and not empty else 0.0
    canvas = Canvas(figsize=(width, down * (cell * len(rows) + above + 0.1) + 0.75 + scale), layout="constrained")
    grid = canvas.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    # An incomplete row is the first, so that every column of panels has its labels at the bottom.
    slots = [*grid.flat[: across - empty], *grid.flat[across:]]
    for position, (axes, (_, table, value)) in enumerate(zip(slots, panels, strict=True)):
        # One row per layer, the first at the bottom, as in the papers.
        values = table.pivot(index=figure.row, columns=figure.column, values=value).reindex(rows, columns=columns)
        image = _image(axes, values, *_colours(figure, value, figure.table))
        write_numbers(axes, values, 0, size)
        axes.set_title(titles[position])
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
        axes.tick_params(labelbottom=position >= len(panels) - across)
        if position == 0 or (position + empty) % across == 0:
            axes.set_ylabel(figure.row)
    _row_ticks(slots, rows, cell)
    # Beside the panels, the label has their height, and a little of the titles' and labels'.
    beside = fitted(figure.value_label, cell * len(rows) + 0.5)
    _scale_of_panels(canvas, image, grid, empty, figure.value_label if empty or down > 1 else beside)
    return canvas


def _scale_of_panels(canvas: Canvas, image: Any, grid: Any, empty: int, label: str) -> None:
    if empty:
        for axes in grid[0, -empty:]:
            axes.set_axis_off()
        inside = grid[0, -1].inset_axes((0.0, 0.5, 1.0, 0.07))
        bar = canvas.colorbar(image, cax=inside, orientation="horizontal")
        bar.set_label(fitted(label, canvas.get_figwidth() / grid.shape[1] - 0.4))
    elif len(grid) > 1:
        bar = canvas.colorbar(image, ax=grid, location="bottom", label=label, pad=0.02, aspect=30, shrink=0.8)
    else:
        bar = canvas.colorbar(image, ax=grid, label=label, pad=0.01, aspect=30)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=points(scale=SMALL))


def _image(axes: Axes, values: pd.DataFrame, colours: Colormap, limits: tuple[float, float]) -> Any:
    axes.set_facecolor(MISSING)
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], origin="lower", aspect="auto")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=points(scale=SMALL))
    axes.grid(visible=False)
    return image


def _row_ticks(panels: Any, rows: Sequence[Any], cell: float) -> None:
    shown = every(rows, cell * len(rows), 0.12)
    for axes in panels:
        axes.set_yticks(shown, [rows[at] for at in shown])


def _colours(figure: Heatmaps, value: str, table: pd.DataFrame) -> tuple[Colormap, tuple[float, float]]:
    """The colours of the maps of a value, and their range in the rows of a table."""
    if not figure.diverging:
        return magnitudes(), figure.limits or (0.0, table[value].max() or 1.0)
    extreme = float(np.abs(np.nan_to_num(figure.table[list(figure.values)].to_numpy(dtype=float))).max()) or 1.0
    return DIVERGING, (-extreme, extreme)


def write_numbers(axes: Axes, values: pd.DataFrame, digits: int, size: float) -> None:
    """Write the value into each cell of a map that has been drawn, unless the cells are too small for text."""
    if size < 4:
        return
    (image,) = axes.images
    for (row, column), value in np.ndenumerate(values.to_numpy()):
        if np.isfinite(value):
            text = f"{value:.{digits}f}".replace("-", MINUS)
            color = ink_on(image.cmap(image.norm(value)))
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=color)


def _grid(figure: Heatmaps, width: float) -> Canvas:
    """Maps by value (columns of the grid) and by panel (rows of the grid, if there is more than one).

    Across a page, the more numerous of the two are the columns, if all maps share a scale.
    """
    groups = figure.panels()
    shares_scale = figure.diverging or figure.limits is not None
    turned = width >= ACROSS and shares_scale and len(groups) > len(figure.values)
    sides, tops = [name for name, _ in groups], list(figure.values.values())
    sides, tops = (tops, sides) if turned else (sides, tops)
    rows, columns = sorted(figure.table[figure.row].unique()), list(dict.fromkeys(figure.table[figure.column]))
    has_words = any(isinstance(column, str) for column in columns)
    if not has_words:
        columns = sorted(columns)
    cell = min(0.12, 2.2 / len(rows), 8.0 / len(rows) / len(sides))
    wide = (width - 0.7) / len(tops)
    high = max(cell * len(rows), 0.6)
    scale = 1.3 if figure.value_label else 1.15
    scale += 0.35 * has_words
    titles = [fitted(title, wide - 0.1) for title in tops]
    scale += 0.14 * max(title.count("\n") for title in titles)
    canvas = Canvas(figsize=(width, (high + 0.14) * len(sides) + scale), layout="constrained")
    canvas.get_layout_engine().set(wspace=0.02, hspace=0.02)  # type: ignore[union-attr, call-arg]
    panels = canvas.subplots(len(sides), len(tops), sharex=True, sharey=True, squeeze=False)
    for j, value in enumerate(figure.values):
        for i, (_, table) in enumerate(groups):
            values = table.pivot(index=figure.row, columns=figure.column, values=value).reindex(rows, columns=columns)
            axes = panels[j, i] if turned else panels[i, j]
            image = _image(axes, values, *_colours(figure, value, table if figure.own_scales else figure.table))
            if figure.own_scales:
                scale_beside(canvas, image, axes, high)
        if not (shares_scale or figure.own_scales):
            colour_scale(canvas, image, panels[:, j], wide)
    shown = every(columns, wide - 0.15, 0.16)
    for top, bottom, title in zip(panels[0], panels[-1], titles, strict=True):
        top.set_title(title)
        bottom.set_xlabel(figure.column)
        bottom.set_xticks(shown, [columns[at] for at in shown])
        if has_words:
            bottom.tick_params("x", rotation=60)
    for left, name in zip(panels[:, 0], sides, strict=True):
        left.set_ylabel(f"{fitted(name, high)}\n{figure.row}" if name else figure.row)
    if shares_scale:
        colour_scale(canvas, image, panels, width - 0.7, figure.value_label)
    _row_ticks(panels.flat, rows, high / len(rows))
    return canvas


def scale_beside(canvas: Canvas, image: Any, axes: Axes, inches: float) -> None:
    """The colour scale of one map, on its right."""
    bar = canvas.colorbar(image, ax=axes, location="right", pad=0.02, fraction=0.06, aspect=16)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=points(scale=SMALL), length=0)
    bar.locator = MaxNLocator(nbins=max(1, min(3, int(inches / 0.25))))
    bar.update_ticks()


def colour_scale(canvas: Canvas, image: Any, panels: Any, inches: float, label: str = "") -> None:
    """The colour scale below its panels."""
    bar = canvas.colorbar(
        image,
        ax=panels,
        location="bottom",
        pad=0.02,
        fraction=0.05,
        shrink=min(1.0, 2.2 / inches),
        aspect=22,
        label=label,
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=points(scale=SMALL))
    bar.locator = MaxNLocator(nbins=max(1, min(4, int(inches / 0.4))))
    bar.update_ticks()
