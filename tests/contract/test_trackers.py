"""What Weights & Biases keeps of a run, read back from its own file."""

import dataclasses
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import wandb
from matplotlib.figure import Figure

from normscope.data.options import DatasetKind, DatasetOptions
from normscope.distribution import RUN_SCHEMA
from normscope.models.options import ModelOptions
from normscope.reporting import weights_and_biases
from normscope.reporting.options import TrackingMode, TrackingOptions
from normscope.reporting.tracking import with_environment
from normscope.results.figures import Lines
from normscope.results.findings import Sentence
from normscope.results.result import Result
from normscope.running.facts import describe
from normscope.running.options import RunOptions
from tests.end_to_end.wandb_file import run_of

METRICS = {"mixing/attn_n/mean": 0.1 + 0.2, "norms/α [max]": 2.0}
LAYERS = {1: 0.25, 3: 1 / 3}
RANKS = pd.DataFrame({"rank": pd.array([1, None], dtype="Int64"), "category": pd.Categorical(["other", None])})
TABLE = pd.DataFrame({"layer": [1, 2], "token": ["a|b", "##c"], "norm": [0.5, float("nan")]})
PAGE = "<!doctype html><title>A report</title>"
RESULT = Result(
    tables={"mixing_by_layer": TABLE, "frequency_by_token": RANKS, "mixing_nothing": TABLE.head(0)},
    metrics=METRICS,
    curves={"mixing/attn_n/mean": pd.Series(LAYERS)},
    figures={"mixing_lines": Lines(TABLE, "layer", "norm", "token", "Lines fall | rise.", "norm")},
    sentences=[Sentence("A finding < 5.", analysis="mixing")],
    facts={"device": "cpu", "versions": {"torch": "2.9"}},
    config={"seed": 0, "analysis": {"mixing": {"enabled": True}}},
)


@dataclasses.dataclass
class Kept:
    """A tracked run as W&B's file has it."""

    name: str
    status: str
    about: str
    """Tags and notes."""
    parameters: dict[str, Any]
    metrics: dict[str, float]
    curves: dict[str, dict[int, float]]
    progress: dict[str, dict[int, float]]
    tables: set[str]
    figures: dict[str, bytes]
    page: str
    facts: str


