"""From Hydra to a run, and from errors to exit statuses.

0: completed. 2: invalid input, explained in one line. 1: a bug, or a sweep with a failed job. 130: interrupted.
"""

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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra import main as hydra_main
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from normscope.analyses.registry import plug_ins
from normscope.config.composition import explain
from normscope.config.training_step import checkpoints
from normscope.distribution import CHECKOUT, folder
from normscope.errors import InputError, PeerError, message, one_line, origin, printable
from normscope.oldest_versions import refuse_old_versions
from normscope.quick_imports import quick_imports
from normscope.reporting.earlier_runs import is_complete
from normscope.reporting.options import NAME_LENGTH
from normscope.running.options import SCHEMA, RunOptions, check
from normscope.running.resume import agreement, earlier_run, metrics_of, options_of
from normscope.running.shutdown import Terminated, terminate

BAD_INPUT = 2
BUG = 1
INTERRUPTED = 130
TERMINATED = 143

_HYDRA_RECORD = "multirun.yaml"
"""File in a sweep's folder that Hydra writes before the first job."""

_CONFIG = "config"
"""Name of the config at the top of `conf/`."""

_COMPOSING = ("hydra", "omegaconf", "antlr4")
"""Packages that handle nothing but a user's overrides: these cause whatever they raise."""


@dataclasses.dataclass
class _Sweep:
    """The jobs of this process so far, for the end of a multirun."""

    jobs: int = 0
    folder: Path | None = None
    """Folder of the sweep."""
    agrees: bool = True
    """Whether a reproduced run has the same numbers."""
    error: Exception | None = None
    """The exception of a single job, kept from Hydra, which would print a line about it."""

    new: Sequence[Path] = ()
    """Paths that did not exist when the sweep chose its folder, innermost first."""
    memory: Any = None
    """The corpora that its jobs in this process have read."""
    earlier: int = 0
    """How many failures an earlier sweep had recorded there."""

    def begin(self) -> None:
        """Forget an earlier command of the same process."""
        self.__init__()  # type: ignore[misc]

    def choose(self, folder: Path) -> None:
        """Set the folder, and note what it already holds.

        Raises:
            InputError: If its record of failed jobs is damaged.
        """
        if self.folder is None:
            self.earlier = len(_recorded_failures(folder))
            paths = (folder / _HYDRA_RECORD, folder, *folder.parents)
            self.new = [path for path in paths if not os.path.lexists(path)]
        self.folder = folder

    def corpora(self) -> Any:
        """A `CorpusMemory` that the jobs share."""
        from normscope.data.corpus_memory import CorpusMemory

        self.memory = self.memory or CorpusMemory()
        return self.memory

    def failures(self) -> list[str]:
        """The failed jobs, in any process.

        Raises:
            InputError: If their record is damaged.
        """
        return [] if self.folder is None else _recorded_failures(self.folder)[self.earlier :]

    def has_failures(self) -> bool:
        """Whether any job has failed."""
        try:
            return bool(self.failures())
        except InputError:  # the record was intact before the first job; the end of the sweep explains
            return True

    def remove_empty(self) -> None:
        """Remove the folder if this sweep made it and no job has written to it."""
        if self.folder is None or not self.folder.is_dir() or set(os.listdir(self.folder)) - {_HYDRA_RECORD}:
            return
        for path in self.new:
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


_sweep = _Sweep()


def main() -> NoReturn:
    """The command `normscope`."""
    presets = "pkg://normscope.conf" if CHECKOUT is None else str(folder("conf"))
    run(hydra_main(version_base="1.3", config_path=presets, config_name=_CONFIG)(job))


def run(main: Callable[[], object]) -> NoReturn:
    """Run the command line and exit with its status."""
    # Otherwise Hydra prints its own summary of an error and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    if not _is_first():
        logging.getLogger("normscope").setLevel(logging.ERROR)  # every process would warn of the same
    _sweep.begin()
    signal.signal(signal.SIGTERM, terminate)
    status = _execute(main)
    _ignore_torchrun()
    if not _sweep.agrees:
        status = status or BUG
    for finish in (_merge_sweep, _compare_sweep, _report_failures):
        try:
            outcome = finish()
        except InputError as error:
            _print_once(error)
            outcome = BAD_INPUT
        status = status or outcome
    sys.exit(status)


