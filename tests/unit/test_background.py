"""Trackers that start in a thread, beside the first batches."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from normscope.errors import InputError
from normscope.reporting.background import started_in_background
from normscope.reporting.terminal import CorpusBar
from normscope.reporting.tracker import NoTracker, Tracker
from normscope.reporting.trackers.failures import Failures
from tests.unit.test_progress import state

PATIENCE = 10.0


class Slow:
    """A tracker whose start the test controls, and which notes the thread of every call."""

    def __init__(self) -> None:
        self.may_start, self.events = threading.Event(), list[str]()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Tracker]:
        assert self.may_start.wait(PATIENCE)
        self._note("started")
        slow = self

        class Noting(NoTracker):
            def progress(self, examples: int, values: object) -> None:
                slow._note(f"{examples} examples {values}")

            def table(self, name: str, table: pd.DataFrame) -> None:
                slow._note(f"table {name} of {len(table)}")

            def figure(self, name: str, path: Path, caption: str) -> None:
                slow._note(f"figure {name} {path} {caption}")

            def page(self, name: str, path: Path) -> None:
                slow._note(f"page {name} {path}")

            def curves(self, curves: object) -> None:
                slow._note(f"curves {curves}")

            def summary(self, metrics: object, provenance: object) -> None:
                slow._note(f"summary {metrics} {provenance}")

            def run_folder(self, files: object, results: bytes) -> None:
                slow._note(f"folder {files} {results!r}")

        try:
            yield Noting()
        except BaseException as error:
            self._note(f"failed: {type(error).__name__}")
            raise
        self._note("finished")

    def _note(self, event: str) -> None:
        background = threading.current_thread().name == "normscope-tracker"
        self.events.append(f"{event} in the background" if background else event)


def test_the_run_goes_on_while_the_tracker_starts():
    slow = Slow()
    with started_in_background(slow.opened()) as tracker:
        tracker.progress(1, {})
        tracker.progress(2, {})
        assert slow.events == []
        slow.may_start.set()
        tracker.table("a", pd.DataFrame({"x": [1, 2]}))
        tracker.figure("b", Path("b.png"), "B.")
        tracker.page("report", Path("report.html"))
        tracker.curves({})
        tracker.progress(3, {})
        tracker.summary({"m": 1.0}, {"device": "cpu"})
        tracker.run_folder({}, b"{}")
    assert slow.events == [
        "started in the background",
        *(
            "1 examples {}",
            "2 examples {}",
            "table a of 2",
            "figure b b.png B.",
            "page report report.html",
            "curves {}",
        ),
        *("3 examples {}", "summary {'m': 1.0} {'device': 'cpu'}", "folder {} b'{}'", "finished"),
    ]


@pytest.mark.parametrize("error", [None, InputError("bad"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_a_run_that_ends_first_waits_and_finishes_the_tracker(error):
    slow = Slow()
    threading.Timer(0.02, slow.may_start.set).start()  # once this thread has had time to wait
    expected = pytest.raises(type(error)) if error else contextlib.nullcontext()
    with expected, started_in_background(slow.opened()) as tracker:
        tracker.progress(1, {})
        if error:
            raise error
    assert slow.events == [
        "started in the background",
        "1 examples {}",
        f"failed: {type(error).__name__}" if error else "finished",
    ]


def test_a_signal_ends_the_wait():
    """The second one of a run that is interrupted while its tracker starts; the thread must not keep the process."""
    slow = Slow()
    opening = started_in_background(slow.opened())
    opening.__enter__()
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "normscope-tracker")
    assert thread.daemon
    main = threading.main_thread().ident
    assert main == threading.get_ident()

    def interrupted_close() -> None:
        threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
        opening.__exit__(KeyboardInterrupt, KeyboardInterrupt("the first"), None)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match="^$"):
            interrupted_close()
    finally:
        signal.signal(signal.SIGINT, before)
    slow.may_start.set()
    thread.join(PATIENCE)
    assert slow.events == ["started in the background"]


def test_a_bug_while_a_tracker_starts_is_raised_where_it_is_needed():
    @contextlib.contextmanager
    def opened() -> Iterator[Tracker]:
        raise ZeroDivisionError("a bug")
        yield

    with pytest.raises(ZeroDivisionError, match="a bug"), started_in_background(opened()) as tracker:
        tracker.curves({})
    with pytest.raises(ZeroDivisionError, match="a bug"), started_in_background(opened()):
        pass


def test_the_warning_of_a_tracker_that_cannot_start_has_its_own_line_beside_a_progress_bar(capsys, monkeypatch):
    failures, shown = Failures("The tracker"), threading.Event()

    def fail() -> None:
        assert shown.wait(PATIENCE)
        raise OSError(28, "No space left on device")

    @contextlib.contextmanager
    def opened() -> Iterator[Tracker]:
        failures.attempt(fail)
        yield NoTracker()

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with started_in_background(opened()) as tracker, CorpusBar(500, "pass") as bar:
        bar.update(state())
        tracker.progress(200, {})
        shown.set()
        tracker.curves({})
        tracker.curves({})
    before, warning, after = capsys.readouterr().err.partition(
        "The tracker failed (OSError: [Errno 28] No space left on device); the run continues without tracking\n"
    )
    assert warning
    assert "0/500" in before
    assert before.endswith("\r")  # the bar is cleared, and drawn again below the warning
    assert after.startswith("\r")
    assert "200/500" in after
