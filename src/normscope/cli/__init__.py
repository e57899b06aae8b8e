"""From Hydra to a run, and from errors to exit statuses.

0: completed. 1: a bug, or a sweep with a failed job. 2: invalid input, explained in one line. 130: interrupted.
"""

import argparse
import contextlib
import dataclasses
import functools
import gc
import logging
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psutil
from hydra import main as hydra_main
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from normscope.analyses.registry import plug_ins
from normscope.cli import command_line
from normscope.cli.command_line import complaint, culprit, program
from normscope.cli.earlier_run import agreement, earlier_run, metrics_of, options_of
from normscope.cli.help_page import help_page
from normscope.cli.sweep import Sweep
from normscope.config.composition import explain
from normscope.distribution import CHECKOUT, folder
from normscope.errors import InputError, PeerError, Terminated, escaped, message, one_line, origin, printable
from normscope.reporting.options import NAME_LENGTH, Verbosity
from normscope.results.run_files import is_complete
from normscope.running.options import SCHEMA, RunOptions, check, run_options
from normscope.streams import open_streams, shell_word, wrapped

if TYPE_CHECKING:
    from normscope.results.result import Result

BAD_INPUT = 2
BUG = 1
INTERRUPTED = 130
TERMINATED = 143

_CONFIG = "config"
"""Name of the config at the top of `conf/`."""

_FOREIGN = ("SOURCE_DATE_EPOCH", "MPLBACKEND")
"""Variables that libraries parse when they are imported, maybe after the last batch. No file has a date, no figure a window."""

_OF_ONE_RUN = ("WANDB_RUN_ID", "WANDB_RESUME")
"""Variables that name one run of W&B. The jobs of a sweep are several."""

_COMPOSING = ("hydra", "omegaconf", "antlr4")
"""Packages that handle nothing but a user's overrides: these cause whatever they raise."""


_sweep = Sweep()
_instead: Callable[[RunOptions, Path], None] | None = None
"""What is done instead of a run, given its options and its folder: `normscope explain`, `attention`, `checkup` and `serve`."""


def main() -> NoReturn:
    """The command `normscope`."""
    presets = "pkg://normscope.conf" if CHECKOUT is None else str(folder("conf"))
    run(hydra_main(version_base="1.3", config_path=presets, config_name=_CONFIG)(job))


def run(main: Callable[[], object]) -> NoReturn:
    """Run the command line and exit with its status."""
    # Otherwise Hydra prints its own summary of an error and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    for name in _FOREIGN:
        os.environ.pop(name, None)
    open_streams()
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logging.basicConfig(handlers=[handler])
    if not _is_first():
        logging.getLogger("normscope").setLevel(logging.ERROR)  # every process would warn of the same
    _sweep.begin()
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(_finished(main))


def _terminate(_number: int, _frame: object) -> None:
    """Handle SIGTERM when nothing has to be finished first."""
    raise Terminated


class _OneLine(logging.Formatter):
    """What is logged, on one line: it quotes names that may contain anything."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, with control characters escaped."""
        return escaped(record.getMessage())


def _finished(main: Callable[[], object]) -> int:
    """Run the command and all that follows its jobs, and return the exit status."""
    status = _execute(main)
    _ignore_torchrun()
    if not _sweep.agrees:
        status = status or BUG
    for finish in (_sweep.compare, _sweep.report_failures, _sweep.show_folder):
        try:
            outcome = finish()
        except InputError as error:
            _print_once(error)
            outcome = BAD_INPUT
        status = status or outcome
    return status


def _ignore_torchrun() -> None:
    """Let a process that has failed or ended finish undisturbed: torchrun terminates all processes if one fails."""
    if _several():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _execute(main: Callable[[], object]) -> int:
    """Run the command and return its status. A bug is raised again and keeps its traceback."""
    overrides: list[str] = []
    try:
        global _instead
        asked, words = command_line.asked_of(sys.argv[1:])
        if asked.command in command_line.VIEWS:
            print(_view(asked), flush=True)
            return 0
        if asked.help or asked.command == "help":
            print(help_page(program(), getattr(asked, "topics", ())), flush=True)
            return 0
        _instead, words = _other_command(asked, words)
        sys.argv[1:] = command_line.with_checkpoints(words, asked.command)
        overrides = command_line.overrides(sys.argv[1:])
        _sweep.quiet = f"verbosity={Verbosity.quiet}" in overrides
        main()
        if _sweep.error is not None:
            raise _sweep.error
    except KeyboardInterrupt as error:
        print(f"interrupted{_how_to_continue()}", file=sys.stderr)
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except Exception as error:
        _ignore_torchrun()
        if _sweep.has_failures():  # the jobs have printed and recorded their errors
            return 0
        invalid = _as_input_error(error, overrides)
        if invalid is None:
            raise
        _print_once(invalid)
        _sweep.remove_empty()
        return BAD_INPUT
    return 0


