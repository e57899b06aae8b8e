"""Text files as corpora: one example per line (.txt), object (.jsonl) or row (.csv, .tsv, .parquet)."""

import contextlib
import csv
import dataclasses
import glob
import json
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from normscope.data.examples import Corpus, Example
from normscope.data.lines import Malformed, count, is_gzipped, kind, lines
from normscope.data.options import Quoting
from normscope.data.rows import DOCUMENTS, MESSAGES, QUERY, SCORES, Row, RowReader, is_ranking
from normscope.errors import InputError, one_line, printable
from normscope.rounding import counted

log = logging.getLogger(__name__)

# Above this size, counting the lines for a progress bar takes noticeable time.
_COUNTED_BYTES = 256 * 2**20
_SECONDS_SILENT = 2.0
"""Seconds after which a search for files is announced."""
_HINTS = {
    **dict.fromkeys((".conllu", ".conllx", ".conll"), "for a treebank, set dataset=conllu"),
    **dict.fromkeys((".bz2", ".xz", ".zst", ".zip", ".7z", ".lz4"), "decompress it, or compress it by gzip"),
    ".json": "if each of its lines is an object, name it .jsonl",
}
"""What to do with files that are not read here, by extension."""
_ABOUT = ("readme", "license", "licence")
"""Names of files, apart from their extensions, that lie beside a corpus and describe it."""
# A row with more lines is taken for one with an unclosed quotation mark, which swallows the rows after it.
_MAX_ROW_LINES = 20


@dataclasses.dataclass(frozen=True)
class TextFile(Corpus):
    """A local text file, read row by row and never held in memory."""

    path: Path
    text_column: str | int | None = None
    pair_column: str | int | None = None
    header: bool = True
    """Whether the first line of a .csv or .tsv names the columns. Without names, columns are numbered from 0."""
    delimiter: str | None = None
    """Separates cells; by default a comma in .csv, a tab in .tsv."""
    quoting: Quoting | None = None
    """What quotation marks mean; by default `standard` in .csv, `none` in .tsv."""
    key: str = "dataset.path"
    """The config key that names the file, for messages."""
    plain: bool = False
    """Whether a file with an unknown extension is read line by line, as files of translations are."""
    label_column: str | None = None
    """Column with one label per word, for rows whose text is a list of words."""
    score_column: str | int | None = None
    """Column with the gold score of a pair."""
    conversations: bool = False
    """Whether rows hold lists of messages."""

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise InputError(f"{self.key}={self.path}: no such file")
        if not self.path.is_file():
            raise InputError(f"{self.key}={self.path}: expected a file")
        if kind(self.path) not in _ROWS and not self.plain:
            raise InputError(
                f"{self.key}={self.path}: expected a file with extension {', '.join(_ROWS)}, optionally followed by .gz"
                + _hint(self.path)
            )
        if self.path.stat().st_size == 0:
            raise InputError(f"{self.key}={self.path}: the file is empty")

    @property
    def total(self) -> int | None:
        """Rows of the file, if they are cheap to count."""
        if kind(self.path) == ".parquet":
            try:
                with _parquet(self.path) as file:
                    return int(file.metadata.num_rows)
            except Malformed:
                return None  # the error is raised when the file is read
        if is_gzipped(self.path) or self.path.stat().st_size > _COUNTED_BYTES or self._ranks():
            return None
        return count(self.path) - (kind(self.path) in (".csv", ".tsv") and self.header)

    def _ranks(self) -> bool:
        """Whether rows are queries with documents, each of which is an example."""
        if kind(self.path) != ".jsonl":
            return False
        try:
            with contextlib.closing(_json_rows(self)) as rows:
                row = next(filter(None, rows), {})
        except (Malformed, OSError):
            return False  # the error is raised when the file is read
        return is_ranking(row, self.text_column, self.pair_column)

    def examples(self) -> Iterator[Example | str]:
        """Examples in the order of the file, or the reason why one is skipped.

        Raises:
            InputError: If the file cannot be read; the message names the config key.
        """
        columns = self.text_column, self.pair_column, self.label_column, self.score_column
        reader = RowReader(str(self.path), *columns, conversations=self.conversations)
        try:
            with contextlib.closing(_ROWS.get(kind(self.path), _text_rows)(self)) as rows:
                for number, row in enumerate(rows, start=1):
                    yield from reader.examples(row, number)
        except Malformed as error:
            raise InputError(f"{self.key}={self.path}: {error}") from error
        except OSError as error:
            raise InputError(f"{self.key}={self.path}: cannot be read: {error.strerror or error}") from error


