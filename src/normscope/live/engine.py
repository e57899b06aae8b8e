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
from normscope.models.observe.cancelling import cancelled_by

KEPT = 32
"""Results that are kept."""
_MOST_WAITING = 64

Compute = Callable[["Turn"], Any]


class Outdated(Exception):
    """The same tab has asked for something newer, or the server stops."""


class Busy(InputError):
    """Too many requests wait."""


@dataclasses.dataclass(frozen=True)
class Ask:
    """Who asks: a newer question in the same slot makes an older one outdated."""

    slot: Hashable
    """The tab; None for a request that is never outdated."""
    number: int
    """Higher for newer ones."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    """A computation, and all who wait for it."""

    key: Hashable
    compute: Compute
    waiting: "list[tuple[Ask, Future[Any]]]"


class Turn:
    """What a computation may ask while it has its turn. Between layers of a model it is asked whether to go on."""

    def __init__(self, engine: "Engine", job: _Job) -> None:
        self._engine, self._job = engine, job

    def __call__(self) -> None:
        """Go on only if somebody still waits for the result.

        Raises:
            Outdated: If nobody does.
        """
        self._engine.require(self._job)

    def kept(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """A result that several answers share; it is computed unless it is among those that are kept."""
        return self._engine.kept(key, compute)


class Engine:
    """A thread that computes, and the results that it has computed last."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._results: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self._newest: dict[Hashable, int] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open: dict[Hashable, _Job] = {}
        """Jobs that wait or run, by key."""
        self._lock = threading.RLock()
        self._stopping = False
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
            elif key in self._results:
                self._results.move_to_end(key)
                future.set_result(self._results[key])
            elif key in self._open:
                self._open[key].waiting.append((ask, future))
            elif len(self._open) > _MOST_WAITING:  # and one that runs
                raise Busy(f"the server is busy: {_MOST_WAITING} requests are waiting; try again")
            else:
                self._open[key] = _Job(key, compute, [(ask, future)])
                self._jobs.put(self._open[key])
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
            for job in [*self._open.values()]:
                self._settle(job, error=Outdated())
        self._thread.join(seconds)
        self._results.clear()
        return not self._thread.is_alive()

    def require(self, job: _Job) -> None:
        """Raise `Outdated` if nobody waits for a result any more."""
        with self._lock:
            if self._stopping or not self._waits(job):
                raise Outdated

    def kept(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """A result that is among those that are kept, or is computed now and kept."""
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        result = compute()
        with self._lock:
            self._results[key] = result
            while len(self._results) > self._kept:
                self._results.popitem(last=False)
        return result

    def _is_current(self, ask: Ask) -> bool:
        return self._newest.get(ask.slot, ask.number) <= ask.number

    def _waits(self, job: _Job) -> bool:
        return any(self._is_current(ask) and not future.cancelled() for ask, future in job.waiting)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._run(job)
            del job  # its result, which may be dropped before the next one comes

    def _run(self, job: _Job) -> None:
        turn = Turn(self, job)
        try:
            turn()
            with cancelled_by(turn):
                self._settle(job, self.kept(job.key, lambda: job.compute(turn)))
        except Outdated as error:
            with self._lock:
                if not self._stopping and self._waits(job):  # somebody has come since
                    self._jobs.put(job)
                else:
                    self._settle(job, error=error)
        except BaseException as error:
            self._settle(job, error=error)

    def _settle(self, job: _Job, outcome: Any = None, error: BaseException | None = None) -> None:
        """Give all who wait for a job its outcome, unless they have one."""
        with self._lock:
            if self._open.get(job.key) is job:
                del self._open[job.key]
            for ask, future in job.waiting:
                with contextlib.suppress(InvalidStateError):
                    if error is not None or not self._is_current(ask):
                        future.set_exception(error or Outdated())
                    else:
                        future.set_result(outcome)
            job.waiting.clear()
