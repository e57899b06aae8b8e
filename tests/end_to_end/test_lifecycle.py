"""A run from claiming its folder to its final message: what can stop it, and what it leaves behind."""

import os
import shutil
import signal

import pytest
import yaml

from normscope.errors import InputError
from normscope.models.load.loading import OpenedModel
from normscope.reporting.run_folder import LOCK, RunFolder
from normscope.running import pipeline
from normscope.running.ranks import process_group
from tests.end_to_end import forks
from tests.end_to_end.disturbed import results, torchrun
from tests.end_to_end.shell import ROOT, run_here

QUICK = ["tracking=disabled", "report.enabled=false", "dataset.limit=3", "device=cpu"]


@pytest.mark.spread(1)
@pytest.mark.parametrize("given", [[], ["output_dir={}"], ["output_dir={}/x/y"]])
def test_bad_input_in_an_empty_directory_leaves_it_as_it_was(capsys, monkeypatch, tmp_path, saved_model, given):
    here = tmp_path / "a/b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    arguments = [argument.format(here) for argument in given]
    outcome = run_here(capsys, monkeypatch, f"model.name={saved_model}", "layers=[99]", *QUICK, *arguments)
    assert outcome.status == 2
    assert "expected all or numbers from 1 to 3" in outcome.err
    assert list(tmp_path.rglob("*")) == [tmp_path / "a", here]


@pytest.mark.slow
def test_the_folder_is_claimed_before_the_model_is_loaded(capsys, monkeypatch, tmp_path, saved_model):
    load, claimed = OpenedModel.load, []

    def load_and_look(*arguments, **keywords):
        claimed.append((tmp_path / "run" / LOCK).exists())
        with pytest.raises(InputError, match="another run is using this folder"):
            RunFolder(tmp_path / "run")
        return load(*arguments, **keywords)

    monkeypatch.setattr(OpenedModel, "load", load_and_look)
    arguments = [f"model.name={saved_model}", *QUICK, f"output_dir={tmp_path / 'run'}"]
    assert run_here(capsys, monkeypatch, *arguments).status == 0
    assert claimed == [True]
    assert results(tmp_path / "run")["status"] == "completed"


