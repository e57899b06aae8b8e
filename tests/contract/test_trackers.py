"""What every tracker keeps of a run, read back by the reader of its own library; and what happens when one fails."""

import dataclasses
import json
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import wandb
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from normscope.data.options import DatasetKind, DatasetOptions
from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError
from normscope.models.options import ModelOptions
from normscope.reporting import tracking
from normscope.reporting.options import TrackerName, TrackingMode, TrackingOptions, check_tracking
from normscope.reporting.trackers import weights_and_biases
from normscope.reporting.tracking import with_environment
from normscope.running.options import RunOptions
from normscope.running.status import describe
from tests.end_to_end.shell import run_here
from tests.end_to_end.wandb_file import run_of

METRICS = {"mixing/attn_n/mean": 0.1 + 0.2, "norms/α [max]": 2.0}
LAYERS = {1: 0.25, 3: 1 / 3}
RANKS = pd.DataFrame({"rank": pd.array([1, None], dtype="Int64"), "category": pd.Categorical(["other", None])})
TABLE = pd.DataFrame({"layer": [1, 2], "token": ["a|b", "##c"], "norm": [0.5, float("nan")]})
PAGE = "<!doctype html><title>A report</title>"


@dataclasses.dataclass
class Kept:
    """A tracked run as its tracker's own reader shows it."""

    name: str
    status: str | None
    """None if the tracker does not record it."""
    about: str
    """Tags and notes."""
    parameters: dict[str, Any]
    metrics: dict[str, float]
    curves: dict[str, dict[int, float]]
    progress: dict[str, dict[int, float]]
    tables: set[str]
    figures: dict[str, bytes]
    page: str
    provenance: str


def options(tracker: TrackerName, **chosen: Any) -> RunOptions:
    run = RunOptions(
        model=ModelOptions(name="some/model", seed=0),
        dataset=DatasetOptions(kind=DatasetKind.sample, seed=0),
        tracking=with_environment(TrackingOptions(tracker=tracker, **{"project": "a project"} | chosen)),
    )
    run.analysis.mixing.enabled = True
    return run


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    """Lock files and W&B's service stay in the test's own temporary directory."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "MLFLOW_")):
            monkeypatch.delenv(name)
    wandb.teardown()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    wandb.teardown()
    store = sys.modules.get("mlflow.store.tracking.sqlalchemy_store")
    for engine in store.SqlAlchemyStore._engine_map.values() if store else ():
        engine.dispose()


def mlflow_client(folder: Path) -> Any:
    """The client of a store. MLflow takes two seconds to import: other processes that run tests need not."""
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{folder}/mlflow.db")


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory) -> Path:
    """An MLflow store without runs: creating one takes seconds, copying it does not."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(path.parent))  # for MLflow's lock file
        mlflow_client(path.parent)
    return path


