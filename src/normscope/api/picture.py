"""What notebooks display: figures, interactive pages and coloured texts; and the results of several texts."""

import abc
import base64
import dataclasses
import html
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Generic, TypeVar, overload

import numpy as np
import pandas as pd
from jaxtyping import Float

from normscope.api.arguments import checked, in_terms_of_arguments
from normscope.config.schema import check_options
from normscope.errors import InputError, one_line
from normscope.reporting import drawing
from normscope.reporting.figure_text import caption_of
from normscope.reporting.options import FigureOptions, appearance
from normscope.reporting.page.explorer import explorer_page, pairs_page
from normscope.results.figures import Drawing, TextPair
from normscope.results.maps import TokenMap
from normscope.rounding import counted, number
from normscope.untrusted.writing import write_named


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Picture:
    """A figure that notebooks display and `save` writes to a file."""

    description: Drawing

    @checked
    def save(
        self,
        path: str | Path,
        *,
        width: str | float = "page",
        caption: bool = True,
        dpi: int = 200,
    ) -> None:
        """Save the figure to a file, in the format of its extension. `matplotlib.rc_context` changes its style.

        Args:
            path: The file: .png, .svg, .pdf, or another format of matplotlib's.
            width: `page` (6.9 inches), `column` (3.35 inches), or a number of inches.
            caption: Whether to write the caption below the panels.
            dpi: Pixels per inch.

        Raises:
            InputError: If an argument is invalid, the file cannot be written, or its extension is unknown.
        """
        options = FigureOptions(width=width, caption=caption, dpi=dpi)
        with in_terms_of_arguments():
            check_options(options, "figures.")
            look = appearance(options)
            try:
                drawing.draw(self.description, [Path(path)], look)
            except ValueError as error:
                raise InputError(f"{path}: {one_line(error)}") from error

    def __repr__(self) -> str:
        return f"Figure: {caption_of(self.description)}\n.save('figure.pdf') writes it to a file"

    def _repr_png_(self) -> bytes:
        return drawing.png(self.description)

    def _repr_html_(self) -> str:
        encoded = base64.b64encode(self._repr_png_()).decode()
        alt = html.escape(caption_of(self.description))
        return f'<img alt="{alt}" style="max-width: 100%" src="data:image/png;base64,{encoded}">'


@checked
def draw(figure: Drawing) -> Picture:
    """Draw a figure of a run, which notebooks display and `save` writes to a file.

    Args:
        figure: One of `Result.figures`.

    Examples:
        >>> import normscope
        >>> result = normscope.run("mixing", texts=["A short text."])
        >>> picture = normscope.draw(result.figures["mixing_by_layer"])
        >>> picture.save("by_layer.pdf")
        >>> picture.description.y_label
        'mean mixing ratio (%)'
    """
    return Picture(figure)


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
        write_named(path, self.page.encode())

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


_MORE, _LESS = (230, 97, 1), (94, 60, 153)

LEGEND = (
    '<p style="color:#5a5f66;font-size:90%;margin:0">'
    "orange raises the value, purple lowers it; hover over a token to see its part</p>"
)


def coloured(tokens: Sequence[str], values: Float[np.ndarray, " token"], largest: float) -> str:
    """Render a text as HTML, with the value of each token as its tooltip.

    Args:
        values: How much each adds.
        largest: The value with the strongest colour.
    """
    words = "".join(_word(token, float(value), largest or 1.0) for token, value in zip(tokens, values, strict=True))
    return f'<p style="line-height:2.4;margin:0">{words}</p>'


def _word(token: str, value: float, largest: float) -> str:
    red, green, blue = _MORE if value > 0 else _LESS
    # At most 60% of the full colour, so that dark text stays readable.
    strength = 0.6 * min(1.0, abs(value) / largest)
    style = f"background:rgba({red},{green},{blue},{strength:.3f});color:#1a1a1a;padding:.25em;margin:0 1px;border-radius:3px"
    return f'<span style="{style}" title="{number(value)}">{html.escape(token)}</span> '


T = TypeVar("T")


class Several(Sequence[T], Generic[T]):
    """Results in the order in which they were asked for. Tables of all of them have one more column, which counts from 0."""

    counted = "sequence"
    """The name of that column."""

    def __init__(self, results: Sequence[T]) -> None:
        self._results = tuple(results)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> "Several[T]": ...

    def __getitem__(self, index: int | slice) -> "T | Several[T]":
        return type(self)(self._results[index]) if isinstance(index, slice) else self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def _concatenated(self, tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """The tables one below the other, with their numbers as the first column."""
        if not tables:
            return pd.DataFrame(columns=[self.counted])
        numbered = pd.concat(dict(enumerate(tables)), names=[self.counted])
        return numbered.reset_index(self.counted).reset_index(drop=True)
