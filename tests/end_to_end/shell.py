"""Whole commands: in the tests' own process, or in a new interpreter. `forks.py` has processes that cost less than those."""

import contextlib
import io
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra

from normscope.reporting import drawing, views
from normscope.reporting.page import inline_svg
from tests.end_to_end import forks
from tests.end_to_end.forks import Outcome

ROOT = Path(__file__).parents[2]


def run_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Outcome:
    """`python run.py ...` without the seconds that a new process takes to import torch."""
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    compose_once(monkeypatch)
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    captured = capsys.readouterr()
    return Outcome(int(exit_.value.code or 0), captured.out, captured.err)


def compose_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hydra not compose a config a first time to find `hydra.mode` in it, where nothing sets this: a tenth of a second."""
    whole = Hydra.get_mode

    def get_mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> object:
        return whole(hydra, config_name, overrides) if any("hydra" in word for word in overrides) else None

    if whole.__module__ == Hydra.__module__:
        monkeypatch.setattr(Hydra, "get_mode", get_mode)


def draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty figures until the end of a test."""
    for module, name in ((drawing, "drawn"), (views, "drawn"), (inline_svg, "svg")):
        monkeypatch.setattr(module, name, getattr(module, name))  # which is what it will be again
    forks.draw_nothing()


def run_once(*arguments: str) -> Outcome:
    """A run without figures and report, for a fixture whose tests share it, so that each of them may run alone."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        draw_nothing(monkeypatch)
        # Behind the others: argparse takes no more positional arguments once an option has come between them.
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments, "report.enabled=false"])
        compose_once(monkeypatch)
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    return Outcome(int(exit_.value.code or 0), out.getvalue(), err.getvalue())


def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """`python run.py ...` in a new interpreter."""
    return subprocess.Popen(
        [sys.executable, "run.py", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background has the interrupt signal ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
