"""Curves by layer, by rank or by training step."""

from collections.abc import Hashable, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from normscope.reporting.figure_text import log_scale, step_label
from normscope.reporting.figures.layout import (
    SeriesStyle,
    fitted,
    integer_ticks,
    legend_above,
    legend_rows,
    panels_across,
    row_height,
    series_styles,
    spread,
    text_width,
)
from normscope.reporting.figures.style import line_colours, points
from normscope.reporting.palette import CATEGORY_COLOURS
from normscope.results.figures import Lines

_WIDEST_LABEL = 1.5
_STRONG = 1.8
"""How much wider than the others the line is that a figure is about."""
_THIN = 0.6
"""How wide the lines are that a figure is not about."""
_BESIDE = (8.0, 14.5)
"""Points between the axes and the markers and names of lines."""
_HEADROOM = 0.05
"""Of the part of an axis below the lowest line."""


def lines(figure: Lines, width: float) -> Canvas:
    """Line plots: series labelled at their ends in a single panel, by a legend above several panels."""
    panels = [None] if figure.panel is None else _panels(figure)
    across = panels_across(len(panels), width, 2.0 if width >= 5 else 1.5, pliable=True)
    down = -(-len(panels) // across)
    height = (
        min(2.9, 0.6 * width) if len(panels) == 1 else row_height(down, 1.75 if width / across >= 2 else 1.45) * down
    )
    at_ends = len(panels) == 1 and width >= 4
    above = 0.0 if at_ends else 0.18 * legend_rows(list((figure.series_titles or {}).values()), width)
    canvas = Canvas(figsize=(width, height + above), layout="constrained")
    grid = canvas.subplots(down, across, squeeze=False, sharey=figure.sharey)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    handles: dict[Hashable, Line2D] = {}
    for position, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        table = figure.table if panel is None else figure.table[figure.table[figure.panel] == panel]
        handles |= _panel(axes, figure, table, width / across - 0.6 - (_names_at_ends(figure) if at_ends else 0.0))
        axes.tick_params(labelleft=True)
        if panel is not None:
            title = (figure.panel_titles or {}).get(panel, f"{figure.panel} {panel}")
            axes.set_title(fitted(title, width / across - 0.4))
        if position % across == 0:
            axes.set_ylabel(fitted(figure.y_label, height / down - 0.3))
        if position + across >= len(panels):
            axes.set_xlabel(fitted(figure.x_label or figure.x, width / across - 0.35))
    # Axes that are shared are scaled once, when all their lines are known.
    for axes in grid.flat[:1] if figure.sharey else grid.flat[: len(panels)]:
        _scale(axes, figure)
    if figure.series_titles is not None:
        if at_ends:
            _label_ends(grid[0, 0], figure, height - 0.6)
        else:
            legend_above(canvas, figure.series_titles, handles)
    return canvas


def _panels(figure: Lines) -> list[Hashable]:
    present = set(figure.table[figure.panel])
    return [panel for panel in figure.panel_titles or sorted(present) if panel in present]


def _panel(axes: Axes, figure: Lines, table: pd.DataFrame, inches: float) -> dict[Hashable, Line2D]:
    """Draw the lines of a panel; returns them by series."""
    titles = figure.series_titles
    handles: dict[Hashable, Line2D] = {}
    if titles is None:
        every = list(table.groupby(figure.series))
        strength, linewidth = (0.45, 0.7) if len(every) > 1 else (1.0, mpl.rcParams["lines.linewidth"])
        for _, rows in every:
            rows = _with_gaps(rows, figure)
            alone = bool(rows[figure.y].isna().any()) or len(rows) == 1  # a point without a neighbour is no line
            marker = "." if alone else None
            axes.plot(
                rows[figure.x],
                rows[figure.y],
                color=line_colours()[0],
                alpha=strength,
                linewidth=linewidth,
                marker=marker,
            )
    else:
        styles = series_styles(list(titles), figure.leading, figure.behind)
        close = coincide(figure)
        for number, series in enumerate(titles):
            rows = _with_gaps(table[table[figure.series] == series], figure)
            if len(rows):
                # Of lines that lie on each other, the first is the widest, and shows on both sides of the others.
                extra = 2.6 * (len(titles) - 1 - number) / max(1, len(titles) - 1) if close else 0.0
                handles[series] = _line(axes, figure, rows, styles[series], extra)
                if series == figure.leading:
                    handles[series].set(linewidth=_STRONG * mpl.rcParams["lines.linewidth"], zorder=3, alpha=1.0)
                elif series in figure.behind:
                    handles[series].set(linewidth=_THIN * mpl.rcParams["lines.linewidth"], markersize=2.5, zorder=1.5)
    _scale_x(axes, figure, table[figure.x].tolist(), inches)
    axes.grid(axis="y")
    return handles


def _with_gaps(rows: pd.DataFrame, figure: Lines) -> pd.DataFrame:
    """The rows of a line in order, with an empty one wherever a layer was not measured: no line crosses what is not known."""
    rows = rows.sort_values(figure.x).reset_index(drop=True)
    if figure.x not in ("layer", "depth") or "layer" not in rows:
        return rows
    beyond = rows["layer"].diff() > 1
    gaps = rows.loc[beyond, [figure.x]].set_axis(rows.index[beyond] - 0.5)
    return pd.concat([rows, gaps]).sort_index() if len(gaps) else rows


def _scale_x(axes: Axes, figure: Lines, values: Sequence[float], inches: float) -> None:
    if figure.steps:
        _step_axis(axes, sorted(figure.table[figure.x].unique()), inches)
    elif all(value == int(value) for value in values):
        integer_ticks(axes, values, inches)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=max(2, int(inches / 0.35))))


