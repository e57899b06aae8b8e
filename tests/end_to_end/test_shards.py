"""A corpus analysed in parts by runs that never meet, and merged."""

import itertools
import shutil

import pandas as pd
import pytest

from normscope.running.shards import FILE
from tests.end_to_end.disturbed import SMALL, results
from tests.end_to_end.shell import run_here
from tests.end_to_end.test_trust import assert_same_numbers, tables


@pytest.fixture(scope="module")
def given(saved_model):
    return [*SMALL, f"model.name={saved_model}"]


@pytest.fixture
def command(capsys, monkeypatch):
    """A command that succeeds; returns what it says."""

    def command(*arguments: str) -> str:
        outcome = run_here(capsys, monkeypatch, *arguments)
        assert outcome.status == 0, outcome.err
        return outcome.err

    return command


@pytest.fixture
def refused(capsys, monkeypatch):
    """A command that is refused; returns its one line."""

    def refused(*arguments: str) -> str:
        outcome = run_here(capsys, monkeypatch, *arguments)
        assert outcome.status == 2, outcome.err
        lines = [line for line in outcome.err.splitlines() if line.startswith("normscope: ")]
        assert len(lines) == 1, outcome.err
        return lines[0]

    return refused


@pytest.fixture
def shards(command, given, tmp_path):
    """The run folders of three shards."""
    folders = [tmp_path / f"shard {number}" for number in range(3)]
    for number, folder in enumerate(folders):
        said = command(*given, f"shard={number}", "shards=3", f"output_dir='{folder}'")
        assert "normscope merge RUN" in said
    return folders


def test_merged_shards_are_the_whole_run_in_any_order(command, shards, undisturbed, tmp_path):
    for number, folder in enumerate(shards):
        assert results(folder)["status"] == "shard"
        assert (folder / FILE).is_file()
        assert not list((folder / "tables").iterdir()), number
    merged = []
    for order in itertools.islice(itertools.permutations(map(str, shards)), 0, None, 3):
        folder = tmp_path / f"merged {len(merged)}"
        command("merge", *order, f"output_dir='{folder}'")
        merged.append(folder)
        assert_same_numbers(folder, undisturbed)
    assert tables(merged[0]) == tables(merged[1])


def test_sets_that_are_not_whole_are_refused_by_name(refused, command, shards, given, tmp_path):
    first, second, third = map(str, shards)
    assert "expected all 3 shards; missing: 2" in refused("merge", first, second)
    copy = tmp_path / "copy"
    shutil.copytree(shards[1], copy)
    assert f"{second} and {copy} are both shard 1 of 3" in refused("merge", first, second, str(copy), third)
    other = tmp_path / "other"
    command(*given, "shard=0", "shards=2", f"output_dir={other}")
    assert f"{other} is one of 2 shards" in refused("merge", str(other), second)
    command(*given, "shard=2", "shards=3", "seed=5", f"output_dir={tmp_path / 'seed'}")
    assert "seed is 5 in this shard, but 0 in the run that merges" in refused(
        "merge", first, second, str(tmp_path / "seed")
    )
    content = (shards[2] / FILE).read_bytes()
    (shards[2] / FILE).write_bytes(content[:-50])
    assert "cannot be read" in refused("merge", first, second, third)
    (shards[2] / FILE).unlink()
    assert f"if it was stopped, continue it with resume={third}" in refused("merge", first, second, third)
    assert "expected the folder of a run with shard=" in refused("merge", first, str(tmp_path))
    assert "leave layers=[1] out" in refused("merge", first, second, third, "layers=[1]")
    assert "the run is already complete" in refused(f"resume={first}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shard=3", "shards=3"], "shard=3: expected a number from 0 to 2"),
        (["shards=3"], "shards=3: expected shard as well, from 0 to 2"),
        (["shards=0"], "shards=0: expected a whole number of at least 1"),
        (["merge"], "merge: expected the folders of the runs of all shards"),
        (["merge", "/nowhere"], "merge=/nowhere: expected the folder of a run"),
        (["merge=[]"], "merge=[]: expected the folders of all shards"),
        (["merge=[/a]", "resume=/b"], "expected the folders of all shards, without resume and reproduce"),
    ],
)
def test_bad_shards_give_one_line(refused, arguments, message):
    assert message in refused(*arguments)


def test_a_sweep_over_shards_merges_them(command, given, undisturbed, tmp_path):
    """A small corpus has fewer batches than shards: some shards are empty."""
    folder = tmp_path / "sweep"
    quick = [*given, "analysis=mixing", f"output_dir={folder}"]
    said = command("-m", *quick, "shard=range(0,2)", "shards=2")
    assert "comparison in" in said
    merged = results(folder / "merged")
    assert merged["status"] == "completed"
    whole = results(undisturbed)["metrics"]
    assert merged["metrics"] == pytest.approx({name: whole[name] for name in merged["metrics"]}, rel=1e-9)
    assert set(pd.read_parquet(folder / "comparison.parquet")["run"]) == {"merged"}
    assert "shards: 1" in (folder / "merged/config.yaml").read_text()


def test_a_shard_that_stopped_is_named_at_the_end_of_a_sweep(command, given, tmp_path):
    said = command("-m", *given, "analysis=mixing", f"output_dir={tmp_path / 'sweep'}", "shard=0,2", "shards=4")
    assert "shards 1, 3 of 4 are missing" in said
    assert not (tmp_path / "sweep/merged").exists()


def test_a_shard_without_a_batch_is_merged_too(command, given, tmp_path):
    few = [*given, "analysis=mixing", "dataset.limit=2"]
    folders = [str(tmp_path / str(number)) for number in range(4)]
    for number, folder in enumerate(folders):
        command(*few, f"shard={number}", "shards=4", f"output_dir={folder}")
    command("merge", *folders, f"output_dir={tmp_path / 'merged'}")
    command(*few, f"output_dir={tmp_path / 'whole'}")
    for place in ("merged", "whole"):
        assert results(tmp_path / place)["provenance"]["sequences"] == 2
    assert results(tmp_path / "merged")["metrics"] == pytest.approx(results(tmp_path / "whole")["metrics"], rel=1e-9)
