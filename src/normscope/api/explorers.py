"""The report's interactive views, for notebooks and files."""

import abc
import dataclasses
import html
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from normscope.api.calls import checked
from normscope.api.picture import Picture
from normscope.errors import InputError, one_line
from normscope.reporting.page.explorer import explorer_page, pairs_page
from normscope.results.figures import TextPair
from normscope.results.maps import TokenMap
from normscope.rounding import counted
from normscope.untrusted.writing import write_named

_HEIGHT = 940
"""Pixels of the frame, enough for the controls and the map of a sentence; the reader can make it taller."""

_LARGEST = 4_000_000
"""Values of one page. Each takes 2.7 bytes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Framed(abc.ABC):
    """An interactive page, which notebooks display and which can be saved. Neither needs a network.

    Where scripts do not run (GitHub, a notebook that is not trusted, nbconvert to PDF), a picture stands in for it.
    """

    picture: Picture
    """What is shown where scripts do not run."""

    name: ClassVar[str]
    """What the page is, for screen readers."""

    @property
    @abc.abstractmethod
    def page(self) -> str:
        """The whole page as HTML."""

    @checked
    def save(self, path: str | Path) -> None:
        """Save the page as one HTML file.

        Raises:
            InputError: If the file cannot be written.
        """
        try:
            write_named(path, self.page.encode())
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: {one_line(error)}") from error

    def _repr_png_(self) -> bytes:
        return self.picture._repr_png_()

    def _repr_html_(self) -> str:
        # The frame covers the picture, which is seen where a sanitiser takes the frame away. Scripts in the frame cannot reach
        # the notebook: its origin is its own.
        cover = "position: absolute; inset: 0; width: 100%; height: 100%; border: 0; background: Canvas"
        return (
            f'<div style="position: relative; height: {_HEIGHT}px; overflow: hidden; resize: vertical">'
            f"{self.picture._repr_html_()}"
            f'<iframe title="{self.name}" sandbox="allow-scripts allow-downloads" allow="fullscreen" '
            f'style="{cover}" srcdoc="{html.escape(self.page)}"></iframe></div>'
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Explorer(Framed):
    """The token maps of texts; see `Framed`."""

    sentences: Sequence[TokenMap]
    """The maps of each text."""

    name = "Explorer of token maps"

    def __post_init__(self) -> None:
        values = sum(sentence.values for sentence in self.sentences)
        if values > _LARGEST:
            of_targets = any(sentence.of_targets for sentence in self.sentences)
            fewer = "take shorter texts or fewer targets" if of_targets else "take shorter or fewer texts"
            without = 'leave "head" out of by' if of_targets else "leave out heads=True"
            heads = f", or {without}" if any(sentence.heads for sentence in self.sentences) else ""
            raise InputError(
                f"explorer: expected at most {_LARGEST:,} values on one page, got {values:,}; {fewer}{heads}"
            )

    @cached_property
    def page(self) -> str:
        """The whole page as HTML."""
        return explorer_page(self.sentences)

    def __repr__(self) -> str:
        count = len(self.sentences)
        if any(sentence.of_targets for sentence in self.sentences):
            what = f"Attribution, {counted(count, 'map')}"
        else:
            what = f"Token maps of {counted(count, 'text')}"
        return f"{what}; .save('map.html') makes a page to open in a browser"


@dataclasses.dataclass(frozen=True, eq=False)
class PairExplorer(Framed):
    """Which tokens of two texts make up their similarity, for one pair of texts or several; see `Framed`."""

    pairs: Sequence[TextPair]
    """At least one. If these are a query and its documents, in order, the page begins with a list of the first ten."""

    name = "Pairs of tokens"

    def __post_init__(self) -> None:
        values = sum(pair.matrix.size for pair in self.pairs)
        if values > _LARGEST:
            raise InputError(
                f"explorer: {values:,} values of {len(self.pairs):,} pairs of texts; expected at most {_LARGEST:,}: take "
                "fewer, such as similarities[:10]"
            )

    @cached_property
    def page(self) -> str:
        """The whole page as HTML."""
        return pairs_page(self.pairs)

    def __repr__(self) -> str:
        count = len(self.pairs)
        what = self.pairs[0].title if count == 1 else f"{count} pairs of texts"
        return f"{what}; .save('pair.html') makes a page to open in a browser"