def tracked(run: RunOptions, folder: Path, during: Callable[[], None] = lambda: None) -> None:
    """Everything that a run logs, in its order."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    picture, page, config = folder / "figures" / "mixing_lines.png", folder / "report.html", folder / "config.yaml"
    Figure((1, 1)).savefig(picture)
    page.write_text(PAGE)
    config.write_text("seed: 0\n")
    with tracking.track(run.tracking, describe(run, "normscope layers=all", "bert"), folder) as tracker:
        tracker.progress(8, {"tokens_per_second": 12.5})
        tracker.progress(16, {"tokens_per_second": 25.0})
        during()
        tracker.table("mixing_by_layer", TABLE)
        tracker.table("frequency_by_token", RANKS)
        tracker.figure("mixing_lines", picture, "Lines fall | rise.")
        tracker.table("mixing_nothing", TABLE.head(0))
        tracker.findings({"mixing": ["A finding < 5."]})
        tracker.curves({"mixing/attn_n/mean": pd.Series(LAYERS)})
        tracker.page("report", page)
        tracker.summary(METRICS, {"device": "cpu", "versions": {"torch": "2.9"}})
        files = {"config.yaml": config, "report.html": page, "figures/mixing_lines.png": picture}
        tracker.run_folder(files, json.dumps({"status": "completed", "metrics": METRICS, "provenance": {}}).encode())


def of_wandb(folder: Path) -> Kept:
    wandb.teardown()
    run = run_of(folder)
    (files,) = folder.glob("wandb/offline-run-*/files")
    history, summary = run["history"], run["summary"]
    (media,) = [row for row in history if "report" in row]
    assert run["charts"] == {"by_layer/mixing/mean": "wandb/lineseries/v0"}
    drawn = of_table(files, summary["Custom Chart Tables/by_layer/mixing/mean_table"])
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
        figures={"mixing_lines": (files / media["figures/mixing_lines"]["path"]).read_bytes()},
        page=(files / media["report"]["path"]).read_text(),
        provenance=str(summary["provenance"]),
    )


def of_table(files: Path, kept: dict[str, Any]) -> pd.DataFrame:
    content = json.loads((files / kept["path"]).read_text())
    return pd.DataFrame(content["data"], columns=content["columns"])


def _by_step(history: list[dict[str, Any]], step: str, name: str) -> dict[int, float]:
    return {row[step]: row[name] for row in history if name in row}


def of_mlflow(folder: Path) -> Kept:
    from mlflow.artifacts import download_artifacts

    client = mlflow_client(folder.parent)
    experiment = client.get_experiment_by_name("a project")
    (run,) = client.search_runs([experiment.experiment_id])
    artifacts = Path(download_artifacts(run_id=run.info.run_id, tracking_uri=f"sqlite:///{folder.parent}/mlflow.db"))
    assert artifacts.is_relative_to(folder.parent / "mlflow-artifacts")
    assert json.loads((artifacts / "figures/captions.json").read_text()) == {"mixing_lines": "Lines fall | rise."}
    pd.testing.assert_frame_equal(pd.read_csv(artifacts / "tables/mixing_by_layer.csv"), TABLE, check_exact=True)
    assert (artifacts / "config.yaml").read_text() == "seed: 0\n"
    assert json.loads((artifacts / "results.json").read_text())["metrics"] == METRICS

    def history(prefix: str) -> dict[str, dict[int, float]]:
        return {
            name.removeprefix(prefix): {
                point.step: point.value for point in client.get_metric_history(run.info.run_id, name)
            }
            for name in run.data.metrics
            if name.startswith(prefix)
        }

    return Kept(
        name=run.info.run_name,
        status={"FINISHED": "completed", "FAILED": "failed"}[run.info.status],
        about=str(run.data.tags),
        parameters=run.data.params | {name: int(run.data.params[name]) for name in ("seed", "schema")},
        metrics={
            name: value for name, value in run.data.metrics.items() if not name.startswith(("by_layer", "progress"))
        },
        curves=history("by_layer/"),
        progress=history("progress/"),
        tables={path.stem for path in artifacts.glob("tables/*.csv")},
        figures={path.stem: path.read_bytes() for path in artifacts.glob("figures/*.png")},
        page=(artifacts / "report.html").read_text(),
        provenance=str({key: value for key, value in run.data.tags.items() if key.startswith("provenance")}),
    )


def of_tensorboard(folder: Path) -> Kept:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    tags = events.Tags()

    def text(tag: str) -> str:
        (event,) = events.Tensors(f"{tag}/text_summary")
        return event.tensor_proto.string_val[0].decode()

    def scalars(prefix: str) -> dict[str, dict[int, float]]:
        return {
            tag.removeprefix(prefix): {event.step: event.value for event in events.Scalars(tag)}
            for tag in tags["scalars"]
            if tag.startswith(prefix)
        }

    starts = [
        HParamsPluginData.FromString(content).session_start_info
        for content in events.PluginTagToContent("hparams").values()
    ]
    (parameters,) = [dict(start.hparams) for start in starts if start.hparams]
    about = dict(row[1:-1].split(" | ") for row in text("run").replace("|  |", "| |").splitlines()[2:])
    about = {key.strip(): value.strip() for key, value in about.items()}
    (image,) = events.Tensors("figures/mixing_lines")
    width, height, picture = image.tensor_proto.string_val
    assert (width, height) == (b"100", b"100")
    assert events.SummaryMetadata("figures/mixing_lines").summary_description == "Lines fall | rise."
    assert events.SummaryMetadata("figures/mixing_lines").plugin_data.plugin_name == "images"
    assert text("tables/mixing_by_layer").splitlines()[2:] == ["| 1 | a\\|b | 0.500 |", "| 2 | ##c |  |"]
    return Kept(
        name=about["name"],
        status=None,
        about=str(about),
        parameters={
            **parameters,
            **{name: int(parameters[name].number_value) for name in ("seed", "schema")},
            "model.name": parameters["model.name"].string_value,
        },
        metrics={
            name: values[0] for name, values in scalars("").items() if not name.startswith(("by_layer", "progress"))
        },
        curves=scalars("by_layer/"),
        progress=scalars("progress/"),
        tables={tag.split("/")[1] for tag in tags["tensors"] if tag.startswith("tables/")},
        figures={"mixing_lines": picture},
        page=Path(text("report").strip("`")).read_text(),
        provenance=text("provenance"),
    )


READERS = {TrackerName.wandb: of_wandb, TrackerName.mlflow: of_mlflow, TrackerName.tensorboard: of_tensorboard}
# W&B takes every name; the others have characters of their own.
NAMES = {
    TrackerName.wandb: "norms/α [max]",
    TrackerName.mlflow: "norms/α _max_",
    TrackerName.tensorboard: "norms/α__max_",
}


# TensorBoard's readers find simple values alone, which are in single precision.
PRECISION: dict[TrackerName, Callable[[float], float]] = {
    TrackerName.wandb: float,
    TrackerName.mlflow: float,
    TrackerName.tensorboard: lambda value: float(np.float32(value)),
}


@pytest.mark.parametrize("tracker", TrackerName)
@pytest.mark.spread(1)
def test_everything_that_a_run_logs_can_be_read_back(tracker, capsys, tmp_path):
    folder = tmp_path / "my runs" / "first"
    run = options(tracker, tags=["mine"], group="a sweep")
    tracked(run, folder)
    captured = capsys.readouterr()
    assert captured.err + captured.out == "", "libraries are silent"
    kept = READERS[tracker](folder)
    assert kept.name == "mixing · model · sample · seed 0"
    assert kept.status in ("completed", None)
    for text in ("bert", "sample", "mixing", "mine", "analysis", "normscope layers=all", "a sweep"):
        assert text in kept.about
    assert (kept.parameters["seed"], kept.parameters["model.name"]) == (0, "some/model")
    assert kept.parameters["schema"] == RUN_SCHEMA
    assert kept.metrics == {"mixing/attn_n/mean": PRECISION[tracker](0.1 + 0.2), NAMES[tracker]: 2.0}, (
        "to the last digit"
    )
    assert kept.curves == {"mixing/attn_n/mean": {layer: PRECISION[tracker](value) for layer, value in LAYERS.items()}}
    assert kept.progress == {"tokens_per_second": {8: 12.5, 16: 25.0}}
    assert kept.tables == {"mixing_by_layer", "frequency_by_token"}
    assert kept.figures == {"mixing_lines": (folder / "figures/mixing_lines.png").read_bytes()}
    assert kept.page == PAGE
    assert "cpu" in kept.provenance
    assert "2.9" in kept.provenance


def break_mlflow(folder: Path) -> None:
    (folder.parent / "mlflow.db").mkdir()


def break_tensorboard(folder: Path) -> None:
    (folder / "tensorboard").write_text("not a folder")


BROKEN = {
    TrackerName.mlflow: break_mlflow,
    TrackerName.tensorboard: break_tensorboard,
}
TITLES = {
    TrackerName.mlflow: "MLflow",
    TrackerName.tensorboard: "TensorBoard",
}


@pytest.mark.parametrize("tracker", [TrackerName.tensorboard, TrackerName.mlflow])
@pytest.mark.spread(1)
def test_a_tracker_that_cannot_start_gives_one_warning(tracker, capsys, tmp_path):
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    BROKEN[tracker](folder)
    tracked(options(tracker), folder)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert line.startswith(f"{TITLES[tracker]} failed (")
    assert line.endswith("); the run continues without tracking")


@pytest.mark.parametrize(
    ("tracker", "method"),
    [
        (TrackerName.tensorboard, "torch.utils.tensorboard.SummaryWriter.add_scalar"),
        (TrackerName.mlflow, "mlflow.MlflowClient.log_batch"),
    ],
)
@pytest.mark.spread(1)
def test_a_tracker_that_fails_during_the_run_gives_one_warning(tracker, method, capsys, request, monkeypatch, tmp_path):
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "runs").mkdir()
    if tracker == TrackerName.mlflow:
        shutil.copy(request.getfixturevalue("empty_store"), tmp_path / "runs")
    tracked(options(tracker), tmp_path / "runs" / "first", lambda: monkeypatch.setattr(method, fail))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert line == (
        f"{TITLES[tracker]} failed (OSError: [Errno 28] No space left on device); the run continues without tracking"
    )


def fail_of_ours() -> None:
    raise RuntimeError("a bug")


def test_errors_of_the_run_propagate(tmp_path):
    with pytest.raises(RuntimeError, match="a bug"):
        tracked(options(TrackerName.tensorboard), tmp_path / "runs" / "first", fail_of_ours)


@pytest.mark.slow
def test_mlflow_records_errors_of_the_run(empty_store, tmp_path):
    folder = tmp_path / "runs" / "first"
    folder.parent.mkdir()
    shutil.copy(empty_store, folder.parent)
    with pytest.raises(RuntimeError, match="a bug"):
        tracked(options(TrackerName.mlflow), folder, fail_of_ours)
    client = mlflow_client(folder.parent)
    run_id = (folder / "mlflow_run_id").read_text()
    assert client.get_run(run_id).info.status == "FAILED"

    tracked(options(TrackerName.mlflow), folder)  # as a resumed run does
    assert client.get_run(run_id).info.status == "FINISHED"
    assert len(client.search_runs([client.get_experiment_by_name("a project").experiment_id])) == 1


@pytest.mark.parametrize("tracker", [TrackerName.mlflow, TrackerName.tensorboard])
def test_a_tracker_that_is_not_installed_is_named_before_the_run(tracker, capsys, monkeypatch, saved_model, tmp_path):
    monkeypatch.setattr(tracking, "find_spec", lambda _name: None)
    arguments = [f"tracking={tracker}", f"model.name={saved_model}", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *arguments)
    assert outcome.status == 2
    (line,) = outcome.err.strip().splitlines()
    packages = {"mlflow": "mlflow-skinny sqlalchemy alembic", "tensorboard": "tensorboard"}[tracker]
    assert line.endswith(f"{tracker} is not installed; run `pip install {packages}`")
    assert f"tracking={tracker}: " in line
    assert not (tmp_path / "run").exists()


def test_a_whole_run(capsys, monkeypatch, saved_model, tmp_path):
    folder = tmp_path / "run"
    arguments = [f"model.name={saved_model}", "dataset.limit=2", f"output_dir={folder}", "tracking=tensorboard"]
    outcome = run_here(capsys, monkeypatch, *arguments)
    assert outcome.status == 0, outcome.err
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0}).Reload()
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    for name, value in metrics.items():
        (event,) = events.Scalars(name)
        assert event.value == np.float32(value)
    curves = pd.read_parquet(folder / "tables" / "curves.parquet")
    for name, rows in curves.groupby("curve"):
        points = [(event.step, event.value) for event in events.Scalars(f"by_layer/{name}")]
        assert points == list(zip(rows["layer"], rows["value"].astype(np.float32), strict=True))
    for kind, suffix in (("figures", "png"), ("tables", "parquet")):
        files = {path.stem for path in folder.glob(f"{kind}/*.{suffix}")} - {"curves", "heatmaps", "sequences"}
        logged = {tag.split("/")[1] for tag in events.Tags()["tensors"] if tag.startswith(f"{kind}/")}
        assert logged == files


def test_scalars_are_simple_values_as_readers_of_event_files_expect(tmp_path):
    """Read as tbparse does: a long table of tags, steps and values, without TensorBoard's own conversions."""
    folder = tmp_path / "runs" / "first"
    tracked(options(TrackerName.tensorboard), folder)
    rows = [
        (value.tag, event.step, value.simple_value)
        for path in (folder / "tensorboard").glob("events.out.tfevents.*")
        for event in LegacyEventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.HasField("simple_value")
    ]
    table = pd.DataFrame(rows, columns=["tag", "step", "value"])
    wide = table.pivot(index="step", columns="tag", values="value")
    assert wide["mixing/attn_n/mean"].dropna().to_dict() == {0: np.float32(0.1 + 0.2)}
    assert wide["by_layer/mixing/attn_n/mean"].dropna().to_dict() == {1: 0.25, 3: np.float32(1 / 3)}
    assert wide["progress/tokens_per_second"].dropna().to_dict() == {8: 12.5, 16: 25.0}


