"""Findings in words and numbers: sentences, and the summaries that are printed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from normscope.errors import InputError
from normscope.results.text_table import text_table, written
from normscope.streams import WIDTH

_PLACES = {"text": int, "layer": int, "head": int, "token": int, "category": str}
"""What the parts of `Sentence.place` are."""


class Sentence(str):
    """A finding in words, with the names of the figure and the table that show it.

    Reports link a finding to both. A plain string is a finding without links.

    The effect of a finding is the difference that it states between two numbers of one measure (with and without something,
    vectors beside weights, a number beside that of chance), as a share of the largest difference that the measure's range
    allows. It is in [0, 1] whatever is measured, so findings of all analyses have one scale. A difference that the texts do not
    tell from 0 has no effect: one whose 95% interval contains 0.
    """

    figure: str
    table: str
    measure: str
    """The measure of token maps that the sentence is about; empty if there is none."""
    surprising: bool
    """Whether it contradicts what attention weights suggest, or what one would expect."""
    effect: float
    """The size of the difference that it states, in [0, 1]; 0 if it states none, or none that is detectable."""
    interval: tuple[float, float] | None
    """The ends of the difference's 95% interval over texts, in the same unit; None if texts were not compared."""
    place: Mapping[str, Any]
    """Where in the token maps it is: `layer` and `head` from 1, `category` of the keys, `text` from 1 and, in it, the row
    `token` from 0; empty if it names none of them."""
    analysis: str
    """The analysis that the finding is from; empty while the sentence is still among that analysis's own results."""

    def __new__(
        cls,
        text: str,
        *,
        figure: str = "",
        table: str = "",
        measure: str = "",
        surprising: bool = False,
        effect: float = 0.0,
        place: Mapping[str, Any] = MappingProxyType({}),
        interval: Sequence[float] | None = None,
        analysis: str = "",
    ) -> "Sentence":
        """The text, with the names of the figure and the table that show it.

        Args:
            effect: The difference, as a share of the largest possible one; its sign does not count.
            interval: The ends of its interval; NaN if it has none.
        """
        sentence = super().__new__(cls, text)
        sentence.figure, sentence.table, sentence.measure = figure, table, measure
        sentence.surprising, sentence.analysis = surprising, analysis
        low, high = interval or (math.nan, math.nan)
        sentence.interval = None if math.isnan(low) or math.isnan(high) else (float(low), float(high))
        sentence.effect = 0.0 if low <= 0 <= high else min(abs(float(effect)), 1.0)
        sentence.place = dict(place)
        return sentence

    @classmethod
    def of(cls, text: str) -> "Sentence":
        """The text as a sentence; a plain string gets no links."""
        return text if isinstance(text, Sentence) else cls(text)

    @classmethod
    def read(cls, path: Path, content: Any) -> "Sentence":
        """The sentence that a file of results holds.

        Raises:
            InputError: If the content is not a sentence.
        """
        try:
            sentence = cls(**content)
            if not all(isinstance(value, _PLACES[name]) for name, value in sentence.place.items()):
                raise TypeError("a place in token maps is damaged")
            return sentence
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: expected sentences, got something else") from error

    def but(self, text: str | None = None, **links: Any) -> "Sentence":
        """The sentence with another text, or with other links."""
        return Sentence(str(self) if text is None else text, **{**vars(self), **links})


MOST_ON_TOP = 5
"""The most findings at the top of a report."""


def ranked(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The findings at the top of a report, at most `MOST_ON_TOP`.

    The first finding of each analysis, which answers its question, comes first: the larger its effect, the earlier. Then come
    surprising findings, then the rest.
    """
    answers = {sentence.analysis: sentence for sentence in reversed(sentences)}
    first = [sentence for sentence in sentences if answers[sentence.analysis] is sentence]
    first.sort(key=lambda sentence: -sentence.effect)
    surprises = [sentence for sentence in sentences if sentence.surprising]
    order = {id(sentence): sentence for sentence in [*first, *surprises, *sentences]}
    return list(order.values())[:MOST_ON_TOP]


@dataclasses.dataclass(frozen=True, eq=False)
class Summary:
    """The main numbers of an analysis, ready to print."""

    table: pd.DataFrame
    digits: int = 2
    """Number of decimals."""
    caption: str = ""
    """What the table shows, in a few words."""

    @property
    def _shown(self) -> pd.DataFrame:
        """The table without empty columns, which is empty if there are no others."""
        return self.table.dropna(axis="columns", how="all")

    def __str__(self) -> str:
        return text_table(self._shown, self.digits, WIDTH)

    def _repr_html_(self) -> str:
        return str(written(self._shown, self.digits).to_html())

    def plain(self) -> dict[str, Any]:
        """The summary for JSON."""
        return {
            "caption": self.caption,
            "digits": self.digits,
            "rows": _plain_index(self.table.index),
            "columns": _plain_index(self.table.columns),
            "values": [[_plain(value) for value in values] for _, values in self.table.items()],
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Summary":
        """The summary from what `plain` returned.

        Raises:
            KeyError, TypeError, ValueError: If the content is not a summary.
        """
        rows, columns = _index(plain["rows"]), _index(plain["columns"])
        if len(plain["values"]) != len(columns):
            raise ValueError(f"expected {len(columns)} columns, got {len(plain['values'])}")
        series = [pd.Series(_column(values), index=rows) for values in plain["values"]]
        table = pd.concat(series, axis=1) if series else pd.DataFrame(index=rows)
        return cls(table.set_axis(columns, axis=1), int(plain["digits"]), str(plain["caption"]))


def _column(values: list[Any]) -> Any:
    """A column with NaN for what is missing."""
    if all(value is None or isinstance(value, float) for value in values):
        return np.array([np.nan if value is None else value for value in values], dtype=float)
    has_text = any(isinstance(value, str) for value in values)
    return pd.array(values, dtype="Int64") if None in values and not has_text else values


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _plain_index(index: pd.Index) -> dict[str, Any]:
    return {"names": list(index.names), "values": [_plain(value) for value in index]}


def _index(plain: Mapping[str, Any]) -> pd.Index:
    names, values = plain["names"], plain["values"]
    if len(names) > 1:
        return pd.MultiIndex.from_tuples([tuple(value) for value in values], names=names)
    return pd.Index(values, name=names[0])
