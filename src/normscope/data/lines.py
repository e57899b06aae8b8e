"""Lines of text files, plain or gzipped, with the place of what cannot be read."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

_BOM = b"\xef\xbb\xbf"


class Malformed(Exception):
    """A file is not of the kind that its ending says; the message names the place."""


def kind(path: Path) -> str:
    """The ending of a file, without that of its compression."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends, one at a time; a byte order mark is left out.

    Raises:
        Malformed: If a line is not UTF-8, or the file not what gzip wrote.
        OSError: If it cannot be read.
    """
    offset = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    yield (line.removeprefix(_BOM) if number == 1 else line).decode()
                except UnicodeDecodeError as error:
                    raise Malformed(
                        f"line {number}, byte {offset + error.start}: not UTF-8 ({line[error.start]:#04x}: {error.reason}); "
                        "convert the file"
                    ) from error
                offset += len(line)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Malformed(f"not a whole gzip file: {error}") from error


def count(path: Path) -> int:
    """How many lines a plain file has."""
    with path.open("rb") as stream:
        number, last = 0, b"\n"
        for chunk in iter(lambda: stream.read(2**20), b""):
            number, last = number + chunk.count(b"\n"), chunk[-1:]
    return number + (last != b"\n")