def _how_to_continue() -> str:
    """The command that continues a single run which was interrupted after it had saved something."""
    run = _sweep.run if _sweep.folder is None else None
    if run is None or is_complete(run):
        return ""
    from normscope.running.checkpoint import CHECKPOINT  # imports torch, as the run has done

    if not (run / CHECKPOINT).exists():
        return ""
    return f"; to continue: {' '.join([program(), *map(shell_word, [*_sweep.own, f'resume={run}'])])}"


def _as_input_error(error: Exception, overrides: Sequence[str]) -> InputError | None:
    """An error as invalid input, with its one line; None if it is a bug of ours."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, HydraException | OmegaConfBaseException):
        return InputError(explain(error, SCHEMA, command_line.quoted_override))
    before_jobs = _sweep.jobs == 0
    if before_jobs and isinstance(error, OSError) and error.filename is not None:
        return InputError(
            f"{error.filename}: cannot be read or written ({error.strerror}); for results, set output_dir to another folder"
        )
    if origin(error).startswith((*_COMPOSING, "yaml") if before_jobs else _COMPOSING):
        return InputError(f"{culprit(overrides)}: {complaint(error)}")
    return None


def job(config: DictConfig) -> dict[str, float]:
    """One run of the pipeline, alone or in a sweep.

    Jobs raise and never exit, so that Hydra's launchers notice failures and continue with the next job.
    """
    started = _process_began() if _sweep.jobs == 0 else time.monotonic()
    _sweep.jobs += 1
    hydra = HydraConfig.get()
    overrides = OmegaConf.to_container(hydra.overrides.task, resolve=False)  # as typed
    assert isinstance(overrides, list)
    sweeping = hydra.mode is RunMode.MULTIRUN
    if sweeping:
        _sweep.choose(_job_folder(hydra).parent)  # the user may have set hydra.sweep.dir
        for name in _OF_ONE_RUN:
            os.environ.pop(name, None)
    try:
        SCHEMA.check(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
        key, earlier = earlier_run(config, sweeping)
        options = _options(config, overrides, key, earlier)
        _sweep.own = [text for text in overrides if SCHEMA.is_own(text.partition("=")[0].lstrip("+"))]
        before = metrics_of(earlier) if earlier is not None and key == "reproduce" else None
        if sweeping and options.tracking.group is None:
            group = _job_folder(hydra).parent.name[:NAME_LENGTH]
            options = dataclasses.replace(options, tracking=dataclasses.replace(options.tracking, group=group))
        if options.resume is not None:
            run_folder, fresh = Path(options.resume), False
        elif sweeping:
            run_folder, fresh = _job_folder(hydra), False
        else:
            run_folder, fresh = _run_folder(options.output_dir, hydra)
        check(options)
        if _instead is not None:
            _instead(options, run_folder)
            return {}
        run_pipeline = _import_pipeline(options)
        command = _command(hydra, _of_job(overrides) if sweeping else overrides)
        result = run_pipeline(
            options, run_folder, command, fresh=fresh, opened=_sweep.note_run, begun=started, brief=sweeping
        )
        if result is None:  # another process prints
            return {}
        if sweeping and options.verbosity is not Verbosity.quiet:
            _show_job(hydra.job.num, overrides, result)
        else:
            _show(result, before)
        return dict(result.metrics)
    except Exception as error:
        if sweeping:
            _record(error, hydra.job.num, overrides)
            raise
        _sweep.error = error
        return {}
    finally:
        if sweeping:
            gc.collect()  # a model refers to itself: its weights would stay in memory beside those of the next


def _other_command(
    asked: argparse.Namespace, words: list[str]
) -> tuple[Callable[[RunOptions, Path], None] | None, list[str]]:
    """What is asked for instead of a run, None for a run, and the words that are left for Hydra."""
    match asked.command:
        case "explain":
            keys, words = command_line.source_keys(asked, words, SCHEMA.knows)
            if keys:
                text = None if asked.text is None else command_line.text_of(asked, SCHEMA.knows)
                return functools.partial(_sources, text, keys), words
            return functools.partial(_explain, command_line.text_of(asked, SCHEMA.knows), asked.question), words
        case "attention":
            text = command_line.text_of(asked, lambda key: key in command_line.ATTENTION or SCHEMA.knows(key))
            keys, words = command_line.attention_keys(words)
            return functools.partial(_attention, text, keys), words
        case "serve":
            return _serve, words
        case "checkup":
            command = f"{program()} {shlex.join(sys.argv[1:])}"
            words = command_line.checkup_words(asked, words, folder("conf") / "model")
            return functools.partial(_checkup, asked.against, command), words
        case _:
            return None, words


def _view(asked: argparse.Namespace) -> Path:
    from normscope.reporting.viewing import command

    return command(asked)


def _explain(text: str, question: str, options: RunOptions, run_folder: Path) -> None:
    with quick_imports():
        from normscope.live.explaining import explain
    print(explain(options, text, run_folder, question), flush=True)


def _sources(text: str | None, asked: Mapping[str, str], options: RunOptions, run_folder: Path) -> None:
    with quick_imports():
        from normscope.live.sources_command import show_sources
    print(show_sources(options, text, asked, run_folder), flush=True)


def _attention(text: str, asked: Mapping[str, Any], options: RunOptions, run_folder: Path) -> None:
    with quick_imports():
        from normscope.live.attention_command import show_attention
    print(show_attention(options, text, asked, run_folder), flush=True)


def _checkup(against: str | None, command: str, options: RunOptions, run_folder: Path) -> None:
    with quick_imports():
        from normscope.checkup.command import check_up
    base = None
    if against is not None:
        preset = command_line.preset_of(against, folder("conf") / "model")
        own = {"name": against} if preset is None else OmegaConf.create(preset.read_text(encoding="utf-8"))
        base = run_options({"model": own, "dataset": {"kind": options.dataset.kind}, "seed": options.seed}).model
    print(check_up(options, base, command, run_folder), flush=True)


def _serve(options: RunOptions, _: Path) -> None:
    with quick_imports():
        from normscope.live.command import serve
    serve(options)


def _show(result: "Result", before: Mapping[str, float] | None) -> None:
    """Print whether a reproduced run has the same numbers, and, as the last line, the folder of the results."""
    if before is not None:
        _sweep.agrees, sentence = agreement(before, result.metrics)
        print(wrapped(sentence))
    print(_sweep.run, flush=True)


def _show_job(number: int, overrides: Sequence[str], result: "Result") -> None:
    """Print the line of a job."""
    from normscope.reporting.comparison.in_terminal import line

    print(wrapped(f"{_job(number, overrides)}: {line(result)}"), flush=True)


def _job(number: int, overrides: Sequence[str]) -> str:
    """A job of a sweep: its number, and what distinguishes it from the others."""
    try:
        given = {text.lower() for text in command_line.overrides(sys.argv[1:])}  # Hydra writes `true` as `True`
    except InputError:  # a launcher's process was started with other words
        given = set()
    # What all jobs have stands in the command as it is.
    own = [_without_folders(text) for text in overrides if text.lower() not in given]
    return escaped(f"job {number}: {' '.join(own)}" if own else f"job {number}")


def _without_folders(override: str) -> str:
    """An override without the folders of an absolute path, which the jobs of a sweep mostly share."""
    key, _, value = override.partition("=")
    path = value.strip("'\"")
    return f"{key}={Path(path).name}" if path.startswith("/") else override


def _process_began() -> float:
    """When the operating system started this process, by `time.monotonic`."""
    age = time.time() - psutil.Process().create_time()
    return time.monotonic() - max(age, 0.0)  # the clock may have been set back meanwhile


def _import_pipeline(options: RunOptions) -> Callable[..., "Result | None"]:
    """Check that the corpus can be opened, and import what takes seconds: torch, transformers and the pipeline."""
    if _sweep.jobs == 1 and sys.stderr.isatty() and _is_first() and options.verbosity is not Verbosity.quiet:
        print("start …", file=sys.stderr, flush=True)  # what shows the phases is yet to be imported
    with quick_imports():
        from normscope.data.corpora import open_corpus

        open_corpus(options.dataset)
        from normscope.running.pipeline import run as run_pipeline
    return run_pipeline


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Context for importing torch, transformers and what is built on them.

    The garbage collector would scan thousands of modules again and again, so it is off during the imports. Modules stay until
    the process ends, so it ignores them afterwards, too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def _command(hydra: Any, overrides: Sequence[str]) -> str:
    """The command line of a job, from which it can be started again."""
    words = [*program().split()]
    if hydra.job.config_name != _CONFIG:
        words += ["--config-name", hydra.job.config_name]
    for source in hydra.runtime.config_sources:
        if source.provider == "command-line":
            words += ["--config-dir", source.path]
    words += [text for text in hydra.overrides.hydra if text.lstrip("+").startswith("hydra.searchpath=")]
    return shlex.join([*words, *overrides])


def _of_job(overrides: Sequence[str]) -> list[str]:
    """The overrides with which a job of a sweep runs alone: not in the folder of the sweep."""
    return [text for text in overrides if text.partition("=")[0] != "output_dir"]


def _record(error: Exception, number: int, overrides: Sequence[str]) -> None:
    """Print and record how a job of a sweep failed."""
    if not _sweep.quiet:
        print(f"{_job(number, overrides)} failed", file=sys.stderr)
    invalid = _as_input_error(error, overrides)
    if invalid is not None:
        _print_once(invalid)
    else:
        traceback.print_exception(error)
    _sweep.record_failure(overrides, printable(str(invalid), 1000) if invalid is not None else one_line(error))


def _print_once(error: InputError) -> None:
    """Print the error, unless another process of the run does."""
    if not isinstance(error, PeerError):
        print(message(error), file=sys.stderr)


def _options(config: DictConfig, overrides: Sequence[str], key: str, earlier: Path | None) -> RunOptions:
    if earlier is None:
        options = OmegaConf.to_object(config)
        assert isinstance(options, RunOptions)
        return options
    options = options_of(earlier, config, overrides, key)
    if key == "resume":
        return dataclasses.replace(options, resume=str(earlier))
    return dataclasses.replace(options, resume=None, reproduce=str(earlier), output_dir=config.output_dir)


def _several() -> bool:
    """Whether torchrun has started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _is_first() -> bool:
    """Whether this is the process that writes."""
    return not _several() or os.environ.get("RANK", "0") == "0"


