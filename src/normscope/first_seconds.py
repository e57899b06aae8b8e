"""The first seconds of a command, in which it imports libraries: when they began, and what a terminal shows meanwhile.

This module imports nothing slow itself.
"""

import contextlib
import sys
import time
from collections.abc import Iterator

_LINE = "start …"


def process_began() -> float:
    """When the operating system started this process, by `time.monotonic`."""
    import psutil

    age = time.time() - psutil.Process().create_time()
    return time.monotonic() - max(age, 0.0)  # the clock may have been set back meanwhile


@contextlib.contextmanager
def starting(*, quiet: bool) -> Iterator[None]:
    """Context in which a terminal shows that the command is starting. Progress bars, which need a library, come afterwards.

    Args:
        quiet: Whether nothing is shown.
    """
    shown = not quiet and sys.stderr.isatty()
    if shown:
        print(_LINE, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print(f"\r{' ' * len(_LINE)}\r", end="", file=sys.stderr, flush=True)
