"""Regular files of a bounded size."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from normscope.errors import InputError, one_line

MIB = 2**20

LONGEST_NAME = 1000
"""Bytes of a file that holds a name."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file. Anything else is refused: reading from a pipe could wait for ever, and a device has no end.

    Raises:
        InputError: If it cannot be opened or read.
    """
    try:
        # Opening a pipe that nobody writes to would wait as well.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise InputError(f"{path}: expected a file, got a device or pipe")
            yield stream
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> InputError:
    """The error for a file that cannot be read, with the reason."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
    return InputError(f"{path}: cannot be read: {reason}")


def text(path: Path, most: int) -> str:
    """The text of a file in UTF-8 of at most `most` bytes.

    Raises:
        InputError: If it cannot be read, or is something else.
    """
    with opened(path) as stream:
        return read(stream, path, most).decode()


def read(stream: BinaryIO, path: Path, most: int) -> bytes:
    """What a stream holds, at most `most` bytes. No more memory is taken than it has.

    Raises:
        InputError: If it holds more.
    """
    parts, left = [], most
    while part := stream.read(min(left + 1, MIB)):
        left -= len(part)
        if left < 0:
            raise InputError(f"{path}: expected at most {most / MIB:g} MiB")
        parts.append(part)
    return b"".join(parts)
