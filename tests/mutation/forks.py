"""Work in forks of this process, each with a limit of time and memory."""

import collections
import dataclasses
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

_MEMORY = 12 * 2**30
"""Bytes that a fork may allocate."""

K = TypeVar("K")


@dataclasses.dataclass(frozen=True)
class Job(Generic[K]):
    """Something to do in a fork."""

    key: K
    """What the caller calls it."""
    work: Callable[[], str]
    """Returns what the caller wants to hear of it."""
    seconds: float
    """How long it may take."""


@dataclasses.dataclass(frozen=True)
class Result(Generic[K]):
    """How a job ended."""

    key: K
    answer: str
    """What its work returned, or how it ended otherwise."""
    seconds: float


def run_jobs(jobs: Iterable[Job[K]], processes: int = 1, *, quiet: bool = True) -> Iterator[Result[K]]:
    """Do jobs in forks, some at a time.

    Args:
        jobs: What to do.
        processes: How many forks run at a time.
        quiet: Whether what they print is dropped.

    Raises:
        RuntimeError: If a job raises an exception.
    """
    waiting, running = collections.deque(jobs), {}
    while waiting or running:
        while waiting and len(running) < processes:
            job, folder = waiting.popleft(), Path(tempfile.mkdtemp(prefix="mutant-"))
            running[_fork(job, folder, quiet)] = job, folder, time.monotonic()
        time.sleep(0.01)
        for process, (job, folder, started) in list(running.items()):
            seconds = time.monotonic() - started
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended and seconds < job.seconds:
                continue
            _kill(process)  # and its own children, whether it has ended or not
            if not ended:
                os.waitpid(process, 0)
            del running[process]
            answer = _answer(folder, status) if ended else f"more than {job.seconds:.0f} s"
            shutil.rmtree(folder, ignore_errors=True)
            yield Result(job.key, answer, seconds)


def _answer(folder: Path, status: int) -> str:
    if status:
        return f"the end of the process, {os.waitstatus_to_exitcode(status)}"
    if (folder / "error.txt").exists():
        raise RuntimeError((folder / "error.txt").read_text())
    return (folder / "answer.txt").read_text()


def _fork(job: Job[K], folder: Path, quiet: bool) -> int:
    process = os.fork()
    if process == 0:
        _child(job, folder, quiet)
    return process


def _child(job: Job[K], folder: Path, quiet: bool) -> NoReturn:
    try:
        os.setsid()
        if quiet:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        (folder / "answer.txt").write_text(job.work())
    except BaseException:
        (folder / "error.txt").write_text(traceback.format_exc())
    os._exit(0)


def _kill(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        return
