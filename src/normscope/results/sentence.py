"""Findings in plain words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normscope.errors import InputError


class Sentence(str):
    """A finding in words, with the names of the figure and the table that show it.

    Reports link a finding to both. A plain string is a finding without links.
    """

    figure: str
    table: str
    measure: str
    """The measure of token maps that the sentence is about; empty if there is none."""
    surprising: bool
    """Whether it contradicts what attention weights suggest, or what one would expect."""
    analysis: str
    """The analysis that says so; empty as long as the sentence is part of its own results."""

    def __new__(
        cls,
        text: str,
        *,
        figure: str = "",
        table: str = "",
        measure: str = "",
        surprising: bool = False,
        analysis: str = "",
    ) -> "Sentence":
        """The text, with the names of what shows it."""
        sentence = super().__new__(cls, text)
        sentence.figure, sentence.table, sentence.measure = figure, table, measure
        sentence.surprising, sentence.analysis = surprising, analysis
        return sentence

    @classmethod
    def of(cls, text: str) -> "Sentence":
        """A sentence, also of a plain string."""
        return text if isinstance(text, Sentence) else cls(text)

    @classmethod
    def read(cls, path: Path, content: Any) -> "Sentence":
        """The sentence that a file of results holds.

        Raises:
            InputError: If it is something else.
        """
        try:
            return cls(**content)
        except TypeError as error:
            raise InputError(f"{path}: expected sentences, got something else") from error

    def but(self, text: str | None = None, **links: str) -> "Sentence":
        """The sentence with another text, or with other links."""
        return Sentence(str(self) if text is None else text, **{**vars(self), **links})


MOST_ON_TOP = 5
"""Number of findings at the top of a report."""


def ranked(sentences: Sequence[Sentence]) -> tuple[list[Sentence], list[Sentence]]:
    """The findings of a run, the most important first.

    The first finding of each analysis comes first, then surprising findings, then the rest.

    Returns:
        The findings on top, at most `MOST_ON_TOP`, and all others in their own order.
    """
    answers = {sentence.analysis: sentence for sentence in reversed(sentences)}
    first = [sentence for sentence in sentences if answers[sentence.analysis] is sentence]
    surprises = [sentence for sentence in sentences if sentence.surprising]
    order = {id(sentence): sentence for sentence in [*first, *surprises, *sentences]}
    top = list(order.values())[:MOST_ON_TOP]
    return top, [sentence for sentence in sentences if not any(sentence is chosen for chosen in top)]
