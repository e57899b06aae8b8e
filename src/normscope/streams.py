"""The standard streams of a command: what is printed never fails it, and never acts on the terminal.

A closed or full stream loses what is printed, and the exit status stays that of the results. Signs that the encoding of a
terminal lacks are spelled. Control characters, which names and tokens of others may contain, are escaped (`errors.escaped`).
"""

import codecs
import contextlib
import io
import locale
import os
import select
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from normscope.errors import escaped

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
    "—": "-",
    "…": "...",
    "×": "x",
    "·": "*",
    "±": "+-",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "█": "#",
    "‖": "||",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
    "Σ": "sum ",
    "√": "sqrt",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "ρ": "rho",
    "σ": "sigma",
    "λ": "lambda",
    "Δ": "delta ",
    "μ": "mu",
}
"""What stands for our own signs where an encoding lacks them."""

_SUPERSCRIPTS = dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789", strict=True))
"""Replacements for the characters of an exponent, which begins with a caret: `10^-3`."""

_UP = "\x1b[A"
"""What progress bars print on a terminal besides text and the start of the line: one line up."""

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
    """Make standard output and error safe to print to, until the process ends. Streams that are no descriptors stay."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:  # closed; the next file that is opened would take its place, and what is printed would go there
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process ends
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream: TextIO | None = getattr(sys, name)
        if stream is None or (_descriptor(stream) == descriptor and not isinstance(stream, Printed)):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.flush()
            encoding = stream.encoding if stream is not None else locale.getpreferredencoding(do_setlocale=False)
            setattr(sys, name, Printed(descriptor, encoding))


class Printed(io.TextIOWrapper):
    """Text to a descriptor, which stays open."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        raw = _Descriptor(descriptor)
        terminal = raw.isatty()
        super().__init__(
            io.BufferedWriter(raw),
            encoding=encoding,
            errors=_ERRORS,
            line_buffering=terminal or descriptor == 2,
        )
        self._redraws = terminal and descriptor == 2
        self._kept = "\n" if terminal else f"\n{_BYTES}"

    def write(self, text: str) -> int:
        """Write text, with control characters escaped."""
        super().write(_redrawn(text) if self._redraws else escaped(text, keep=self._kept))
        return len(text)


class _Descriptor(io.RawIOBase):
    """Bytes to a descriptor, which are lost if it does not take them: its reader has gone, or its disk is full."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        """Yes."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether a terminal shows it."""
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Write bytes, or lose them."""
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:
                return len(data)


def _redrawn(text: str) -> str:
    """Text for a terminal on which progress bars are drawn."""
    return _UP.join(escaped(part, keep="\n\r") for part in text.split(_UP))


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # an object of a notebook or a test
        return None


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
    return _SPELLED.get(missing) or ascii(missing)[1:-1], after


_ERRORS = "normscope.spelled"
codecs.register_error(_ERRORS, _spelled)