@dataclasses.dataclass(frozen=True)
class TextFiles(Corpus):
    """Several files, one after another."""

    files: tuple[TextFile, ...]

    @property
    def total(self) -> int | None:
        """Rows of all files, if they are cheap to count."""
        totals = [file.total for file in self.files]
        return None if None in totals else sum(total for total in totals if total is not None)

    def examples(self) -> Iterator[Example | str]:
        """Examples of all files in order."""
        for file in self.files:
            yield from file.examples()


def has_columns(path: Path) -> bool:
    """Whether the rows of a file have columns; otherwise they are lines."""
    return kind(path) in _ROWS and kind(path) != ".txt"


def _hint(*files: Path) -> str:
    """Advice for files that are not read here."""
    return next((f"; {_HINTS[kind(file)]}" for file in files if kind(file) in _HINTS), "")


def find_files(path: str, key: str) -> list[Path]:
    """The files that a path names: the path itself, or sorted by name the files in a folder or those matching a pattern."""
    location = Path(path).expanduser()
    if location.is_dir():
        return _files_of(location, key)
    if not location.exists() and any(character in path for character in "*?["):
        searching = threading.Timer(_SECONDS_SILENT, log.warning, ["%s=%s: looking for files that match …", key, path])
        searching.daemon = True
        searching.start()
        matches = sorted(map(Path, glob.glob(str(location), recursive=True)))
        searching.cancel()
        files = [match for match in matches if match.is_file()]
        if not files:
            raise InputError(f"{key}={path}: no file matches")
        # A pattern with ** matches the folders in which it then finds files.
        around = {folder for file in files for folder in file.parents}
        _refuse(
            [match for match in matches if match not in around and not match.is_file()],
            f"{key}={path}",
            f"{location.parent}/**/*{files[0].suffix}",
        )
        return files
    if not location.exists():
        raise InputError(f"{key}={path}: no such file")
    return [location]


def files_left_out(path: str) -> list[str]:
    """The names of files and folders in a folder of texts that are no part of the corpus: hidden ones, and those about it."""
    location = Path(path).expanduser()
    return sorted(entry.name for entry in location.iterdir() if _left_out(entry)) if location.is_dir() else []


def _left_out(entry: Path) -> bool:
    about = entry.name.partition(".")[0].lower() in _ABOUT and kind(entry) not in _ROWS
    return entry.name.startswith(".") or (about and entry.is_file())


def _files_of(folder: Path, key: str) -> list[Path]:
    """The files of a folder, all of which must be ones that are read here, apart from those that are left out."""
    entries = sorted(entry for entry in folder.iterdir() if not _left_out(entry))
    files = [entry for entry in entries if entry.is_file() and kind(entry) in _ROWS]
    if not files:
        raise InputError(f"{key}={folder}: the folder has no file with extension {', '.join(_ROWS)}{_hint(*entries)}")
    _refuse([entry for entry in entries if entry not in files], f"{key}={folder}", f"{folder}/**/*{files[0].suffix}")
    return files


def _refuse(entries: Sequence[Path], where: str, pattern: str) -> None:
    """Refuse what lies among the files of a corpus and is not read."""
    if entries:
        names = printable(", ".join(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries), 300)
        raise InputError(
            f"{where}: expected files with extension {', '.join(_ROWS)}, got also {names}{_hint(*entries)}; move it away, or "
            f"name the files by a pattern such as '{pattern}'"
        )


def _text_rows(file: TextFile) -> Generator[Row, None, None]:
    for line in lines(file.path):
        yield {"text": line.removesuffix("\n").removesuffix("\r")}


def _json_rows(file: TextFile) -> Generator[Row, None, None]:
    for number, line in enumerate(lines(file.path), start=1):
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:  # Python refuses integers of thousands of digits
            reason = {json.JSONDecodeError: getattr(error, "msg", ""), RecursionError: "nested too deeply"}
            raise Malformed(f"line {number} is not JSON: {reason.get(type(error), one_line(error))}") from error
        if not isinstance(row, dict):
            raise Malformed(f"line {number} is not a JSON object")
        yield row


