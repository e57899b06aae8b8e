"""A case in a forked process, with limits on time and memory."""

import contextlib
import dataclasses
import hashlib
import os
import re
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.end_to_end.bad_input.case import Case
from tests.end_to_end.shell import ROOT

SECONDS = 60
"""Processor time of a case."""
MEMORY = 2 * 2**30
"""Address space that a case may use beyond what it starts with."""

_LARGE = 2**30
"""Bytes of a file whose content nobody compares."""


@dataclasses.dataclass
class Started:
    """A case that runs."""

    case: Case
    folder: Path
    before: Mapping[str, str]
    process: int
    deadline: float
    number: int | str = 0
    status: int | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    status: int
    out: str
    err: str


def started(case_: Case, folder: Path, number: int | str = 0) -> Started:
    """Run a case in a forked process."""
    work, temporary = folder / "work", folder / "tmp"
    work.mkdir(parents=True, exist_ok=True)
    temporary.mkdir(exist_ok=True)
    case_.prepare(work)
    before = snapshot(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os._exit(_inside(case_, folder))
    return Started(case_, folder, before, process, time.monotonic() + 4 * SECONDS, number)


def _inside(case_: Case, folder: Path) -> int:
    os.chdir(folder / "work")
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    sys.stdout, sys.stderr = os.fdopen(1, "w", encoding="utf-8"), os.fdopen(2, "w", encoding="utf-8")
    os.environ["TMPDIR"] = str(folder / "tmp")
    os.environ.update(case_.environment)
    tempfile.tempdir = None
    used = int(re.findall(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024
    # Of address space itself, threads reserve more than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    sys.argv = ["run.py", *case_.arguments]
    try:
        if case_.module is None:
            runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
        else:
            sys.modules.pop(case_.module, None)
            runpy.run_module(case_.module, run_name="__main__")
    except SystemExit as error:
        return int(error.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    return 0


def finished(run: Started) -> Outcome:
    """Wait for a case."""
    while run.status is None:
        collect([run])
    return Outcome(run.status, *((run.folder / name).read_text(errors="replace") for name in ("out", "err")))


def collect(runs: Sequence[Started]) -> None:
    """Wait until one of the runs has ended, or is past its deadline and killed."""
    while True:
        for run in runs:
            process, status = os.waitpid(run.process, os.WNOHANG)
            if process:
                run.status = os.waitstatus_to_exitcode(status)
                return
            if time.monotonic() > run.deadline:
                os.kill(run.process, signal.SIGKILL)
        time.sleep(0.01)


def snapshot(folder: Path) -> dict[str, str]:
    """What is in a folder, but for the run folder and what the case says."""
    seen = {}
    for place, folders, files in os.walk(folder):
        relative = os.path.relpath(place, folder)
        if relative == "work":
            folders[:] = [name for name in folders if name != "out"]
        for name in [*folders, *files]:
            path = Path(place, name)
            regular = path.is_file() and not path.is_symlink() and os.access(path, os.R_OK) and not path.is_fifo()
            small = regular and path.stat().st_size < _LARGE
            content = hashlib.sha256(path.read_bytes()).hexdigest() if small else ""
            seen[os.path.join(relative, name)] = f"{path.lstat().st_mode:o} {content}"
    libraries = [name for name in seen if name.startswith("tmp/tmp") or "wandb" in name]  # W&B's, which removes its own
    for name in ("./out", "./err", *libraries):
        seen.pop(name, None)
    return seen
