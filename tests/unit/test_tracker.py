"""What a run tells the process that logs it, and that whatever becomes of that process costs one warning."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from normscope.reporting import terminal, tracker
from normscope.reporting.options import TrackingMode, TrackingOptions
from normscope.reporting.tracker import Tracker, no_tracker, track
from normscope.reporting.tracking import RunDescription

DESCRIPTION = RunDescription("name", "slug", "analysis", ["tag"], "notes", {"seed": 3})
HANGS = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def one_line(monkeypatch):
    """Messages are not wrapped: a line is a message."""
    monkeypatch.setattr(terminal, "wrapped", str)


@pytest.fixture
def writing(monkeypatch, tmp_path):
    """Has a run logged by a program of the test's."""

    def put(program: str) -> None:
        popen = subprocess.Popen

        def start(_command, **how):
            return popen([sys.executable, "-S", "-c", program], cwd=tmp_path, **how)

        monkeypatch.setattr(subprocess, "Popen", start)

    return put


def tracked(tmp_path):
    return track(TrackingOptions(mode=TrackingMode.offline), DESCRIPTION, tmp_path)


def process_of(followed: Tracker) -> "subprocess.Popen[bytes]":
    assert followed._writer is not None
    return followed._writer


def test_the_writer_reads_what_happens(writing, capsys, tmp_path):
    writing("import sys\nlines = [sys.stdin.readline() for _ in range(4)]\nopen('read', 'w').writelines(lines)")
    with tracked(tmp_path) as followed:
        followed.progress(20, {"seconds_left": 1.5})
        followed.result(tmp_path / "figures")
        assert not followed.logs
        followed.progress(30, {})
    begin, *others = map(json.loads, (tmp_path / "read").read_text().splitlines())
    assert TrackingOptions(**begin["options"]) == TrackingOptions(mode=TrackingMode.offline)
    assert RunDescription(**begin["description"]) == DESCRIPTION
    assert begin["folder"] == str(tmp_path)
    assert others == [
        {"progress": {"examples": 20, "seconds_left": 1.5}},
        {"pictures": str(tmp_path / "figures")},
        {"status": 0},
    ]
    assert capsys.readouterr().err == ""


def test_a_run_that_fails_says_so(writing, tmp_path):
    writing("import sys\nsys.stdin.readline()\nopen('read', 'w').write(sys.stdin.readline())")
    with pytest.raises(ZeroDivisionError), tracked(tmp_path):
        _ = 1 / 0
    assert json.loads((tmp_path / "read").read_text()) == {"status": 1}


def test_w_and_b_has_an_environment_of_its_own(writing, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "garbage")
    monkeypatch.setenv("WANDB_NAME", "theirs")
    before = dict(os.environ)
    writing("import json, os; open('read', 'w').write(json.dumps(dict(os.environ)))")
    with tracked(tmp_path):
        pass
    seen = json.loads((tmp_path / "read").read_text())
    assert (seen["WANDB_MODE"], seen["WANDB_NAME"]) == ("offline", "theirs")
    assert seen["WANDB_DATA_DIR"] == str(tmp_path / "wandb")
    assert dict(os.environ) == before


def test_nothing_is_started_where_nothing_is_logged(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "Popen", None)
    with track(TrackingOptions(mode=TrackingMode.disabled), DESCRIPTION, tmp_path) as followed:
        assert not followed.logs
        followed.progress(1, {})
    no_tracker().finish(0)


WARNS = "for when in ('', ' again'): print(f'Weights & Biases failed{when}', flush=True)\n"


@pytest.mark.parametrize(
    ("program", "warning"),
    [
        (WARNS, "Weights & Biases failed\n"),
        (f"{WARNS}import os; os._exit(3)", "Weights & Biases failed\n"),
        (f"{WARNS}{HANGS}", "Weights & Biases failed\n"),
        (
            "import os; os._exit(3)",
            "Weights & Biases ended early (exit status 3); the run continues without tracking\n",
        ),
        (
            "import wandb_is_broken",
            "Weights & Biases ended early (ModuleNotFoundError: No module named 'wandb_is_broken')",
        ),
        ("import os; os.kill(os.getpid(), 9)", "Weights & Biases ended early (exit status -9); the run continues"),
        (HANGS, "Weights & Biases has not finished within 0.3 s; the run ends without it"),
        ("import os; os.close(0); " + HANGS, "Weights & Biases has not finished within 0.3 s; the run ends without it"),
    ],
)
def test_whatever_becomes_of_the_writer_is_one_warning(writing, capsys, monkeypatch, tmp_path, program, warning):
    monkeypatch.setattr(tracker, "_END_SECONDS", 0.3)
    writing(program)
    with tracked(tmp_path) as followed:
        process = process_of(followed)
        if HANGS not in program:
            process.wait(10)
        followed.progress(1, {})
        began = time.monotonic()
        followed.result(tmp_path)
    assert time.monotonic() - began < 5
    assert process.returncode is not None
    said = capsys.readouterr().err
    assert said.startswith(warning)
    assert said.count("\n") == 1


def test_a_writer_that_does_not_start_is_one_warning(capsys, monkeypatch, tmp_path):
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with tracked(tmp_path) as followed:
        followed.progress(1, {})
    said = capsys.readouterr().err
    assert said.startswith("Weights & Biases did not start ([Errno 11] Resource temporarily unavailable); the run")
    assert said.count("\n") == 1


def test_a_warning_comes_when_something_fails_and_not_at_the_end(writing, capsys, tmp_path):
    writing(WARNS)
    with tracked(tmp_path) as followed:
        followed._listener.join(10)
        assert capsys.readouterr().err == "Weights & Biases failed\n"


def test_a_writer_that_reads_nothing_does_not_hold_the_run(writing, monkeypatch, tmp_path):
    monkeypatch.setattr(tracker, "_END_SECONDS", 0.1)
    writing(HANGS)
    began = time.monotonic()
    with tracked(tmp_path) as followed:
        for examples in range(3000):  # more than a pipe holds
            followed.progress(examples, {"seconds_left": 1.5})
    assert time.monotonic() - began < 10


def test_a_signal_ends_the_wait(writing, tmp_path):
    """The second one of a run that is interrupted. The writer ignores those of the terminal, and does not stay."""
    writing(HANGS)
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with tracked(tmp_path) as followed:
            process = process_of(followed)
            assert os.getpgid(process.pid) != os.getpgid(0)
            threading.Timer(0.05, signal.pthread_kill, [main, signal.SIGINT]).start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                followed.finish(1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 5
    assert process.returncode == -signal.SIGKILL