def _ignore_torchrun() -> None:
    """Let a process that has failed or ended finish undisturbed: torchrun terminates all processes if one fails."""
    if _several():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _execute(main: Callable[[], object]) -> int:
    """Run the command and return its status. A bug is raised again and keeps its traceback."""
    overrides: list[str] = []
    try:
        refuse_old_versions()
        _translate_command()
        _expand_checkpoints()
        overrides = _overrides()
        main()
        if _sweep.error is not None:
            raise _sweep.error
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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


def _translate_command() -> None:
    """Turn `normscope merge RUN… KEY=VALUE…` and `normscope prepare KEY=VALUE…` into overrides.

    Raises:
        InputError: If there is no run.
    """
    if sys.argv[1:2] == ["prepare"]:
        sys.argv[1] = "prepare=true"
    if sys.argv[1:2] != ["merge"]:
        return
    runs = [word for word in sys.argv[2:] if Path(word).is_dir() or not ("=" in word or word.startswith("-"))]
    if not runs:
        raise InputError(f"merge: expected the folders of the runs of all shards: {program()} merge RUN…")
    listed = ",".join(map(_quoted, runs))
    sys.argv[1:] = [f"merge=[{listed}]", *(word for word in sys.argv[2:] if word not in runs)]


def _expand_checkpoints() -> None:
    """Turn `model.checkpoints=PATTERN` into a sweep over the folders that the pattern matches.

    Raises:
        InputError: If it matches none, or `model.name` is set as well.
    """
    key = "model.checkpoints="
    given = [word for word in sys.argv[1:] if word.startswith(key) and word != f"{key}null"]
    if not given:
        return
    others = [word for word in sys.argv[1:] if word.startswith("model.name=") or word in given[1:]]
    if others:
        raise InputError(f"{given[0]} and {others[0]} are both set; expected one of them")
    folders = checkpoints(given[0].removeprefix(key).strip("'\""))
    names = ",".join(_quoted(os.path.abspath(folder)) for folder in folders)
    sys.argv[sys.argv.index(given[0])] = f"model.name={names}"
    if not {"-m", "--multirun"} & set(sys.argv):
        sys.argv.append("-m")


def _quoted(text: str) -> str:
    """A string for Hydra's grammar, whatever signs it has."""
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _overrides() -> list[str]:
    """The overrides on the command line.

    Raises:
        InputError: If there is a flag that Hydra does not have.
    """
    parser = get_args_parser()

    def refuse(reason: str) -> NoReturn:  # Hydra would print its whole usage
        raise InputError(f"{reason}; see {program()} --help")

    parser.error = refuse  # type: ignore[method-assign, assignment]
    given, others = parser.parse_known_args()
    if others:
        where = (
            ""
            if any(text.startswith("-") for text in others)
            else "; put all overrides before or after options such as -m"
        )
        refuse(f"unrecognized arguments: {' '.join(others)}{where}")
    words = [text for text in given.overrides if "=" not in text and not text.startswith("~")]
    if words:
        refuse(f"{words[0]}: expected key=value, or merge or prepare as the first word")
    if given.experimental_rerun is not None:  # it would read a pickle
        raise InputError("--experimental-rerun: not supported; reproduce=FOLDER repeats a run")
    return list(given.overrides)


