"""Draws figures from their descriptions, with matplotlib."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from normscope.analyses.findings import Figure, HeatmapGrid, HeatmapPanels, Lines, Profiles, Scatter, WordMaps
from normscope.reporting.figure_text import log_scale, word_label
from normscope.reporting.palette import COLOURS, DIVERGING, LINE_COLOURS, MARKERS, STYLE


def draw(figure: Figure, paths: Sequence[Path]) -> None:
    """Draw a figure into files, each in the format of its suffix."""
    with mpl.rc_context(STYLE):
        canvas, extent = _laid_out(figure)
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Description": figure.caption}
            canvas.savefig(path, dpi=150, bbox_inches=extent, facecolor="white", metadata=metadata)


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    with mpl.rc_context(STYLE):
        canvas, extent = _laid_out(figure)
        stream = io.BytesIO()
        canvas.savefig(stream, format="png", dpi=110, bbox_inches=extent, facecolor="white")
    return stream.getvalue()


def _laid_out(figure: Figure) -> tuple[Canvas, Any]:
    """The drawing with its caption, and its extent; laid out once for all files."""
    match figure:
        case HeatmapPanels():
            canvas = _heatmaps(figure)
        case HeatmapGrid():
            canvas = _heatmap_grid(figure)
        case Lines():
            canvas = _lines(figure)
        case Profiles():
            canvas = _profiles(figure)
        case Scatter():
            canvas = _scatter(figure)
        case WordMaps():
            canvas = _word_maps(figure)
        case _:
            assert_never(figure)
    _caption(canvas, figure.caption)
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")
    return canvas, canvas.get_tightbbox().padded(0.1)


def _caption(canvas: Canvas, caption: str) -> None:
    """Add the caption below the axes; the tight bounding box makes room for it."""
    width = max(60, int(canvas.get_figwidth() * 14))
    canvas.text(0.5, -0.02, textwrap.fill(caption, width), fontsize=9, ha="center", va="top", linespacing=1.4)


def _heatmaps(figure: HeatmapPanels) -> Canvas:
    panels = [panel for panel in figure.panel_titles if (figure.table[figure.panel] == panel).any()]
    rows = sorted(figure.table[figure.row].unique())
    columns = list(dict.fromkeys(figure.table[figure.column]))
    width = 0.52 * len(columns) + 0.5
    height = 0.3 * len(rows) + 1.9
    canvas = Canvas(figsize=(width * len(panels) + 1.2, height), layout="constrained")
    for position, panel in enumerate(panels, start=1):
        axes = canvas.add_subplot(1, len(panels), position)
        table = figure.table[figure.table[figure.panel] == panel]
        # One row per layer, the first at the bottom, as in the papers.
        grid = table.pivot(index=figure.row, columns=figure.column, values=figure.value).loc[rows, columns]
        image = axes.imshow(
            grid, cmap=COLOURS, vmin=figure.limits[0], vmax=figure.limits[1], origin="lower", aspect="auto"
        )
        _annotate(axes, grid, figure.limits)
        axes.set_title("\n".join(textwrap.wrap(figure.panel_titles[panel], 18)))
        axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), rows if position == 1 else [])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if position == 1:
            axes.set_ylabel(figure.row)
    canvas.colorbar(image, ax=canvas.axes, label=figure.value_label, pad=0.01, aspect=30)
    return canvas


def _annotate(axes: Axes, grid: pd.DataFrame, limits: tuple[float, float]) -> None:
    for (row, column), value in np.ndenumerate(grid.to_numpy()):
        if np.isfinite(value):
            red, green, blue, _ = COLOURS((value - limits[0]) / (limits[1] - limits[0]))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            axes.text(
                column, row, f"{value:.0f}", ha="center", va="center", fontsize=7.5, color="white" if dark else "black"
            )


def _heatmap_grid(figure: HeatmapGrid) -> Canvas:
    grid_rows = list(dict.fromkeys(figure.table[figure.grid_row]))
    rows, columns = (sorted(figure.table[name].unique()) for name in (figure.row, figure.column))
    size = (0.22 * len(columns) + 1.2, 0.22 * len(rows) + 0.5)
    canvas = Canvas(figsize=(size[0] * len(figure.values) + 1.0, size[1] * len(grid_rows) + 1.2), layout="constrained")
    panels = canvas.subplots(len(grid_rows), len(figure.values), sharex=True, sharey=True, squeeze=False)
    extreme = float(figure.table[list(figure.values)].abs().to_numpy().max())
    for j, (value, title) in enumerate(figure.values.items()):
        for i, grid_row in enumerate(grid_rows):
            table = figure.table[figure.table[figure.grid_row] == grid_row]
            grid = table.pivot(index=figure.row, columns=figure.column, values=value).loc[rows, columns]
            axes = panels[i, j]
            if figure.diverging:
                colours, limits = DIVERGING, (-extreme, extreme)
            else:
                colours, limits = COLOURS, figure.limits or (0.0, figure.table[value].max())
            image = axes.imshow(grid, cmap=colours, vmin=limits[0], vmax=limits[1], origin="lower", aspect="auto")
            axes.spines[:].set_visible(False)
            axes.set_xticks(range(len(columns)), columns, fontsize=6)
            axes.set_yticks(range(len(rows)), rows, fontsize=6)
            axes.tick_params(length=0)
            if i == 0:
                axes.set_title(title)
            if j == 0:
                axes.set_ylabel(f"{grid_row}\n{figure.row}")
            if i == len(grid_rows) - 1:
                axes.set_xlabel(figure.column)
        if not figure.diverging or j == len(figure.values) - 1:
            canvas.colorbar(image, ax=panels[:, j], location="right", pad=0.01, aspect=40)
    return canvas


def _across(panels: int) -> int:
    """Number of panels per row: at most three, or two if there are four."""
    return 2 if panels == 4 else min(3, panels)


def _profiles(figure: Profiles) -> Canvas:
    panels = sorted(figure.table[figure.panel].unique())
    across = _across(len(panels))
    down = -(-len(panels) // across)
    canvas = Canvas(figsize=(3.6 * across, 2.1 * down + 0.4), layout="constrained")
    grid = canvas.subplots(down, across, sharex=True, squeeze=False)
    for unused in range(len(panels), grid.size):
        grid.flat[unused].set_visible(False)
        grid.flat[unused - across].tick_params(labelbottom=True)
    for axes, panel in zip(grid.flat, panels, strict=False):
        rows = figure.table[figure.table[figure.panel] == panel]
        lines = [rows] if figure.series is None else [line for _, line in rows.groupby(figure.series)]
        for line in lines:
            axes.plot(line[figure.x], line[figure.y], color=LINE_COLOURS[0], linewidth=0.7, alpha=0.7, rasterized=True)
        for dimension in figure.labelled:
            values = rows[rows[figure.x] == dimension][figure.y]
            furthest = values.loc[values.abs().idxmax()]
            axes.annotate(
                str(dimension),
                (dimension, furthest),
                xytext=(0, 3 if furthest >= 0 else -3),
                textcoords="offset points",
                ha="center",
                va="bottom" if furthest >= 0 else "top",
                fontsize=7,
                color=LINE_COLOURS[3],
            )
        axes.margins(y=0.18)
        axes.set_title(f"{figure.panel} {panel}")
        axes.axhline(0, color="black", linewidth=0.4)
    canvas.supxlabel(figure.x, fontsize=9)
    canvas.supylabel(figure.y_label, fontsize=9)
    return canvas


def _lines(figure: Lines) -> Canvas:
    panels = (
        [None] if figure.panel is None else list(figure.panel_titles or sorted(figure.table[figure.panel].unique()))
    )
    across = _across(len(panels))
    down = -(-len(panels) // across)
    canvas = Canvas(
        figsize=(6.4 if across == 1 else 3.6 * across, (4.2 if across == 1 else 3.2) * down), layout="constrained"
    )
    for position, panel in enumerate(panels, start=1):
        axes = canvas.add_subplot(down, across, position)
        table = figure.table if panel is None else figure.table[figure.table[figure.panel] == panel]
        _draw_lines(axes, figure, table)
        if panel is not None:
            axes.set_title((figure.panel_titles or {}).get(panel, f"{figure.panel} {panel}"))
        if (position - 1) % across == 0:
            axes.set_ylabel(figure.y_label)
    if figure.series_titles is not None:
        handles, titles = axes.get_legend_handles_labels()
        canvas.legend(handles, titles, frameon=False, loc="outside right center")
    return canvas


def _draw_lines(axes: Axes, figure: Lines, table: pd.DataFrame) -> None:
    titles = figure.series_titles
    for number, series in enumerate(titles or sorted(table[figure.series].unique())):
        rows = table[table[figure.series] == series].sort_values(figure.x)
        if titles is None:
            axes.plot(rows[figure.x], rows[figure.y], color=LINE_COLOURS[0], alpha=0.5, linewidth=0.8)
        elif len(rows):
            axes.plot(
                rows[figure.x],
                rows[figure.y],
                label=titles[series],
                color=LINE_COLOURS[number % len(LINE_COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=5,
            )
            if figure.band is not None:
                low, high = figure.band
                colour = LINE_COLOURS[number % len(LINE_COLOURS)]
                axes.fill_between(rows[figure.x], rows[low], rows[high], color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel(figure.x)
    if table[figure.x].nunique() <= 24:
        axes.set_xticks(sorted(table[figure.x].unique()))
    if figure.limits is not None:
        axes.set_ylim(figure.limits)
    elif not figure.log_y:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    if figure.log_y:
        log_scale(axes, "y")
    axes.grid(axis="y", alpha=0.3)


def _scatter(figure: Scatter) -> Canvas:
    panels = [panel for panel in figure.panel_titles if (figure.table[figure.panel] == panel).any()]
    across = min(4, max(1, len(panels)))
    down = max(1, -(-len(panels) // across))
    canvas = Canvas(figsize=(2.9 * across + 0.4, 2.9 * down + 0.6), layout="constrained")
    grid = canvas.subplots(down, across, sharex=True, squeeze=False, sharey=figure.sharey)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        rows = figure.table[figure.table[figure.panel] == panel]
        size, strength = (30, 0.8) if len(rows) < 300 else (6, 0.4) if len(rows) < 1000 else (2, 0.4)
        axes.scatter(
            rows[figure.x], rows[figure.y], s=size, alpha=strength, color=LINE_COLOURS[0], linewidths=0, rasterized=True
        )
        if figure.medians and len(rows) > 20:
            middle = medians(rows, figure)
            axes.plot(middle[figure.x], middle[figure.y], color=LINE_COLOURS[3], linewidth=2, label="median")
        axes.set_title(f"{figure.panel_titles[panel]} ({len(rows):,})")
        if figure.log_x:
            log_scale(axes, "x")
        if figure.log_y:
            log_scale(axes, "y")
    canvas.supxlabel(figure.x_label)
    canvas.supylabel(figure.y_label)
    return canvas


def medians(rows: pd.DataFrame, figure: Scatter) -> pd.DataFrame:
    """Median of y in bins along x, equally wide on the scale of the axis."""
    x = np.log(rows[figure.x]) if figure.log_x else rows[figure.x]
    bins = pd.cut(x, 16, labels=False)
    return rows.groupby(bins)[[figure.x, figure.y]].median().dropna()


def _word_maps(figure: WordMaps) -> Canvas:
    panels = list(figure.panel_titles)
    rows, columns = (
        figure.table.drop_duplicates(name).sort_values(name).set_index(name)[label].map(word_label)
        for name, label in ((figure.row, figure.row_label), (figure.column, figure.column_label))
    )
    size = (max(2.6, 0.27 * len(columns) + 1.3), max(2.0, 0.24 * len(rows) + 1.2))
    canvas = Canvas(figsize=(size[0] * len(panels) + 0.4, size[1]), layout="constrained")
    for axes, panel in zip(canvas.subplots(1, len(panels), sharey=True, squeeze=False).flat, panels, strict=True):
        table = figure.table[figure.table[figure.panel] == panel]
        grid = table.pivot(index=figure.row, columns=figure.column, values=figure.value)
        # In reading order: the first word is at the top.
        if figure.largest is None:
            axes.imshow(grid, cmap=COLOURS, vmin=0, aspect="auto")
        else:
            axes.imshow(grid, cmap=DIVERGING, vmin=-figure.largest, vmax=figure.largest, aspect="auto")
        for kind, style in (("sure", "solid"), ("possible", (0, (2, 1)))):
            for cell in table[table[figure.frame] == kind].itertuples():
                corner = (getattr(cell, figure.column) - 0.5, getattr(cell, figure.row) - 0.5)
                frame = Rectangle(corner, 1, 1, fill=False, edgecolor=LINE_COLOURS[3], linewidth=1.2, linestyle=style)
                frame.set_clip_on(False)
                axes.add_patch(frame)
        axes.set_title(figure.panel_titles[panel])
        axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return canvas
