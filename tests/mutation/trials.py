"""Mutants against the tests that cover them, each in a fork of a process in which everything has been imported already."""

import ast
import collections
import contextlib
import dataclasses
import functools
import gc
import importlib.machinery
import multiprocessing
import multiprocessing.pool
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.mutation.covering import OPTIONS, ROOT, SOURCE, Covering
from tests.mutation.mutants import Mutant

_OPTIONS = [*OPTIONS, "-p", "no:terminal", "-s"]
_FORK = multiprocessing.get_context("fork")
_MEMORY = 12 * 2**30
"""Bytes that a mutant may allocate."""
_WALL = 10
"""A trial that waits for ever is ended after this many times its limit of processor time."""
_BUDGET = 90.0
"""Seconds of tests for one mutant. Tests beyond it are left out, which can only lower the share that is killed."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A mutant, or nothing planted, and tests by their ids in the order in which they run."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    seconds: float
    """Limit of processor time, which a busy machine does not use up. A mutant that exceeds it is noticed."""

    @classmethod
    def of(cls, mutant: Mutant, covering: Covering) -> "Trial":
        """A mutant with the tests that run its lines.

        For what runs at import, these are the tests in files that import its module, and then all that run anything in it.
        The quickest come first, but a second variant of a parametrised test comes after the first variants of all.
        """
        lines_of = {test: set(facts["lines"].get(str(mutant.path), ())) for test, facts in covering.items()}
        first: set[str] = set()
        if mutant.scope is None:
            first = _in_files_that_import(mutant.path, covering)
            tests = [test for test, lines in lines_of.items() if lines or test in first]
        else:
            tests = [test for test, lines in lines_of.items() if lines & set(mutant.lines)] or [
                test for test, lines in lines_of.items() if lines & set(mutant.statement)
            ]
        variants: dict[str, int] = collections.Counter()
        places = {}
        for test in sorted(tests, key=lambda test: (covering[test]["duration"], test)):
            name = test.split("[")[0]
            places[test] = (test not in first, variants[name], covering[test]["duration"], test)
            variants[name] += 1
        chosen, seconds = [], 0.0
        for test in sorted(places, key=places.__getitem__):
            seconds += covering[test]["duration"]
            if not chosen or seconds < _BUDGET:
                chosen.append(test)
        return cls(mutant, tuple(chosen), 60 + 5 * min(seconds, _BUDGET))


def _in_files_that_import(path: Path, tests: Iterable[str]) -> set[str]:
    """The tests whose file imports a module by name, and so may look at its constants, which no test runs."""
    module = ".".join(path.relative_to("src").with_suffix("").parts)
    files = {test.split("::")[0] for test in tests}
    importing = {file for file in files if (ROOT / file).exists() and f"from {module} " in (ROOT / file).read_text()}
    return {test for test in tests if test.split("::")[0] in importing}


@dataclasses.dataclass(frozen=True)
class Result:
    """How a trial ended."""

    trial: Trial
    killer: str
    """The test that failed, or how the process ended otherwise; empty if all tests passed."""
    seconds: float


def run_trials(
    trials: Sequence[Trial], processes: int, report: Callable[[Result], None]
) -> tuple[list[Result], list[str]]:
    """Run every trial, and then every test that has killed a mutant alone, with nothing planted.

    Code inside functions is exchanged after the tests have been collected. All other code runs when modules are imported, so
    these mutants come first, while nothing has been imported.

    Args:
        trials: Mutants and their tests.
        processes: How many run at a time.
        report: Called with each result.

    Returns:
        The results, and the tests that fail alone with nothing planted.
    """
    results: list[Result] = []
    failing: list[str] = []

    def run(some: Iterable[Trial], work: Callable[[Trial], str]) -> None:
        for result in _in_forks(some, work, processes):
            results.append(result)
            report(result)

    def run_inside_functions(work: Callable[[Trial], str]) -> None:
        run([trial for trial in trials if trial.mutant and trial.mutant.scope is not None], work)
        killers = {result.killer: result.trial.seconds for result in results if result.killer in result.trial.tests}
        alone = [Trial(None, (test,), seconds) for test, seconds in killers.items()]
        failing.extend(result.trial.tests[0] for result in _in_forks(alone, work, processes) if result.killer)

    run([trial for trial in trials if trial.mutant and trial.mutant.scope is None], _import_and_run)
    session = _Session(run_inside_functions)
    files = sorted({test.split("::")[0] for trial in trials for test in trial.tests})
    status = pytest.main([*_OPTIONS, *files], plugins=[session])
    if session.error or status != pytest.ExitCode.OK:
        raise session.error or RuntimeError(f"pytest ended with {status}")
    return results, failing


class _Session:
    """Collects tests, imports the source, and then hands over a function that runs a trial."""

    def __init__(self, use: Callable[[Callable[[Trial], str]], None]) -> None:
        self._use = use
        self.error: BaseException | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        functions = _functions()

        def run(trial: Trial) -> str:
            if trial.mutant is not None:
                _exchange(trial.mutant, functions)
            failures = _Failures()
            session.config.pluginmanager.register(failures)
            chosen = [items[test] for test in trial.tests]
            for item, following in zip(chosen, [*chosen[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if failures.names:
                    return failures.names[0]
            return ""

        gc.freeze()  # imported objects stay where they are, so forks share them
        try:
            self._use(run)
        except BaseException as error:  # pytest would print it and go on
            self.error = error
        return True


class _Failures:
    """Names of the tests, or files of tests, that failed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)


