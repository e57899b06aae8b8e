"""The standard streams of a command: what is printed never acts on the terminal.

What is printed to a reader or a terminal that has gone is lost, and the exit status stays that of the results. Signs that the
encoding of a terminal lacks are spelled. Control characters, which names and tokens of others may contain, are escaped
(`errors.escaped`).
"""

import codecs
import contextlib
import errno
import io
import os
import shlex
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from normscope.errors import InputError, escaped, one_line

WIDTH = 80
"""Characters of a line."""

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""Wraps an iterable in a progress bar, given its length and a title."""


def no_bar(steps: Iterable[Any], _total: int, _title: str) -> Iterable[Any]:
    """The steps alone."""
    return steps


_SPELLED = {
    "−": "-",
    "–": "-",
    "…": "...",
    "×": "x",
    "·": "*",
    "±": "+-",
    "≤": "<=",
    "→": "->",
    "█": "#",
    "‖": "||",
    "’": "'",
    "“": '"',
    "”": '"',
}
"""What stands for our own signs where an encoding lacks them. Greek letters have names."""

_SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))
"""Replacements for the characters of an exponent, which begins with a caret: `10^-3`."""

_UP = "\x1b[A"
"""What progress bars print on a terminal besides text and the start of the line: one line up."""

_GONE = (errno.EPIPE, errno.EIO)
"""Errors of a stream whose reader or terminal has gone."""

_BYTES = "".join(map(chr, range(0xDC80, 0xDD00)))
"""Bytes of names that are no text, as Python reads them."""

_ESCAPES = {"\t": r"\t", "\n": r"\n", "\r": r"\r", "\\": r"\\"}


def wrapped(text: str) -> str:
    """A text in lines that fit in a terminal; a path or an address that is longer than a line stays whole."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def shell_word(text: str) -> str:
    """A text as one word of a shell, without characters that a terminal acts on when they are pasted.

    Inside quotes they would still end the paste, delete what was typed or press Enter: the terminal reads them before the shell
    does. `$'…'` writes them as escapes (bash, zsh, ksh, POSIX 2024).

    Args:
        text: Anything but NUL, which no argument can hold.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_shell_escaped, text)) + "'"


def _shell_escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable() and character not in "'!":  # ! would begin a word of the shell's history
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def open_streams() -> None:
    """Make standard output and error safe to print to, until the process ends. Streams that others have put there stay."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed: the next file that is opened takes its place, which should not be one of results
            setattr(sys, name, open(os.devnull, "w" if descriptor else "r", encoding="utf-8"))  # noqa: SIM115
        elif descriptor and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, Printed(stream))


class Printed(io.TextIOWrapper):
    """What is printed to a stream, with control characters escaped and with signs that its encoding has."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.buffer, stream.encoding, errors=_ERRORS, line_buffering=stream.line_buffering)
        self._redraws = stream.isatty() and stream.fileno() == 2
        self._kept = "\n" if stream.isatty() else f"\n{_BYTES}"

    def write(self, text: str) -> int:
        """Write a text."""
        with self._lost():
            super().write(_redrawn(text) if self._redraws else escaped(text, keep=self._kept))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._lost():
            super().flush()

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Context in which the reader may have gone; what is printed is then lost.

        Raises:
            InputError: If anything else does not take the text, such as a full disk.
        """
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # for what is buffered, and all that follows
            if error.errno not in _GONE:
                raise InputError(f"{self.name}: cannot be written to: {one_line(error)}") from error


def _redrawn(text: str) -> str:
    """Text for a terminal on which progress bars are drawn."""
    return _UP.join(escaped(part, keep="\n\r") for part in text.split(_UP))


def _spelled(error: UnicodeError) -> tuple[str | bytes, int]:
    """A character that an encoding lacks: one of our signs in ASCII, a byte of a name as it was, others as escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing, after = error.object[error.start], error.start + 1
    if missing in _SUPERSCRIPTS:
        begins = error.object[error.start - 1 : error.start] not in _SUPERSCRIPTS
        return f"{'^' * begins}{_SUPERSCRIPTS[missing]}", after
    if missing in _BYTES:
        return bytes([ord(missing) - 0xDC00]), after
    greek, _, letter = unicodedata.name(missing, "").lower().rpartition("letter ")
    return letter if greek.startswith("greek") else _SPELLED.get(missing) or ascii(missing)[1:-1], after


_ERRORS = "normscope.spelled"
codecs.register_error(_ERRORS, _spelled)