@functools.cache
def _moment() -> str:
    """The time that names this process's run or sweep."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


def _run_folder(output_dir: str | None, hydra: Any) -> tuple[Path, bool]:
    """The folder of a single run, `output_dir` or a dated one, and whether it must be new."""
    if not str(hydra.run.dir or "").strip():
        raise InputError("hydra.run.dir=: expected a folder; set output_dir instead")
    if hydra.run.dir != ".":  # the user has set Hydra's own key
        return Path(hydra.runtime.output_dir), False
    if output_dir is not None:
        return Path(os.path.abspath(output_dir)), False
    return Path("outputs").absolute() / _moment(), True


def _job_folder(hydra: Any) -> Path:
    """The folder of a job in a sweep."""
    path = Path(hydra.runtime.output_dir)
    return path / str(hydra.job.num) if hydra.sweep.subdir == "." else path


def _sweep_folder(given: str | None) -> str:
    """`output_dir`, or a new dated folder below outputs/multirun/."""
    if given is not None:
        SCHEMA.check({"output_dir": given})
    if not _is_first():
        return _scratch().name
    parent = Path("outputs/multirun")
    path = str(parent / _unused(parent)) if given is None else given
    _sweep.choose(Path(path).absolute())
    return path


# Where Hydra writes in all processes but the first; removed when the process ends.
_scratch = functools.cache(lambda: tempfile.TemporaryDirectory(prefix="normscope-"))


@functools.cache
def _unused(parent: Path) -> str:
    name, number = _moment(), 1
    while (parent / name).exists():
        number += 1
        name = f"{_moment()}_{number}"
    return name


def _thousands(number: int) -> int:
    """Thousands of training steps, as names of checkpoints give them."""
    if number is None or int(number) % 1000:
        raise InputError(f"model.step={number}: expected a multiple of 1000, as the names of these checkpoints have")
    return int(number) // 1000


def _register() -> None:
    """Register the schema with Hydra under the name that `conf/config.yaml` starts from, and the presets of plug-ins."""
    store = ConfigStore.instance()
    store.store(name="schema", node=RunOptions)
    for info in plug_ins():
        store.store(group="analysis", name=info.name, node={info.name: {"enabled": True}})


# Hydra 1.4 and OmegaConf 2.4 warn of what 1.3 and 2.3 require.
warnings.filterwarnings("ignore", r"\s*(The version_base parameter|register_new_resolver\(\)) is deprecated")
_register()
OmegaConf.register_new_resolver("thousands", _thousands, replace=True)
OmegaConf.register_new_resolver("sweep_folder", _sweep_folder, replace=True)
