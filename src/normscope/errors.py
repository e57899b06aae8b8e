"""The one error that is the user's to mend."""


class InputError(Exception):
    """Bad input: one line that says what was expected, what came, and which config key to change.

    The command line turns it into that line and exit status 2. Anything else that is raised is a bug of ours and keeps
    its traceback.
    """


def one_line(error: BaseException) -> str:
    """What a library's error says, on one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else text[:300] + "…"
