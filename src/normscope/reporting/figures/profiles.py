"""The values of all hidden dimensions, with the outlier dimensions named."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from normscope.reporting.figure_text import profile_titles
from normscope.reporting.figures.layout import fitted, integer_ticks, panels_across, row_height, spread, text_width
from normscope.reporting.figures.style import SMALL, accent, line_colours, points
from normscope.reporting.palette import INK
from normscope.results.figures import Profiles


def profiles(figure: Profiles, width: float) -> Canvas:
    """One panel per layer."""
    titles = profile_titles(figure)
    panels = list(titles)
    across = panels_across(len(panels), width, 1.9 if width >= 5 else 1.5, pliable=True)
    down = -(-len(panels) // across)
    canvas = Canvas(figsize=(width, row_height(down, 1.35) * down + 0.35), layout="constrained")
    grid = canvas.subplots(down, across, sharex=True, squeeze=False)
    # An incomplete row is the first, so that every column of panels has its labels at the bottom.
    empty = grid.size - len(panels)
    for axes in grid[0, across - empty :]:
        axes.set_visible(False)
    slots = [*grid.flat[: across - empty], *grid.flat[across:]]
    inches = width / across - 0.6
    limits, labels = _limits(figure), figure.labels()
    for position, (axes, panel) in enumerate(zip(slots, panels, strict=True)):
        rows = figure.table[figure.table[figure.panel] == panel]
        lines = [rows] if figure.series is None else [line for _, line in rows.groupby(figure.series)]
        for line in lines:
            axes.plot(
                line[figure.x], line[figure.y], color=line_colours()[0], linewidth=0.6, alpha=0.7, rasterized=True
            )
        axes.margins(x=0.02)
        axes.set_ylim(limits[panel])
        axes.axhline(0, color=INK, linewidth=0.4)
        axes.set_title(fitted(titles[panel], inches + 0.3))
        _label(axes, figure, labels[labels[figure.panel] == panel], inches)
        integer_ticks(axes, rows[figure.x].tolist(), inches)
        if position == 0 or (position + empty) % across == 0:
            axes.set_ylabel(fitted(figure.y_label, 1.0))
        if position >= len(panels) - across:
            axes.set_xlabel(figure.x)
    return canvas


def _limits(figure: Profiles) -> dict[Any, tuple[float, float]]:
    """The y-axis of each panel: its range, a margin, and room for labels where any panel of that range has some."""
    labelled = figure.labels()
    sides = labelled[figure.y] >= 0
    ranges = figure.ranges()
    named = {(ranges[panel], bool(up)) for panel, up in zip(labelled[figure.panel], sides, strict=True)}
    limits = {}
    for panel, ends in ranges.items():
        low, high = ends
        span = high - low or 1.0
        below, above = (0.05 + 0.24 * ((ends, up) in named) for up in (False, True))
        limits[panel] = (low - below * span, high + above * span)
    return limits


def _label(axes: Axes, figure: Profiles, furthest: pd.DataFrame, inches: float) -> None:
    """Name dimensions along the upper or the lower edge, whichever side their value is on, with a line to the value."""
    if furthest.empty:
        return
    axes.plot(
        furthest[figure.x], furthest[figure.y], linestyle="none", marker="o", markersize=2.5, color=accent(),
        markeredgewidth=0,
    )  # fmt: skip
    size = points(scale=SMALL)
    each = (text_width(str(furthest[figure.x].max()), size) + 0.04) / inches
    up = furthest[furthest[figure.y] >= 0]
    down = furthest[furthest[figure.y] < 0]
    for side, edge, alignment in ((up, 0.99, "top"), (down, 0.01, "bottom")):
        # Where not all fit, those with the largest values are named.
        side = side.loc[side[figure.y].abs().nlargest(max(1, int(1 / each))).index].sort_values(figure.x)
        left, right = axes.get_xlim()
        places = spread([(x - left) / (right - left) for x in side[figure.x]], each, each / 2, 1 - each / 2)
        for place, x, y in zip(places, side[figure.x], side[figure.y], strict=True):
            axes.annotate(
                str(x), (x, y), xytext=(place, edge), textcoords="axes fraction", ha="center", va=alignment,
                fontsize=size, annotation_clip=False,
                arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": accent(), "shrinkA": 0, "shrinkB": 1},
            )  # fmt: skip
