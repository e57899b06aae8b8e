"""Figures drawn from their descriptions."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from normscope.analyses.findings import Figure, HeatmapPanels, LinesByLayer

# Perceptually uniform and legible to the colour-blind; light means little, dark means much, as on paper.
_COLOURS = mpl.colormaps["viridis_r"]
# Okabe and Ito's palette: distinct for all common kinds of colour vision.
_LINE_COLOURS = ("#0072B2", "#E69F00", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#000000", "#F0E442")
_MARKERS = "osD^vPX*"

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "normscope",  # the same bytes for the same numbers
}


def draw(figure: Figure, paths: Sequence[Path]) -> None:
    """Draw a figure into files, the format by the ending of each."""
    with mpl.rc_context(_STYLE):
        match figure:
            case HeatmapPanels():
                canvas = _heatmaps(figure)
            case LinesByLayer():
                canvas = _lines(figure)
            case _:
                assert_never(figure)
        _caption(canvas, figure.caption)
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {"Description": figure.caption}
            canvas.savefig(path, dpi=150, bbox_inches="tight", facecolor="white", metadata=metadata)


def _caption(canvas: Canvas, caption: str) -> None:
    width = int(canvas.get_figwidth() * 15)
    canvas.supxlabel(textwrap.fill(caption, width), fontsize=9, x=0.5, ha="center", linespacing=1.4)


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
        # One row per layer, the first at the bottom: up is deeper, as in the papers.
        grid = table.pivot(index=figure.row, columns=figure.column, values=figure.value).loc[rows, columns]
        image = axes.imshow(
            grid, cmap=_COLOURS, vmin=figure.limits[0], vmax=figure.limits[1], origin="lower", aspect="auto"
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
            red, green, blue, _ = _COLOURS((value - limits[0]) / (limits[1] - limits[0]))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            axes.text(
                column, row, f"{value:.0f}", ha="center", va="center", fontsize=7.5, color="white" if dark else "black"
            )


def _lines(figure: LinesByLayer) -> Canvas:
    canvas = Canvas(figsize=(6.4, 4.2), layout="constrained")
    axes = canvas.add_subplot()
    for number, (series, title) in enumerate(figure.series_titles.items()):
        rows = figure.table[figure.table[figure.series] == series].sort_values("layer")
        if len(rows):
            axes.plot(
                rows["layer"],
                rows[figure.value],
                label=title,
                color=_LINE_COLOURS[number % len(_LINE_COLOURS)],
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=5,
            )
    axes.set_xlabel("layer")
    axes.set_ylabel(figure.value_label)
    axes.set_xticks(sorted(figure.table["layer"].unique()))
    if figure.limits is not None:
        axes.set_ylim(figure.limits)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return canvas