def _step_axis(axes: Axes, steps: Sequence[float], inches: float) -> None:
    """A logarithmic axis on which step 0 is as far from the first later one as that is from twice itself."""
    first = min((step for step in steps if step > 0), default=1.0)
    # Margins may begin below 0, where the axis mirrors its positive part.
    forward = lambda step: np.sign(step) * np.log1p(np.abs(step) / first)  # noqa: E731
    back = lambda place: np.sign(place) * first * np.expm1(np.abs(place))  # noqa: E731
    axes.set_xscale("function", functions=(forward, back))
    places = np.log1p(np.asarray(steps) / first)
    gap = (places[-1] - places[0]) * 0.4 / inches
    shown = [len(steps) - 1]
    for at in range(len(steps) - 2, -1, -1):
        # The first step keeps its label.
        if places[shown[-1]] - places[at] >= gap and (at == 0 or places[at] - places[0] >= gap):
            shown.append(at)
    axes.set_xticks([steps[at] for at in shown], [step_label(steps[at]) for at in shown])
    axes.xaxis.set_minor_locator(NullLocator())


def _line(axes: Axes, figure: Lines, rows: pd.DataFrame, style: SeriesStyle, extra: float) -> Line2D:
    (line,) = axes.plot(
        rows[figure.x],
        rows[figure.y],
        color=style.color,
        marker=style.marker,
        linestyle="solid" if extra else style.linestyle,
        linewidth=mpl.rcParams["lines.linewidth"] + extra,
        markersize=3.5 + extra,
        alpha=0.55 if extra else 1.0,
        markeredgewidth=0,
    )
    if figure.band is not None:
        low, high = figure.band
        axes.fill_between(rows[figure.x], rows[low], rows[high], color=style.color, alpha=0.18, linewidth=0)
    return line


def coincide(figure: Lines) -> bool:
    """Whether two of few lines are so close that one would hide the other. Categories keep their style in any case."""
    titles = [title for title in figure.series_titles or () if title not in figure.behind]
    if not 2 <= len(titles) <= 4 or any(title in CATEGORY_COLOURS for title in titles):
        return False
    keys = [figure.x] if figure.panel is None else [figure.panel, figure.x]
    wide = figure.table[figure.table[figure.series].isin(titles)].pivot_table(
        index=keys, columns=figure.series, values=figure.y, sort=False, observed=True
    )
    extent = float(np.nanmax(wide.to_numpy()) - min(0.0, np.nanmin(wide.to_numpy()))) if wide.size else 0.0
    columns = [wide[name] for name in wide]
    return any(
        float((left - right).abs().median()) < 0.03 * extent
        for i, left in enumerate(columns)
        for right in columns[i + 1 :]
    )


def _scale(axes: Axes, figure: Lines) -> None:
    if figure.log_y:
        log_scale(axes, "y")
    elif figure.limits is not None:
        low, high = figure.limits
        axes.set_ylim(low, high + 0.03 * (high - low))
    else:
        low, high = axes.get_ylim()
        # From zero, the margin above the highest line would be too narrow for its markers.
        axes.set_ylim(min(0.0, low), high + _HEADROOM * max(low, 0.0) if high > 0 else 0.0)


def _names_at_ends(figure: Lines) -> float:
    """Inches that the names of lines take beside the axes."""
    size = points("legend.fontsize")
    return max(
        (text_width(fitted(title, _WIDEST_LABEL, size), size) for title in (figure.series_titles or {}).values()),
        default=0.0,
    )


def _label_ends(axes: Axes, figure: Lines, inches: float) -> None:
    """Name each line beside its last point, with its marker; names that would overlap move apart."""
    titles = figure.series_titles or {}
    last = (
        figure.table.dropna(subset=[figure.y])
        .sort_values(figure.x)
        .groupby(figure.series, observed=True)[figure.y]
        .last()
    )
    keys = [key for key in titles if key in last.index]
    to_axes = axes.transAxes.inverted()
    heights = [float(to_axes.transform(axes.transData.transform((1.0, last[key])))[1]) for key in keys]
    size = points("legend.fontsize")
    labels = [fitted(titles[key], _WIDEST_LABEL, size) for key in keys]
    lines_each = max((label.count("\n") + 1 for label in labels), default=1)
    gap = lines_each * 1.25 * size / 72 / inches
    # In points, so that they are as far apart in a narrow figure as in a wide one.
    scale = axes.figure.dpi_scale_trans
    beside = [axes.transAxes + ScaledTranslation(distance / 72, 0, scale) for distance in _BESIDE]
    for key, label, height in zip(keys, labels, spread(heights, gap, 0.0, 1.0), strict=True):
        style = series_styles(list(titles), figure.leading, figure.behind)[key]
        axes.plot(
            [1.0], [height], color=style.color, marker=style.marker, markersize=4.5, markeredgewidth=0,
            transform=beside[0], clip_on=False,
        )  # fmt: skip
        color = style.color if key in figure.behind else mpl.rcParams["text.color"]
        axes.text(1.0, height, label, transform=beside[1], va="center", fontsize=size, color=color)
