"""What the frames of a sound give, over time, below its wave."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from normscope.reporting.figures.layout import fitted
from normscope.reporting.figures.style import SMALL, line_colours, points
from normscope.reporting.palette import FAINT, GRID
from normscope.results.figures import SoundMaps

_WAVE, _AROUND = 0.4, 0.32
"""Inches: the height of the wave, and what a panel needs beside its curves for its title."""
_ALONE, _ROW = 0.6, 0.2
"""The height of a panel's only curve, and of each of several."""
_FULL = 0.92
"""The height of the largest value, as a share of its row."""


def sound_maps(figure: SoundMaps, width: float) -> Canvas:
    """The wave, and below it the panels, with one axis of time."""
    panels = {title: figure.rows_of(panel) for panel, title in figure.panel_titles.items()}
    heights = [_WAVE, *(_ALONE if len(rows) == 1 else _ROW * len(rows) for rows in panels.values())]
    canvas = Canvas(figsize=(width, sum(heights) + _AROUND * (len(heights) + 1)), layout="constrained")
    axes = canvas.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    times = np.arange(1 + next(iter(panels.values())).shape[1]) * figure.seconds
    _draw_wave(axes[0], figure)
    for below, (title, rows) in zip(axes[1:], panels.items(), strict=True):
        below.set_title(fitted(title, width - 0.8))
        _draw_rows(below, times, rows.to_numpy(dtype=float), [str(label) for label in rows.index], figure)
    axes[-1].set_xlabel("time (s)")
    axes[-1].set_xlim(times[0], times[-1])
    return canvas


def _draw_wave(axes: Axes, figure: SoundMaps) -> None:
    times = np.arange(len(figure.low) + 1) * figure.wave_seconds
    largest = max(map(abs, (*figure.low, *figure.high)), default=0.0) or 1.0
    low, high = (np.append(ends, ends[-1]) / largest for ends in (figure.low, figure.high))
    axes.fill_between(times, low, high, step="post", color=FAINT, linewidth=0)
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.set_title("sound")
    _plain(axes)


def _draw_rows(axes: Axes, times: np.ndarray, values: np.ndarray, labels: list[str], figure: SoundMaps) -> None:
    """A filled curve for each row, from the top down, all with one scale."""
    largest = float(np.nan_to_num(values).max()) or 1.0
    for number, row in enumerate(values):
        floor = len(values) - 1 - number
        heights = floor + _FULL * np.nan_to_num(row) / largest
        if figure.starts:
            axes.fill_between(
                [figure.starts[number], figure.ends[number]], floor, floor + 1, color=GRID, linewidth=0, zorder=0
            )
        axes.fill_between(
            times, floor, np.append(heights, heights[-1]), step="post", color=line_colours()[0], linewidth=0
        )
    axes.set_ylim(0, len(values))
    if len(values) == 1:
        axes.set_yticks([0, _FULL], ["0", f"{largest:.3g}"])
    else:
        axes.set_yticks(np.arange(len(values)) + 0.4, labels[::-1], fontsize=points("ytick.labelsize", SMALL))
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.tick_params(length=0)
    axes.spines[["left"]].set_visible(False)
    axes.grid(visible=False)
