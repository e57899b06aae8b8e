"""The size, files and style of figures."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.reporting.options import FigureOptions

PAGE = 6.9
"""Inches: the width of a figure across both columns of a paper."""
COLUMN = 3.35
"""Inches: the width of a figure in one column of a paper."""


@dataclasses.dataclass(frozen=True)
class Appearance:
    """How figures are drawn."""

    width: float = PAGE
    """Inches."""
    caption: bool = True
    """Whether the caption is written below the panels."""
    dpi: int = 200
    """Pixels per inch of PNG files, and of clouds of points in other files."""
    formats: Sequence[str] = ("png", "svg")
    """Extensions of the files of a run."""
    style: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """matplotlib's parameters, on top of our style."""
    style_name: str = ""
    """Where they are from: the style sheet, or the name of a style."""


def appearance(options: FigureOptions) -> Appearance:
    """The appearance that the config asks for.

    Raises:
        InputError: If the style cannot be read.
    """
    style: Mapping[str, Any] = {}
    if options.style is not None:
        # matplotlib takes a second to import, and most runs need it only once they have read their corpus.
        from normscope.reporting.figures.style import read_style

        style = read_style(options.style)
    named = {"page": PAGE, "column": COLUMN}
    return Appearance(
        width=named[options.width] if isinstance(options.width, str) else float(options.width),
        caption=options.caption,
        dpi=options.dpi,
        formats=[str(name) for name in options.format],
        style=style,
        style_name=options.style or "",
    )
