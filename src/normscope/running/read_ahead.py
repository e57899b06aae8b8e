"""Items that a thread makes while earlier ones are used."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

T = TypeVar("T")
U = TypeVar("U")

# What a worker does between two items, tokenising a window of examples at most, takes seconds. A source that is stuck (a
# network) must not keep a run that was interrupted from ending.
_SECONDS_TO_END = 10.0


@contextlib.contextmanager
def read_ahead(
    items: Iterator[T], most: int, prepare: Callable[[T], U], name: str = "read-ahead"
) -> Iterator[Iterator[U]]:
    """The items of an iterator, made by a worker thread, in order.

    An error of the iterator or of `prepare` is raised after the items before it, as if there were no thread. At the end of the
    context the worker stops after the item that it is making, and the others that it has made are dropped.

    Args:
        items: The iterator; it must not be used outside while the context lasts.
        most: Maximum number of items that are made and not yet used, at least 2.
        prepare: Applied to each item by the worker.
        name: Name of the thread.
    """
    made: queue.Queue[Callable[[], U]] = queue.Queue(most)
    stopped = threading.Event()
    worker = threading.Thread(target=_make, args=(items, prepare, made, stopped), name=name, daemon=True)
    worker.start()
    try:
        yield _taken(made)
    finally:
        stopped.set()
        with contextlib.suppress(queue.Empty):  # a worker that waits for a free place can go on, and ends
            while True:
                made.get_nowait()
        worker.join(_SECONDS_TO_END)


def _make(
    items: Iterator[T], prepare: Callable[[T], U], made: queue.Queue[Callable[[], U]], stopped: threading.Event
) -> None:
    try:
        for item in items:
            made.put(_returning(prepare(item)))
            if stopped.is_set():
                return
        end: BaseException = StopIteration()
    except BaseException as error:  # raised again by whoever uses the items
        end = error
    made.put(_raising(end))


def _taken(made: queue.Queue[Callable[[], U]]) -> Iterator[U]:
    while True:
        take = made.get()
        try:
            item = take()
        except StopIteration:
            return
        yield item


def _returning(item: U) -> Callable[[], U]:
    return lambda: item


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def take() -> NoReturn:
        raise error

    return take
