"""Scatter plots."""

from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from normscope.reporting.figure_text import log_scale
from normscope.reporting.figures.layout import fitted, legend_above, panels_across, series_styles
from normscope.reporting.figures.style import accent, category_colour, line_colours
from normscope.results.figures import Scatter

_MARGIN = 0.05
"""On either side, as a share of the range."""


def scatter(figure: Scatter, width: float) -> Canvas:
    """One panel per series, with axes that the panels share, or with labelled y-axes of their own."""
    titles = counted_titles(figure)
    panels = list(titles)
    size = _size(figure)
    across = panels_across(len(panels), width, 1.65)
    down = max(1, -(-len(panels) // across))
    wide = width / across
    canvas = Canvas(figsize=(width, (min(1.9, wide) + 0.15) * down + 0.3), layout="constrained")
    grid = canvas.subplots(down, across, squeeze=False, sharex=True, sharey=figure.sharey)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    marks: dict[Hashable, Line2D] = {}
    for position, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        rows = figure.table[figure.table[figure.panel] == panel]
        marks |= _points(axes, figure, rows, category_colour(panel) or line_colours()[0], size)
        # The title is centred above the axes, right of whose middle there is less room than on the left.
        axes.set_title(fitted(titles[panel], wide - 0.55))
        for axis, column in (("x", figure.x), ("y", figure.y)):
            if is_logarithmic(figure, column):
                log_scale(axes, axis)  # type: ignore[arg-type]
        if position == 0:
            axes.set_xlim(axis_range(figure, figure.x, panels))
        if position == 0 or not figure.sharey:
            axes.set_ylim(axis_range(figure, figure.y, panels if figure.sharey else [panel]))
        lowest = position + across >= len(panels)
        axes.tick_params(labelbottom=lowest)
        if lowest:
            axes.set_xlabel(fitted(figure.x_label, wide - 0.55))
        if position % across == 0:
            axes.set_ylabel(figure.y_label)
        axes.grid(axis="y")
    legend_above(canvas, figure.series_titles or {}, marks)
    return canvas


def counted_titles(figure: Scatter) -> dict[str, str]:
    """The titles of the panels that have points, with the number of points where it differs between panels."""
    counts = figure.table[figure.panel].value_counts()
    titles = {panel: title for panel, title in figure.panel_titles.items() if counts.get(panel, 0)}
    if counts[list(titles)].nunique() < 2:
        return titles
    return {panel: f"{title} (n\u00a0=\u00a0{counts[panel]:,})" for panel, title in titles.items()}


def _size(figure: Scatter) -> float:
    """The size of all points: in panels of one figure, it must mean nothing."""
    counts = figure.table[figure.panel].value_counts()
    most = int(counts[counts.index.isin(list(figure.panel_titles))].max()) if len(counts) else 0
    return 14 if most < 300 else 5 if most < 1000 else 3


def _points(axes: Axes, figure: Scatter, rows: pd.DataFrame, color: str, size: float) -> dict[Hashable, Line2D]:
    """Draw the points of a panel; returns a mark of each kind for the legend, if there are kinds."""
    strength = 0.8 if len(rows) < 300 else 0.4 if len(rows) < 1000 else 0.3
    kinds: dict[Hashable, pd.DataFrame] = {"": rows}
    if figure.series is not None:
        kinds = dict(iter(rows.groupby(figure.series, sort=False)))
    styles = series_styles(list(figure.series_titles or {}))
    marks: dict[Hashable, Line2D] = {}
    for kind in styles or kinds:
        if kind in kinds:
            own = styles[kind].color if kind in styles else color
            x, y = kinds[kind][figure.x], kinds[kind][figure.y]
            axes.scatter(x, y, s=size, alpha=strength, color=own, linewidths=0, rasterized=True)
            marks[kind] = Line2D([], [], color=own, marker="o", linestyle="", markersize=3.5, markeredgewidth=0)
    if figure.medians and len(rows) > 20:
        middle = medians(rows, figure)
        axes.plot(middle[figure.x], middle[figure.y], color=accent(), linewidth=1.6)
    return marks


def axis_range(figure: Scatter, column: str, panels: Sequence[str]) -> tuple[float, float]:
    """The range of an axis of some panels, on a page as in print: without the furthest share of the points of each panel on
    either side (`trim`), and with a small margin.
    """
    rows = figure.table[figure.table[figure.panel].isin(list(panels))]
    logarithmic = is_logarithmic(figure, column)
    values = rows[rows[column] > 0] if logarithmic else rows.dropna(subset=column)
    if values.empty:
        return 0.0, 1.0
    ends = values.groupby(figure.panel, observed=True)[column].quantile(np.array([figure.trim, 1 - figure.trim]))
    low, high = float(ends.min()), float(ends.max())
    if low == high:
        low, high = float(values[column].min()), float(values[column].max())
    if logarithmic:
        factor = (high / low) ** _MARGIN if high > low else 2.0
        return low / factor, high * factor
    margin = _MARGIN * (high - low or abs(high) or 1.0)
    return low - margin, high + margin


def is_logarithmic(figure: Scatter, column: str) -> bool:
    """Whether the axis of a column is logarithmic: if it should be, and there are positive numbers."""
    return (figure.log_x if column == figure.x else figure.log_y) and bool((figure.table[column] > 0).any())


def medians(rows: pd.DataFrame, figure: Scatter) -> pd.DataFrame:
    """Median of y in bins along x, equally wide on the scale of the axis."""
    x = np.log(rows[figure.x]) if figure.log_x else rows[figure.x]
    bins = pd.cut(x, 16, labels=False)
    return rows.groupby(bins)[[figure.x, figure.y]].median().dropna()
