"""From Hydra to the pipeline and from errors to exit statuses.

0: done. 2: bad input, told in one line. 1: a bug of ours, or a sweep with a failed job. 130: interrupted.
"""

import contextlib
import dataclasses
import difflib
import functools
import logging
import os
import re
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from normscope.checks import check
from normscope.earlier_runs import agreement, metrics_of, options_of
from normscope.errors import InputError
from normscope.schema import NAME_LENGTH, RunOptions, register
from normscope.signals import Terminated, terminate

BAD_INPUT = 2
BUG = 1
INTERRUPTED = 130
TERMINATED = 143

# A transformers config, and categories that users name: keys that are not ours to know.
_FREE = ("model.architecture", "dataset.categories")

_BAD_INPUT = (InputError, HydraException, OmegaConfBaseException)


@dataclasses.dataclass
class _Sweep:
    """What the jobs of this process have come to, for the end of a multirun."""

    jobs: int = 0
    found: set[Path] = dataclasses.field(default_factory=set)
    """Folders that were there before the run."""
    folder: Path | None = None
    """Folder of the sweep."""
    agrees: bool = True
    """Whether a run that was made again came to the same numbers."""
    error: Exception | None = None
    """What a job that is no part of a sweep has raised: Hydra would print a line of its own about it."""

    def begin(self) -> None:
        """Forget what an earlier command of the same process did."""
        self.__init__()  # type: ignore[misc]


_sweep = _Sweep()


def run(main: Callable[[], object]) -> NoReturn:
    """Run the command line and exit with its status."""
    # Hydra would print its own digest of an error and exit with 1 otherwise.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    _sweep.begin()
    signal.signal(signal.SIGTERM, terminate)
    status = 0
    try:
        main()
        if _sweep.error is not None:
            raise _sweep.error
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        status = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except BrokenPipeError:  # whoever read what we say has had enough: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if not _failures():
            # Not a job of a sweep: the error has not been told yet. Before any job, what cannot be written is the folder.
            folder_refused = isinstance(error, OSError) and error.filename is not None and _sweep.jobs == 0
            if not isinstance(error, _BAD_INPUT) and not folder_refused:
                raise
            print(f"normscope: {_one_line(error)}", file=sys.stderr)
            status = BAD_INPUT
    if not _sweep.agrees:
        status = status or BUG
    _compare_sweep()
    failures = _failures()
    if failures:
        from normscope.reporting.runs import completed

        assert _sweep.folder is not None
        jobs = len(failures) + completed(_sweep.folder)
        print(f"\n{len(failures)} of {jobs} jobs failed:", *failures, sep="\n  ", file=sys.stderr)
        status = status or BUG
    sys.exit(status)


def _failures() -> list[str]:
    """The failed jobs of the sweep, whichever process they ran in."""
    if _sweep.folder is None:
        return []
    from normscope.reporting.runs import recorded_failures

    return recorded_failures(_sweep.folder)


def _compare_sweep() -> None:
    """Put the runs of a sweep side by side, as far as they have completed."""
    if _sweep.folder is None or not any(_sweep.folder.glob("*/results.json")):
        return
    from normscope.reporting import compare_runs, runs

    with contextlib.suppress(InputError):  # none has completed
        comparison = compare_runs.compared(*runs.read([_sweep.folder]))
        print(f"\ncomparison in {compare_runs.write(comparison, _sweep.folder)}", file=sys.stderr)


def job(config: DictConfig) -> dict[str, float]:
    """One run of the pipeline, alone or in a sweep.

    Jobs raise and never exit, so that Hydra's launchers see what became of them and go on with the next.
    """
    _sweep.jobs += 1
    hydra = HydraConfig.get()
    sweeping = hydra.mode is RunMode.MULTIRUN
    folder = Path(hydra.runtime.output_dir)
    if sweeping:
        _sweep.folder = folder.parent  # hydra.sweep.dir may have said so
        print(f"\njob {hydra.job.num}: {' '.join(hydra.overrides.task) or 'defaults'}", file=sys.stderr)
    try:
        _refuse_unknown(config, OmegaConf.structured(RunOptions))
        options, folder, before = _earlier(config, folder, hydra.overrides.task)
        if sweeping and options.tracking.group is None:
            options.tracking.group = folder.parent.name[:NAME_LENGTH]
        # torch and transformers take seconds to import: not before there is something to run on.
        from normscope.data.sources import open_corpus

        check(options)
        open_corpus(options.dataset)
        from normscope.pipeline import run as run_pipeline

        metrics = run_pipeline(options, folder, shlex.join(["python", "run.py", *hydra.overrides.task]))
        if before is not None:
            _sweep.agrees, sentence = agreement(before, metrics)
            print(sentence)
        if _not_first():
            _remove_empty(folder)
        return metrics
    except BaseException as error:
        _remove_empty(folder)
        if not isinstance(error, Exception):
            raise
        if sweeping:
            if isinstance(error, _BAD_INPUT):
                print(f"normscope: {_one_line(error)}", file=sys.stderr)
            else:
                traceback.print_exc()
            from normscope.reporting.runs import record_failure

            record_failure(folder.parent, hydra.overrides.task, _one_line(error))
            raise
        _sweep.error = error
        return {}


