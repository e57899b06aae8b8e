"""Our errors, and helpers for error messages."""

import re
import sys
import traceback

_LONG_WORD = re.compile(r"(\S{200})\S{200,}(\S{20})")


class InputError(Exception):
    """Raised for invalid input. The message says what was expected, what it got, and which config key to change.

    The command line prints the message and exits with status 2. Any other exception is a bug and keeps its traceback.
    """

    def __str__(self) -> str:
        """The message on one line, and not too long: it quotes names and values, which may be anything."""
        return printable(_LONG_WORD.sub(r"\1…\2", super().__str__()), 1000)


class PeerError(InputError):
    """Raised if another process of the same run has invalid input; that process prints the message."""


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


def one_line(error: BaseException) -> str:
    """The message of a library's error, on one line and not too long."""
    return printable(" ".join(str(error)[:10_000].split()), 300) or type(error).__name__


def origin(error: BaseException, passing: frozenset[str] = frozenset()) -> str:
    """The module whose code raised an error, to tell our own bugs from a library's complaint about invalid input.

    What the standard library raises is due to the code that called it.

    Args:
        passing: Modules that only forward calls; they are skipped.
    """
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    others = (
        name
        for name in reversed(names)
        if name.partition(".")[0] not in sys.stdlib_module_names and name not in passing
    )
    return next(others, "")


def message(error: BaseException) -> str:
    """The line that a command prints for an error."""
    return f"normscope: {printable(str(error), 1000)}"


def describe_type(value: object) -> str:
    """The type of a value, with the types of its first elements, for messages."""
    if isinstance(value, tuple | list):
        types = ", ".join(type(part).__name__ for part in value[:3])
        return f"a {type(value).__name__} of {len(value)} ({types}{', ...' if len(value) > 3 else ''})"
    return type(value).__name__


def printable(text: str, longest: int) -> str:
    """Text on one line, with control characters escaped, cut if it is too long.

    Messages quote names and values from files, which may contain anything.
    """
    return cut(escaped(cut(text, longest)), longest)


def cut(text: str, longest: int) -> str:
    """A text, without its middle if it is too long: names that begin alike may end differently."""
    if len(text) <= longest:
        return text
    end = (longest - 1) // 2
    return f"{text[: longest - 1 - end]}…{text[len(text) - end :]}"


# Those that XML forbids, and those that no reader sees: tabs and ends of lines are layout.
_CONTROLS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Text of others for a figure or a page: control characters, half surrogate pairs and what is no character are escaped."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


_JOINERS = "\u200c\u200d"
"""Within words of Persian and Hindi, and within emoji."""


def escaped(text: str, keep: str = "") -> str:
    """Text of others for a terminal: what it would act upon, or what hides what the text says, is escaped.

    These are control characters (ESC, tab, carriage return), marks of the direction of text, separators of lines, and blanks
    other than the space. Names, labels and tokens may contain any of them.

    Args:
        keep: Characters that stay, such as the line ends of a table that we print.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keep or character in _JOINERS else ascii(character)[1:-1]
        for character in text
    )
