"""Views are made of results that are on disk: at any time, and none of them can lose a number."""

import json
import shutil
from pathlib import Path

import pytest

import normscope
from normscope.reporting import views
from normscope.reporting.tracker import Tracker
from tests.end_to_end.shell import run_here, run_once

FEW = ("analysis=[mixing,norms]", "dataset.limit=3", "device=cpu", "tracking=disabled", "report.examples=1")


@pytest.fixture(scope="module")
def finished(saved_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("views") / "run"
    outcome = run_once(f"model.name={saved_model}", *FEW, "report.enabled=true", f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    return folder


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.draws
@pytest.mark.reports
@pytest.mark.slow
def test_a_page_that_is_made_again_is_the_same(capsys, monkeypatch, run):
    first = run_here(capsys, monkeypatch, "page", str(run))
    assert (first.status, first.out, first.err) == (0, f"{run / 'report.html'}\n", "")
    before = {path.name: path.read_bytes() for path in (run / "report.html", *(run / "figures").iterdir())}
    for path in [run / "report.html", *(run / "figures").glob("*.*g")]:
        path.unlink()
    assert run_here(capsys, monkeypatch, "page", str(run)).status == 0
    assert {path.name: path.read_bytes() for path in (run / "report.html", *(run / "figures").iterdir())} == before


def test_a_page_of_no_run_is_bad_input(capsys, monkeypatch, run):
    (run / "figures" / "mixing_heatmap.parquet").write_bytes(b"PAR1")
    cases = {str(run): "mixing_heatmap.parquet: cannot be read", str(run.parent): "got the folder of several"}
    for folder, reason in cases.items():
        outcome = run_here(capsys, monkeypatch, "page", folder)
        assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert reason in outcome.err
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | {"status": "failed", "error": "The disk is full."}))
    outcome = run_here(capsys, monkeypatch, "page", str(run))
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert "expected a completed run, but it is failed: The disk is full." in outcome.err


def test_a_figure_whose_columns_are_gone_is_bad_input(capsys, monkeypatch, run):
    """The file is what a run writes, but for what it says about its table."""
    path = run / "figures" / "mixing_heatmap.parquet"
    figure = normscope.read(run).figures["mixing_heatmap"]
    assert figure.row == "layer"
    path.write_bytes(path.read_bytes().replace(b'"row": "layer"', b'"row": "la er"'))
    outcome = run_here(capsys, monkeypatch, "page", str(run))
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert "cannot be drawn: KeyError" in outcome.err


BROKEN = {
    "figures": (views, "figure_files", "the figures were not drawn: a fault; run `normscope page "),
    "report": (views, "page", "the report was not written: a fault; run `normscope page "),
    "tracker": (Tracker, "result", "nothing was logged to Weights & Biases: a fault; the results are in "),
    "terminal": (views, "show", "the results were not printed: a fault; they are in "),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("view", BROKEN)
def test_a_view_that_fails_is_one_line(view, capsys, monkeypatch, tmp_path, saved_model, finished):
    """Results are complete before the first view begins."""
    owner, name, line = BROKEN[view]

    def fail(*_: object, **__: object) -> None:
        found = normscope.read(tmp_path / "run")
        assert found.status == "completed"
        raise RuntimeError("a fault")

    monkeypatch.setattr(owner, name, fail)
    tracking = "tracking=offline" if view == "tracker" else "tracking=disabled"
    given = (f"model.name={saved_model}", *FEW, tracking, "report.enabled=true", f"output_dir={tmp_path / 'run'}")
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 0, outcome.err
    (said,) = [text for text in outcome.err.splitlines() if text.startswith("normscope: ")]
    assert said.startswith(f"normscope: {line}")
    assert "Traceback" not in outcome.err
    assert outcome.out.splitlines()[-1] == str(tmp_path / "run")
    for path in (finished / "tables").glob("*.csv"):
        assert (tmp_path / "run" / "tables" / path.name).read_bytes() == path.read_bytes()


class Killed(BaseException):
    """Simulates SIGKILL in the tests' own process: the program never catches it."""


@pytest.mark.slow
def test_a_run_that_is_killed_while_it_draws_is_complete(capsys, monkeypatch, tmp_path, saved_model, finished):
    def kill(*_: object) -> None:
        raise Killed

    folder = tmp_path / "run"
    given = (f"model.name={saved_model}", *FEW, "report.enabled=true", f"output_dir={folder}")
    with monkeypatch.context() as patch:
        patch.setattr(views, "figure_files", kill)
        with pytest.raises(Killed):
            run_here(capsys, patch, *given)
    assert not (folder / "report.html").exists()
    refused = run_here(capsys, monkeypatch, f"resume={folder}")
    assert refused.status == 2
    assert (
        f"the run is already complete; to remake its figures and report, run `normscope page {folder}`" in refused.err
    )
    assert run_here(capsys, monkeypatch, "page", str(folder)).status == 0
    assert (folder / "report.html").exists()
    assert normscope.read(folder).metrics == normscope.read(finished).metrics
