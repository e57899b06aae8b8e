"""Tables of texts and numbers from Parquet files."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from normscope.errors import InputError, printable
from normscope.untrusted.plain_data import MIB, opened, unreadable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_MOST_ROWS = 20_000_000
_LONGEST = 100_000
"""Bytes of a text."""
_MOST_TEXT = 2**30
"""Bytes of the texts of a column."""

Cells = Literal["text", "whole", "number", "truth"]
"""What a column holds: texts, whole numbers, numbers that may be missing but not infinite, or true and false."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """What a table must have."""

    cells: Mapping[str, Cells]
    """Its columns."""
    others: Cells | None = None
    """What further columns hold; None does not read them."""
    key: Sequence[str] = ()
    """Columns whose values no two rows share."""
    least: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The smallest value of some columns."""


def table(path: Path, columns: Columns | None = None) -> "pd.DataFrame":
    """A Parquet file of texts and numbers, none of them infinite.

    Args:
        columns: What it must have; by default, any columns of texts, numbers and booleans.

    Raises:
        InputError: If it cannot be read, has other columns, or has more rows than any run writes.
    """
    import pyarrow as pa

    with opened(path):
        pass
    try:
        rows = _read(path, columns)
        frame = rows.to_pandas(ignore_metadata=True)
    except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, MemoryError) as error:
        raise unreadable(path, error) from error
    if columns is not None:
        _check_rows(path, frame, columns)
    return frame


def _read(path: Path, columns: Columns | None) -> "pa.Table":
    import psutil
    import pyarrow as pa
    from pyarrow import parquet

    schema = parquet.read_schema(path)
    every = columns is None or columns.others is not None
    names = [*dict.fromkeys([*(columns.cells if columns else ()), *(schema.names if every else ())])]
    # Dictionaries stay dictionaries until it is known how much text they stand for: a few bytes can be a billion long texts.
    texts = [name for name in names if name in schema.names and _kind(schema.field(name).type) == "text"]
    with parquet.ParquetFile(path, read_dictionary=texts) as file:
        count = file.metadata.num_rows
        if count > _MOST_ROWS or count * len(names) * 8 > psutil.virtual_memory().available / 2:
            raise InputError(f"{path}: expected a table that fits into memory, got {count:,} rows")
        if columns is not None and not count:  # which has no types
            return pa.table({name: pa.array([], _types()[kind]) for name, kind in columns.cells.items()})
        for name in names:
            if schema.names.count(name) != 1:
                raise InputError(f"{path}: expected one column {printable(name, 60)}, got {schema.names.count(name)}")
        rows = file.read(columns=names, use_threads=False)
    rows.validate(full=True)
    wanted = {name: columns.cells.get(name, columns.others) for name in names} if columns else {}
    return pa.table({name: _checked(path, name, rows[name], wanted.get(name)) for name in names})


def _checked(path: Path, name: str, column: "pa.ChunkedArray", wanted: Cells | None) -> "pa.ChunkedArray":
    """A column of the wanted type, or of any known one, without cells that none should have."""
    from pyarrow import compute, types

    found, where = _kind(column.type), f"{path}: column {printable(name, 60)}"
    if found is None or (wanted not in (None, found) and (found, wanted) != ("whole", "number")):
        raise InputError(f"{where}: expected {_MEANING[wanted]}, got {_MEANING[found] if found else column.type}")
    if wanted in ("text", "whole", "truth") and column.null_count:
        raise InputError(f"{where}: expected {_MEANING[wanted]}, got cells without a value")
    if types.is_null(column.type):
        return column.cast(_types()["text"])
    if found == "text":
        sizes = [(compute.binary_length(chunk.dictionary), chunk.indices) for chunk in column.chunks]
        if any((compute.max(size).as_py() or 0) > _LONGEST for size, _ in sizes):
            raise InputError(f"{where}: expected texts of at most {_LONGEST:,} characters")
        if sum(compute.sum(size.take(indices)).as_py() or 0 for size, indices in sizes) > _MOST_TEXT:
            raise InputError(f"{where}: expected at most {_MOST_TEXT // MIB:,} MiB of text")
    if found == "number" and compute.any(compute.is_inf(column)).as_py():
        raise InputError(f"{where}: expected finite numbers, got an infinite one")
    return column.cast(_types()[found if wanted is None else wanted])


_MEANING: Mapping[Cells | None, str] = {
    None: "texts or numbers",
    "text": "texts",
    "whole": "whole numbers",
    "number": "numbers",
    "truth": "true or false",
}


def _types() -> dict[Cells, "pa.DataType"]:
    import pyarrow as pa

    return {"text": pa.large_string(), "whole": pa.int64(), "number": pa.float64(), "truth": pa.bool_()}


def _kind(kind: "pa.DataType") -> Cells | None:
    """What a column of a type holds, if it is one of those that runs write."""
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(inner) or types.is_large_string(inner) or types.is_null(inner):
        return "text"
    if types.is_boolean(kind):
        return "truth"
    if types.is_integer(kind):
        return "whole"
    return "number" if types.is_floating(kind) else None


def _check_rows(path: Path, rows: "pd.DataFrame", columns: Columns) -> None:
    for name, least in columns.least.items():
        if not (rows[name] >= least).all():  # a missing number is at least nothing
            raise InputError(f"{path}: column {name}: expected numbers of at least {least}")
    if columns.key and rows.duplicated(list(columns.key)).any():
        raise InputError(f"{path}: expected every {' and '.join(columns.key)} once")
