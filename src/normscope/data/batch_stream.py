"""The batches of a corpus: read and tokenised by a thread ahead of the model, counted when they are taken."""

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import torch

from normscope.data.batching import Batch
from normscope.data.examples import CorpusCounts

READ_AHEAD = 32
"""Maximum number of batches that wait for the model: two windows of short texts, or four megabytes, by default."""

OpenBatches = Callable[[CorpusCounts], Iterator[tuple[Batch, bool]]]


class _Step(NamedTuple):
    """A batch on its way to the model."""

    batch: Batch | None
    """None after the last one."""
    mine: bool
    counts: CorpusCounts
    """The counts of all examples up to this batch; those after the last one include what follows it."""
    arrived: torch.cuda.Event | None = None
    """When its copy to the device is complete; None if it is where it was made."""


class BatchStream:
    """All batches that a process makes of the corpus, and whether each is for it.

    Args:
        open_batches: Opens the batches, given the counts that they update.
        counts: Updated as batches are taken, however many have been read ahead.
    """

    def __init__(self, open_batches: OpenBatches, counts: CorpusCounts) -> None:
        self._counts = counts
        read = counts.copy()
        self._steps = _steps(open_batches(read), read)

    def __iter__(self) -> Iterator[tuple[Batch, bool]]:
        """The stream itself."""
        return self

    def __next__(self) -> tuple[Batch, bool]:
        """The next batch."""
        step = next(self._steps)
        self._counts.become(step.counts)
        if step.batch is None:
            raise StopIteration
        if step.arrived is not None:
            _wait_for(step.batch, step.arrived)
        return step.batch, step.mine

    def read_until(self, enough: Callable[[Batch], bool]) -> CorpusCounts | None:
        """Read the first window of the corpus until `enough` is true of a batch. All batches stay in the stream.

        Returns:
            The counts of the whole corpus if it has ended before; None if it goes on, or `enough` was true.
        """
        head: list[_Step] = []
        counts = None
        for step in self._steps:
            head.append(step)
            if step.batch is None:
                counts = step.counts
                break
            if enough(step.batch) or step.counts.read > head[0].counts.read:
                break
        self._steps = itertools.chain(head, self._steps)
        return counts

    @contextlib.contextmanager
    def ahead_of(self, device: torch.device) -> Iterator[None]:
        """While the context lasts, a thread reads, tokenises and, for CUDA, copies batches ahead of those that are taken."""
        steps, move = self._steps, _Copies(device) if device.type == "cuda" else _stay
        with read_ahead(steps, READ_AHEAD, move, "normscope-batches") as self._steps:
            yield


def _steps(batches: Iterator[tuple[Batch, bool]], read: CorpusCounts) -> Iterator[_Step]:
    for batch, mine in batches:
        yield _Step(batch, mine, read.copy())
    yield _Step(None, False, read)


def _stay(step: _Step) -> _Step:
    return step


class _Copies:
    """Copies this process's batches to a CUDA device, from pinned memory and on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def __call__(self, step: _Step) -> _Step:
        """The step with a batch that is being copied; unchanged if there is no memory for it now."""
        if step.batch is None or not step.mine:
            return step
        try:
            with torch.cuda.stream(self._stream):
                copied = step.batch.to(self._device)
                return step._replace(batch=copied, arrived=self._stream.record_event())
        except torch.OutOfMemoryError:  # it is moved when it is run; if it does not fit then, batches are split
            return step


def _wait_for(batch: Batch, arrived: torch.cuda.Event) -> None:
    """Let what the model's stream does next wait for a copy, and the copy's memory live until that is done."""
    current = torch.cuda.current_stream(batch.input_ids.device)
    current.wait_event(arrived)
    batch.record_stream(current)


T = TypeVar("T")
U = TypeVar("U")

_Made = tuple[list[U], BaseException | None]
"""An item, or none and what has ended the iterator."""

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
    made: queue.Queue[_Made[U]] = queue.Queue(most)
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


def _make(items: Iterator[T], prepare: Callable[[T], U], made: queue.Queue[_Made[U]], stopped: threading.Event) -> None:
    try:
        for item in items:
            made.put(([prepare(item)], None))
            if stopped.is_set():
                return
        end: BaseException = StopIteration()
    except BaseException as error:  # raised again by whoever uses the items
        end = error
    made.put(([], end))


def _taken(made: queue.Queue[_Made[U]]) -> Iterator[U]:
    while True:
        items, end = made.get()
        yield from items
        if isinstance(end, StopIteration):
            return
        if end is not None:
            raise end
