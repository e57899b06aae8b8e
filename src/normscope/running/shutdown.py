"""Signals that end a run: it finishes the batch that it is at, saves, and says so."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


class ShutdownRequest:
    """Whether a signal has come."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Note the first signal; the second ends the run at once, in the way that the first asked for."""
        if self._received is not None:
            raise _error(self._received)
        self._received = signal.Signals(number)

    @property
    def error(self) -> KeyboardInterrupt | None:
        """What to raise at the next chance, if a signal has come."""
        return None if self._received is None else _error(self._received)


def terminate(_number: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM where nothing needs to be finished first."""
    raise Terminated


@contextlib.contextmanager
def deferred_signals() -> Iterator[ShutdownRequest]:
    """Keep SIGINT and SIGTERM until the next chance to stop in order."""
    request = ShutdownRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _error(number: signal.Signals) -> KeyboardInterrupt:
    return Terminated() if number is signal.SIGTERM else KeyboardInterrupt()
