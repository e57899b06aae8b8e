"""The lock on a run folder, and what an abandoned one leaves behind."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from normscope.config.schema import plain
from normscope.data.options import DatasetKind
from normscope.errors import InputError
from normscope.reporting.run_folder import LOCK, RunFolder
from normscope.results.result import Result
from normscope.running import facts
from normscope.running.options import RunOptions


def everything_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.fixture
def options():
    options = RunOptions()
    options.model.name, options.dataset.kind, options.dataset.seed, options.model.seed = (
        "tiny",
        DatasetKind.sample,
        0,
        0,
    )
    return options


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("existing", ["", "a", "a/b", "a/b/c"])
def test_abandoning_a_folder_removes_what_it_made_and_nothing_else(tmp_path, monkeypatch, existing, relative):
    (tmp_path / existing).mkdir(parents=True, exist_ok=True)
    before = everything_below(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(Path("a/b/c") if relative else tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c" / LOCK).exists()
    folder.abandon()
    assert everything_below(tmp_path) == before
    assert tmp_path.is_dir()


def test_abandoning_a_folder_keeps_what_others_put_there(tmp_path):
    folder = RunFolder(tmp_path / "a/b")
    (tmp_path / "a/other").write_text("")
    folder.abandon()
    assert everything_below(tmp_path) == {tmp_path / "a", tmp_path / "a/other"}


def test_the_working_directory_can_be_locked_and_stays(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    RunFolder(Path()).abandon()
    assert everything_below(tmp_path) == {tmp_path / "empty"}


def test_a_folder_is_locked_once(tmp_path):
    first = RunFolder(tmp_path / "run")
    with pytest.raises(InputError, match="another run is using this folder"):
        RunFolder(tmp_path / "run")
    assert first._is_ours()
    first.release()
    assert not (tmp_path / "run" / LOCK).exists()
    RunFolder(tmp_path / "run").release()


def test_a_lock_that_its_owner_has_removed_is_worth_nothing(tmp_path, monkeypatch):
    """The owner ends between the moment that another run opens its lock file and the moment that it locks it."""
    owner = RunFolder(tmp_path / "run")
    open_file, opened = os.open, []

    def open_and_let_the_owner_end(*arguments):
        descriptor = open_file(*arguments)
        opened.append(descriptor)
        if len(opened) == 1:
            owner.release()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_let_the_owner_end)
    second = RunFolder(tmp_path / "run")
    monkeypatch.undo()
    assert len(opened) == 2
    assert second._is_ours()
    with pytest.raises(InputError, match="another run is using this folder"):
        RunFolder(tmp_path / "run")


def test_fresh_folders_number_themselves(tmp_path):
    folders = [RunFolder(tmp_path / "outputs/now", fresh=True) for _ in range(3)]
    assert [folder.path.name for folder in folders] == ["now", "now_2", "now_3"]
    for folder in reversed(folders):
        folder.abandon()
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("name", ["results.json", "config.yaml"])
def test_a_used_folder_is_refused_and_left_alone(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="it holds"):
        RunFolder(tmp_path)
    assert everything_below(tmp_path) == {tmp_path / name}
    assert (tmp_path / name).read_text() == "{}"


@pytest.mark.parametrize("content", ["", "[]", "{}", "9" * 5000, "[" * 100_000])
def test_broken_results_are_named_on_resume(tmp_path, content):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(InputError, match=r"results\.json does not say how the run ended"):
        RunFolder(tmp_path, resumed=True)
    assert (tmp_path / "results.json").read_text() == content


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path, options, monkeypatch):
    """The disk is full when the config is written."""
    results = RunFolder(tmp_path / "new/run")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("normscope.reporting.run_folder.write_file", full)
    with pytest.raises(InputError, match="No space left on device"):
        results.begin(plain(options))
    results.abandon()
    assert not everything_below(tmp_path)


def test_leftovers_of_killed_writes_are_removed_on_resume(tmp_path, options):
    results = RunFolder(tmp_path / "run")
    results.begin(plain(options))
    results.release()
    leftovers = [".unfinished-1", "tables/.unfinished-2", "figures/.unfinished-3"]
    for name in [*leftovers, ".mine", "checkpoint.safetensors"]:
        (tmp_path / "run" / name).write_text("half")
    resumed = RunFolder(tmp_path / "run", resumed=True)
    assert (tmp_path / "run" / leftovers[0]).exists(), "nothing is removed before the run goes on"
    resumed.begin(plain(options))
    resumed.release()
    assert {path.name for path in (tmp_path / "run").rglob(".*")} == {".mine"}
    assert (tmp_path / "run/checkpoint.safetensors").read_text() == "half"


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replaced_by_a_file(folder: Path) -> None:
    moved(folder)
    folder.write_text("")


def taken_by_another_run(folder: Path) -> None:
    moved(folder)
    RunFolder(folder)


@pytest.mark.parametrize("disturb", [moved, replaced_by_a_file, taken_by_another_run])
def test_a_folder_that_is_lost_during_a_run_is_bad_input_at_every_write(tmp_path, options, disturb):
    import pandas as pd

    results = RunFolder(tmp_path / "run")
    results.begin(plain(options))
    disturb(tmp_path / "run")
    after = everything_below(tmp_path)
    table = pd.DataFrame({"a": [1]})
    for write in (
        lambda: results.save(Result({"a": table})),
        lambda: results.write("report.html", b""),
        lambda: results.write("checkpoint.safetensors", b""),
        lambda: results.save_facts(Result()),
    ):
        with pytest.raises(InputError, match="moved or deleted") as caught:
            write()
        assert "\n" not in str(caught.value)
    results.release()
    assert everything_below(tmp_path) == after


def test_a_table_that_the_system_refuses_is_bad_input(tmp_path, options, monkeypatch):
    import pandas as pd
    from pyarrow import parquet

    results = RunFolder(tmp_path / "run")
    results.begin(plain(options))

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", refuse)
    with pytest.raises(InputError, match=r"cannot be written to: .*Permission denied"):
        results.save(Result({"a": pd.DataFrame({"a": [1]})}))


def test_a_run_takes_no_lock_in_the_users_checkout(tmp_path, monkeypatch):
    """A killed run would leave it behind, and `git commit` would then be refused."""
    commands = []
    output = "# branch.oid 0123\n# branch.head main\n"
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(facts, "CHECKOUT", tmp_path)
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: commands.append(command) or SimpleNamespace(stdout=output)
    )
    assert facts.git_commit.__wrapped__() == "0123"
    assert all("--no-optional-locks" in command for command in commands)
    assert any("status" in command for command in commands)
    output += "1 .M N... 100644 100644 100644 0123 0123 README.md\n"
    assert facts.git_commit.__wrapped__() == "0123+"
    output = "# branch.oid (initial)\n# branch.head main\n"
    assert facts.git_commit.__wrapped__() is None
