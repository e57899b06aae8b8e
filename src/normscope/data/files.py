"""Text files as corpora: one example a line (.txt), an object a line (.jsonl), or a row (.csv, .parquet)."""

import contextlib
import csv
import dataclasses
import json
from collections.abc import Callable, Generator, Iterator, Mapping
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
    key: str = "dataset.path"
    """The config key that named the file, for messages."""

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise InputError(f"{self.key}={self.path}: no such file")
        if not self.path.is_file():
            raise InputError(f"{self.key}={self.path}: expected a file")
        if self.path.suffix not in _ROWS:
            raise InputError(f"{self.key}={self.path}: expected a file ending in {', '.join(_ROWS)}")
        if self.path.stat().st_size == 0:
            raise InputError(f"{self.key}={self.path}: the file is empty")

    @property
    def total(self) -> int | None:
        """Rows of the file, where that is cheap to know."""
        if self.path.suffix == ".parquet":
            try:
                with _parquet(self.path) as file:
                    return int(file.metadata.num_rows)
            except _Malformed:
                return None  # told when it is read
        if self.path.stat().st_size > _COUNTED_BYTES:
            return None
        with self.path.open("rb") as stream:
            lines, last = 0, b"\n"
            for chunk in iter(lambda: stream.read(2**20), b""):
                lines, last = lines + chunk.count(b"\n"), chunk[-1:]
        return lines + (last != b"\n") - (self.path.suffix == ".csv" and self.header)

    def examples(self) -> Iterator[Example | str]:
        """Examples in the file's order, or why a row is none."""
        try:
            with contextlib.closing(_ROWS[self.path.suffix](self.path, self.header)) as rows:
                for number, row in enumerate(rows, start=1):
                    yield self._example(row, number)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.key}={self.path}: not UTF-8 (byte {error.object[error.start]:#04x}: {error.reason}); convert the file"
            ) from error
        except _Malformed as error:
            raise InputError(f"{self.key}={self.path}: {error}") from error
        except OSError as error:
            raise InputError(f"{self.key}={self.path}: cannot be read: {error.strerror or error}") from error

    def _example(self, row: Row, number: int) -> Example | str:
        if not row:
            return "empty"
        text = self._cell(row, number, self.text_column, "text", required=True)
        pair = self._cell(row, number, self.pair_column, "text_pair", required=self.pair_column is not None)
        if not isinstance(text, str | None) or not isinstance(pair, str | None):
            return "not text"
        if text is None or not text.strip():
            return "empty"
        if not _encodable(text) or not _encodable(pair or ""):
            return "not text"
        return Example(text.strip(), pair.strip() if pair and pair.strip() else None)

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
            raise InputError(f"{key}={wanted}: row {number} of {self.path} has no such column; it has {columns}")
        return None


class _Malformed(Exception):
    """A file is not of the kind that its ending says."""


def _encodable(text: str) -> bool:
    """Whether text is Unicode: JSON can smuggle in half a character."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _text_rows(path: Path, _header: bool) -> Generator[Row, None, None]:
    with path.open(encoding="utf-8-sig") as lines:
        for line in lines:
            yield {"text": line}


def _json_rows(path: Path, _header: bool) -> Generator[Row, None, None]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except (json.JSONDecodeError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise _Malformed(f"line {number} is not JSON: {reason}") from error
            if not isinstance(row, dict):
                raise _Malformed(f"line {number} is not a JSON object")
            yield row


def _csv_rows(path: Path, header: bool) -> Generator[Row, None, None]:
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines)
        try:
            names = next(reader, []) if header else None
            for cells in reader:
                if names is None or not cells:
                    yield dict(enumerate(cells))
                    continue
                if len(cells) != len(names):
                    raise _Malformed(f"line {reader.line_num} has {len(cells)} cells where the header has {len(names)}")
                yield dict(zip(names, cells, strict=True))
        except csv.Error as error:
            raise _Malformed(f"line {reader.line_num} is not CSV: {error}") from error


def _parquet_rows(path: Path, _header: bool) -> Generator[Row, None, None]:
    with _parquet(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            yield from batch.to_pylist()


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise _Malformed(f"not a Parquet file: {error}") from error


_ROWS: dict[str, Callable[[Path, bool], Generator[Row, None, None]]] = {
    ".txt": _text_rows,
    ".jsonl": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
