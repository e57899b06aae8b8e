"""Text files as corpora: one example a line (.txt), an object a line (.jsonl), or a row (.csv, .parquet)."""

import csv
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from normscope.data.examples import Corpus, Example
from normscope.errors import InputError

# Above this size, counting the lines for a progress bar would be felt.
_COUNTED_BYTES = 256 * 2**20

Row = Mapping[str | int, Any]


@dataclasses.dataclass(frozen=True)
class TextFile(Corpus):
    """A local file of text. Rows are read as they are needed; the file is never held in memory."""

    path: Path
    text_column: str | int | None = None
    pair_column: str | int | None = None
    header: bool = True
    """Whether the first line of a .csv names its columns; without names, columns are numbered from 0."""

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise InputError(f"dataset.path={self.path}: no such file")
        if not self.path.is_file():
            raise InputError(f"dataset.path={self.path}: expected a file")
        if self.path.suffix not in _ROWS:
            raise InputError(f"dataset.path={self.path}: expected a file ending in {', '.join(_ROWS)}")
        if self.path.stat().st_size == 0:
            raise InputError(f"dataset.path={self.path}: the file is empty")

    @property
    def total(self) -> int | None:
        """Rows of the file, where that is cheap to know."""
        if self.path.suffix == ".parquet":
            with _parquet(self.path) as file:
                return int(file.metadata.num_rows)
        if self.path.stat().st_size > _COUNTED_BYTES:
            return None
        with self.path.open("rb") as stream:
            lines = sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(2**20), b""))
        return lines - (self.path.suffix == ".csv" and self.header)

    def examples(self) -> Iterator[Example | str]:
        """Examples in the file's order, or why a row is none."""
        rows = _ROWS[self.path.suffix](self.path, self.header)
        try:
            for row in rows:
                yield self._example(row)
        except UnicodeDecodeError as error:
            raise InputError(
                f"dataset.path={self.path}: not UTF-8 (byte {error.object[error.start]:#04x}: {error.reason}); convert the file"
            ) from error
        except OSError as error:
            raise InputError(f"dataset.path={self.path}: cannot be read: {error.strerror}") from error

    def _example(self, row: Row) -> Example | str:
        text = self._cell(row, self.text_column, "text", required=True)
        pair = self._cell(row, self.pair_column, "text_pair", required=self.pair_column is not None)
        if not isinstance(text, str | None) or not isinstance(pair, str | None):
            return "not text"
        if text is None or not text.strip():
            return "empty"
        return Example(text.strip(), pair.strip() if pair and pair.strip() else None)

    def _cell(self, row: Row, column: str | int | None, default: str, required: bool) -> Any:
        # Nameless columns are numbered: the first is the text, and none is a pair until one is named.
        named = not row or isinstance(next(iter(row)), str)
        wanted: str | int = column if column is not None else (default if named else 0 if default == "text" else -1)
        if not named and isinstance(wanted, str) and wanted.isdecimal():
            wanted = int(wanted)
        if wanted in row:
            return row[wanted]
        if required:
            key = "dataset.text_column" if default == "text" else "dataset.pair_column"
            columns = ", ".join(map(str, row))
            raise InputError(f"{key}={wanted}: {self.path} has no such column; it has {columns}")
        return None


def _text_rows(path: Path, _header: bool) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for line in lines:
            yield {"text": line}


def _json_rows(path: Path, _header: bool) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                yield {"text": ""}
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"dataset.path={path}: line {number} is not JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise InputError(f"dataset.path={path}: line {number} is not a JSON object")
            yield row


def _csv_rows(path: Path, header: bool) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        try:
            names = next(reader) if header else None
            for cells in reader:
                yield dict(zip(names, cells, strict=False)) if names is not None and cells else dict(enumerate(cells))
        except csv.Error as error:
            raise InputError(f"dataset.path={path}: line {reader.line_num} is not CSV: {error}") from error


def _parquet_rows(path: Path, _header: bool) -> Iterator[Row]:
    with _parquet(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            yield from batch.to_pylist()


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"dataset.path={path}: not a Parquet file: {error}") from error


_ROWS: dict[str, Callable[[Path, bool], Iterator[Row]]] = {
    ".txt": _text_rows,
    ".jsonl": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
