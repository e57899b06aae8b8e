"""`--json`: the only thing that a command prints to stdout is one line of JSON, when it ends."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError
from normscope.reporting.earlier_runs import CONFIG, RESULTS, Status, read_results
from normscope.streams import Printed

_INTERRUPTED = (130, 143)


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a command ended."""

    status: int
    """Its exit status."""
    folder: Path | None
    """The folder of its run or sweep, if it has chosen one."""
    sweep: bool
    errors: Sequence[str]
    """What was printed about invalid input, failed jobs and bugs, one line each."""
    violations: Sequence[str]
    """The assertions that do not hold."""

    def content(self) -> dict[str, Any]:
        """What `--json` prints."""
        folder = self.folder if self.folder is not None and self.folder.is_dir() else None
        runs = [_run(path.parent) for path in sorted(folder.glob(f"*/{RESULTS}"), key=_numbered)] if folder else []
        own = _run(folder) if folder is not None and not self.sweep else {}
        return {
            "schema": RUN_SCHEMA,
            "status": self._status(own),
            "exit": self.status,
            "folder": own.get("folder") or (str(folder) if folder is not None and self.sweep and runs else None),
            "metrics": own.get("metrics", {}),
            **({"runs": runs} if self.sweep else {}),
            **({"errors": list(self.errors)} if self.errors else {}),
            **({"violations": list(self.violations)} if self.violations else {}),
        }

    def _status(self, own: dict[str, Any]) -> str:
        if self.status in _INTERRUPTED:
            return str(Status.INTERRUPTED)
        if self.violations and not self.errors:
            return str(Status.COMPLETED)
        return str(own.get("status", Status.COMPLETED)) if self.status == 0 else str(Status.FAILED)


def _run(folder: Path) -> dict[str, Any]:
    """A run, if the folder holds one. That of a killed run has no results."""
    try:
        results = read_results(folder)
    except InputError:
        if not (folder / CONFIG).exists():
            return {}
        results = {"status": str(Status.FAILED), "metrics": {}}
    return {"status": results["status"], "folder": str(folder), "metrics": results["metrics"]}


def _numbered(path: Path) -> tuple[int, str]:
    name = path.parent.name
    return (int(name) if name.isdecimal() else 0, name)


@contextlib.contextmanager
def kept_stdout() -> Iterator[TextIO]:
    """The standard output; whatever this process and its children print to it meanwhile goes to stderr."""
    out = sys.stdout
    try:
        number = out.fileno()
    except (OSError, ValueError):  # replaced by an object without a file
        with contextlib.redirect_stdout(sys.stderr):
            yield out
        return
    out.flush()
    copy = os.dup(number)
    kept = Printed(copy, "ascii")
    os.dup2(2, number)
    try:
        yield kept
    finally:
        out.flush()
        os.dup2(copy, number)
        kept.close()
        os.close(copy)


def written(ending: Ending, out: TextIO) -> None:
    """Print the line."""
    print(json.dumps(ending.content()), file=out, flush=True)