def options(**chosen: Any) -> RunOptions:
    run = RunOptions(
        model=ModelOptions(name="some/model", seed=0),
        dataset=DatasetOptions(kind=DatasetKind.sample, seed=0),
        tracking=with_environment(TrackingOptions(**{"project": "a project"} | chosen)),
    )
    run.analysis.mixing.enabled = True
    return run


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    """Lock files and W&B's service stay in the test's own temporary directory."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    wandb.teardown()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    wandb.teardown()


def tracked(run: RunOptions, folder: Path, during: Callable[[], None] = lambda: None) -> None:
    """Everything that a run logs, in its order."""
    RESULT.save(folder)
    picture = folder / "figures" / "mixing_lines.png"
    Figure((1, 1)).savefig(picture)
    (folder / "report.html").write_text(PAGE)
    with weights_and_biases.track(run.tracking, describe(run, "normscope layers=all", "bert"), folder) as tracker:
        tracker.progress(8, {"tokens_per_second": 12.5})
        tracker.progress(16, {"tokens_per_second": 25.0})
        during()
        tracker.result(RESULT, folder, {"mixing_lines": picture})


def of_wandb(folder: Path) -> Kept:
    wandb.teardown()
    run = run_of(folder)
    (files,) = folder.glob("wandb/offline-run-*/files")
    history, summary = run["history"], run["summary"]
    (media,) = [row for row in history if "report" in row]
    assert run["charts"] == {"mixing/mean by layer": "wandb/lineseries/v0"}
    drawn = of_table(files, summary["Custom Chart Tables/mixing/mean by layer_table"])
    assert set(drawn["lineKey"]) == {"Attn-N: vectors"}
    curves = of_table(files, summary["tables/curves"])
    by_layer = dict(zip(curves["layer"], curves["value"], strict=True))
    assert dict(zip(drawn["step"], drawn["lineVal"], strict=True)) == {1: 25.0, 3: 100 * LAYERS[3]}  # in per cent
    assert "<li>A finding &lt; 5.</li>" in (files / media["findings"]["path"]).read_text()
    return Kept(
        name=run["name"],
        status="completed" if run["exit"] == 0 else "failed",
        about=f"{run['tags']} {run['job_type']} {run['notes']} {run['group']}",
        parameters={name: run["config"][name] for name in ("seed", "schema")}
        | {"model.name": run["config"]["model"]["name"]},
        metrics={name: value for name, value in summary.items() if name in METRICS},
        curves={str(curves["curve"].unique()[0]): by_layer},
        progress={"tokens_per_second": _by_step(history, "progress/examples", "progress/tokens_per_second")},
        tables={key.removeprefix("tables/") for key in summary if key.startswith("tables/")} - {"curves"},
        figures={"mixing_lines": (files / media["mixing/lines figure"]["path"]).read_bytes()},
        page=(files / media["report"]["path"]).read_text(),
        facts=str(summary["facts"]),
    )


def of_exit(folder: Path) -> int:
    wandb.teardown()
    return int(run_of(folder)["exit"])


def of_table(files: Path, kept: dict[str, Any]) -> pd.DataFrame:
    content = json.loads((files / kept["path"]).read_text())
    return pd.DataFrame(content["data"], columns=content["columns"])


def _by_step(history: list[dict[str, Any]], step: str, name: str) -> dict[int, float]:
    return {row[step]: row[name] for row in history if name in row}


@pytest.mark.slow
def test_everything_that_a_run_logs_can_be_read_back(capsys, tmp_path):
    folder = tmp_path / "my runs" / "first"
    run = options(tags=["mine"], group="a sweep")
    tracked(run, folder)
    captured = capsys.readouterr()
    assert captured.err + captured.out == "", "libraries are silent"
    kept = of_wandb(folder)
    assert kept.name == "mixing · model · sample · seed 0"
    assert kept.status == "completed"
    for text in ("bert", "sample", "mixing", "mine", "analysis", "normscope layers=all", "a sweep"):
        assert text in kept.about
    assert (kept.parameters["seed"], kept.parameters["model.name"]) == (0, "some/model")
    assert kept.parameters["schema"] == RUN_SCHEMA
    assert kept.metrics == METRICS, "to the last digit"
    assert kept.curves == {"mixing/attn_n/mean": LAYERS}
    assert kept.progress == {"tokens_per_second": {8: 12.5, 16: 25.0}}
    assert kept.tables == {"mixing_by_layer", "frequency_by_token"}
    assert kept.figures == {"mixing_lines": (folder / "figures/mixing_lines.png").read_bytes()}
    assert kept.page == PAGE
    assert "cpu" in kept.facts
    assert "2.9" in kept.facts


@pytest.mark.slow
def test_errors_of_the_run_propagate(tmp_path):
    def fail() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        tracked(options(), tmp_path / "runs" / "first", fail)
    assert of_exit(tmp_path / "runs" / "first") == 1


def test_a_disabled_tracker_logs_nothing(tmp_path):
    tracked(options(mode=TrackingMode.disabled), tmp_path / "runs" / "first")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["first"]
    assert sorted(path.name for path in (tmp_path / "runs/first").iterdir()) == [
        "config.yaml",
        "figures",
        "report.html",
        "results.json",
        "tables",
    ]


def test_wandb_looks_for_staged_inputs_only_where_its_launcher_has_been_imported(monkeypatch):
    """Importing it takes a second. If the name has gone, wandb no longer does what is prevented here, or does it elsewhere."""
    name = "_detect_and_apply_job_inputs"
    look = vars(wandb.Run)[name]
    monkeypatch.delitem(sys.modules, "wandb.sdk.launch", raising=False)
    with weights_and_biases._without_launcher():
        assert vars(wandb.Run)[name] is not look
        assert vars(wandb.Run)[name](None) is None
    assert vars(wandb.Run)[name] is look
    monkeypatch.setitem(sys.modules, "wandb.sdk.launch", types.ModuleType("wandb.sdk.launch"))
    with weights_and_biases._without_launcher():
        assert vars(wandb.Run)[name] is look
