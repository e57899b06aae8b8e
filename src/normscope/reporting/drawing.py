"""Draws figures from their descriptions, with matplotlib."""

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from normscope.analyses.findings import Figure, HeatmapGrid, HeatmapPanels, Lines, Profiles, Scatter, WordMaps
from normscope.reporting.figures.heatmaps import heatmap_grid, heatmap_panels
from normscope.reporting.figures.lines import lines
from normscope.reporting.figures.profiles import profiles
from normscope.reporting.figures.scatter import medians as medians
from normscope.reporting.figures.scatter import scatter
from normscope.reporting.figures.word_maps import word_maps
from normscope.reporting.palette import STYLE

PAGE = 6.9
"""Inches: the width of a figure across both columns of a paper."""
COLUMN = 3.35
"""Inches: the width of a figure in one column of a paper."""

_CAPTION_SIZE = 8


def draw(figure: Figure, paths: Sequence[Path]) -> None:
    """Draw a figure into files, each in the format of its suffix."""
    with mpl.rc_context(STYLE):
        canvas = laid_out(figure)
        for path in paths:
            metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {"Description": figure.caption}
            canvas.savefig(path, dpi=200, facecolor="white", metadata=metadata)


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    with mpl.rc_context(STYLE):
        stream = io.BytesIO()
        laid_out(figure).savefig(stream, format="png", dpi=130, facecolor="white")
    return stream.getvalue()


def laid_out(figure: Figure, width: float = PAGE, *, caption: bool = True) -> Canvas:
    """The drawing, laid out once for all files.

    Args:
        figure: What to draw.
        width: Width in inches.
        caption: Whether to write the caption below the panels.
    """
    match figure:
        case HeatmapPanels():
            canvas = heatmap_panels(figure, width)
        case HeatmapGrid():
            canvas = heatmap_grid(figure, width)
        case Lines():
            canvas = lines(figure, width)
        case Profiles():
            canvas = profiles(figure, width)
        case Scatter():
            canvas = scatter(figure, width)
        case WordMaps():
            canvas = word_maps(figure, width)
        case _:
            assert_never(figure)
    if caption:
        _add_caption(canvas, figure.caption)
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")
    return canvas


def _add_caption(canvas: Canvas, caption: str) -> None:
    """Make the canvas higher and write the caption below the panels."""
    width, height = canvas.get_size_inches()
    text = textwrap.fill(caption, max(20, int((width - 0.2) / (0.52 * _CAPTION_SIZE / 72))))
    room = (text.count("\n") + 1) * _CAPTION_SIZE * 1.4 / 72 + 0.15
    canvas.set_size_inches(width, height + room)
    share = room / (height + room)
    canvas.get_layout_engine().set(rect=(0, share, 1, 1 - share))  # type: ignore[union-attr, call-arg]
    canvas.text(0.1 / width, share - 0.08 / (height + room), text, fontsize=_CAPTION_SIZE, va="top", linespacing=1.4)
