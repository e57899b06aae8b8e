"""Table rows, from a file or the Hub, as examples: texts, pairs, or a query with each of its documents."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normscope.data.annotation import WITHOUT_FORMS, lack_forms, spaced
from normscope.data.examples import Annotation, Example
from normscope.data.legibility import NOT_TEXT, why_not_text
from normscope.errors import InputError, printable

QUERY, DOCUMENTS, SCORES = "query", "documents", "scores"
"""The columns: a text; a list of texts, or of objects with `text` and `id`; and a list of numbers, which may be left out."""


def is_ranking(row: Mapping[str | int, Any], text_column: str | int | None, pair_column: str | int | None) -> bool:
    """Whether a row holds a query and its documents."""
    query = QUERY if text_column is None else text_column
    return pair_column is None and DOCUMENTS in row and query in row and not (text_column is None and "text" in row)


def pairs_of_ranking(
    row: Mapping[str | int, Any], where: str, query: str | int, scores: str | int
) -> Iterator[Example]:
    """The query with each document, in order. Documents are numbered from 1.

    Args:
        where: The row, for messages.
        query: The column of the query.
        scores: The column of the gold scores.

    Raises:
        InputError: If a text is empty or not text, an id occurs twice, or a score is not a number.
    """
    text, documents = row[query], row[DOCUMENTS]
    _check_text(text, f"{where}: {query}")
    if not isinstance(documents, list) or not documents:
        got = "an empty list" if documents == [] else printable(repr(documents), 60)
        raise InputError(f"{where}: {DOCUMENTS}: expected a list of at least one text, got {got}")
    gold = _scores(row.get(scores), len(documents), f"{where}: {scores}")
    first: dict[str, int] = {}
    for number, document in enumerate(documents, start=1):
        place = f"{where}: document {number}"
        if isinstance(document, Mapping):
            identifier, document = document.get("id"), document.get("text")
            if identifier is not None and first.setdefault(str(identifier), number) != number:
                raise InputError(
                    f"{place}: its id {printable(repr(identifier), 60)} is also that of document {first[str(identifier)]}; "
                    "expected each document once"
                )
        _check_text(document, place)
        yield Example(text, document, score=gold[number - 1], document=number)


def _check_text(text: object, where: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"{where}: expected a text, or an object with a `text`, got {printable(repr(text), 60)}")
    if not text.strip():
        raise InputError(f"{where} is empty: expected a text; fill it in or leave it out")
    if (reason := why_not_text(text.strip())) is not None:
        raise InputError(f"{where}: expected a text, got {reason}")


def _scores(cells: object, documents: int, where: str) -> list[float | None]:
    if cells is None:
        return [None] * documents
    if not isinstance(cells, list) or len(cells) != documents:
        got = len(cells) if isinstance(cells, list) else printable(repr(cells), 60)
        raise InputError(f"{where}: expected a list of {documents} numbers, one for each document, got {got}")
    for number, cell in enumerate(cells, start=1):
        if cell is not None and (
            isinstance(cell, bool) or not isinstance(cell, int | float) or not math.isfinite(cell)
        ):
            raise InputError(f"{where}: document {number}: expected a number, got {printable(repr(cell), 60)}")
    return [None if cell is None else float(cell) for cell in cells]


Row = Mapping[str | int, Any]

MESSAGES = "messages"
"""The usual column of conversations."""


@dataclasses.dataclass(frozen=True)
class RowReader:
    """Turns rows into examples."""

    source: str
    """Where the rows come from, for messages."""
    text_column: str | int | None = None
    """`text` by default, or the first column if columns have no names."""
    pair_column: str | int | None = None
    """`text_pair` by default, if it exists."""
    label_column: str | None = None
    """Column with one label per word, which the rows must have if the text is a list of words."""
    score_column: str | int | None = None
    """Column with the gold score of a pair: a number."""
    conversations: bool = False
    """Whether rows hold lists of messages, by default in the column `messages`."""

    def examples(self, row: Row, number: int) -> Iterator[Example | str]:
        """The examples in a row: one, or a query with each of its documents; or the reason why the row is skipped."""
        if row and not self.conversations and is_ranking(row, self.text_column, self.pair_column):
            scores = SCORES if self.score_column is None else self.score_column
            query = QUERY if self.text_column is None else self.text_column
            yield from pairs_of_ranking(row, f"row {number} of {self.source}", query, scores)
        else:
            yield self.example(row, number)

    def example(self, row: Row, number: int) -> Example | str:
        """The example in a row, or the reason why it is skipped.

        Raises:
            InputError: If a requested column does not exist, a gold score is not a number, or words and their labels do not
                match.
        """
        if not row:
            return "empty"
        if self.conversations:
            return self._conversation(row, number)
        cell = self._cell(row, number, self._text_column(row), "text_column", required=True)
        text = None if cell == [] else _cell_text(cell)
        pair = _cell_text(
            self._cell(row, number, self.pair_column, "pair_column", required=self.pair_column is not None)
        )
        if not isinstance(text, str | None) or not isinstance(pair, str | None):
            return NOT_TEXT
        if text is None or not text.strip():
            return "empty"
        if _is_words(cell) and lack_forms(cell):
            return WITHOUT_FORMS
        if (reason := why_not_text(text.strip())) is not None:
            return reason
        if not pair or not pair.strip():
            return Example(text, annotation=self._annotation(cell, row, number))
        reason = why_not_text(pair.strip())
        score = self._score(row, number)
        if reason is not None:
            return f"{reason} in the second text"
        return Example(text, pair, score=score)

    def _conversation(self, row: Row, number: int) -> Example | str:
        from normscope.data.conversations import messages_of

        column = MESSAGES if self.text_column is None else self.text_column
        cell = self._cell(row, number, column, "text_column", required=True)
        messages = messages_of(cell, f"row {number} of {self.source}", Path(self.source).parent)
        if isinstance(messages, str):
            return messages
        return Example("\n".join(message.content for message in messages), messages=messages)

    def _score(self, row: Row, number: int) -> float | None:
        """The gold score of a pair; None if its cell is empty."""
        if self.score_column is None:
            return None
        cell = self._cell(row, number, self.score_column, "score_column", required=True)
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            return None
        try:
            score = math.nan if isinstance(cell, bool) else float(cell)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if not math.isfinite(score):
            raise InputError(
                f"dataset.score_column={self.score_column}: row {number} of {self.source}: expected a number, got "
                f"{printable(repr(cell), 60)}"
            )
        return score

    def _text_column(self, row: Row) -> str | int | None:
        """The column of the text; rows of annotated words often have `words` and no `text`."""
        return "words" if self.text_column is None and "text" not in row and "words" in row else self.text_column

    def _annotation(self, cell: Any, row: Row, number: int) -> Annotation | None:
        """The words of a text that is a list of them, with every other list of as many labels."""
        if not _is_words(cell):
            if self.label_column is not None:
                raise InputError(
                    f"dataset.categories={self.label_column}: row {number} of {self.source}: expected a list of words "
                    "(dataset.text_column) and one of labels, got a text; for a treebank, set dataset=conllu"
                )
            return None
        labels = {
            str(name): tuple(map(str, values))
            for name, values in row.items()
            if isinstance(values, list)
            and len(values) == len(cell)
            and all(isinstance(label, str | int) for label in values)
        }
        if self.label_column is not None and self.label_column not in labels:
            raise InputError(
                f"dataset.categories={self.label_column}: row {number} of {self.source}: expected a list of "
                f"{len(cell)} labels (texts or whole numbers), one per word, got {_described(row.get(self.label_column))}"
            )
        return Annotation(spaced(cell)[1], labels)

    def _cell(self, row: Row, number: int, column: str | int | None, key: str, required: bool) -> Any:
        # Columns without names are numbered. The first is the text by default; the pair has no default.
        named = isinstance(next(iter(row)), str)
        default = {"text_column": "text", "pair_column": "text_pair"}.get(key, "")
        wanted: str | int = column if column is not None else (default if named else 0 if default == "text" else -1)
        if not named and isinstance(wanted, str) and wanted.isdecimal():
            wanted = int(wanted)
        if wanted in row:
            return row[wanted]
        if required:
            columns = printable(", ".join(map(str, row)), 200) if named else f"the numbers 0 to {len(row) - 1}"
            advice = "; for conversations, set dataset.chat_template=true" if MESSAGES in row else ""
            raise InputError(
                f"dataset.{key}={wanted}: row {number} of {self.source} has no such column; expected one of {columns}{advice}"
            )
        return None


def _cell_text(cell: Any) -> Any:
    """The text of a cell; a list of words, as in datasets of tagged words, is joined by spaces."""
    return spaced(cell)[0] if _is_words(cell) else cell


def _is_words(cell: Any) -> bool:
    return isinstance(cell, list) and bool(cell) and all(isinstance(word, str) for word in cell)


def _described(cell: Any) -> str:
    if cell is None:
        return "none"
    if not isinstance(cell, list):
        return f"a value of type {type(cell).__name__}"
    other = next((label for label in cell if not isinstance(label, str | int)), None)
    return (
        f"{len(cell)}"
        if all(isinstance(label, str | int) for label in cell)
        else f"a list with {printable(repr(other), 60)}"
    )
