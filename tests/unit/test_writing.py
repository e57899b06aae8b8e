"""Files of runs are written through one function, which nothing in a folder can lead elsewhere."""

import ast
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from normscope.config.schema import plain
from normscope.errors import InputError
from normscope.reporting.comparison.runs import FAILURES, record_failure
from normscope.reporting.drawing import drawn
from normscope.reporting.run_folder import LONGEST_NAME, RunFolder, own_files
from normscope.results.result import Result
from normscope.running.options import RunOptions
from normscope.untrusted.writing import new_file, write_file, write_named
from tests.source import parsed
from tests.unit.test_figures import CURVES

SOURCE = Path(__file__).parents[2] / "src" / "normscope"

_TABLE = pd.DataFrame({"token": ["$(touch x)"], "value": [1.0]})


@pytest.fixture
def startup(tmp_path) -> Path:
    """A file of the user's that nobody may change."""
    path = tmp_path / "bashrc"
    path.write_text("mine")
    return path


@pytest.fixture
def resumed(tmp_path) -> Path:
    """The folder of an interrupted run."""
    results = RunFolder(tmp_path / "run")
    results.begin(plain(RunOptions()))
    results.release()
    return tmp_path / "run"


@pytest.mark.parametrize(
    "name",
    ["tables/x.csv", "tables/x.parquet", "figures/x.png", "maps.parquet", "report.html", "wandb/x"],
)
def test_a_link_in_a_run_that_is_resumed_is_refused_before_the_run(resumed, startup, name):
    (resumed / name).parent.mkdir(exist_ok=True)
    (resumed / name).unlink(missing_ok=True)
    (resumed / name).symlink_to(startup)
    with pytest.raises(InputError, match=f"{re.escape(name)}: expected a file or a folder, got a link; remove it"):
        RunFolder(resumed, resumed=True).begin(plain(RunOptions()))
    assert startup.read_text() == "mine"


@pytest.mark.parametrize("part", ["tables", "figures", "wandb"])
def test_a_folder_of_a_run_is_not_a_link(resumed, tmp_path, part):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if (resumed / part).exists():
        (resumed / part).rmdir()
    (resumed / part).symlink_to(elsewhere)
    with pytest.raises(InputError, match=f"{part}: expected a file or a folder, got a link"):
        RunFolder(resumed, resumed=True).begin(plain(RunOptions()))
    assert not any(elsewhere.iterdir())


def test_links_that_appear_during_a_run_are_refused_too(resumed, startup):
    results = RunFolder(resumed, resumed=True)
    results.begin(plain(RunOptions()))
    (resumed / "tables/x.csv").symlink_to(startup)
    (resumed / "figures").rmdir()
    (resumed / "figures").symlink_to(startup.parent)
    for write in (
        lambda: results.save(Result({"x": _TABLE})),
        lambda: results.write(f"figures/{startup.name}", drawn(CURVES, ["png"])[0]),
    ):
        with pytest.raises(InputError, match="got a link"):
            write()
    results.release()
    assert startup.read_text() == "mine"
    assert not list(resumed.rglob(".unfinished*"))


@pytest.mark.parametrize("name", ["tables/sequences.parquet", "results.json"])
def test_a_pipe_does_not_hang_a_run(resumed, name):
    os.mkfifo(resumed / name)
    with pytest.raises(InputError, match="got a device or pipe"):
        RunFolder(resumed, resumed=True).begin(plain(RunOptions()))


@pytest.mark.parametrize("make", [lambda lock, other: lock.symlink_to(other), lambda lock, _: os.mkfifo(lock)])
def test_the_lock_is_a_file(resumed, tmp_path, make):
    make(resumed / ".lock", tmp_path / "hushlogin")
    with pytest.raises(InputError, match=r"expected a file \.lock in it"):
        RunFolder(resumed, resumed=True)
    assert not (tmp_path / "hushlogin").exists()


def test_files_of_others_are_not_uploaded(resumed, startup):
    results = RunFolder(resumed, resumed=True)
    results.begin(plain(RunOptions()))
    (resumed / "tables/key.csv").symlink_to(startup)
    assert "tables/key.csv" not in own_files(resumed)
    results.release()


def test_the_record_of_failed_jobs_is_a_file(tmp_path, startup):
    record_failure(tmp_path, ["a=1"], "no")
    record_failure(tmp_path, ["a=2"], "no")
    assert len((tmp_path / FAILURES).read_text().splitlines()) == 2
    (tmp_path / FAILURES).unlink()
    (tmp_path / FAILURES).symlink_to(startup)
    with pytest.raises(InputError, match="got a link"):
        record_failure(tmp_path, ["a=1"], "no")
    assert startup.read_text() == "mine"


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002])
def test_the_umask_holds_for_every_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        results = RunFolder(tmp_path / "run")
        results.begin(plain(RunOptions()))
        results.write("checkpoint.safetensors", b"x")
        results.save(Result({"x": _TABLE}, figures={"y": CURVES}))
        results.write("figures/x.png", b"x")
        results.write("tables/x.tex", b"x")
        results.write("report.html", b"x")
        results.release()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in results.path.rglob("*") if path.is_file()}
    assert len(modes) == 9
    assert set(modes.values()) == {0o666 & ~umask}


