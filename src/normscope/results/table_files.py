"""Tables as files: Parquet whose metadata explains the columns, and CSV in which spreadsheets find no formulas."""

import csv
import functools
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

_NUMBERS = dict.fromkeys(("layer", "head", "position"), "whole")
"""Columns of tables that no analysis declares."""

CSV_ROWS = 20_000
"""Longer tables are written only as Parquet."""

_LEAST = {"curves": {"layer": 0, "depth": 0}, "sequences": {"count": 1}}
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
    """Read what `write_table` wrote.

    Raises:
        InputError: If the file is damaged, or holds something else.
    """
    rows = table(path, _COLUMNS.get(name))
    declared = tables_of(analyses().values()).get(name)
    kinds = _NUMBERS | ({} if declared is None else declared.kinds)
    # Missing values do not make whole numbers decimal.
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
    # Measured numbers have similar exponents but not last digits: split apart, they take a third less than with snappy.
    measured = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
    others = [name for name in rows.column_names if name not in measured]
    encoding = dict.fromkeys(measured, "BYTE_STREAM_SPLIT")
    with parquet.ParquetWriter(
        stream, rows.schema, compression="zstd", use_dictionary=others, column_encoding=encoding
    ) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(dict(about))  # in the schema, Arrow would repeat it in base64


def parquet_metadata(path: Path) -> dict[str, str]:
    """The keys and values in the metadata of a file that has already been read as a table.

    Raises:
        ValueError: If one of them is not text.
    """
    from pyarrow import parquet

    found = parquet.read_metadata(path).metadata or {}
    return {key.decode(): value.decode() for key, value in found.items()}


_FORMULA = re.compile(r"[=+\-@\t\r\n\0]")
"""What a formula begins with, or what spreadsheets skip before one. `dom.js` has the same for files that pages save."""


def as_csv(table: pd.DataFrame) -> str:
    """A table as CSV for people and spreadsheets.

    Tokens, labels and names come from corpora and models: a spreadsheet would read the token `=HYPERLINK(…)` as a formula. An
    apostrophe before such text, in cells and headers, keeps it text. Numbers are unchanged, with all digits.

    Source: OWASP, CSV Injection (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    texts = table[[name for name in table if not pd.api.types.is_numeric_dtype(table[name])]]
    # Python's writer does not quote a carriage return, and spreadsheets begin a row there.
    returns = any("\r" in str(cell) for row in (table.columns, *texts.to_numpy()) for cell in row)
    quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
    harmless = table.assign(**{str(name): texts[name].map(_harmless) for name in texts}).rename(columns=_harmless)
    return harmless.to_csv(index=False, quoting=quoting)


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


T = TypeVar("T")


class Lazy(Mapping[str, T], Generic[T]):
    """Values by name, each of which is made once, on first access.

    Args:
        make: Makes each.
    """

    def __init__(self, make: Mapping[str, Callable[[], T]]) -> None:
        self._make, self._known = make, dict[str, T]()

    def __getitem__(self, name: str) -> T:
        if name not in self._known:
            self._known[name] = self._make[name]()
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._make

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)

    def __repr__(self) -> str:
        return ", ".join(self) or "none"


def lazy_files(folder: Path, read: Callable[[str, Path], T], order: Iterable[str] = ()) -> Lazy[T]:
    """The contents of Parquet files, by name.

    Args:
        folder: The folder of the files; it need not exist.
        read: Reads one, given its name and its path.
        order: The first names, in order; others follow.
    """
    found = {path.stem: path for path in sorted(folder.glob("*.parquet"))}
    paths = {name: found[name] for name in map(str, order) if name in found} | found
    return Lazy({name: functools.partial(read, name, path) for name, path in paths.items()})


class LazyItems(Sequence[T], Generic[T]):
    """The items of one file, read on first access.

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