@pytest.fixture(scope="module")
def finished(tmp_path_factory, saved_model):
    """A completed run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["run.py", f"model.name={saved_model}", *QUICK, f"output_dir={folder}"])
        import runpy

        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
    assert not ended.value.code
    return folder


@pytest.fixture
def interrupted(finished, tmp_path):
    """A run that was interrupted before its first checkpoint."""
    folder = tmp_path / "interrupted"
    shutil.copytree(finished, folder)
    (folder / "results.json").write_text('{"schema": 1, "status": "interrupted", "metrics": {}, "facts": {}}')
    return folder


@pytest.mark.slow
def test_keys_that_may_differ_are_obeyed_and_others_refused(capsys, monkeypatch, finished, tmp_path):
    given = [f"reproduce={finished}", f"output_dir={tmp_path / 'again'}", "checkpoint.every_seconds=7"]
    outcome = run_here(capsys, monkeypatch, *given, "tracking=offline", "tracking.project=mine", "report.enabled=true")
    assert outcome.status == 0, outcome.err
    assert "numbers are the same" in outcome.out
    assert (tmp_path / "again/report.html").exists()
    assert list((tmp_path / "again/wandb").glob("offline-run-*"))
    config = yaml.safe_load((tmp_path / "again/config.yaml").read_text())
    assert config["tracking"]["project"] == "mine"
    assert config["checkpoint"]["every_seconds"] == 7
    assert config["dataset"]["limit"] == 3
    for key in ("device.batch_tokens=99", "analysis=norms"):
        refused = run_here(capsys, monkeypatch, f"reproduce={finished}", f"output_dir={tmp_path / 'b'}", key)
        assert refused.status == 2, key
        assert key.partition("=")[0] in refused.err
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_resume_obeys_and_refuses_likewise(capsys, monkeypatch, interrupted, tmp_path):
    before = (interrupted / "results.json").read_bytes()
    for given, said in (
        ([f"output_dir={tmp_path / 'other'}"], "leave output_dir out"),
        ([f"reproduce={interrupted}"], "are both set"),
        (["dataset.limit=null"], "dataset.limit was 3 in that run and is None now"),
    ):
        refused = run_here(capsys, monkeypatch, f"resume={interrupted}", *given)
        assert (refused.status, said in refused.err) == (2, True), refused.err
    assert (interrupted / "results.json").read_bytes() == before
    assert run_here(capsys, monkeypatch, f"resume={interrupted}", "report.enabled=true").status == 0
    assert (interrupted / "report.html").exists()
    assert results(interrupted)["status"] == "completed"


@pytest.mark.slow
def test_a_damaged_checkpoint_leaves_the_run_as_it_was(capsys, monkeypatch, interrupted):
    (interrupted / "checkpoint.safetensors").write_bytes(b"damaged")
    (interrupted / ".unfinished-left").write_bytes(b"half")
    before = {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()}
    refused = run_here(capsys, monkeypatch, f"resume={interrupted}")
    assert refused.status == 2
    assert "the checkpoint cannot be read" in refused.err
    assert {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_folder_that_is_deleted_during_the_run_gives_one_line(capsys, monkeypatch, tmp_path, saved_model):
    accumulate = pipeline.accumulate

    def accumulate_and_delete(*arguments):
        accumulate(*arguments)
        shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(pipeline, "accumulate", accumulate_and_delete)
    arguments = [f"model.name={saved_model}", *QUICK, "tracking=offline", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *arguments)
    assert outcome.status == 2
    assert outcome.err.count("normscope: ") == 1
    assert "the folder was moved or deleted" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("dying", [0, 1])
@pytest.mark.spread(1)
def test_a_process_that_dies_ends_the_others(monkeypatch, tmp_path, saved_model, dying):
    accumulate = pipeline.accumulate

    def die(*arguments):
        if os.environ["RANK"] == str(dying):
            os.kill(os.getpid(), signal.SIGKILL)
        accumulate(*arguments)

    monkeypatch.setattr(pipeline, "accumulate", die)
    arguments = [f"model.name={saved_model}", *QUICK, f"output_dir={tmp_path / 'run'}"]
    outcomes = forks.run_several(2, *arguments)
    assert outcomes[dying].status == -signal.SIGKILL
    survivor = outcomes[1 - dying]
    assert survivor.status == 2, survivor.err
    assert "ended before it sent its results" in survivor.err
    if dying == 0:  # as a run of one process that is killed
        assert not (tmp_path / "run/results.json").exists()
        return
    assert results(tmp_path / "run")["status"] == "failed"
    assert results(tmp_path / "run")["error"]


@pytest.mark.slow
def test_torchrun_reports_the_status_of_bad_input(tmp_path, saved_model):
    outcome = torchrun(2, f"model.name={saved_model}", *QUICK, "layers=[99]", f"output_dir={tmp_path / 'new/run'}")
    assert outcome.stderr.count("expected all or numbers from 1 to 3") == 1, outcome.stderr
    assert "exitcode  : 2" in outcome.stderr
    assert "exitcode  : 1 " not in outcome.stderr
    assert "Signal" not in outcome.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("size", ["abc", "0", "-1", "", "9" * 5000])
def test_an_invalid_world_size_is_bad_input(monkeypatch, size):
    monkeypatch.setenv("WORLD_SIZE", size)
    expected = f"WORLD_SIZE={size}: the other processes cannot be reached" if len(size) < 9 else "WORLD_SIZE=999"
    with pytest.raises(InputError, match=f"^{expected}"), process_group():
        pass


@pytest.mark.parametrize("rank", ["x", ""])
def test_an_invalid_rank_is_bad_input(monkeypatch, rank):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(InputError, match=r"^WORLD_SIZE=2: .*; start with torchrun, or unset it"), process_group():
        pass
