"""Mutants against the tests that cover them."""

import ast
import collections
import dataclasses
import functools
import gc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pytest

from tests.mutation.covering import OPTIONS, ROOT, SOURCE, Covering
from tests.mutation.forks import Job, Result, run_jobs
from tests.mutation.mutants import Mutant

_OPTIONS = [*OPTIONS, "-p", "no:terminal", "-s"]
_BUDGET = 90.0
"""Seconds of tests for one mutant; the tests that would exceed it are left out, which can only lower the share."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A mutant, or nothing planted, and tests by their ids in the order in which they run."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    seconds: float
    """How long it may take; a mutant that takes longer does not come to an end, which a test would notice."""

    @classmethod
    def of(cls, mutant: Mutant, covering: Covering) -> "Trial":
        """A mutant with the tests that run its lines; what runs at import concerns all that run anything of its file.

        The quickest come first, but all other variants of a parametrised test after the first variants of each.
        """
        lines_of = {test: set(facts["lines"].get(str(mutant.path), ())) for test, facts in covering.items()}
        if mutant.scope is None:
            found = [test for test, lines in lines_of.items() if lines]
        else:
            found = [test for test, lines in lines_of.items() if lines & set(mutant.lines)] or [
                test for test, lines in lines_of.items() if lines & set(mutant.statement)
            ]
        variants: dict[str, int] = collections.Counter()
        places = {}
        for test in sorted(found, key=lambda test: (covering[test]["duration"], test)):
            places[test] = (variants[test.split("[")[0]], covering[test]["duration"], test)
            variants[test.split("[")[0]] += 1
        chosen, seconds = [], 0.0
        for test in sorted(places, key=places.__getitem__):
            seconds += covering[test]["duration"]
            if not chosen or seconds < _BUDGET:
                chosen.append(test)
        return cls(mutant, tuple(chosen), 60 + 5 * min(seconds, _BUDGET))


def run_trials(
    trials: Sequence[Trial], processes: int, report: Callable[[Result[Trial]], None]
) -> tuple[list[Result[Trial]], list[str]]:
    """Run every trial, and then every test that has killed a mutant alone, with nothing planted.

    What is inside a function is exchanged after the tests have been collected. All else is there when modules are imported, so
    these mutants come first, while nothing has been imported.

    Args:
        trials: Mutants and their tests.
        processes: How many run at a time.
        report: Called with each result.

    Returns:
        The results, each with the test that failed as its answer, and the tests that fail alone with nothing planted.
    """
    results, failing = [], []

    def run(some: Iterable[Trial], work: Callable[[Trial], str]) -> Iterator[Result[Trial]]:
        yield from run_jobs([Job(trial, functools.partial(work, trial), trial.seconds) for trial in some], processes)

    for result in run([trial for trial in trials if trial.mutant and trial.mutant.scope is None], _import_and_run):
        results.append(result)
        report(result)

    def rest(work: Callable[[Trial], str]) -> None:
        for result in run([trial for trial in trials if trial.mutant and trial.mutant.scope is not None], work):
            results.append(result)
            report(result)
        killers = {result.answer: result.key.seconds for result in results if result.answer in result.key.tests}
        alone = [Trial(None, (test,), seconds) for test, seconds in killers.items()]
        failing.extend(result.key.tests[0] for result in run(alone, work) if result.answer)

    session = _Session(rest)
    files = sorted({test.split("::")[0] for trial in trials for test in trial.tests})
    status = pytest.main([*_OPTIONS, *files], plugins=[session])
    if session.error or status != pytest.ExitCode.OK:
        raise session.error or RuntimeError(f"pytest ended with {status}")
    return results, failing


class _Session:
    """Collects tests, imports the source, and then hands over a function that runs a trial."""

    def __init__(self, work: Callable[[Callable[[Trial], str]], None]) -> None:
        self._work = work
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
                    break
            return "".join(failures.names[:1])

        gc.freeze()  # what has been imported stays where it is, so that forks share it
        try:
            self._work(run)
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
"""By file and qualified name. Decorators and checks of shapes wrap functions, but all call one that is found here."""


def _functions() -> Functions:
    for path in sorted(SOURCE.rglob("*.py")):
        importlib.import_module(
            ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        )
    functions = collections.defaultdict(list)
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


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _import_and_run(trial: Trial) -> str:
    """Import everything with the error in its module, and run the tests."""
    assert trial.mutant is not None
    _import_instead(str(ROOT / trial.mutant.path), ast.unparse(trial.mutant.plant()).encode())
    failures = _Failures()
    status = pytest.main([*_OPTIONS, "-x", *trial.tests], plugins=[failures])
    return "" if status == pytest.ExitCode.OK else (failures.names or ["an error at import"])[0]


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
