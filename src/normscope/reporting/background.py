"""Trackers that start in a thread, beside the first batches: importing and starting one takes seconds."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import pandas as pd

from normscope.reporting.tracker import Tracker


@contextlib.contextmanager
def started_in_background(opening: AbstractContextManager[Tracker]) -> Iterator[Tracker]:
    """A tracker that a thread starts.

    Progress is kept until the tracker has started; everything else waits for it, and so does the end of the run, however it
    ends: a tracker is finished if and only if it has started. A signal interrupts the wait.

    Args:
        opening: The tracker for the duration of a run. It is entered in the thread, and left where this context is.
    """
    started: Future[Tracker] = Future()
    # A daemon, so that a process that is interrupted again while it waits can end.
    threading.Thread(target=_start, args=(opening, started), name="normscope-tracker", daemon=True).start()
    tracker = _StartingTracker(started)

    def finish(
        kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        tracker.wait()
        return opening.__exit__(kind, error, trace)

    with contextlib.ExitStack() as stack:
        stack.push(finish)
        yield tracker


def _start(opening: AbstractContextManager[Tracker], started: Future[Tracker]) -> None:
    try:
        started.set_result(opening.__enter__())
    except BaseException as error:  # raised again by whatever waits for the tracker
        started.set_exception(error)


class _StartingTracker(Tracker):
    """Forwards everything to a tracker once it has started.

    Args:
        started: The tracker.
    """

    def __init__(self, started: Future[Tracker]) -> None:
        self._started = started
        self._early: list[tuple[int, Mapping[str, float]]] = []

    def wait(self) -> Tracker:
        """The tracker, once it has started and has the progress that was made meanwhile."""
        tracker = self._started.result()
        while self._early:
            tracker.progress(*self._early.pop(0))
        return tracker

    def progress(self, examples: int, values: Mapping[str, float]) -> None:
        self._early.append((examples, values))
        if self._started.done():
            self.wait()

    def table(self, name: str, table: pd.DataFrame) -> None:
        self.wait().table(name, table)

    def figure(self, name: str, path: Path, caption: str) -> None:
        self.wait().figure(name, path, caption)

    def page(self, name: str, path: Path) -> None:
        self.wait().page(name, path)

    def findings(self, sentences: Mapping[str, Sequence[str]]) -> None:
        self.wait().findings(sentences)

    def curves(self, curves: "Mapping[str, pd.Series[float]]") -> None:
        self.wait().curves(curves)

    def summary(self, metrics: Mapping[str, float], provenance: Mapping[str, object]) -> None:
        self.wait().summary(metrics, provenance)

    def run_folder(self, files: Mapping[str, Path], results: bytes) -> None:
        self.wait().run_folder(files, results)
