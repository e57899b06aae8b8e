"""Which tests run which lines, measured once for each file of tests and kept until the file or the source changes.

The module is a plugin of pytest as well: it notes the lines that each test runs, and those that fixtures of a wider scope run
for all tests which use them.
"""

import collections
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "normscope"
_REPORTS = "NORMSCOPE_COVERAGE_REPORTS"
"""Environment variable: the folder in which every process of pytest leaves its report."""

Covering = dict[str, dict[str, Any]]
"""By test: its `duration` in seconds and its `lines` by file."""


def covering_tests(cache: Path, processes: int, folder: Path) -> Covering:
    """Durations and lines of every test that is not slow.

    Args:
        cache: A file that keeps what was measured.
        processes: How many tests run at a time.
        folder: For temporary files.

    Raises:
        RuntimeError: If a test fails.
    """
    kept = json.loads(cache.read_text()) if cache.exists() else {}
    keys = {str(path.relative_to(ROOT)): key for path, key in _keys()}
    stale = [path for path, key in keys.items() if kept.get(path, {}).get("key") != key]
    if stale:
        print(f"measuring what {len(stale)} files of tests cover", flush=True)
        measured = _measured(stale, processes, folder)
        kept = {path: kept[path] for path in keys if path not in stale}
        kept |= {path: {"key": keys[path], "tests": {}} for path in stale}
        for test, facts in measured.items():
            kept[test.split("::")[0]]["tests"][test] = facts
        cache.write_text(json.dumps(kept))
    return {test: facts for path in kept.values() for test, facts in path["tests"].items()}


def _keys() -> Iterator[tuple[Path, str]]:
    shared = hashlib.sha256()
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    for folder in (SOURCE, ROOT / "tests", ROOT / "benchmarks", ROOT / "conf"):
        for path in sorted({*folder.rglob("*.py"), *folder.rglob("*.yaml")} - set(tests)):
            if "mutation" not in path.parts:
                shared.update(path.read_bytes())
    for path in tests:
        own = shared.copy()
        own.update(path.read_bytes())
        yield path, own.hexdigest()


def _measured(paths: list[str], processes: int, folder: Path) -> Covering:
    plugin = ["-p", "tests.mutation.covering", "-n", str(processes), "-p", "no:randomly"]
    environment = os.environ | {_REPORTS: str(folder), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    outcome = subprocess.run([sys.executable, "-m", "pytest", *plugin, *paths], cwd=ROOT, env=environment, check=False)
    if outcome.returncode:
        raise RuntimeError("the tests fail without any error planted")
    lines: dict[str, dict[str, set[int]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    tests = {}
    for report in map(json.loads, (path.read_text() for path in folder.glob("*.coverage.json"))):
        tests |= report["tests"]
        for context, by_file in report["lines"].items():
            for file, numbers in by_file.items():
                lines[context][file].update(numbers)
    covering: Covering = {}
    for test, facts in tests.items():
        own: dict[str, set[int]] = collections.defaultdict(set)
        for context in (test, *facts["fixtures"]):
            for file, numbers in lines[context].items():
                own[file] |= numbers
        covering[test] = {"duration": facts["duration"], "lines": {file: sorted(own[file]) for file in sorted(own)}}
    return covering


class _Recorder:
    """Notes the lines that run in each test and in each fixture."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=[str(SOURCE)])
        self._tests: dict[str, dict[str, Any]] = {}
        self._context = ""
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        indices = item.callspec.indices if hasattr(item, "callspec") else {}
        fixtures = [_fixture(chosen[-1], indices.get(name)) for name, chosen in definitions.items()]
        self._tests[item.nodeid] = {"duration": 0.0, "fixtures": fixtures}
        self._switch(item.nodeid)
        result = yield
        self._switch("")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        before = self._context
        if fixturedef.scope != "function":
            self._switch(_fixture(fixturedef, getattr(request, "param_index", None)))
        try:
            return (yield)
        finally:
            self._switch(before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.nodeid in self._tests:
            self._tests[report.nodeid]["duration"] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = collections.defaultdict(lambda: collections.defaultdict(list))
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    lines[context][str(Path(file).relative_to(ROOT))].append(line)
        self._report.write_text(json.dumps({"tests": self._tests, "lines": lines}))

    def _switch(self, context: str) -> None:
        self._context = context
        self._coverage.switch_context(context)


def _fixture(definition: Any, index: int | None) -> str:
    """The name of what one value of a fixture runs."""
    index = index if definition.params is not None else None
    return f"{definition.baseid}::{definition.argname}[{index}]"


def pytest_configure(config: pytest.Config) -> None:
    """Record in the processes that run tests, not in the one that hands them out."""
    folder = os.environ.get(_REPORTS)
    if folder and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(_Recorder(Path(folder) / f"{os.getpid()}.coverage.json"))
