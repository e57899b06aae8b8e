"""Whole commands: in this process where only the outcome counts, in a process of their own where the process does."""

import dataclasses
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


def run_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Outcome:
    """`python run.py ...` without the seconds that a new process takes to import torch."""
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    captured = capsys.readouterr()
    return Outcome(int(exit_.value.code or 0), captured.out, captured.err)


def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """`python run.py ...` in a process of its own."""
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
