"""Graceful shutdown: on a signal, a run finishes its batch and saves its state before it stops."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM."""


class ShutdownRequest:
    """Whether a signal has been received."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Remember the first signal. A second one ends the run at once, with the error of the first."""
        if self._received is not None:
            raise _error(self._received)
        self._received = signal.Signals(number)

    @property
    def error(self) -> KeyboardInterrupt | None:
        """The error to raise at the next safe point; None without a signal."""
        return None if self._received is None else _error(self._received)


def terminate(_number: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM when nothing has to be finished first."""
    raise Terminated


@contextlib.contextmanager
def deferred_signals() -> Iterator[ShutdownRequest]:
    """Defer SIGINT and SIGTERM until a safe point."""
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
