"""Tables as files: Parquet whose metadata says what the columns mean, and CSV in which no spreadsheet finds a formula."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TypeVar

import pandas as pd

from normscope.analyses.registry import analyses
from normscope.results.run_tables import RUN_TABLES, metadata, tables_of
from normscope.untrusted.tables import Columns, table
from normscope.untrusted.writing import new_file, write_file

CSV_ROWS = 20_000
"""Longer tables are written as Parquet alone."""

_LEAST = {"curves": {"layer": 0, "depth": 0}, "sequences": {"count": 1}, "heatmaps": {}}
_COLUMNS = {
    name: Columns(RUN_TABLES[name].kinds, key=RUN_TABLES[name].key, least=least) for name, least in _LEAST.items()
}
"""The tables that comparisons of runs rely on."""


def write_table(folder: Path, name: str, rows: pd.DataFrame, identity: Mapping[str, object]) -> None:
    """Write a table into the folder `tables` of a run.

    Args:
        folder: The folder of the run.
        name: Name of the table.
        rows: The table.
        identity: What distinguishes the run from others.
    """
    with new_file(folder, f"tables/{name}.parquet") as stream:
        write_parquet(stream, rows, metadata(name, rows.columns, identity))
    if len(rows) <= CSV_ROWS:
        write_file(folder, f"tables/{name}.csv", as_csv(rows).encode())


def read_table(name: str, path: Path) -> pd.DataFrame:
    """Read what `write_table` has written.

    Raises:
        InputError: If the file is damaged, or holds something else.
    """
    rows = table(path, _COLUMNS.get(name))
    declared = tables_of(analyses().values()).get(name)
    kinds = {} if declared is None else declared.kinds
    # Whole numbers are not decimal numbers because some are missing.
    missing = [
        column
        for column in map(str, rows)
        if kinds.get(column) == "whole" and rows[column].dtype == float and (rows[column].dropna() % 1 == 0).all()
    ]
    return rows.astype(dict.fromkeys(missing, "Int64"))


def write_parquet(stream: BinaryIO, table: pd.DataFrame, about: Mapping[str, str]) -> None:
    """Write a table as Parquet, with keys and values in the metadata of the file."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = pa.Table.from_pandas(table, preserve_index=False)
    # Exponents of measured numbers are alike, their last digits are not: apart, they take a third less than in snappy.
    measured = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
    others = [name for name in rows.column_names if name not in measured]
    encoding = dict.fromkeys(measured, "BYTE_STREAM_SPLIT")
    with parquet.ParquetWriter(
        stream, rows.schema, compression="zstd", use_dictionary=others, column_encoding=encoding
    ) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(dict(about))  # in the schema, Arrow would repeat it in base64


def parquet_metadata(path: Path) -> dict[str, str]:
    """The keys and values in the metadata of a file that has been read as a table already.

    Raises:
        ValueError: If one is no text.
    """
    from pyarrow import parquet

    found = parquet.read_metadata(path).metadata or {}
    return {key.decode(): value.decode() for key, value in found.items()}


_FORMULA = re.compile(r"[=+\-@\t\r\n\0]")
"""What a formula begins with, or what spreadsheets skip in front of one. The pages' own files: `dom.js`."""


def as_csv(table: pd.DataFrame) -> str:
    """A table as CSV for people and spreadsheets.

    Tokens, labels and names come from corpora and models: opened in a spreadsheet, a token `=HYPERLINK(…)` would be a formula.
    An apostrophe in front of such text, in cells and headers, makes it text again. Numbers stay as they are, to all digits.

    Source: OWASP, CSV Injection (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    texts = table[[name for name in table if not pd.api.types.is_numeric_dtype(table[name])]]
    # Python's writer leaves a carriage return without quotes, and spreadsheets begin a row there.
    returns = any("\r" in str(cell) for row in (table.columns, *texts.to_numpy()) for cell in row)
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    harmless = table.assign(**{str(name): texts[name].map(_harmless) for name in texts}).rename(columns=_harmless)
    return harmless.to_csv(index=False, quoting=quoting)


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


T = TypeVar("T")


class LazyFiles(Mapping[str, T], Generic[T]):
    """What Parquet files hold, by their names. Each is read once, when it is first asked for.

    Args:
        folder: The folder of the files; it need not exist.
        read: Reads one, given its name and its path.
        order: Names in their order; others follow.
    """

    def __init__(self, folder: Path, read: Callable[[str, Path], T], order: Iterable[str] = ()) -> None:
        found = {path.stem: path for path in sorted(folder.glob("*.parquet"))}
        self._paths = {name: found[name] for name in map(str, order) if name in found} | found
        self._read, self._known = read, dict[str, T]()

    def __getitem__(self, name: str) -> T:
        if name not in self._known:
            self._known[name] = self._read(name, self._paths[name])
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return ", ".join(self) or "none"


class LazyItems(Sequence[T], Generic[T]):
    """What one file holds, read when it is first asked for.

    Args:
        read: Reads all items.
    """

    def __init__(self, read: Callable[[], Sequence[T]]) -> None:
        self._read = read

    @cached_property
    def _items(self) -> Sequence[T]:
        return self._read()

    def __getitem__(self, place: Any) -> Any:
        return self._items[place]

    def __len__(self) -> int:
        return len(self._items)
