"""Uncaught exceptions in a library's threads."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType


@contextlib.contextmanager
def contained_threads(package: str, note: Callable[[Exception], None]) -> Iterator[None]:
    """Report uncaught exceptions of a package's threads instead of printing their tracebacks. Other threads keep theirs.

    Args:
        package: The top-level package; the exception must have passed through one of its functions.
        note: Called with the exception, in the thread that raised it.
    """
    previous = threading.excepthook

    def hook(uncaught: threading.ExceptHookArgs) -> None:
        if isinstance(uncaught.exc_value, Exception) and _passed(package, uncaught.exc_traceback):
            note(uncaught.exc_value)
        else:
            previous(uncaught)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = previous


def _passed(package: str, trace: TracebackType | None) -> bool:
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == package:
            return True
        trace = trace.tb_next
    return False