def _csv_rows(file: TextFile) -> Generator[Row, None, None]:
    csv.field_size_limit(2**31 - 1)
    tabs = kind(file.path) == ".tsv"
    delimiter = file.delimiter or ("\t" if tabs else ",")
    quoting = file.quoting or (Quoting.none if tabs else Quoting.standard)
    row_lines = _RowLines(file.path, bounded=quoting is Quoting.standard)
    # Unless strict, Python takes characters after a closing quotation mark as part of the cell.
    reader = csv.reader(
        row_lines,
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if quoting is Quoting.none else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        names = next(reader, []) if file.header else None
        _require_single(names or [], file)
        for cells in row_lines.rows(reader):
            if names is None or not cells:
                yield dict(enumerate(cells))
                continue
            if len(cells) != len(names):
                raise Malformed(
                    f"line {reader.line_num}: expected {counted(len(names), 'cell')} as in the header, got {len(cells)}; check "
                    f"dataset.delimiter={delimiter!r}"
                )
            yield dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise Malformed(f"{row_lines.place}: not CSV, {error}{_advice(quoting)}") from error


def _require_single(names: Sequence[str], file: TextFile) -> None:
    """Reject a header that has a column twice which is read; columns that are not read, often without names, may repeat."""
    read = (
        file.text_column or "text",
        file.pair_column or "text_pair",
        file.label_column,
        file.score_column,
    )
    twice = next((name for name in read if name is not None and names.count(name) > 1), None)
    if twice is not None:
        raise Malformed(f"line 1: two columns are called {twice!r}; rename the one that is not meant")


class _RowLines:
    """The lines of a .csv, which keep track of the row that they belong to.

    Args:
        bounded: Whether a row of many lines is an error.
    """

    def __init__(self, path: Path, *, bounded: bool) -> None:
        self._lines, self._bounded = lines(path), bounded
        self._row = self._first_line = self._line = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self._line += 1
            if self._bounded and self._line - self._first_line > _MAX_ROW_LINES:
                raise Malformed(
                    f"{self.place}: it has more than {_MAX_ROW_LINES} lines, probably because a quotation mark is not closed"
                    + _advice(Quoting.standard)
                )
            yield line

    def rows(self, reader: Iterable[list[str]]) -> Iterator[list[str]]:
        """The rows after the header, from a reader of these lines."""
        self._first_line = self._line
        for cells in reader:
            self._row += 1
            yield cells
            self._first_line = self._line

    @property
    def place(self) -> str:
        """The row being read, for messages."""
        return f"row {self._row + 1}, which starts on line {self._first_line + 1}"


def _advice(quoting: Quoting) -> str:
    if quoting is Quoting.none:
        return ""
    return "; set dataset.quoting=none if quotation marks are part of the text" + (
        ", or dataset.quoting=multiline if cells have that many lines" if quoting is Quoting.standard else ""
    )


def _parquet_rows(file: TextFile) -> Generator[Row, None, None]:
    with _parquet(file.path) as table:
        names = table.schema_arrow.names
        if len(set(names)) < len(names):
            raise Malformed(f"two of its columns have the same name: {', '.join(names)}")
        # Other columns may hold values that Python cannot represent, such as dates after the year 9999.
        usual = MESSAGES if file.conversations else "text" if "text" in names else "words"
        text = file.text_column or usual
        wanted = [text, file.pair_column or "text_pair", file.label_column, file.score_column]
        if is_ranking(dict.fromkeys(names), file.text_column, file.pair_column):
            wanted += [QUERY, DOCUMENTS, SCORES]
        try:
            columns = [name for name in names if name in wanted]
            for batch in table.iter_batches(batch_size=1024, columns=columns):
                yield from _parquet_batch(batch, names)
        except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
            raise Malformed(f"damaged Parquet file, or values that are not text: {one_line(error)}") from error


def _parquet_batch(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[Row]:
    """Rows of a batch; columns that were not read are empty."""
    for row in batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows:
        yield {name: row.get(name) for name in names}


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        # Arrow raises an OSError without a number for a damaged footer.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Malformed(f"not a Parquet file: {one_line(error)}") from error


_ROWS: dict[str, Callable[[TextFile], Generator[Row, None, None]]] = {
    ".txt": _text_rows,
    ".jsonl": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".parquet": _parquet_rows,
}
