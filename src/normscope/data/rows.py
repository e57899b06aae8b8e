"""Rows of a table, whatever file or hub they come from, as examples."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from normscope.data.examples import Example
from normscope.data.legibility import NOT_TEXT, why_not_text
from normscope.errors import InputError

Row = Mapping[str | int, Any]


@dataclasses.dataclass(frozen=True)
class RowReader:
    """Makes examples of rows."""

    source: str
    """What the rows are of, for messages."""
    text_column: str | int | None = None
    """`text` by default; the first column where columns have no names."""
    pair_column: str | int | None = None
    """`text_pair` by default, where there is one."""

    def example(self, row: Row, number: int) -> Example | str:
        """The example in a row, or why there is none.

        Raises:
            InputError: If a column that was asked for is not there.
        """
        if not row:
            return "empty"
        text = _words(self._cell(row, number, self.text_column, "text", required=True))
        pair = _words(self._cell(row, number, self.pair_column, "text_pair", required=self.pair_column is not None))
        if not isinstance(text, str | None) or not isinstance(pair, str | None):
            return NOT_TEXT
        if text is None or not text.strip():
            return "empty"
        if (reason := why_not_text(text.strip())) is not None:
            return reason
        if not pair or not pair.strip():
            return Example(text.strip())
        reason = why_not_text(pair.strip())
        return Example(text.strip(), pair.strip()) if reason is None else f"{reason} in the second text"

    def _cell(self, row: Row, number: int, column: str | int | None, default: str, required: bool) -> Any:
        # Nameless columns are numbered: the first is the text, and none is a pair until one is named.
        named = isinstance(next(iter(row)), str)
        wanted: str | int = column if column is not None else (default if named else 0 if default == "text" else -1)
        if not named and isinstance(wanted, str) and wanted.isdecimal():
            wanted = int(wanted)
        if wanted in row:
            return row[wanted]
        if required:
            key = "dataset.text_column" if default == "text" else "dataset.pair_column"
            columns = ", ".join(map(str, row))
            raise InputError(f"{key}={wanted}: row {number} of {self.source} has no such column; it has {columns}")
        return None


def _words(cell: Any) -> Any:
    """A cell that is a list of words, as data sets of tagged words have them, as a text."""
    if isinstance(cell, list) and cell and all(isinstance(word, str) for word in cell):
        return " ".join(cell)
    return cell
