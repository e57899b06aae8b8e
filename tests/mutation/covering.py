"""Which tests run which lines, measured once for each file of tests and kept until it or what is mutated changes."""

import collections
import hashlib
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "normscope"
PACKAGES = ("maths", "statistics", "analyses", "alignment")
"""Where errors are planted."""
OPTIONS = [*"-o addopts= -p no:cacheprovider -p no:faulthandler".split(), "--rootdir", str(ROOT)]
"""Of pytest, in place of those that the project sets."""

FOLDERS = ("unit", "oracles", "property", "contract")
"""Quick and slow tests. Those that run the whole program from its command line take too long to run once per error."""
NAMES = ("test_*.py", "*_oracle.py")
"""Files of tests, as in pyproject.toml."""
_OTHERS = {
    *("test_configs", "test_imports", "test_plug_ins", "test_mutation", "test_fuzz"),
    *("test_loading", "test_adapters", "test_sources", "test_run_folder", "test_wrapping", "test_own_models"),
    *("test_wrong_calls", "test_interrupts", "test_forks", "test_waiting", "test_offloading", "test_changed_weights"),
    *("test_live_server", "test_live_connections", "test_explorers", "test_figures_fit", "test_codes_on_pages"),
    *("test_documentation", "test_captions", "test_peers", "test_architectures", "test_proof"),
    *("test_sabotage", "test_recognised_attention", "test_recognised_blocks", "test_recognised_projections"),
    *("test_memory_of_passes", "test_hybrids", "test_root_modules", "test_identity", "test_accelerators"),
    *("test_known_truth", "test_training"),
    *("test_families", "test_rotations", "test_own_weights", "test_heads"),
    *("test_corpora", "test_data", "test_files", "test_sentence_splitting", "test_figures"),
}
"""Files in these folders about source text, whole programs, models and corpora: they hardly check what is mutated."""

Covering = dict[str, dict[str, Any]]
"""By test: its `duration` in seconds of processor time and its `lines` by file."""


def covering_tests(cache: Path) -> Covering:
    """Durations and lines of every test that passes with nothing planted.

    Args:
        cache: A file that keeps what was measured.

    Raises:
        RuntimeError: If pytest does not come to its end.
    """
    kept = json.loads(cache.read_text()) if cache.exists() else {}
    keys = dict(_keys())
    stale = [path for path, key in keys.items() if kept.get(path, {}).get("key") != key]
    if stale:
        print(f"measuring what {len(stale)} files of tests cover", flush=True)
        kept = {path: kept[path] for path in keys if path not in stale}
        kept |= {path: {"key": keys[path], "tests": {}} for path in stale}
        for test, facts in _measured(stale).items():
            kept[test.split("::")[0]]["tests"][test] = facts
        cache.write_text(json.dumps(kept))
    return {test: facts for path in kept.values() for test, facts in path["tests"].items()}


def _keys() -> Iterator[tuple[str, str]]:
    """By file of tests: a hash of it and of what is mutated."""
    source = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            source.update(path.read_bytes())
    for folder in FOLDERS:
        for path in sorted(path for name in NAMES for path in (ROOT / "tests" / folder).glob(name)):
            if path.stem not in _OTHERS:
                own = source.copy()
                own.update(path.read_bytes())
                yield str(path.relative_to(ROOT)), own.hexdigest()


def _measured(paths: list[str]) -> Covering:
    """Run some files of tests in a fork, since nothing of the source may be imported here yet."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        arguments = [*OPTIONS, "-q", *paths]
        process = multiprocessing.get_context("fork").Process(
            target=lambda: pytest.main(arguments, plugins=[_Recorder(report)])
        )
        process.start()
        process.join()
        if not report.exists():
            raise RuntimeError("pytest ended before it had run the tests; `python -m pytest` says why")
        covering: Covering = json.loads(report.read_text())
        return covering


class _Recorder:
    """A plugin of pytest that notes the lines which run in each test and in each fixture of a wider scope."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=[str(SOURCE)])
        self._durations: dict[str, float] = {}
        self._failed: set[str] = set()
        self._fixtures: dict[str, list[str]] = {}
        self._context = ""
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        indices = item.callspec.indices if hasattr(item, "callspec") else {}
        self._fixtures[item.nodeid] = [_fixture(chosen[-1], indices.get(name)) for name, chosen in definitions.items()]
        self._switch(item.nodeid)
        started = time.process_time()
        result = yield
        self._durations[item.nodeid] = time.process_time() - started
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
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._coverage.stop()
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # a file that cannot be imported, say
            return
        data = self._coverage.get_data()
        lines: dict[str, dict[str, set[int]]] = collections.defaultdict(lambda: collections.defaultdict(set))
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    lines[context][str(Path(file).relative_to(ROOT))].add(line)
        covering: Covering = {}
        for test in self._fixtures.keys() - self._failed:
            own: dict[str, set[int]] = collections.defaultdict(set)
            for context in (test, *self._fixtures[test]):
                for path, numbers in lines[context].items():
                    own[path] |= numbers
            covering[test] = {
                "duration": self._durations[test],
                "lines": {path: sorted(numbers) for path, numbers in own.items()},
            }
        self._report.write_text(json.dumps(covering))

    def _switch(self, context: str) -> None:
        self._context = context
        self._coverage.switch_context(context)


def _fixture(definition: Any, index: int | None) -> str:
    """The name of what one value of a fixture runs."""
    index = index if definition.params is not None else None
    return f"{definition.baseid}::{definition.argname}[{index}]"
