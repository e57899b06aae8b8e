"""A tracker that starts in a thread, beside the first batches."""

import signal
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from normscope.reporting import terminal, weights_and_biases
from normscope.reporting.tracking import RunDescription
from normscope.reporting.weights_and_biases import Tracker, _Outage, in_background
from normscope.results.findings import Sentence
from normscope.results.result import Result

PATIENCE = 10.0
DESCRIPTION = RunDescription("name", "slug", "analysis", [], "notes", {})


@pytest.fixture(autouse=True)
def one_line(monkeypatch):
    """Messages are not wrapped: a line is a message."""
    monkeypatch.setattr(terminal, "wrapped", str)


class Slow:
    """A W&B run whose start the test controls, and which notes what is logged."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_start, self.logged, self._error = threading.Event(), list[object](), error

    def start(self) -> Any:
        assert self.may_start.wait(PATIENCE)
        if self._error is not None:
            raise self._error
        return SimpleNamespace(
            log=self.logged.append, finish=lambda exit_code: self.logged.append(exit_code), dir="nowhere"
        )

    def tracker(self, folder: Path) -> Tracker:
        return Tracker(in_background(self.start), DESCRIPTION, _Outage(folder, online=False))


def test_the_run_goes_on_while_the_tracker_starts_and_no_progress_is_lost(tmp_path):
    slow = Slow()
    tracker = slow.tracker(tmp_path)
    tracker.progress(1, {"x": 0.5})
    tracker.progress(2, {})
    assert slow.logged == []
    slow.may_start.set()
    tracker.finish(0)
    assert slow.logged == [{"progress/examples": 1, "progress/x": 0.5}, {"progress/examples": 2}, 0]
    tracker.progress(3, {})
    assert slow.logged[-1] == {"progress/examples": 3}


def test_a_signal_ends_the_wait(tmp_path):
    """The second one of a run that is interrupted while its tracker starts; the thread must not keep the process."""
    slow = Slow()
    tracker = slow.tracker(tmp_path)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "normscope-tracker")
    assert thread.daemon
    main = threading.main_thread().ident
    assert main == threading.get_ident()

    def interrupted() -> None:
        threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
        tracker.finish(1)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
    slow.may_start.set()
    thread.join(PATIENCE)
    assert slow.logged == []


@pytest.mark.parametrize("hanging", ["log", "log_artifact", "finish"])
def test_one_that_hangs_is_given_up(hanging, capsys, monkeypatch, tmp_path):
    """Whatever hangs, and however often, the end of a run waits once."""
    monkeypatch.setattr(weights_and_biases, "_END_SECONDS", 0.3)
    release = threading.Event()
    kept: dict[str, object] = {}
    run = SimpleNamespace(
        **{name: lambda *_, **__: None for name in ("log", "log_artifact", "finish")},
        summary=kept,
        id="x",
        dir="nowhere",
    )
    setattr(run, hanging, lambda *_, **__: release.wait(PATIENCE))
    tracker = Tracker(in_background(lambda: run), DESCRIPTION, _Outage(tmp_path, online=True))
    result = Result(metrics={"mixing/mean": 0.5}, sentences=[Sentence("A finding.", analysis="mixing")])
    result.save(tmp_path)
    began = time.monotonic()
    tracker.result(result, tmp_path, {})
    tracker.finish(0)
    assert time.monotonic() - began < 5
    said = " ".join(capsys.readouterr().err.split())  # in lines that fit into a terminal
    assert said.startswith("Weights & Biases has not finished within 0.3 s; the run ends without it")
    assert said.count("Weights & Biases has") == 1
    release.set()


def test_one_that_is_slow_to_start_is_given_up(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(weights_and_biases, "_END_SECONDS", 0.3)
    slow = Slow()
    tracker = slow.tracker(tmp_path)
    began = time.monotonic()
    tracker.finish(0)
    assert time.monotonic() - began < 5
    assert "has not finished within 0.3 s" in capsys.readouterr().err
    slow.may_start.set()
    for thread in threading.enumerate():
        if thread.name == "normscope-tracker":
            thread.join(PATIENCE)
    assert slow.logged == []


def test_a_bug_while_a_tracker_starts_is_raised_where_it_is_needed(tmp_path):
    slow = Slow(ZeroDivisionError("a bug"))
    tracker = slow.tracker(tmp_path)
    slow.may_start.set()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        tracker.finish(0)


def test_the_first_failure_of_a_call_is_reported_and_the_last(capsys, tmp_path):
    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    started: Future[Any] = Future()
    started.set_result(SimpleNamespace(log=fail))
    tracker = Tracker(started, DESCRIPTION, _Outage(tmp_path, online=False))
    tracker.progress(1, {})
    tracker.progress(2, {})
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("Weights & Biases failed (OSError: [Errno 28] No space left on device)")
    assert said.count("Weights & Biases failed") == 1
