"""Table rows, from a file or the Hub, as examples."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from normscope.data.examples import Example
from normscope.data.legibility import NOT_TEXT, why_not_text
from normscope.errors import InputError, printable

Row = Mapping[str | int, Any]


@dataclasses.dataclass(frozen=True)
class RowReader:
    """Turns rows into examples."""

    source: str
    """Where the rows come from, for messages."""
    text_column: str | int | None = None
    """`text` by default, or the first column if columns have no names."""
    pair_column: str | int | None = None
    """`text_pair` by default, if it exists."""

    def example(self, row: Row, number: int) -> Example | str:
        """The example in a row, or the reason why it is skipped.

        Raises:
            InputError: If a requested column does not exist.
        """
        if not row:
            return "empty"
        text = _cell_text(self._cell(row, number, self.text_column, "text", required=True))
        pair = _cell_text(self._cell(row, number, self.pair_column, "text_pair", required=self.pair_column is not None))
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
        # Columns without names are numbered. The first is the text by default; the pair has no default.
        named = isinstance(next(iter(row)), str)
        wanted: str | int = column if column is not None else (default if named else 0 if default == "text" else -1)
        if not named and isinstance(wanted, str) and wanted.isdecimal():
            wanted = int(wanted)
        if wanted in row:
            return row[wanted]
        if required:
            key = "dataset.text_column" if default == "text" else "dataset.pair_column"
            columns = printable(", ".join(map(str, row)), 200) if named else f"the numbers 0 to {len(row) - 1}"
            raise InputError(
                f"{key}={wanted}: row {number} of {self.source} has no such column; expected one of {columns}"
            )
        return None


def _cell_text(cell: Any) -> Any:
    """The text of a cell; a list of words, as in datasets of tagged words, is joined by spaces."""
    if isinstance(cell, list) and cell and all(isinstance(word, str) for word in cell):
        return " ".join(cell)
    return cell
