"""What notebooks display of the results of several texts, and coloured texts."""

import html
from collections.abc import Sequence
from typing import Generic, TypeVar, overload

import numpy as np
import pandas as pd
from jaxtyping import Float

from normscope.rounding import number

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
