"""Sweeps with bad input, or whose folder holds damaged files."""

import json
import shutil

import pytest

from normscope.reporting.comparison import runs
from tests.end_to_end.shell import run_here, run_once

BROKEN_RECORDS = [b"\xff\n", b"[\n", b"3\n", b'{"job": "a"}\n', b'{"job": [], "error": "b"}\n', b"[" * 100_000]


def sweep(capsys, monkeypatch, folder, *arguments):
    common = ("tracking=disabled", "device=cpu", "report.enabled=false", "dataset.limit=2")
    return run_here(capsys, monkeypatch, "-m", *arguments, *common, f"output_dir={folder}")


@pytest.fixture(scope="module")
def completed(saved_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "0"
    outcome = run_once(f"model.name={saved_model}", "dataset.limit=2", "tracking=disabled", f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    return folder


@pytest.mark.slow
def test_bad_input_before_the_first_job_leaves_no_folder(capsys, monkeypatch, tmp_path):
    outcome = sweep(capsys, monkeypatch, tmp_path / "parent/sweep", "seed=1,x")
    assert (outcome.status, outcome.err.splitlines()) == (
        2,
        ["normscope: seed=x: expected a whole number from 0 to 2^63 − 1"],
    )
    assert not list(tmp_path.iterdir())


def test_bad_input_before_the_first_job_leaves_earlier_files(capsys, monkeypatch, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    record = json.dumps({"job": "seed=3", "error": "an earlier sweep's"})
    (tmp_path / runs.FAILURES).write_text(record + "\n")
    outcome = sweep(capsys, monkeypatch, tmp_path, "seed=1,x")
    assert outcome.status == 2
    assert "normscope: seed=x: " in outcome.err
    assert "jobs failed" not in outcome.err, "none of this sweep's has"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / runs.FAILURES).read_text() == record + "\n"


@pytest.mark.spread(2)
@pytest.mark.parametrize("content", BROKEN_RECORDS)
def test_a_damaged_record_of_failures_is_refused_before_the_first_job(capsys, monkeypatch, tmp_path, content):
    (tmp_path / runs.FAILURES).write_bytes(content)
    outcome = sweep(capsys, monkeypatch, tmp_path, "seed=1,2")
    (line,) = outcome.err.splitlines()
    assert outcome.status == 2
    assert line.startswith(f"normscope: {tmp_path / runs.FAILURES}")
    assert [path.name for path in tmp_path.iterdir()] == [runs.FAILURES]


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"\xff", b'{"status": "completed"}'])
def test_damaged_results_in_the_folder_of_a_sweep(capsys, monkeypatch, tmp_path, content):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/results.json").write_bytes(content)
    outcome = sweep(capsys, monkeypatch, tmp_path, "layers=[99]")
    assert outcome.status == 1
    assert "1 of 1 jobs failed" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_a_comparison_that_cannot_be_made_says_why(capsys, monkeypatch, tmp_path, completed, saved_model):
    shutil.copytree(completed, tmp_path / "earlier")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/results.json").write_text("3")
    outcome = sweep(capsys, monkeypatch, tmp_path, f"model.name={saved_model}", "layers=[99]")
    assert outcome.status == 2
    assert f"normscope: {tmp_path / 'other/results.json'}: expected a mapping, got 3" in outcome.err
    assert "1 of 2 jobs failed" in outcome.err


def test_overrides_on_both_sides_of_a_flag(capsys, monkeypatch):
    outcome = run_here(capsys, monkeypatch, "seed=1", "-m", "layers=[1]", "device=cpu")
    assert outcome.status == 2
    assert outcome.err == (
        "normscope: unrecognized arguments: layers=[1] device=cpu; put all overrides before or after options such as -m; "
        "see python run.py --help\n"
    )