def test_names_that_a_file_system_does_not_have_are_found_before_the_run(tmp_path, monkeypatch):
    def replace(source: str, target: str, **places: object) -> None:
        if len(target) > 100:
            raise OSError(36, "File name too long")
        really(source, target, **places)

    really = os.replace
    monkeypatch.setattr(os, "replace", replace)
    results = RunFolder(tmp_path / "run")
    with pytest.raises(InputError, match="File name too long"):
        results.begin(plain(RunOptions()))
    results.abandon()
    assert not (tmp_path / "run").exists()


def test_paths_that_are_too_long_are_found_before_the_run(tmp_path):
    folder = tmp_path
    while len(str(folder)) < 4096 - LONGEST_NAME:
        folder /= "n" * min(120, max(1, 4096 - LONGEST_NAME - len(str(folder))))
    results = RunFolder(folder)
    with pytest.raises(InputError, match="File name too long"):
        results.begin(plain(RunOptions()))
    results.abandon()


def test_a_file_is_whole_or_as_it_was(tmp_path):
    write_file(tmp_path, "a", b"before")

    def fail() -> None:
        with new_file(tmp_path, "a") as stream:
            stream.write(b"half")
            raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"before")]


def test_a_file_that_the_user_names_may_be_a_link_to_a_file_but_no_device(tmp_path, startup):
    (tmp_path / "link").symlink_to(startup)
    write_named(tmp_path / "link", b"new")
    assert (startup.read_bytes(), (tmp_path / "link").is_symlink()) == (b"new", True)
    with pytest.raises(InputError, match="/dev/null: expected a file, or nothing, got a device or pipe"):
        write_named("/dev/null", b"new")


# Where else files are written, and why that may be.
_ELSEWHERE = {
    ("untrusted/writing.py", "open"): "the one function",
    ("untrusted/writing.py", "replace"): "the one function",
    ("untrusted/plain_data.py", "open"): "reads",
    ("cli/__init__.py", "TemporaryDirectory"): "Hydra's records of processes that write nothing",
    ("reporting/views.py", "TemporaryDirectory"): "pictures for trackers",
    ("reporting/drawing.py", "savefig"): "to memory",
    ("results/table_files.py", "ParquetWriter"): "to a stream that the one function has opened",
    ("results/table_files.py", "to_csv"): "to memory",
    ("api/training.py", "to_csv"): "to memory",
    ("checkup/findings.py", "to_json"): "to memory",
    ("untrusted/tensor_files.py", "save"): "to memory",
    ("streams.py", "open"): "the null device",
    ("models/load/loading.py", "mkdtemp"): "offloaded weights",
    ("translation/toy.py", "mkdtemp"): "in the user's cache, renamed once it is complete",
    ("translation/toy.py", "rename"): "in the user's cache",
    ("translation/training.py", "save_pretrained"): "in the user's cache",
    ("testing/test_contract.py", "save_pretrained"): "in a temporary directory",
    ("reporting/weights_and_biases.py", "open"): "the null device",
}

_WRITES = re.compile(
    r"write_text|write_bytes|savefig|to_(csv|parquet|json|feather|pickle|excel|hdf)|ParquetWriter|write_table|mkstemp|mkdtemp"
    r"|Temporary\w+|NamedTemporaryFile|replace|rename|renames|symlink_to|hardlink_to|symlink|link|touch|copy2?|copyfile"
    r"|copytree|move|save_file|save|savez|tofile|dump|save_pretrained"
)
_OF_MODULES = {"replace": {"os"}, "rename": {"os", "unfinished"}, "save": {"torch", "np", "safetensors.torch"}}
_OF_MODULES |= {
    "copy": {"shutil"},
    "move": {"shutil"},
    "link": {"os"},
    "dump": {"json", "pickle", "yaml"},
    "touch": {""},
}
_OF_MODULES |= {"copy2": {"shutil"}, "symlink": {"os"}, "write_table": {"parquet", "pq"}}


def _writes(tree: ast.AST) -> Iterator[str]:
    """Calls that may write a file."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
        if name == "open" and owner != "os":
            modes = [*node.args[(0 if owner else 1) :], *(each.value for each in node.keywords if each.arg == "mode")]
            words = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
            if any(re.fullmatch(r"[rwaxbt+]*[wax+][rwaxbt+]*", word) for word in words):
                yield name
        elif name == "open" or (_WRITES.fullmatch(name) and owner in _OF_MODULES.get(name, {owner})):
            yield name


def test_files_are_written_nowhere_else():
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in SOURCE.rglob("*.py")
        for name in _writes(parsed(path.read_text()))
    }
    assert found == _ELSEWHERE.keys()


@pytest.mark.parametrize(
    "code",
    ["open(p, 'w')", "p.open('ab')", "p.write_text(x)", "table.to_parquet(p)", "os.replace(a, b)", "torch.save(a, b)"],
)
def test_other_writes_would_be_noticed(code):
    assert list(_writes(ast.parse(code)))
