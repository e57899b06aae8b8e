"""Runs that are stopped while interventions run: what was done by then is not done again."""

import json

import pytest

from normscope.analyses.attribution import AttributionAnalysis
from normscope.analyses.feedforward import FeedForwardAnalysis
from normscope.analyses.score import ScoreAnalysis
from normscope.analyses.sinks import SinksAnalysis
from normscope.errors import Terminated
from normscope.running.checkpoint import CHECKPOINT, Checkpoint
from normscope.running.loop import Run
from tests.end_to_end.shell import run_here

GIVEN = [
    "analysis=[mixing,attribution,score,sinks,feedforward]",
    *("device=cpu", "device.batch_tokens=256", "tracking=disabled", "dataset.limit=8", "report.examples=1"),
    *("analysis.attribution.sequences=2", "analysis.attribution.methods=[rollout,alti]"),
    *("analysis.score.controls=1", "analysis.score.sequences=3", "analysis.score.intervention_sequences=2"),
    *("analysis.sinks.length=16", "analysis.sinks.sequences=2", "analysis.sinks.ablation_sequences=2"),
    "analysis.feedforward.sequences=2",
]


FEW = [
    "analysis=[score,sinks]",
    *(given for given in GIVEN[1:] if not given.startswith(("analysis.att", "analysis.feed"))),
]


def files(folder):
    """What a completed run has kept, without its facts."""
    kept = json.loads((folder / "results.json").read_text())
    del kept["facts"]
    tables = {
        path.name: path.read_bytes() for part in ("tables", "figures") for path in (folder / part).glob("*.parquet")
    }
    return kept, tables | {"maps": (folder / "maps.parquet").read_bytes()}


def refusing(monkeypatch, *analyses):
    """Analyses whose interventions must not run."""
    for analysis in analyses:
        monkeypatch.setattr(analysis, "intervene", _refused)


def _refused(*_):
    raise AssertionError


def whole(capsys, monkeypatch, tmp_path, saved_model, given):
    folder = tmp_path / "whole"
    outcome = run_here(capsys, monkeypatch, f"model.name={saved_model}", *given, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    return folder


@pytest.mark.slow
@pytest.mark.reports
def test_a_run_that_is_stopped_during_interventions_goes_on_from_there(capsys, monkeypatch, tmp_path, saved_model):
    """Three times: before any has ended, after two analyses, and after all of them."""
    uninterrupted = whole(capsys, monkeypatch, tmp_path, saved_model, GIVEN)
    folder = tmp_path / "run"
    again = [f"resume={folder}", "tracking=disabled"]

    def stopped(given, analysis, name="intervene"):
        with monkeypatch.context() as patch:

            def stop(*_):
                raise Terminated

            patch.setattr(analysis, name, stop)
            outcome = run_here(capsys, patch, *given)
        assert (outcome.status, outcome.err.splitlines()[-1]) == (
            143,
            f"interrupted; to continue: python run.py tracking=disabled resume={folder}",
        )
        assert (folder / CHECKPOINT).exists()

    stopped([f"model.name={saved_model}", *GIVEN, f"output_dir={folder}"], FeedForwardAnalysis)
    stopped(again, SinksAnalysis)
    refusing(monkeypatch, FeedForwardAnalysis, ScoreAnalysis)
    stopped(again, Checkpoint, "save_part")  # those of sinks have run, and are not saved
    stopped(again, AttributionAnalysis)
    refusing(monkeypatch, SinksAnalysis)
    outcome = run_here(capsys, monkeypatch, *again)
    assert outcome.status == 0, outcome.err
    assert "resuming after" in outcome.err
    (now, now_files), (before, before_files) = files(folder), files(uninterrupted)
    assert now == before
    assert [name for name, content in before_files.items() if now_files[name] != content] == []
    assert (folder / "report.html").exists()
    assert not [*folder.glob("checkpoint*")]


@pytest.mark.slow
def test_what_an_earlier_pass_led_to_is_not_taken_for_the_results_of_another(
    capsys, monkeypatch, tmp_path, saved_model
):
    """The checkpoint may have been removed to start over, or the results of an analysis be damaged."""
    uninterrupted = whole(capsys, monkeypatch, tmp_path, saved_model, FEW)
    folder = tmp_path / "run"
    given = [f"model.name={saved_model}", *FEW, "report.enabled=false", f"output_dir={folder}"]

    def stop(*_):
        raise Terminated

    with monkeypatch.context() as patch:
        patch.setattr(SinksAnalysis, "intervene", stop)
        assert run_here(capsys, patch, *given).status == 143
    results = folder / "checkpoint/score/results.json"
    results.write_text(results.read_text()[:-20])
    (folder / CHECKPOINT).unlink()
    accumulated = []
    monkeypatch.setattr(Run, "merge", lambda run, merge=Run.merge: (accumulated.append(results.exists()), merge(run)))
    assert run_here(capsys, monkeypatch, f"resume={folder}", "tracking=disabled").status == 0
    assert accumulated == [False]
    kept, again = (json.loads((place / "results.json").read_text()) for place in (uninterrupted, folder))
    assert again["metrics"] == kept["metrics"]
