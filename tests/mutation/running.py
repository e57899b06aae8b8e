"""Mutants against the tests that cover them, each in a fork of a process in which everything has been imported already."""

import ast
import collections
import dataclasses
import gc
import importlib.machinery
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from tests.mutation.covering import ROOT, SOURCE
from tests.mutation.mutants import Mutant

_SURVIVED, _KILLED, _BROKEN = 0, 1, 70
_FOLDER = "NORMSCOPE_MUTANT"
"""Environment variable of a fork: where its last words go."""
_MEMORY = 12 * 2**30
"""Bytes that a mutant may take."""

_OPTIONS = [*"-o addopts= -s -p no:terminal -p no:cacheprovider -p no:faulthandler --rootdir".split(), str(ROOT)]


@dataclasses.dataclass(frozen=True)
class Trial:
    """A mutant, or nothing planted, and tests by their ids, the quickest first."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    seconds: float
    """How long it may take; a mutant that takes longer does not come to an end, which a test notices."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a trial."""

    trial: Trial
    killed: bool
    by: str
    """The test that failed; empty where none did, or where time or memory ran out."""
    seconds: float


def run_trials(
    trials: Sequence[Trial], processes: int, report: Callable[[Outcome], None]
) -> tuple[list[Outcome], list[Outcome]]:
    """Run every trial, and then every test that has killed a mutant alone, with nothing planted.

    What is inside a function is exchanged after the tests have been collected; all else is there when modules are imported, so
    these mutants come first, while nothing has been imported.

    Args:
        trials: Mutants and their tests.
        processes: How many run at a time.
        report: Called with each outcome of a mutant.

    Returns:
        Outcomes of the mutants, and of the tests that killed them.
    """
    at_import = [trial for trial in trials if trial.mutant is not None and trial.mutant.scope is None]
    outcomes = _all(at_import, _import_and_run, processes, report)
    nothing_planted = [dataclasses.replace(trial, mutant=None, tests=trial.tests[:1]) for trial in at_import[:1]]
    checks = _all(nothing_planted, _import_and_run, processes, lambda _: None)

    def work(run: Callable[[Trial], None]) -> None:
        outcomes.extend(_all([trial for trial in trials if trial not in at_import], run, processes, report))
        killers = {outcome.by: outcome.trial.seconds for outcome in outcomes if outcome.by}
        alone = [Trial(None, (test,), seconds) for test, seconds in killers.items()]
        checks.extend(_all(alone, run, processes, lambda _: None))

    session = _Session(work)
    files = sorted({test.split("::")[0] for trial in trials for test in trial.tests})
    status = pytest.main([*_OPTIONS, *files], plugins=[session])
    if session.error or status != pytest.ExitCode.OK:
        raise session.error or RuntimeError(f"pytest ended with {status}")
    return outcomes, checks


class _Session:
    """Collects tests, imports the source, and then hands over a function that runs a trial."""

    def __init__(self, work: Callable[[Callable[[Trial], None]], None]) -> None:
        self._work = work
        self.error: BaseException | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = _functions()

        def run(trial: Trial) -> None:
            if trial.mutant is not None:
                _exchange(trial.mutant, functions)
            session.config.pluginmanager.register(_StopAtFailure())
            chosen = [items[test] for test in trial.tests]
            for item, sum_consumer in zip(chosen, [*chosen[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=sum_consumer)

        gc.freeze()  # what has been imported stays where it is, so that forks share it
        try:
            self._work(run)
        except BaseException as error:  # pytest would print it and go on
            self.error = error
        return True


class _StopAtFailure:
    """Ends the process at the first failure, with the name of the test as its last words."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            _last_words().write_text(report.nodeid)
            os._exit(_KILLED)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            _last_words().write_text(report.nodeid)
            os._exit(_KILLED)


Functions = dict[tuple[str, str], list[types.FunctionType]]
"""By file and qualified name. Decorators and checks of shapes wrap functions, but all call one that is found here."""


def _functions() -> Functions:
    for path in sorted(SOURCE.rglob("*.py")):
        importlib.import_module(
            ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        )
    functions: Functions = collections.defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType:  # `isinstance` would ask objects that warn of everything
            functions[thing.__code__.co_filename, thing.__code__.co_qualname].append(thing)
    return functions


def _exchange(mutant: Mutant, functions: Functions) -> None:
    """Give every function object that comes from the mutant's place the code with the error in it."""
    path = str(ROOT / mutant.path)
    (code,) = [code for code in _codes(compile(mutant.plant(), path, "exec")) if code.co_qualname == mutant.scope]
    found = functions[path, code.co_qualname]
    if not found:
        raise LookupError(f"no function {mutant.scope} of {path}")
    for function in found:
        function.__code__ = code


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _import_and_run(trial: Trial) -> None:
    """Import everything with the error in its module, and run the tests."""
    if trial.mutant is not None:
        _import_instead(str(ROOT / trial.mutant.path), ast.unparse(trial.mutant.plant()).encode())
    status = pytest.main([*_OPTIONS, *trial.tests], plugins=[_StopAtFailure()])
    os._exit(_SURVIVED if status == pytest.ExitCode.OK else _KILLED)


def _import_instead(path: str, source: bytes) -> None:
    """Have a module imported from other source than its file holds."""
    read = importlib.machinery.SourceFileLoader.get_data

    def get_data(loader: importlib.machinery.SourceFileLoader, name: str) -> bytes:
        if name == path:
            return source
        if loader.path == path:
            raise OSError("no compiled file is that of the mutant")
        return read(loader, name)

    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign,assignment]
    sys.dont_write_bytecode = True


def _all(
    trials: Iterable[Trial], run: Callable[[Trial], None], processes: int, report: Callable[[Outcome], None]
) -> list[Outcome]:
    waiting, running, outcomes = list(trials), {}, []
    while waiting or running:
        while waiting and len(running) < processes:
            trial, folder = waiting.pop(0), Path(tempfile.mkdtemp(prefix="mutant-"))
            running[_fork(trial, run, folder)] = trial, folder, time.monotonic()
        time.sleep(0.01)
        for process, (trial, folder, started) in list(running.items()):
            seconds = time.monotonic() - started
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended and seconds < trial.seconds:
                continue
            _kill(process)  # with its own children, whether it has ended or not
            if not ended:
                os.waitpid(process, 0)
            last_words = _last_words(folder)
            by = last_words.read_text() if last_words.exists() else ""
            if ended and os.waitstatus_to_exitcode(status) == _BROKEN:
                raise RuntimeError(f"{trial.mutant}\n{by}")
            outcomes.append(Outcome(trial, not ended or status != _SURVIVED, by, seconds))
            report(outcomes[-1])
            shutil.rmtree(folder, ignore_errors=True)
            del running[process]
    return outcomes


def _fork(trial: Trial, run: Callable[[Trial], None], folder: Path) -> int:
    process = os.fork()
    if process == 0:
        _child(trial, run, folder)
    return process


def _child(trial: Trial, run: Callable[[Trial], None], folder: Path) -> NoReturn:
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.environ[_FOLDER] = os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        run(trial)
        os._exit(_SURVIVED)
    except BaseException:
        _last_words().write_text(traceback.format_exc())
        os._exit(_BROKEN)


def _last_words(folder: Path | None = None) -> Path:
    return (folder or Path(os.environ[_FOLDER])) / "last-words.txt"


def _kill(process: int) -> None:
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        return
