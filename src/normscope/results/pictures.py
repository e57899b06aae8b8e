"""What notebooks display of results: figures, and interactive pages with token maps or pairs of texts.

Both are drawn by `reporting`, which imports this package. Here its functions can only be named.
"""

import base64
import dataclasses
import html
import importlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from normscope.config.calls import checked
from normscope.errors import InputError
from normscope.results.figures import Figure, TextPair
from normscope.results.maps import TokenMap
from normscope.rounding import counted
from normscope.untrusted.writing import write_named


def _reported(function: str, *given: Any, **options: Any) -> Any:
    """What a function of `reporting` returns, given as `module:function`."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(*given, **options)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Picture:
    """A figure that notebooks display and `save` writes to a file."""

    description: Figure

    @checked
    def save(
        self,
        path: str | Path,
        *,
        width: str | float = "page",
        caption: bool = True,
        dpi: int = 200,
    ) -> None:
        """Save the figure to a file, in the format of its extension.

        `matplotlib.rc_context` changes its style. Each kind of text has a size of its own: `font.size` is that of the caption,
        `axes.titlesize` of titles, `xtick.labelsize` and `ytick.labelsize` of tokens and numbers beside axes.

        Args:
            path: The file: .png, .svg, .pdf, or another format of matplotlib's.
            width: `page` (6.9 inches), `column` (3.35 inches), `slide` (as large as fits below the title of a slide of
                13.3 × 7.5 inches, without the caption), or a number of inches.
            caption: Whether to write the caption below the panels.
            dpi: Pixels per inch.

        Raises:
            InputError: If an argument is invalid, the file cannot be written, or its extension is unknown.
        """
        look = {"width": width, "caption": caption, "dpi": dpi}
        _reported("normscope.reporting.drawing:save", self.description, path, look)

    @property
    def caption(self) -> str:
        """How to read the figure."""
        return str(_reported("normscope.reporting.figure_text:caption_of", self.description))

    def __repr__(self) -> str:
        return f"Figure: {self.caption}\n.save('figure.pdf') writes it to a file"

    def _repr_png_(self) -> bytes:
        return bytes(_reported("normscope.reporting.drawing:png", self.description))

    def _repr_html_(self) -> str:
        encoded = base64.b64encode(self._repr_png_()).decode()
        alt = html.escape(self.caption)
        return f'<img alt="{alt}" style="max-width: 100%" src="data:image/png;base64,{encoded}">'


_HEIGHT = 940
"""Pixels of the frame, enough for the controls and the map of a sentence; the reader can make it taller."""

_LARGEST = 4_000_000
"""Values of one page. Each takes 2.7 bytes."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Explorer:
    """The token maps of texts, or pairs of texts, as an interactive page, which notebooks display and which can be saved.

    It needs no network. Where scripts do not run (GitHub, a notebook that is not trusted, nbconvert to PDF), a picture stands
    in for it.
    """

    picture: Picture
    """What is shown where scripts do not run."""
    maps: Sequence[TokenMap] = ()
    pairs: Sequence[TextPair] = ()
    """The pairs of texts, if there are no maps. A query's documents come in order, and the first ten are listed."""

    def __post_init__(self) -> None:
        values = sum(each.values for each in self.maps) + sum(pair.matrix.size for pair in self.pairs)
        if values > _LARGEST:
            raise InputError(
                f"explorer: expected at most {_LARGEST:,} values on one page, got {values:,}; {self._smaller()}"
            )

    def _smaller(self) -> str:
        """How to get fewer values."""
        if self.pairs:
            return "take fewer pairs of texts"
        of_targets = any(each.of_targets for each in self.maps)
        fewer = "take shorter texts or fewer targets" if of_targets else "take shorter or fewer texts"
        without = 'leave "head" out of by' if of_targets else "leave out heads=True"
        return f"{fewer}, or {without}" if any(each.heads for each in self.maps) else fewer

    @cached_property
    def page(self) -> str:
        """The whole page as HTML."""
        if self.maps:
            return str(_reported("normscope.reporting.page.explorer:explorer_page", self.maps))
        return str(_reported("normscope.reporting.page.explorer:pairs_page", self.pairs))

    @checked
    def save(self, path: str | Path) -> None:
        """Save the page as one HTML file.

        Raises:
            InputError: If the file cannot be written.
        """
        write_named(path, self.page.encode())

    def _repr_png_(self) -> bytes:
        return self.picture._repr_png_()

    def _repr_html_(self) -> str:
        # The frame covers the picture, which is seen where a sanitiser takes the frame away. Scripts in the frame cannot reach
        # the notebook: its origin is its own.
        cover = "position: absolute; inset: 0; width: 100%; height: 100%; border: 0; background: Canvas"
        name = "Explorer of token maps" if self.maps else "Pairs of tokens"
        return (
            f'<div style="position: relative; height: {_HEIGHT}px; overflow: hidden; resize: vertical">'
            f"{self.picture._repr_html_()}"
            f'<iframe title="{name}" sandbox="allow-scripts allow-downloads" allow="fullscreen" '
            f'style="{cover}" srcdoc="{html.escape(self.page)}"></iframe></div>'
        )

    def __repr__(self) -> str:
        if self.pairs:
            what = self.pairs[0].title if len(self.pairs) == 1 else f"{len(self.pairs)} pairs of texts"
        elif any(each.of_targets for each in self.maps):
            what = f"Attribution, {counted(len(self.maps), 'map')}"
        else:
            what = f"Token maps of {counted(len(self.maps), 'text')}"
        return f"{what}; .save('map.html') makes a page to open in a browser"
