"""Commands in processes of their own, forked from that of the tests, which has imported what they import.

A new interpreter spends more time on those imports than on all the rest of a small run. A forked process is one like any other,
with its own signals, exit status and environment; what a test has replaced is replaced there too. It draws no figures.
"""

import atexit
import dataclasses
import functools
import io
import logging
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 300
"""How long a process may take: a hundred times what the longest takes, so that one that hangs does not take CI with it."""
_FORK = multiprocessing.get_context("fork")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended; `status` is negative if a signal ended it."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """What stderr says, on one line: messages are wrapped."""
        return " ".join(self.err.split())


class Fork:
    """`python PROGRAM ARGUMENTS ...` in a forked process, from the root of the repository; `program` may name a module.

    `first` is called in the process before anything else.
    """

    def __init__(
        self,
        *arguments: str,
        program: str | Path = "run.py",
        cwd: Path = ROOT,
        first: Callable[[], object] = lambda: None,
        **environment: str,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tmp-fork-")
        self._process = _FORK.Process(
            target=_run, args=(str(program), arguments, environment, cwd, first, Path(self._folder.name))
        )
        self._process.start()

    def poll(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, also on a busy machine; fails if the process ends first."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < end, self._give_up()
            assert self.poll() is None or condition(), self.wait().err
            time.sleep(0.002)

    def wait(self) -> Outcome:
        """Wait for the end of the process. May be called once."""
        self._process.join(PATIENCE_SECONDS)
        assert self._process.exitcode is not None, self._give_up()
        out, err = (self._said(name) for name in ("out", "err"))
        self._folder.cleanup()
        return Outcome(self._process.exitcode, out, err)

    def _give_up(self) -> str:
        self._process.kill()
        return f"not ended after {PATIENCE_SECONDS} seconds: {self._said('err')}"

    def _said(self, stream: str) -> str:
        return Path(self._folder.name, stream).read_text(errors="replace")


def run(*arguments: str, program: str | Path = "run.py", **environment: str) -> Outcome:
    """The outcome of a forked command."""
    return Fork(*arguments, program=program, **environment).wait()


def run_several(
    processes: int, *arguments: str, program: str | Path = "run.py", **environment: str
) -> Sequence[Outcome]:
    """The outcomes of forked processes that share a run, by rank, with the environment that `torchrun` gives them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    forks = [Fork(*arguments, program=program, **place, **rank, **environment) for rank in ranks]
    return [fork.wait() for fork in forks]


def draw_nothing() -> None:
    """Empty figures in this process: drawing takes longer than all the rest of a small run."""
    from normscope.reporting import drawing, views
    from normscope.reporting.page import inline_svg

    drawing.drawn = views.drawn = lambda _figure, formats, _look=None: [_empty(extension) for extension in formats]
    inline_svg.svg = lambda _figure: '<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt" version="1.1"/>'


@functools.cache
def _empty(extension: str) -> bytes:
    from matplotlib.figure import Figure

    Figure((1, 1)).savefig(stream := io.BytesIO(), format=extension)
    return stream.getvalue()


def _run(
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    first: Callable[[], object],
    folder: Path,
) -> None:
    # What is to be done at the exit of the processes before this one is for them to do: it removes temporary directories.
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = os.fdopen(descriptor, "w", encoding="utf-8", closefd=False)
        for own in (name, f"__{name}__"):
            setattr(sys, own, stream)
    if "PYTHONPATH" in environment:  # plug-ins are imported with our code
        _forget_ours()
    os.environ.pop("WANDB_SERVICE", None)  # the service that wandb has started for the tests' own process
    os.environ.update(environment)
    tempfile.tempdir = None
    os.chdir(cwd)
    # As Python sets it up for a program.
    own = [str(Path(program).resolve().parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = [*filter(None, own), *sys.path]
    sys.argv = [program, *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger().handlers.clear()  # pytest's
    draw_nothing()
    first()
    try:
        if program.endswith(".py"):
            runpy.run_path(str(ROOT / program), run_name="__main__")
        else:
            sys.modules.pop(program, None)
            runpy.run_module(program, run_name="__main__")
    finally:
        # As at the end of an interpreter: joblib's workers are told to end, for which multiprocessing would wait for minutes.
        threading._shutdown()
        atexit._run_exitfuncs()  # before Python 3.13, multiprocessing skips them


def _forget_ours() -> None:
    """Have our code imported again, without the checks of shapes."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")]
    for name in [name for name in sys.modules if name.partition(".")[0] == "normscope"]:
        del sys.modules[name]