def _earlier(
    config: DictConfig, folder: Path, overrides: Sequence[str]
) -> tuple[RunOptions, Path, dict[str, float] | None]:
    """The options and the folder of this run; and the metrics to compare with, where an earlier one is made again."""
    for key in ("resume", "reproduce"):
        if config[key] is None:
            continue
        earlier = Path(config[key]).expanduser()
        options = options_of(earlier, config, overrides, key)
        options.checkpoint.every_seconds = float(config.checkpoint.every_seconds)
        if key == "reproduce":
            options.output_dir = None
            return options, folder, metrics_of(earlier)
        _remove_empty(folder)
        options.resume = str(earlier)
        return options, earlier, None
    composed = OmegaConf.to_object(config)
    assert isinstance(composed, RunOptions)
    return composed, folder, None


def _not_first() -> bool:
    """Whether this is one of several processes, and not the one that writes."""
    return int(os.environ.get("RANK", "0")) > 0


def _remove_empty(folder: Path) -> None:
    """Take away what Hydra made before it asked us, if nothing is in it: folders that were not there when we started."""
    with contextlib.suppress(OSError):
        for made in (folder, *folder.parents):
            if made in _sweep.found or not made.name:
                return
            made.rmdir()


def _refuse_unknown(config: DictConfig, known: DictConfig, prefix: str = "") -> None:
    """`+key=value` gets past the schema; a key that it does not know is a typo all the same."""
    for name in map(str, config):
        if name not in known.keys():  # noqa: SIM118 - `in` does not see keys without a value
            raise InputError(f"unknown key {prefix}{name}{_suggestion(f'{prefix}{name}')}")
        below, schema = config._get_node(name), known._get_node(name)
        if isinstance(below, DictConfig) and isinstance(schema, DictConfig) and f"{prefix}{name}" not in _FREE:
            _refuse_unknown(below, schema, f"{prefix}{name}.")


def _one_line(error: BaseException) -> str:
    """What a user needs of an error: Hydra's and OmegaConf's messages come in several lines of which the first tells."""
    message = str(error)
    if isinstance(error, InputError):
        return message
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return f"{error.filename}: cannot be written to ({error.strerror}); set output_dir to another folder"
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        message = f"{message}: {cause}"
    unknown = re.search(
        r"Could not override '([^']+)'|Key '([^']+)' not in '([^']+)'|Key '([^']+)' is not in struct", message
    )
    # Hydra's advice to add a + would get the typo past the schema.
    message = re.sub(r"\.?\s*To append to your config use \S+", ".", message)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    kept = [
        line
        for line in lines
        if not line.startswith(("full_key:", "object_type=", "reference_type=", "Available options"))
    ]
    line = " ".join(kept) or type(error).__name__
    return line + (_suggestion(unknown.group(1)) if unknown and unknown.group(1) else "")


def _suggestion(key: str) -> str:
    known = _keys(OmegaConf.structured(RunOptions))
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _keys(node: Any, prefix: str = "") -> list[str]:
    keys = []
    for name in node:
        keys.append(prefix + name)
        if OmegaConf.is_dict(node._get_node(name)) and node._get_node(name)._value() is not None:
            keys += _keys(node._get_node(name), f"{prefix}{name}.")
    return keys


@functools.cache
def _moment() -> str:
    """The time in the name of this process's run or sweep."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


def _run_folder(given: str | None, sweep: bool) -> str:
    """`output_dir`, or a dated folder below outputs/ that is not there yet."""
    if _not_first():
        return _scratch().name
    if given is not None:
        folder = Path(given)
        _sweep.found |= {place for place in (folder, *folder.parents) if place.exists()}
        return _of_sweep(given, sweep)
    parent = Path("outputs/multirun" if sweep else "outputs")
    _sweep.found |= {place for place in (parent, *parent.parents) if place.exists()}
    return _of_sweep(str(parent / _unused(parent)), sweep)


# Where Hydra writes in a process that is not the first; removed when the process ends.
_scratch = functools.cache(lambda: tempfile.TemporaryDirectory(prefix="normscope-"))


def _of_sweep(folder: str, sweep: bool) -> str:
    if sweep:
        _sweep.folder = Path(folder)
    return folder


@functools.cache
def _unused(parent: Path) -> str:
    name, number = _moment(), 1
    while (parent / name).exists():
        number += 1
        name = f"{_moment()}_{number}"
    return name


register()
OmegaConf.register_new_resolver("run_folder", lambda given: _run_folder(given, sweep=False), replace=True)
OmegaConf.register_new_resolver("sweep_folder", lambda given: _run_folder(given, sweep=True), replace=True)