@pytest.mark.parametrize("tracker", [TrackerName.mlflow, TrackerName.tensorboard])
@pytest.mark.parametrize(("key", "value"), [("mode", TrackingMode.online), ("entity", "somebody")])
def test_keys_of_wandb_are_refused_by_the_others(tracker, key, value):
    with pytest.raises(InputError, match=rf"tracking\.{key}={value} is for W&B; drop it"):
        check_tracking(TrackingOptions(tracker=tracker, **{key: value}))
    check_tracking(TrackingOptions(tracker=tracker, mode=TrackingMode.disabled))


def test_the_environment_of_wandb_is_for_wandb_alone(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "an experiment")
    chosen = {tracker: with_environment(TrackingOptions(tracker=tracker)) for tracker in TrackerName}
    assert {str(tracker): (one.mode, one.project) for tracker, one in chosen.items()} == {
        "wandb": (TrackingMode.disabled, "theirs"),
        "mlflow": (None, "an experiment"),
        "tensorboard": (None, "normscope"),
    }


def test_disabled_trackers_log_nothing(tmp_path):
    for tracker in TrackerName:
        tracked(options(tracker, mode=TrackingMode.disabled), tmp_path / "runs" / "first")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["first"]
    assert sorted(path.name for path in (tmp_path / "runs/first").iterdir()) == [
        "config.yaml",
        "figures",
        "report.html",
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
