"""Scatter plots."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from normscope.analyses.findings import Scatter
from normscope.reporting.figure_text import log_scale
from normscope.reporting.figures.layout import fitted, panels_across
from normscope.reporting.figures.style import accent, category_colour, line_colours


def scatter(figure: Scatter, width: float) -> Canvas:
    """One panel per series, with axes that the panels share, or with labelled axes of their own."""
    panels = [panel for panel in figure.panel_titles if (figure.table[figure.panel] == panel).any()]
    alike = figure.table[figure.table[figure.panel].isin(panels)][figure.panel].value_counts().nunique() == 1
    across = panels_across(len(panels), width, 1.65)
    down = max(1, -(-len(panels) // across))
    wide = width / across
    canvas = Canvas(figsize=(width, (min(1.9, wide) + 0.15) * down + 0.3), layout="constrained")
    grid = canvas.subplots(down, across, squeeze=False, sharex=True, sharey=figure.sharey)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for position, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        rows = figure.table[figure.table[figure.panel] == panel]
        _points(axes, figure, rows, category_colour(panel) or line_colours()[0])
        count = "" if alike else f" ({len(rows):,})"
        # The title is centred above the axes, right of whose middle there is less room than on the left.
        axes.set_title(fitted(f"{figure.panel_titles[panel]}{count}", wide - 0.55))
        for axis, logarithmic in (("x", figure.log_x), ("y", figure.log_y)):
            if logarithmic:
                log_scale(axes, axis)  # type: ignore[arg-type]
        lowest = position + across >= len(panels)
        axes.tick_params(labelbottom=lowest or not figure.sharey)
        if lowest or not figure.sharey:
            axes.set_xlabel(fitted(figure.x_label, wide - 0.55))
        if position % across == 0 or not figure.sharey:
            axes.set_ylabel(figure.y_label)
        axes.grid(axis="y")
    if figure.trim and panels:
        grid.flat[0].set_xlim(trimmed_range(figure, figure.x, logarithmic=figure.log_x))
        if figure.sharey:
            grid.flat[0].set_ylim(trimmed_range(figure, figure.y, logarithmic=figure.log_y))
    return canvas


def _points(axes: Axes, figure: Scatter, rows: pd.DataFrame, color: str) -> None:
    size, strength = (14, 0.8) if len(rows) < 300 else (5, 0.4) if len(rows) < 1000 else (2, 0.35)
    axes.scatter(rows[figure.x], rows[figure.y], s=size, alpha=strength, color=color, linewidths=0, rasterized=True)
    if figure.medians and len(rows) > 20:
        middle = medians(rows, figure)
        axes.plot(middle[figure.x], middle[figure.y], color=accent(), linewidth=1.6)


def trimmed_range(figure: Scatter, column: str, *, logarithmic: bool) -> tuple[float, float]:
    """The range of a column, without the furthest share of each panel's points on either side, and a small margin."""
    rows = figure.table[figure.table[figure.panel].isin(list(figure.panel_titles))]
    values = rows[rows[column] > 0] if logarithmic else rows
    ends = values.groupby(figure.panel, observed=True)[column].quantile(np.array([figure.trim, 1 - figure.trim]))
    low, high = float(ends.min()), float(ends.max())
    if low == high:
        return float(values[column].min()), float(values[column].max())
    if logarithmic:
        margin = (high / low) ** 0.05
        return low / margin, high * margin
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def medians(rows: pd.DataFrame, figure: Scatter) -> pd.DataFrame:
    """Median of y in bins along x, equally wide on the scale of the axis."""
    x = np.log(rows[figure.x]) if figure.log_x else rows[figure.x]
    bins = pd.cut(x, 16, labels=False)
    return rows.groupby(bins)[[figure.x, figure.y]].median().dropna()
