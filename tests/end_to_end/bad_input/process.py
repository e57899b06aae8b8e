"""A case in a forked process, with limits on time and memory."""

import dataclasses
import hashlib
import os
import re
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.end_to_end.bad_input.case import Case
from tests.end_to_end.forks import Fork, Outcome

SECONDS = 60
"""Processor time of a case."""
MEMORY = 2 * 2**30
"""Bytes that a case may use beyond what it starts with."""

_LARGE = 2**30
"""Bytes of a file whose content nobody compares."""


@dataclasses.dataclass(frozen=True)
class Started:
    """A case that runs."""

    case: Case
    folder: Path
    before: Mapping[str, str]
    fork: Fork
    number: int | str = 0


def started(case_: Case, folder: Path, number: int | str = 0) -> Started:
    """Run a case in a forked process."""
    work, temporary = folder / "work", folder / "tmp"
    work.mkdir(parents=True, exist_ok=True)
    temporary.mkdir(exist_ok=True)
    case_.prepare(work)
    before = snapshot(folder)
    fork = Fork(
        *case_.arguments,
        cwd=work,
        first=_limit,
        **{"TMPDIR": str(temporary)} | dict(case_.environment),
    )
    return Started(case_, folder, before, fork, number)


def _limit() -> None:
    used = int(re.findall(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024
    # Of address space itself, threads reserve more than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def finished(runs: Sequence[Started]) -> tuple[Started, Outcome]:
    """Wait for the first of some cases that ends."""
    while True:
        for run in runs:
            if run.fork.poll() is not None:
                return run, run.fork.wait()
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
    for name in libraries:
        del seen[name]
    return seen
