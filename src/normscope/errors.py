"""The one error that is the user's to mend."""


class InputError(Exception):
    """Bad input: one line that says what was expected, what came, and which config key to change.

    The command line turns it into that line and exit status 2. Anything else that is raised is a bug of ours and keeps
    its traceback.
    """


class PeerError(InputError):
    """Bad input that another process of the same run has found and prints."""


def one_line(error: BaseException) -> str:
    """What a library's error says, on one line of bearable length."""
    return printable(" ".join(str(error)[:10_000].split()), 300) or type(error).__name__


def origin(error: BaseException) -> str:
    """The module whose code raised an error: a bug of ours must not pass for a library's complaint about bad input."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else str(place.tb_frame.f_globals.get("__name__", ""))


def message(error: BaseException) -> str:
    """An error as the line that a command prints."""
    return f"normscope: {printable(str(error), 1000)}"


def printable(text: str, longest: int) -> str:
    """Text on one line, without what a terminal would obey, cut at the end if it is too long.

    Messages quote names and values from files, which may hold anything.
    """
    shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[: longest + 1])
    return shown if len(shown) <= longest else shown[:longest] + "…"
