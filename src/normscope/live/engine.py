"""One computation at a time: requests wait for their turn, outdated ones are dropped, and the last results are kept."""

import collections
import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from normscope.errors import InputError

KEPT = 32
"""Results that are kept."""
_MOST_WAITING = 64

GoOn = Callable[[], None]
"""Raises `Outdated` once nobody waits for the result any more; long computations call it between their steps."""
Compute = Callable[["Turn"], Any]


class Outdated(Exception):
    """The same tab has asked for something newer, or the server stops."""


class Busy(InputError):
    """Too many requests wait."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """Who asks, and for what: a newer one of the same tab for the same part makes an older one outdated."""

    slot: Hashable
    """The tab and the part of its page; None for a request that is never outdated."""
    number: int
    """Higher for newer ones."""


@dataclasses.dataclass(frozen=True)
class _Job:
    ask: Ask
    key: Hashable
    compute: Compute
    future: "Future[Any]"


class Turn:
    """What a computation may ask while it has its turn."""

    def __init__(self, engine: "Engine", job: _Job) -> None:
        self._engine, self._job = engine, job

    def __call__(self) -> None:
        """Go on only if somebody still waits for the result; see `GoOn`."""
        self._engine.require(self._job)

    def let_others(self) -> None:
        """Let what waits go first. The models must be as they were."""
        self._engine.run_waiting()
        self()


class Engine:
    """A thread that computes, and the results that it has computed last."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._results: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self._newest: dict[Hashable, int] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopping = False
        self._running: _Job | None = None
        # Not one of an executor, for which the interpreter would wait when it ends.
        self._thread = threading.Thread(target=self._work, name="normscope-live", daemon=True)
        self._thread.start()

    def submit(self, ask: Ask, key: Hashable, compute: Compute) -> "Future[Any]":
        """Ask for a result, which may be known already.

        Args:
            ask: Who asks.
            key: What the result depends on.
            compute: Computes it.

        Returns:
            A future of the result. It raises `Outdated` if the result is not needed any more.

        Raises:
            Busy: If too many requests wait.
        """
        future: Future[Any] = Future()
        with self._lock:
            if ask.slot is not None:
                self._newest[ask.slot] = max(ask.number, self._newest.pop(ask.slot, ask.number))
                while len(self._newest) > 4 * _MOST_WAITING:  # tabs that were closed
                    del self._newest[next(iter(self._newest))]
            if self._stopping:
                future.set_exception(Outdated())
                return future
            if key in self._results:
                self._results.move_to_end(key)
                future.set_result(self._results[key])
                return future
            if self._jobs.qsize() >= _MOST_WAITING:
                raise Busy(f"the server is busy: {_MOST_WAITING} requests wait; try again")
            self._jobs.put(_Job(ask, key, compute, future))
        return future

    def close(self, seconds: float) -> bool:
        """Stop computing, and let go of all results.

        Args:
            seconds: How long to wait for a computation that is running.

        Returns:
            Whether none is running any more.
        """
        with self._lock:
            self._stopping = True
            self._jobs.put(None)
        if (running := self._running) is not None:
            _settle(running.future, None, Outdated())
        self._thread.join(seconds)
        self._results.clear()
        return not self._thread.is_alive()

    def require(self, job: _Job) -> None:
        """Raise `Outdated` if nobody waits for a result any more."""
        newest = self._newest.get(job.ask.slot, job.ask.number)
        if self._stopping or job.future.cancelled() or newest > job.ask.number:
            raise Outdated

    def run_waiting(self) -> None:
        """Compute what waits, in the thread that computes."""
        while not self._stopping and not self._jobs.empty():
            if (job := self._jobs.get()) is None:
                self._jobs.put(None)
                return
            self._run(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)
            del job  # its result, which may be dropped before the next one comes

    def _run(self, job: _Job) -> None:
        outer, self._running = self._running, job
        try:
            _settle(job.future, self._result(job), None)
        except BaseException as error:
            _settle(job.future, None, error)
        self._running = outer

    def _result(self, job: _Job) -> Any:
        self.require(job)
        if job.key not in self._results:
            result = job.compute(Turn(self, job))
            with self._lock:
                self._results[job.key] = result
                while len(self._results) > self._kept:
                    self._results.popitem(last=False)
            return result
        return self._results[job.key]


def _settle(future: "Future[Any]", outcome: Any, error: BaseException | None) -> None:
    """Give a future its outcome, unless it has one or nobody waits for it."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(outcome) if error is None else future.set_exception(error)
