"""The state of torch's random number generators, which all threads of a process share and which callers get back as it was.

What we draw ourselves comes from generators of our own. Only code of others draws from these: a model's initialisation, or a
module that draws in its forward.
"""

import contextlib
import os
import threading
from collections.abc import Iterator

import torch


class _Borrowed:
    """Who uses the generators, and the state that they get back once nobody does."""

    def __init__(self) -> None:
        self.begin_again()
        self._threads: list[int] = []
        self._state: list[torch.Tensor] = []

    def begin_again(self) -> None:
        """Locks that nobody holds."""
        self._lock, self.alone = threading.Lock(), threading.RLock()

    def take(self) -> None:
        with self._lock:
            if not self._threads:
                self._state = _state()
            self._threads.append(threading.get_ident())

    def give_back(self) -> None:
        with self._lock:
            self._threads.remove(threading.get_ident())
            if not self._threads:
                _set(self._state)

    def after_fork(self) -> None:
        """Forget the threads of the parent but the one that has forked."""
        self.begin_again()
        others = [each for each in self._threads if each != threading.get_ident()]
        self._threads = [each for each in self._threads if each == threading.get_ident()]
        if others and not self._threads:
            _set(self._state)


_borrowed = _Borrowed()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_borrowed.after_fork)


def _state() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def _set(state: list[torch.Tensor]) -> None:
    torch.set_rng_state(state[0])
    if state[1:]:
        torch.cuda.set_rng_state_all(state[1:])


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """A context after which the generators are as they were. If several threads are in one, the last to leave restores them."""
    _borrowed.take()
    try:
        yield
    finally:
        _borrowed.give_back()


@contextlib.contextmanager
def drawing(seed: int | None = None) -> Iterator[None]:
    """A context in which code of others draws, one thread at a time; afterwards the generators are as they were.

    It is also where models are built: transformers sets the default dtype, and whether weights are initialised, for the whole
    process.

    Args:
        seed: What they are seeded with; by default, they go on.
    """
    with _borrowed.alone, generators_restored():
        before = _state()
        try:
            if seed is not None:
                torch.manual_seed(seed)
            yield
        finally:
            _set(before)
