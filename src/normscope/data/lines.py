"""Lines of text files, plain or gzipped, and the position of what cannot be read."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

_LONGEST_LINE = 64 * 2**20
"""Bytes: a small gzip file may hold a line of gigabytes."""
_BOM = b"\xef\xbb\xbf"


class Malformed(Exception):
    """A file does not have the format that its extension promises; the message names the position."""


def kind(path: Path) -> str:
    """The extension of a file in lower case, apart from .gz."""
    return (path.with_suffix("") if is_gzipped(path) else path).suffix.lower()


def is_gzipped(path: Path) -> bool:
    """Whether a file's name says that it is compressed by gzip."""
    return path.suffix.lower() == ".gz"


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, line endings included; a byte order mark is dropped.

    Raises:
        Malformed: If a line is not UTF-8 or has no end, or the gzip file is damaged.
        OSError: If the file cannot be read.
    """
    try:
        with gzip.open(path) if is_gzipped(path) else path.open("rb") as stream:
            offset = 0
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), b""), start=1):
                if len(line) > _LONGEST_LINE:
                    raise Malformed(f"line {number}: expected at most {_LONGEST_LINE // 2**20} MiB, got more")
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


def count(path: Path) -> int:
    """The number of lines in an uncompressed file."""
    with path.open("rb") as stream:
        number, last = 0, b"\n"
        for chunk in iter(lambda: stream.read(2**20), b""):
            number, last = number + chunk.count(b"\n"), chunk[-1:]
    return number + (last != b"\n")