def _as_input_error(error: Exception, overrides: Sequence[str]) -> InputError | None:
    """An error as invalid input, with its one line; None if it is a bug of ours."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, HydraException | OmegaConfBaseException):
        return InputError(explain(error, SCHEMA))
    before_jobs = _sweep.jobs == 0
    if before_jobs and isinstance(error, OSError) and error.filename is not None:
        return InputError(
            f"{error.filename}: cannot be read or written ({error.strerror}); for results, set output_dir to another folder"
        )
    if origin(error).startswith((*_COMPOSING, "yaml") if before_jobs else _COMPOSING):
        return InputError(f"{_culprit(overrides)}: {one_line(error)}")
    return None


def _culprit(overrides: Sequence[str]) -> str:
    """The override that Hydra could not use, if its error does not name one."""
    parser = OverridesParser.create()
    for text in overrides:
        try:
            override = parser.parse_override(text)
            value = override.value()
        except Exception:  # the grammar fails in many ways
            return text
        names = value if isinstance(value, list) else [value]
        if "." not in override.key_or_group and not all(isinstance(name, str) for name in names):
            return text
    of_hydra = [text for text in overrides if text.lstrip("+~").startswith("hydra")]
    return " ".join(of_hydra or overrides) or "the command line"


def _recorded_failures(folder: Path) -> list[str]:
    from normscope.reporting.comparison.runs import recorded_failures

    return recorded_failures(folder)


def _report_failures() -> int:
    """List the failed jobs of the sweep; returns 0 if there are none."""
    failures = _sweep.failures()
    if not failures:
        return 0
    from normscope.reporting.comparison.runs import completed

    assert _sweep.folder is not None
    jobs = len(failures) + completed(_sweep.folder)
    print(f"\n{len(failures)} of {jobs} jobs failed:", *failures, sep="\n  ", file=sys.stderr)
    return BUG


def _merge_sweep() -> int:
    """Merge every complete set of shards among the runs of a sweep; returns 0.

    Raises:
        InputError: If a shard is damaged.
    """
    if _sweep.folder is None or not any(_sweep.folder.glob("*/shard.safetensors")):
        return 0
    from normscope.running.pipeline import run as run_pipeline
    from normscope.running.shards import merging_folders

    trusting = [text for text in _overrides() if text.partition("=")[0] in SCHEMA.keys_that_run_code]
    for number, folders in enumerate(merging_folders(_sweep.folder)):
        options = options_of(folders[0], OmegaConf.from_dotlist(trusting), [], "merge")
        _merge(options, folders, None)
        name = "merged" if number == 0 else f"merged_{number + 1}"
        command = shlex.join([*program().split(), "merge", *map(str, folders)])
        run_pipeline(options, _sweep.folder / name, command, fresh=True)
    return 0


def _compare_sweep() -> int:
    """Compare the completed runs of a sweep; returns 0.

    Raises:
        InputError: If the record or the results of a run are damaged.
    """
    if _sweep.folder is None:
        return 0
    from normscope.reporting.comparison import runs

    if runs.completed(_sweep.folder):
        from normscope.reporting.comparison import compare

        comparison = compare.compared(*runs.read([_sweep.folder]))
        print(f"\ncomparison in {compare.write(comparison, _sweep.folder)}", file=sys.stderr)
    return 0


def job(config: DictConfig) -> dict[str, float]:
    """One run of the pipeline, alone or in a sweep.

    Jobs raise and never exit, so that Hydra's launchers notice failures and continue with the next job.
    """
    _sweep.jobs += 1
    hydra = HydraConfig.get()
    overrides = OmegaConf.to_container(hydra.overrides.task, resolve=False)  # as typed
    assert isinstance(overrides, list)
    sweeping = hydra.mode is RunMode.MULTIRUN
    if sweeping:
        _sweep.choose(_job_folder(hydra).parent)  # the user may have set hydra.sweep.dir
        print(f"\njob {hydra.job.num}: {' '.join(overrides) or 'defaults'}", file=sys.stderr)
    try:
        SCHEMA.refuse_unknown(config)
        SCHEMA.check_strings(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
        key, earlier = earlier_run(config, sweeping)
        options = _options(config, overrides, key, earlier)
        if not sweeping and key != "resume" and (begun := _restarted_run()) is not None:
            if is_complete(begun):
                return {}
            options.resume = str(begun)
        before = metrics_of(earlier) if earlier is not None and key == "reproduce" else None
        if sweeping and options.tracking.group is None:
            options.tracking.group = _job_folder(hydra).parent.name[:NAME_LENGTH]
        if options.resume is not None:
            run_folder, fresh = Path(options.resume), False
        elif sweeping:
            run_folder, fresh = _job_folder(hydra), False
        else:
            run_folder, fresh = _run_folder(options, hydra)
        check(options)
        run_pipeline = _import_pipeline(options)
        memory = _sweep.corpora() if sweeping else None
        metrics = run_pipeline(options, run_folder, _command(hydra, overrides), fresh=fresh, memory=memory)
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
    finally:
        if sweeping:
            gc.collect()  # a model refers to itself: its weights would stay in memory beside those of the next


def _import_pipeline(options: RunOptions) -> Callable[..., dict[str, float]]:
    """Check that the corpus can be opened, and import what takes seconds: torch, transformers, and the pipeline that uses them.

    Raises:
        InputError: If the corpus cannot be opened.
    """
    with quick_imports():
        from normscope.data.corpora import open_corpus

        open_corpus(options.dataset)
        from normscope.running.pipeline import run as run_pipeline
    return run_pipeline


def program() -> str:
    """The command that started this process, without its arguments."""
    name = Path(sys.argv[0]).name
    return {"run.py": "python run.py", "__main__.py": "python -m normscope"}.get(name, "normscope")


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


def _record(error: Exception, overrides: Sequence[str]) -> None:
    """Print and record how a job of a sweep failed."""
    from normscope.reporting.comparison.runs import record_failure

    invalid = _as_input_error(error, overrides)
    if invalid is not None:
        _print_once(invalid)
    else:
        traceback.print_exception(error)
    assert _sweep.folder is not None
    record_failure(_sweep.folder, overrides, printable(str(invalid), 1000) if invalid is not None else one_line(error))


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
        options.resume = str(earlier)
    elif key == "merge":
        _merge(options, config.merge, config.output_dir)
    else:
        options.resume, options.reproduce, options.output_dir = None, str(earlier), config.output_dir
    return options


def _merge(options: RunOptions, folders: Iterable[str | Path], output_dir: str | None) -> None:
    """Make the options of one shard those of the run that merges all of them."""
    options.shard, options.shards, options.merge = None, 1, [os.path.abspath(folder) for folder in folders]
    options.resume, options.reproduce, options.output_dir = None, None, output_dir


def _several() -> bool:
    """Whether torchrun has started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _restarted_run() -> Path | None:
    """The folder of the run that torchrun has begun before it restarted its processes; None if it has begun none."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from normscope.running.rendezvous import begun_run  # torch takes seconds to import

    return begun_run()


def _is_first() -> bool:
    """Whether this is the process that writes."""
    return not _several() or os.environ.get("RANK", "0") == "0"


@functools.cache
def _moment() -> str:
    """The time that names this process's run or sweep."""
    return time.strftime("%Y-%m-%d_%H-%M-%S")


