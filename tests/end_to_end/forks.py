"""Processes forked from one that has already imported what a run imports.

A new interpreter spends more time on those imports than on all the rest of a small run. A forked process is a process like any
other, with its own signals, exit status and environment. It draws no figures.

The one that they are forked from is itself forked from the tests' own process, as soon as that has imported the libraries and
before it has run a test. It imports our code, whose shapes it does not check, when it is first needed.
"""

import atexit
import contextlib
import dataclasses
import gc
import importlib
import io
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIBRARIES = [
    *("hydra.main", "pandas", "pyarrow.parquet", "scipy.stats", "matplotlib.figure", "wandb", "torch.distributed"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"),
]
"""What a run imports of other people's."""
PRELOADED = "tests.end_to_end.preloaded"
PATIENCE_SECONDS = 300
"""How long a process may take: a hundred times what the longest takes, so that one that hangs does not take CI with it."""
_FORK = multiprocessing.get_context("fork")
_server: list[tuple[Any, Connection]] = []
"""The process that others are forked from, once there is one, and the end of a pipe to it."""


def import_libraries() -> None:
    """Import them as the command line does."""
    gc.disable()
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    gc.enable()


def start_server() -> None:
    """Start the process that others are forked from. Libraries must have been imported, and no thread may hold a lock."""
    ours, its = _FORK.Pipe()
    process = _FORK.Process(target=_serve, args=(its, ours))
    process.start()
    its.close()
    _server[:] = [(process, ours)]


def stop_server() -> None:
    """End it: it sees that nobody can ask for anything any more."""
    for process, pipe in _server:
        pipe.close()
        process.join(PATIENCE_SECONDS)
        process.kill()
    _server.clear()


def _serve(requests: Connection, other_end: Connection) -> None:
    """Start processes and report their exit statuses, until the tests have closed the other end of the pipe."""
    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the tests
    processes: dict[int, Any] = {}
    with contextlib.suppress(EOFError):
        while True:
            number, *given = requests.recv()
            if number is None:
                _import_ours()
                process = _FORK.Process(target=_run, args=given)
                process.start()
                processes[process.pid] = process
                requests.send(process.pid)
                continue
            (seconds,) = given
            processes[number].join(seconds)
            requests.send(processes[number].exitcode)
    for process in processes.values():  # of tests that failed while it ran: multiprocessing would wait for them
        process.kill()


def _import_ours() -> None:
    """Import our code as a run does, without the checks of shapes."""
    if PRELOADED in sys.modules:
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")]
    _forget_ours()
    importlib.import_module(PRELOADED)


def _forget_ours() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "normscope"]:
        del sys.modules[name]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended; `status` is negative if a signal ended it."""

    status: int
    out: str
    err: str


class Fork:
    """`python PROGRAM ARGUMENTS ...` in a forked process, from the root of the repository."""

    def __init__(self, *arguments: str, program: str | Path = "run.py", **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tmp-fork-")
        # The service that wandb has started for the tests' own process is not for others.
        inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
        self._number = self._ask(None, str(program), arguments, inherited | environment, self._folder.name)

    @staticmethod
    def _ask(*request: Any) -> Any:
        ((_, pipe),) = _server
        pipe.send(request)
        assert pipe.poll(2 * PATIENCE_SECONDS), "the process that others are forked from does not answer"
        return pipe.recv()

    def poll(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._ask(self._number, 0)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self._number, number)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, also on a busy machine; fails if the process ends first."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < end, self._give_up()
            assert self.poll() is None or condition(), self.wait().err
            time.sleep(0.002)

    def wait(self) -> Outcome:
        """Wait for the end of the process. May be called once."""
        status = self._ask(self._number, PATIENCE_SECONDS)
        assert status is not None, self._give_up()
        out, err = (Path(self._folder.name, name).read_text(errors="replace") for name in ("out", "err"))
        self._folder.cleanup()
        return Outcome(status, out, err)

    def _give_up(self) -> str:
        os.kill(self._number, signal.SIGKILL)
        return f"not ended after {PATIENCE_SECONDS} seconds: " + Path(self._folder.name, "err").read_text(
            errors="replace"
        )


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
    from matplotlib.figure import Figure

    from normscope.reporting import publish
    from normscope.reporting.page import inline_svg

    def drawn(_figure: object, formats: Sequence[str], _look: object) -> list[bytes]:
        streams = [io.BytesIO() for _ in formats]
        for stream, extension in zip(streams, formats, strict=True):
            Figure((1, 1)).savefig(stream, format=extension)
        return [stream.getvalue() for stream in streams]

    publish.drawn = drawn
    inline_svg.svg = lambda _figure: '<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt" version="1.1"/>'


def _run(program: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
    # What is to be done at the exit of the processes before this one is for them to do: it removes temporary directories.
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) for descriptor in (1, 2))
    if environment.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):  # plug-ins are imported with our code
        _forget_ours()
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    os.chdir(ROOT)
    # As Python sets it up for a program.
    own = [str(Path(program).resolve().parent), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:] = [*filter(None, own), *sys.path]
    sys.argv = [program, *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    draw_nothing()
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        # As at the end of an interpreter: joblib's workers are told to end, for which multiprocessing would wait for minutes.
        threading._shutdown()
        atexit._run_exitfuncs()  # before Python 3.13, multiprocessing skips them
