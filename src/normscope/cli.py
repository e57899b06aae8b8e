"""From Hydra to the pipeline and from errors to exit statuses.

0: done. 2: bad input, told in one line. 1: a bug of ours, or a sweep with a failed job. 130: interrupted.
"""

import contextlib
import dataclasses
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

from normscope.config.schema import NAME_LENGTH, RunOptions, register
from normscope.config.unknown_keys import refuse_unknown, suggestion
from normscope.config.validation import check
from normscope.errors import InputError, PeerError
from normscope.running.resume import agreement, earlier_run, metrics_of, options_of
from normscope.running.shutdown import Terminated, terminate

BAD_INPUT = 2
BUG = 1
INTERRUPTED = 130
TERMINATED = 143

_BAD_INPUT = (InputError, HydraException, OmegaConfBaseException)


@dataclasses.dataclass
class _Sweep:
    """What the jobs of this process have come to, for the end of a multirun."""

    jobs: int = 0
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
            _print_once(error)
            status = BAD_INPUT
    if _several():
        # Where one process ends badly, torchrun ends the others: they have their own status by now.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not _sweep.agrees:
        status = status or BUG
    _compare_sweep()
    failures = _failures()
    if failures:
        from normscope.reporting.comparison.runs import completed

        assert _sweep.folder is not None
        jobs = len(failures) + completed(_sweep.folder)
        print(f"\n{len(failures)} of {jobs} jobs failed:", *failures, sep="\n  ", file=sys.stderr)
        status = status or BUG
    sys.exit(status)


def _failures() -> list[str]:
    """The failed jobs of the sweep, whichever process they ran in."""
    if _sweep.folder is None:
        return []
    from normscope.reporting.comparison.runs import recorded_failures

    return recorded_failures(_sweep.folder)


def _compare_sweep() -> None:
    """Put the runs of a sweep side by side, as far as they have completed."""
    if _sweep.folder is None or not any(_sweep.folder.glob("*/results.json")):
        return
    from normscope.reporting.comparison import compare, runs

    with contextlib.suppress(InputError):  # none has completed
        comparison = compare.compared(*runs.read([_sweep.folder]))
        print(f"\ncomparison in {compare.write(comparison, _sweep.folder)}", file=sys.stderr)


def job(config: DictConfig) -> dict[str, float]:
    """One run of the pipeline, alone or in a sweep.

    Jobs raise and never exit, so that Hydra's launchers see what became of them and go on with the next.
    """
    _sweep.jobs += 1
    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    sweeping = hydra.mode is RunMode.MULTIRUN
    if sweeping:
        _sweep.folder = _job_folder(hydra).parent  # hydra.sweep.dir may have said so
        print(f"\njob {hydra.job.num}: {' '.join(overrides) or 'defaults'}", file=sys.stderr)
    try:
        refuse_unknown(config, OmegaConf.structured(RunOptions))
        key, earlier = earlier_run(config, sweeping)
        options = _options(config, overrides, key, earlier)
        before = metrics_of(earlier) if earlier is not None and key == "reproduce" else None
        if sweeping and options.tracking.group is None:
            options.tracking.group = _job_folder(hydra).parent.name[:NAME_LENGTH]
        if earlier is not None and key == "resume":
            folder, fresh = earlier, False
        elif sweeping:
            folder, fresh = _job_folder(hydra), False
        else:
            folder, fresh = _run_folder(options, hydra)
        # torch and transformers take seconds to import: not before there is something to run on.
        from normscope.data.corpora import open_corpus

        check(options)
        open_corpus(options.dataset)
        from normscope.running.pipeline import run as run_pipeline

        command = shlex.join(["python", "run.py", *overrides])
        metrics = run_pipeline(options, folder, command, fresh=fresh)
        if before is not None and _is_first():
            _sweep.agrees, sentence = agreement(before, metrics)
            print(sentence)
        return metrics
    except Exception as error:
        if sweeping:
            _record(error, overrides)
            raise
        _sweep.error = error
        return {}


def _record(error: Exception, overrides: Sequence[str]) -> None:
    """Print and note down how a job of a sweep failed."""
    from normscope.reporting.comparison.runs import record_failure

    if isinstance(error, _BAD_INPUT):
        _print_once(error)
    else:
        traceback.print_exception(error)
    assert _sweep.folder is not None
    record_failure(_sweep.folder, overrides, _one_line(error))


def _print_once(error: BaseException) -> None:
    """Print bad input, unless another process of the run does."""
    if not isinstance(error, PeerError):
        print(f"normscope: {_one_line(error)}", file=sys.stderr)


def _options(config: DictConfig, overrides: Sequence[str], key: str, earlier: Path | None) -> RunOptions:
    if earlier is None:
        options = OmegaConf.to_object(config)
        assert isinstance(options, RunOptions)
        return options
    options = options_of(earlier, config, overrides, key)
    if key == "resume":
        options.resume = str(earlier)
    else:
        options.resume, options.reproduce, options.output_dir = None, str(earlier), config.output_dir
    return options


def _several() -> bool:
    """Whether torchrun has started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _is_first() -> bool:
    """Whether this is the process that writes."""
    return not _several() or os.environ.get("RANK", "0") == "0"


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
    return line + (suggestion(unknown.group(1)) if unknown and unknown.group(1) else "")


@functools.cache
def _moment() -> str:
    """The time in the name of this process's run or sweep."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


def _run_folder(options: RunOptions, hydra: Any) -> tuple[Path, bool]:
    """The folder of a run that is no job of a sweep, and whether it must be new: `output_dir`, or a dated one."""
    if hydra.run.dir != ".":  # the user has set Hydra's own key
        return Path(hydra.runtime.output_dir), False
    if options.output_dir is not None:
        return Path(os.path.abspath(options.output_dir)), False
    return Path("outputs").absolute() / _moment(), True


def _job_folder(hydra: Any) -> Path:
    """The folder of a job in a sweep."""
    folder = Path(hydra.runtime.output_dir)
    return folder / str(hydra.job.num) if hydra.sweep.subdir == "." else folder


def _sweep_folder(given: str | None) -> str:
    """`output_dir`, or a dated folder below outputs/multirun/ that is not there yet."""
    if not _is_first():
        return _scratch().name
    parent = Path("outputs/multirun")
    folder = str(parent / _unused(parent)) if given is None else given
    _sweep.folder = Path(folder)
    return folder


# Where Hydra writes in a process that is not the first; removed when the process ends.
_scratch = functools.cache(lambda: tempfile.TemporaryDirectory(prefix="normscope-"))


@functools.cache
def _unused(parent: Path) -> str:
    name, number = _moment(), 1
    while (parent / name).exists():
        number += 1
        name = f"{_moment()}_{number}"
    return name


register()
OmegaConf.register_new_resolver("sweep_folder", _sweep_folder, replace=True)