Functions = Mapping[tuple[str, str], list[types.FunctionType]]
"""By file and qualified name. Decorators and shape checks wrap functions, but all call one that is found here."""


def _functions() -> Functions:
    for path in sorted(SOURCE.rglob("*.py")):
        importlib.import_module(
            ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        )
    functions = collections.defaultdict(list)
    gc.unfreeze()  # what conftest.py has frozen is not among the objects
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType:  # `isinstance` would trigger warnings in lazy objects
            functions[thing.__code__.co_filename, thing.__code__.co_qualname].append(thing)
    return functions


def _exchange(mutant: Mutant, functions: Functions) -> None:
    """Give every function object that comes from the mutant's place the code with the error in it."""
    assert mutant.scope is not None
    path, tree = str(ROOT / mutant.path), mutant.plant()
    if not functions[path, mutant.scope]:
        raise LookupError(f"no function {mutant.scope} of {path}")
    for function in functions[path, mutant.scope]:
        _name(function.__code__.co_freevars, tree, mutant.scope)
        (function.__code__,) = [
            code for code in _codes(compile(tree, path, "exec")) if code.co_qualname == mutant.scope
        ]


def _name(variables: Sequence[str], tree: ast.Module, scope: str) -> None:
    """Name variables in a function, in a branch that is never taken: only code with as many free variables can be exchanged.

    Without its call of `super()`, for instance, a method no longer refers to its class.
    """
    if variables:
        body: list[ast.stmt] = tree.body
        for name in scope.split("."):
            (body,) = [
                part.body for part in body if isinstance(part, ast.ClassDef | ast.FunctionDef) and part.name == name
            ]
        body.extend(ast.parse(f"if False:\n    {', '.join(variables)}").body)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _import_and_run(trial: Trial) -> str:
    """Import everything with the error in its module, and run the tests."""
    assert trial.mutant is not None
    path, source = str(ROOT / trial.mutant.path), ast.unparse(trial.mutant.plant()).encode()
    read = importlib.machinery.SourceFileLoader.get_data

    def get_data(loader: importlib.machinery.SourceFileLoader, name: str) -> bytes:
        if name == path:
            return source
        if loader.path == path:
            raise OSError("no compiled file is that of the mutant")
        return read(loader, name)

    importlib.machinery.SourceFileLoader.get_data = get_data  # type: ignore[method-assign,assignment]
    sys.dont_write_bytecode = True
    failures = _Failures()
    status = pytest.main([*_OPTIONS, "-x", *trial.tests], plugins=[failures])
    return "" if status == pytest.ExitCode.OK else (failures.names or ["an error at import"])[0]


def _in_forks(trials: Iterable[Trial], work: Callable[[Trial], str], processes: int) -> Iterator[Result]:
    with multiprocessing.pool.ThreadPool(processes) as pool:
        yield from pool.imap_unordered(functools.partial(_in_fork, work), trials)


def _in_fork(work: Callable[[Trial], str], trial: Trial) -> Result:
    started = time.monotonic()
    receiver, sender = _FORK.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        process = _FORK.Process(target=_child, args=(work, trial, folder, sender))
        process.start()
        assert process.pid is not None
        process.join(_WALL * trial.seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and its own children, whether it has ended or not
        process.join()
    seconds = time.monotonic() - started
    if not receiver.poll():
        return Result(trial, f"exit status {process.exitcode} after {seconds:.0f} s", seconds)
    killer, error = receiver.recv()
    if error:
        raise RuntimeError(f"{trial.mutant}\n{error}")
    return Result(trial, killer, seconds)


def _child(work: Callable[[Trial], str], trial: Trial, folder: str, answer: Connection) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(trial.seconds), int(trial.seconds)))
    try:
        answer.send((work(trial), ""))
    except BaseException:
        answer.send(("", traceback.format_exc()))
    os._exit(0)  # nothing that was registered before the fork is to be cleaned up here
