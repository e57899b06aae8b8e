"""Rows with a query and documents, as pairs of the query and each document."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from normscope.data.annotation import SPACES
from normscope.data.examples import Example
from normscope.data.legibility import why_not_text
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
        yield Example(text.strip(SPACES), document.strip(SPACES), score=gold[number - 1], document=number)


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
