"""Tables as people read them: their numbers in one notation, in lines of text that fit into a terminal."""

import itertools
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from normscope.errors import cut, escaped
from normscope.rounding import MINUS, counted

_GAP = "  "
_LONGEST = 40
"""Maximum number of characters in a line of a text cell."""
_SHORTEST = 24
"""Number of characters in a line of a row's label if columns need the rest."""
_MOST_LINES = 4
"""Lines of a heading."""


class _Column(NamedTuple):
    """The labels of the rows, or a column."""

    heading: str
    cells: Sequence[str]

    def width(self, lines: int) -> int:
        """The fewest characters that hold all cells, and the heading in a number of lines, if it has so many words."""
        words = self.heading.split()
        narrowest = max((len(line) for text in [*words, *self.cells] for line in text.split("\n")), default=0)
        widths = range(narrowest, max(narrowest, len(self.heading)) + 1)
        return next(each for each in widths if each == widths[-1] or len(_wrapped(self.heading, each)) <= lines)


def text_table(table: pd.DataFrame, digits: int, width: int) -> str:
    """A table that fits a width, unless its labels and one column do not.

    A heading takes as many lines as make the table fit, and so do labels and texts; a word that is longer than a line is cut in
    the middle. Columns that still do not fit are left out, and counted below.

    Args:
        table: Its index labels the rows.
        digits: Number of decimals.
        width: Characters in a line.
    """
    corner, labels = _corner(table), [_text(label) for label in table.index]
    cells = written(table, digits)
    columns = [
        _Column(_text(heading), [_folded(cell, longest) for cell in cells.iloc[:, place]])
        for place, (heading, longest) in enumerate(zip(table.columns, map(_longest, table.dtypes), strict=True))
    ]

    def left_for_labels(kept: int) -> int:
        return width - sum(len(_GAP) + column.width(_MOST_LINES) for column in columns[:kept])

    needed = max([min(_SHORTEST, max(map(len, labels), default=0)), *map(len, corner.split())])
    kept = len(columns)
    while kept > 1 and left_for_labels(kept) < needed:
        kept -= 1
    first = _Column(corner, [_folded(label, max(left_for_labels(kept), needed)) for label in labels])
    lines = _lines([first, *columns[:kept]], width)
    if kept < len(columns):
        lines.append(f"({counted(len(columns) - kept, 'more column does', 'more columns do')} not fit)")
    return "\n".join(lines)


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """The widths of columns with headings of as few lines as make them fit."""
    widths: list[int] = []
    for lines in range(1, _MOST_LINES + 1):
        widths = [column.width(lines) for column in columns]
        if sum(widths) + len(_GAP) * (len(columns) - 1) <= width:
            break
    return widths


def _lines(columns: Sequence[_Column], width: int) -> list[str]:
    widths = _widths(columns, width)
    headings = [_wrapped(column.heading, width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, headings))
    above = zip(*([""] * (height - len(heading)) + heading for heading in headings), strict=True)
    rows = zip(*(column.cells for column in columns), strict=True)
    in_lines = (itertools.zip_longest(*(cell.split("\n") for cell in row), fillvalue="") for row in rows)
    return [
        _GAP.join(
            [label.ljust(widths[0]), *(cell.rjust(each) for cell, each in zip(cells, widths[1:], strict=True))]
        ).rstrip()
        for label, *cells in [*above, *itertools.chain.from_iterable(in_lines)]
    ]


def _folded(text: str, width: int) -> str:
    """A text wrapped to a number of characters; longer words lose their middle."""
    return (
        text
        if len(text) <= width
        else "\n".join(_wrapped(" ".join(cut(word, width) for word in text.split(" ")), width))
    )


def _wrapped(heading: str, width: int) -> list[str]:
    return textwrap.wrap(heading, max(width, 1), break_long_words=False, break_on_hyphens=False) or [""]


def _corner(table: pd.DataFrame) -> str:
    """What the labels of the rows are, and if the headings have a name as well, what they are."""
    rows, columns = (_text(tuple(name for name in axis.names if name)) for axis in (table.index, table.columns))
    return f"{rows} ↓, {columns} →" if rows and columns else rows or columns


def written(table: pd.DataFrame, digits: int) -> pd.DataFrame:
    """The table with its cells as people read them; missing values are empty.

    Args:
        table: Its index labels the rows.
        digits: Number of decimals.
    """
    cells = {place: _cells(table.iloc[:, place], digits) for place in range(table.shape[1])}
    return pd.DataFrame(cells, index=table.index, dtype=object).set_axis(table.columns, axis=1)


def _longest(kind: Any) -> int:
    """The most characters in a line of a column's cells: numbers are never wrapped or cut."""
    is_number = pd.api.types.is_integer_dtype(kind) or pd.api.types.is_float_dtype(kind)
    return sys.maxsize if is_number else _LONGEST


def _cells(values: "pd.Series[Any]", digits: int) -> list[str]:
    if pd.api.types.is_integer_dtype(values.dtype):
        return ["" if pd.isna(value) else f"{value:,}".replace("-", MINUS) for value in values]
    if pd.api.types.is_float_dtype(values.dtype):
        return ["" if pd.isna(value) else f"{value:z.{digits}f}".replace("-", MINUS) for value in values]
    return ["" if pd.api.types.is_scalar(value) and pd.isna(value) else _text(value) for value in values]


def _text(value: Any) -> str:
    """A label, or the levels of one, on one line."""
    return escaped(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
