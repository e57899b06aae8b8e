"""Lines of text files, plain or gzipped, and the position of what cannot be read."""

import dataclasses
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

_BOM = b"\xef\xbb\xbf"


class Malformed(Exception):
    """A file does not have the format that its extension promises; the message names the position."""


def kind(path: Path) -> str:
    """The extension of a file in lower case, apart from .gz."""
    return (path.with_suffix("") if is_gzipped(path) else path).suffix.lower()


def is_gzipped(path: Path) -> bool:
    """Whether a file's name says that it is compressed by gzip."""
    return path.suffix.lower() == ".gz"


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a file."""

    start: int = 0
    """The byte, or the row group, at which it starts."""
    stop: int | None = None
    """Where the next part starts; None at the end of the file."""
    first: int = 1
    """The number of its first line or row in the file, for messages."""


WHOLE = Span()


def lines(path: Path, span: Span = WHOLE) -> Iterator[str]:
    """The lines of a UTF-8 file that begin in a part of it, line endings included; a byte order mark is dropped.

    Raises:
        Malformed: If a line is not UTF-8, or the gzip file is damaged.
        OSError: If the file cannot be read.
    """
    try:
        with gzip.open(path) if is_gzipped(path) else path.open("rb") as stream:
            offset = span.start
            if span.start:  # what is left of a line that began before
                stream.seek(span.start - 1)
                offset += len(stream.readline()) - 1
            for number, line in enumerate(stream, start=span.first):
                if span.stop is not None and offset >= span.stop:
                    return
                try:
                    yield (line if offset else line.removeprefix(_BOM)).decode()
                except UnicodeDecodeError as error:
                    raise Malformed(
                        f"line {number}, byte {offset + error.start}: not UTF-8 ({line[error.start]:#04x}: {error.reason}); "
                        "convert the file"
                    ) from error
                offset += len(line)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Malformed(f"not a whole gzip file: {error}") from error


def numbered(path: Path, span: Span) -> Span:
    """A part of an uncompressed file with the number of its first line, which takes a pass over what comes before it."""
    offset = before = 0
    with path.open("rb") as stream:
        for line in stream:
            if offset >= span.start:
                break
            offset, before = offset + len(line), before + 1
    return dataclasses.replace(span, first=before + 1)


def count(path: Path) -> int:
    """The number of lines in an uncompressed file."""
    with path.open("rb") as stream:
        number, last = 0, b"\n"
        for chunk in iter(lambda: stream.read(2**20), b""):
            number, last = number + chunk.count(b"\n"), chunk[-1:]
    return number + (last != b"\n")
