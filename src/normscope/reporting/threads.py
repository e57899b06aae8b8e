"""Threads of a library, whose deaths are reported in our words."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType


@contextlib.contextmanager
def contained_threads(package: str, note: Callable[[Exception], None]) -> Iterator[None]:
    """Report what a thread of a package dies of instead of printing its traceback. All other threads print theirs.

    Args:
        package: The top-level package, one of whose functions the exception must have passed.
        note: Is given the exception, in the thread that dies.
    """
    previous = threading.excepthook

    def hook(failure: threading.ExceptHookArgs) -> None:
        if isinstance(failure.exc_value, Exception) and _passed(package, failure.exc_traceback):
            note(failure.exc_value)
        else:
            previous(failure)

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
