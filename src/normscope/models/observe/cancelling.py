"""Between two layers, a computation can be left in the middle because nobody waits for its result any more."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextlib.contextmanager
def cancelled_by(check: Callable[[], None]) -> Iterator[None]:
    """A context in which this thread's passes call a function at the beginning of every layer.

    Args:
        check: Raises an exception to leave the computation. Calls that use a model restore it, as after an interrupt.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def check_cancelled() -> None:
    """Raise what the check of `cancelled_by` raises, if there is one."""
    if (check := _CHECK.get()) is not None:
        check()
