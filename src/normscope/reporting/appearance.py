"""The size and the files of figures."""

import dataclasses
from collections.abc import Sequence

from normscope.reporting.options import FigureOptions

PAGE = 6.9
"""Inches: the width of a figure across both columns of a paper."""
COLUMN = 3.35
"""Inches: the width of a figure in one column of a paper."""

SCREEN = 4.0
"""Inches: the width of a figure on a page, whose text can be read on a phone and beside another figure on a desk."""


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


def appearance(options: FigureOptions) -> Appearance:
    """The appearance that the config asks for."""
    named = {"page": PAGE, "column": COLUMN}
    return Appearance(
        width=named[options.width] if isinstance(options.width, str) else float(options.width),
        caption=options.caption,
        dpi=options.dpi,
        formats=[str(name) for name in options.format],
    )