def _run_folder(options: RunOptions, hydra: Any) -> tuple[Path, bool]:
    """The folder of a single run, `output_dir` or a dated one, and whether it must be new."""
    if not str(hydra.run.dir or "").strip():
        raise InputError("hydra.run.dir=: expected a folder; set output_dir instead")
    if hydra.run.dir != ".":  # the user has set Hydra's own key
        return Path(hydra.runtime.output_dir), False
    if options.output_dir is not None:
        return Path(os.path.abspath(options.output_dir)), False
    return Path("outputs").absolute() / _moment(), True


def _job_folder(hydra: Any) -> Path:
    """The folder of a job in a sweep."""
    path = Path(hydra.runtime.output_dir)
    return path / str(hydra.job.num) if hydra.sweep.subdir == "." else path


def _sweep_folder(given: str | None) -> str:
    """`output_dir`, or a new dated folder below outputs/multirun/."""
    if given is not None:
        SCHEMA.check_strings({"output_dir": given})
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


_register()
OmegaConf.register_new_resolver("thousands", _thousands, replace=True)
OmegaConf.register_new_resolver("sweep_folder", _sweep_folder, replace=True)
# For the help page.
OmegaConf.register_new_resolver("program", program, replace=True)
OmegaConf.register_new_resolver("experiments", lambda: str(folder("experiments")), replace=True)
