"""A corpus analysed in parts by runs that never meet, and merged."""

import itertools
import json
import random
import shutil
import signal

import pandas as pd
import pytest
import torch

from normscope.data import text_files
from normscope.data.examples import CorpusCounts
from normscope.errors import InputError
from normscope.models.loading import OpenedModel
from normscope.running.checkpoint import Position, SavedShare
from normscope.running.shards import complete_set
from normscope.running.shares import SHARD, Share
from tests.end_to_end import forks
from tests.end_to_end.disturbed import SMALL, dying, results
from tests.end_to_end.shell import run_here, run_once
from tests.end_to_end.test_trust import assert_same_numbers, saved_batches, tables


@pytest.fixture(scope="module")
def given(saved_model, tmp_path_factory):
    """The options of shards, with what they need of the whole corpus."""
    options = [*SMALL, "analysis=[mixing,frequency]", f"model.name={saved_model}"]
    folder = tmp_path_factory.mktemp("given") / "prepared"
    outcome = run_once("prepare", *options, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    assert f"add prepared={folder} to every shard" in outcome.err
    assert results(folder)["status"] == "prepared"
    return [*options, f"prepared={folder}"]


@pytest.fixture(scope="module")
def whole(given, tmp_path_factory):
    """The run of the whole corpus."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run_once(*given[:-1], f"output_dir={folder}").status == 0
    return folder


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


@pytest.fixture(scope="module")
def shards(given, tmp_path_factory):
    """The run folders of three shards."""
    place = tmp_path_factory.mktemp("shards")
    folders = [place / f"shard {number}" for number in range(3)]
    for number, folder in enumerate(folders):
        outcome = run_once(*given, f"shard={number}", "shards=3", f"output_dir='{folder}'")
        assert outcome.status == 0, outcome.err
        assert "normscope merge RUN" in outcome.err
    return folders


def test_merged_shards_are_the_whole_run_in_any_order(command, shards, whole, tmp_path):
    for number, folder in enumerate(shards):
        assert results(folder)["status"] == "shard"
        assert (folder / SHARD).is_file()
        assert not list((folder / "tables").iterdir()), number
    merged = []
    for order in itertools.islice(itertools.permutations(map(str, shards)), 0, None, 3):
        folder = tmp_path / f"merged {len(merged)}"
        command("merge", *order, f"output_dir='{folder}'")
        merged.append(folder)
        assert_same_numbers(folder, whole)
    assert tables(merged[0]) == tables(merged[1])


@pytest.mark.slow
def test_seven_shards_of_which_two_are_killed_are_the_whole_run(command, given, whole, tmp_path):
    """One is resumed after its first batch, the other is run again elsewhere; all are merged in three random orders."""
    dies_before = {2: 2, 5: 1}
    folders = {number: tmp_path / str(number) for number in range(7)}
    shard = {number: [f"shard={number}", "shards=7", f"output_dir={folder}"] for number, folder in folders.items()}
    for number in folders:
        dies = {"DYING": "0", "DIES": str(dies_before.get(number, 0))}
        outcome = forks.run(*given, "checkpoint.every_seconds=0", *shard[number], program=dying(tmp_path), **dies)
        assert outcome.status == (-signal.SIGKILL if number in dies_before else 0), (number, outcome.err)
    assert saved_batches(folders[2], SHARD) > 2
    command(f"resume={folders[2]}")
    folders[5] = tmp_path / "again"
    command(*given, "shard=5", "shards=7", f"output_dir={folders[5]}")
    merged, order = [], list(map(str, folders.values()))
    for number in range(3):
        random.Random(number).shuffle(order)
        merged.append(tmp_path / f"merged {number}")
        command("merge", *order, f"output_dir='{merged[-1]}'")
        assert_same_numbers(merged[-1], whole)
    assert tables(merged[0]) == tables(merged[1]) == tables(merged[2])


@pytest.fixture
def parts(tmp_path):
    """Three folders with files of shards that hold no state."""
    folders = [tmp_path / f"part {number}" for number in range(3)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_shard(folder, number)
    return folders


NOTHING = CorpusCounts()


def write_shard(folder, number, shards=3, counts=NOTHING, **identity):
    saved = SavedShare(Share(number, shards), {"seed": 0} | identity, Position(), counts)
    (folder / SHARD).write_bytes(saved.packed({"state": torch.zeros(9)}))


def test_a_complete_set_is_put_in_order(parts):
    assert complete_set(parts[::-1]) == parts


def test_sets_that_are_not_whole_are_refused_by_name(parts, tmp_path):
    first, second, third = parts
    other = tmp_path / "other"
    other.mkdir()

    def refused(*folders) -> str:
        with pytest.raises(InputError) as error:
            complete_set(folders)
        return str(error.value)

    assert "expected all 3 shards; missing: 2" in refused(first, second)
    write_shard(other, 1)
    assert f"{second} and {other} are both shard 1 of 3" in refused(first, second, other, third)
    assert f"{first} and {first} are both shard 0 of 3" in refused(first, second, first)
    write_shard(other, 10**9 - 1, shards=10**9)
    assert f"expected all 1000000000 shards; missing: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and {10**9 - 11:,} more" in refused(
        other
    )
    write_shard(other, 0, shards=2)
    assert f"{other} is one of 2 shards and {second} one of 3" in refused(other, second)
    write_shard(other, 2, seed=5)
    assert f"seed is 5 in this shard, but 0 in {first}" in refused(first, second, other)
    write_shard(other, 2, counts=None)  # still being read
    (other / "config.yaml").write_text("shard: 2\nshards: 3\n")
    assert f"if it was stopped, continue it with resume={other}" in refused(first, second, other)
    (other / "config.yaml").unlink()
    (other / SHARD).write_bytes((third / SHARD).read_bytes()[:40])
    assert "cannot be read" in refused(first, second, other)
    (other / SHARD).unlink()
    assert "expected the folder of a run with shard=" in refused(first, other)
    (other / "config.yaml").write_text("shard: 2\nshards: 3\n")
    assert f"if it was stopped, continue it with resume={other}" in refused(first, second, other)
    (other / "results.json").write_text('{"status": "shard", "metrics": {}, "provenance": {}}')
    assert f"merge={other}: its {SHARD} is missing; run the shard again" in refused(first, second, other)
    for whole in ("shard: null\nshards: 1\n", "seed: 0\n"):
        (other / "config.yaml").write_text(whole)
        assert "shard=… shards=…, got a run of the whole corpus" in refused(first, second, other)


def test_merging_is_refused_before_a_model_is_loaded(monkeypatch, refused, shards):
    monkeypatch.setattr(OpenedModel, "load", None)
    first, second, third = map(str, shards)
    assert "expected all 3 shards; missing: 2" in refused("merge", first, second)
    assert "leave layers=[1] out" in refused("merge", first, second, third, "layers=[1]")
    assert "the run is already complete" in refused(f"resume={first}")


def test_shards_need_what_is_prepared(refused, given, tmp_path):
    *options, prepared = given
    shard = ["shard=0", "shards=3", f"output_dir={tmp_path / 'run'}"]
    said = refused(*options, *shard)
    assert (
        "analysis=frequency needs the token counts of the whole corpus: make them once with `normscope prepare`" in said
    )
    assert "dataset.limit was 24 there and is 23 now" in refused(*options, prepared, *shard, "dataset.limit=23")
    assert "expected the folder that `normscope prepare` has written" in refused(*options, "prepared=/nowhere", *shard)
    assert "prepare=true: expected no shard" in refused("prepare", *options, *shard)
    nothing = refused("prepare", *options, "analysis=mixing", f"output_dir={tmp_path / 'run'}")
    assert "the enabled analyses need nothing from the whole corpus" in nothing
    assert not (tmp_path / "run").exists()


def test_a_damaged_state_is_named(refused, shards, tmp_path):
    for folder in shards:
        shutil.copytree(folder, tmp_path / folder.name)
    damaged = tmp_path / shards[1].name
    content = bytearray((damaged / SHARD).read_bytes())
    content[-50] ^= 1
    (damaged / SHARD).write_bytes(content)
    folders = [str(tmp_path / folder.name) for folder in shards]
    said = refused("merge", *folders, f"output_dir={tmp_path / 'merged'}")
    assert f"{damaged / SHARD}: cannot be read: the checksum does not match" in said
    assert not (tmp_path / "merged").exists()


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


def test_a_sweep_over_shards_merges_them(command, given, whole, tmp_path):
    """A small corpus has fewer batches than shards: some shards are empty."""
    folder = tmp_path / "sweep"
    quick = [*given, "analysis=mixing"]
    said = command("-m", *quick, f"output_dir={folder}", "shard=range(0,2)", "shards=2")
    assert "comparison in" in said
    merged = results(folder / "merged")
    assert merged["status"] == "completed"
    expected = {name: value for name, value in results(whole)["metrics"].items() if name.startswith("mixing/")}
    assert merged["metrics"] == pytest.approx(expected, rel=1e-9)
    assert set(pd.read_parquet(folder / "comparison.parquet")["run"]) == {"merged"}
    assert "shards: 1" in (folder / "merged/config.yaml").read_text()


def test_a_shard_that_stopped_is_named_at_the_end_of_a_sweep(command, given, tmp_path):
    said = command("-m", *given, "analysis=mixing", f"output_dir={tmp_path / 'sweep'}", "shard=0,2", "shards=4")
    assert "shards 1, 3 of 4 are missing" in said
    assert not (tmp_path / "sweep/merged").exists()


@pytest.mark.slow
def test_a_shard_without_a_batch_is_merged_too(command, given, tmp_path):
    few = [*given, "analysis=mixing", "dataset.limit=2", "prepared=null"]
    folders = [str(tmp_path / str(number)) for number in range(4)]
    for number, folder in enumerate(folders):
        command(*few, f"shard={number}", "shards=4", f"output_dir={folder}")
    command("merge", *folders, f"output_dir={tmp_path / 'merged'}")
    command(*few, f"output_dir={tmp_path / 'whole'}")
    for place in ("merged", "whole"):
        assert results(tmp_path / place)["provenance"]["sequences"] == 2
    assert results(tmp_path / "merged")["metrics"] == pytest.approx(results(tmp_path / "whole")["metrics"], rel=1e-9)


@pytest.mark.slow
def test_shards_that_read_parts_of_a_file_are_the_whole_run(command, monkeypatch, saved_model, tmp_path):
    monkeypatch.setattr(text_files, "PART_BYTES", 700)
    rows = [{"text": f"sentence {number} . " * (1 + number % 9)} for number in range(60)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    quick = [f"model.name={saved_model}", "dataset=text", f"dataset.path={tmp_path / 'corpus.jsonl'}", "device=cpu"]
    quick += ["analysis=mixing", "tracking=disabled", "report.enabled=false"]
    folders = [str(tmp_path / str(number)) for number in range(3)]
    for number, folder in enumerate(folders):
        command(*quick, f"shard={number}", "shards=3", f"output_dir={folder}")
    command("merge", *folders, f"output_dir={tmp_path / 'merged'}")
    command(*quick, f"output_dir={tmp_path / 'whole'}")
    merged, whole = results(tmp_path / "merged"), results(tmp_path / "whole")
    assert merged["provenance"]["tokens_by_category"] == whole["provenance"]["tokens_by_category"]
    assert merged["provenance"]["sequences"] == 60
    assert merged["metrics"] == pytest.approx(whole["metrics"], rel=1e-9)
