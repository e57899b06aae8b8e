"""Weights & Biases: what a run sends, and broken environments, in which it always completes, with one warning."""

import http.server
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd
import psutil
import pytest
import wandb

from normscope.data.options import DatasetKind, DatasetOptions
from normscope.errors import InputError
from normscope.models.options import ModelOptions
from normscope.reporting import terminal, weights_and_biases
from normscope.reporting.options import TrackingMode, TrackingOptions
from normscope.reporting.tracker import track
from normscope.reporting.tracking import chart_key, figure_key, with_environment
from normscope.results.measures import families
from normscope.results.result import Result
from normscope.running import pipeline
from normscope.running.facts import describe
from normscope.running.options import RunOptions
from tests.end_to_end.disturbed import mounted, results
from tests.end_to_end.shell import run_here
from tests.end_to_end.wandb_file import contents, panels, run_of
from tests.treebank import write_treebank


@pytest.fixture(autouse=True)
def one_line(monkeypatch):
    """Messages are not wrapped: a line is a message."""
    monkeypatch.setattr(terminal, "wrapped", str)


@pytest.fixture(autouse=True)
def own_service(monkeypatch, tmp_path):
    """W&B reads its environment once per process, so every test gets its own service and stops it."""
    wandb.teardown()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    yield
    wandb.teardown()


def options(**chosen) -> RunOptions:
    return RunOptions(
        model=ModelOptions(name="some/model", seed=0),
        dataset=DatasetOptions(kind=DatasetKind.sample, seed=0),
        tracking=TrackingOptions(**{"mode": TrackingMode.offline, "project": "normscope"} | chosen),
    )


def logged(folder, messages: Sequence[Mapping[str, object]] = ({"status": 0},), **chosen) -> list[str]:
    """The warnings of W&B when the tests' own process logs a run."""
    folder.mkdir(exist_ok=True)
    run, warnings = options(**chosen), list[str]()
    described = {"options": asdict(run.tracking), "description": asdict(describe(run, "normscope", "bert"))}
    begin = json.loads(json.dumps({**described, "folder": str(folder)}))
    weights_and_biases.log(iter([begin, *messages]), warnings.append)
    wandb.teardown()
    return warnings


def tracked(capsys, folder, during=lambda: None, **chosen) -> list[str]:
    """The warnings that a tracked run prints if something happens once W&B has started."""
    folder.mkdir(exist_ok=True)
    capsys.readouterr()
    run = options(**chosen)
    with track(run.tracking, describe(run, "normscope", "bert"), folder) as tracker:
        process, until = tracker._writer, time.monotonic() + 60
        while not (folder / "wandb/run_id").exists() and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.02)
        during()
        Result(metrics={"mixing/last": 0.25}, facts={"tokens": 3}).save(folder)
        tracker.result(folder / "figures")
    return capsys.readouterr().err.splitlines()


@pytest.mark.slow
@pytest.mark.usefixtures("small_toy")
@pytest.mark.parametrize("analysis", ["syntax", "alignment"])
def test_runs_on_annotated_texts_have_few_panels_and_no_empty_table(
    analysis, capsys, monkeypatch, tmp_path, saved_model
):
    treebank = write_treebank(tmp_path, 8)
    arguments = {
        "syntax": ["analysis=syntax", f"model.name={saved_model}", "dataset=conllu", f"dataset.path={treebank}"],
        "alignment": ["experiment=alignment_toy", "dataset.limit=20"],
    }[analysis]
    outcome = run_here(capsys, monkeypatch, *arguments, f"output_dir={tmp_path}/run")
    assert outcome.status == 0, outcome.err
    run = run_of(tmp_path / "run")
    figures = {figure_key(analysis, path.stem) for path in tmp_path.glob("run/figures/*.png")}
    charts = {*map(chart_key, families(Result.read(tmp_path / "run").curves))}
    assert charts, "of curves by layer, where figures leave room"
    assert {"report", "findings", *figures} <= set(panels(run)) <= {"report", "findings", *figures, *charts}
    assert len(panels(run)) == 2 + min(8, len(figures) + len(charts))
    tables = dict(_tables({"summary": run["summary"], "history": dict(enumerate(run["history"]))}))
    assert {f"summary/tables/{analysis}_{name}" for name in FIRST_TABLES[analysis]} <= set(tables)
    assert all(tables.values()), f"tables without rows: {[name for name, rows in tables.items() if not rows]}"


def table_of(files, logged):
    """A logged table, from W&B's copy of it."""
    content = json.loads((files / logged["path"]).read_text())
    return pd.DataFrame(content["data"], columns=content["columns"])


FIRST_TABLES = {"syntax": ("best",), "alignment": ("aer",)}


def _tables(found, path=()):
    """Number of rows of all tables in what was recorded, by where they are."""
    for key, value in found.items() if isinstance(found, dict) else ():
        if isinstance(value, dict) and "nrows" in value:
            yield "/".join((*path, str(key))), value["nrows"]
        else:
            yield from _tables(value, (*path, str(key)))


def test_a_run_is_one_step_of_media_and_few_panels(capsys, monkeypatch, tmp_path, saved_model):
    folder = tmp_path / "run"
    arguments = [f"model.name={saved_model}", "dataset.limit=2", "seed=3", "layers=[1,3]", f"output_dir={folder}"]
    outcome = run_here(capsys, monkeypatch, *arguments, "analysis=[mixing,norms]", "tracking.tags=[mine]")
    assert outcome.status == 0, outcome.err
    run = run_of(folder)

    assert run["name"] == "mixing+norms · tiny-bert · sample · layers 1, 3 · seed 3"
    assert (run["job_type"], run["exit"]) == ("analysis", 0)
    assert run["tags"] == ["bert", "sample", "mixing", "norms", "mine"]
    assert run[
        "notes"
    ] == f"python run.py {' '.join(arguments)} 'analysis=[mixing,norms]' 'tracking.tags=[mine]'".replace(
        "layers=[1,3]", "'layers=[1,3]'"
    )
    config = run["config"]
    assert (config["model"]["name"], config["dataset"]["name"]) == (str(saved_model), "sample")
    assert (config["layers"], config["seed"], config["analyses"]) == ([1, 3], 3, ["mixing", "norms"])

    steps = [{key for key in row if not key.startswith("_")} for row in run["history"]]
    (progress,) = [row for row in run["history"] if "progress/examples" in row]
    assert progress["progress/examples"] == 2
    assert {"progress/tokens_per_second", "progress/peak_memory_gib", "progress/seconds_left"} <= set(progress)
    (media,) = [step for step in steps if "report" in step]
    figures = {figure_key(path.stem.partition("_")[0], path.stem) for path in folder.glob("figures/*.png")}
    of_norms = [f"norms/{name} by layer" for name in ("alpha", "alpha_f", "f", "share", "expansion")]
    room = 8 - sum(name.startswith("norms/") for name in figures)
    charts = {"mixing/mean by layer", "mixing/share by layer", *of_norms[:room]}
    assert figures <= media
    assert len(steps) == 2
    assert set(panels(run)) == {"report", "findings", *figures, *charts}
    for analysis in ("mixing", "norms"):
        assert sum(panel.startswith(f"{analysis}/") for panel in panels(run)) <= 8, "of one section"
    assert run["metrics"]["progress/*"] == "progress/examples"

    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    assert {name: run["summary"][name] for name in metrics} == metrics, "to the last digit"
    tables = {key for key in run["summary"] if key.startswith("tables/")}
    assert {"tables/mixing_by_layer", "tables/norms_by_layer", "tables/curves"} <= tables
    behind = {f"Custom Chart Tables/{name}_table" for name in of_norms[room:]}
    shown = {key for key in run["summary"] if not key.startswith("_")}
    assert shown == {*metrics, *media, *tables, *behind, "facts"}
    (kept,) = folder.glob("wandb/offline-run-*/files")
    curves = pd.read_parquet(folder / "tables/curves.parquet")
    logged = table_of(kept, run["summary"]["tables/curves"])
    pd.testing.assert_frame_equal(logged, curves[[*logged]], check_dtype=False, check_exact=True)
    drawn = table_of(kept, run["summary"]["Custom Chart Tables/mixing/mean by layer_table"])
    of_vectors = drawn[drawn["lineKey"] == "weighted vectors (Attn-N)"].set_index("step")["lineVal"]
    by_layer = curves[curves["curve"] == "mixing/attn_n/mean"].set_index("layer")["value"]
    assert of_vectors.to_dict() == (100 * by_layer).to_dict(), "in per cent"
    assert media >= {f"Custom Chart Tables/{chart}_table" for chart in charts}
    assert (kept / run["summary"]["report"]["path"]).read_bytes() == (folder / "report.html").read_bytes()
    assert all((kept / run["summary"][name]["path"]).exists() for name in figures)

    (artifact,) = [artifact for artifact in run["artifacts"] if artifact["type"] == "normscope-run"]
    assert artifact["name"] == "mixing-norms-tiny-bert-sample-layers-1-3-seed-3"
    assert set(artifact["aliases"]) == {"latest", f"run-{run['id']}"}
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(artifact["files"]) == {name for name in files if not name.startswith(("wandb/", "."))}


@pytest.mark.slow
def test_a_resumed_run_continues_its_run_in_wandb(capsys, monkeypatch, tmp_path, saved_model):
    folder = tmp_path / "run"

    def refuse(*_: object) -> None:
        raise InputError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "accumulate", refuse)
        arguments = [f"model.name={saved_model}", "dataset.limit=2", f"output_dir={folder}"]
        assert run_here(capsys, patch, *arguments).status == 2
    stopped = run_of(folder)
    assert stopped["exit"] == 1
    (first,) = folder.glob("wandb/offline-run-*/*.wandb")
    first.parent.rename(folder / "wandb" / "earlier")  # both are named after the second in which they started
    outcome = run_here(capsys, monkeypatch, f"resume={folder}")
    assert outcome.status == 0, outcome.err
    assert "wandb" not in outcome.err.lower()
    resumed = run_of(folder)
    assert resumed["id"] == stopped["id"] == contents(folder / "wandb/earlier" / first.name)["id"]
    assert resumed["exit"] == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # W&B leaves the file of a sweep's parameters open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_sweep_of_the_server_keeps_the_whole_config(monkeypatch, tmp_path):
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text("wandb_version: 1\nmodel: {value: minilm}\nlayers: {value: '[1]'}\n")
    monkeypatch.setenv("WANDB_SWEEP_ID", "abcd1234")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(parameters))
    monkeypatch.setenv("WANDB_RUN_ID", "ofthesweep")
    assert logged(tmp_path / "run") == []
    run = run_of(tmp_path / "run")
    assert run["id"] == "ofthesweep"
    assert (run["config"]["model"], run["config"]["layers"]) == ("minilm", "[1]")
    assert run["config"]["cfg"]["model"]["name"] == "some/model"
    assert run["config"]["dataset"]["name"] == "sample"


@pytest.mark.parametrize(
    ("changes", "name", "job_type"),
    [
        ({}, " · model · sample · seed 0", "analysis"),
        (
            {"model.random_init": True, "model.seed": 7},
            " · model (random) · sample · seed 0 · model seed 7",
            "analysis",
        ),
        (
            {"dataset.path": "/data/my texts.txt", "layers": [2]},
            " · model · my texts.txt · layer 2 · seed 0",
            "analysis",
        ),
        ({"dataset.name": "wikipedia", "seed": 3, "model.seed": 3}, " · model · wikipedia · seed 3", "analysis"),
        ({"model.name": "/models/mine/", "reproduce": "outputs/a"}, " · mine · sample · seed 0", "reproduction"),
        ({"recipe.name": "a_table"}, " · model · sample · seed 0", "experiment"),
        ({"tracking.name": "ours", "tracking.job_type": "test"}, "ours", "test"),
    ],
)
def test_names_tell_runs_apart(changes, name, job_type):
    run = options()
    for key, value in changes.items():
        section, _, last = key.rpartition(".")
        setattr(getattr(run, section) if section else run, last, value)
    description = describe(run, "normscope", "bert")
    assert (description.name, description.job_type) == (name, job_type)
    assert set(description.slug) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def test_long_names_are_shortened():
    run = options(tags=["x" * 64])
    run.model.name = run.dataset.name = "n" * 300
    description = describe(run, "normscope", "bert")
    assert len(description.name) == 60
    assert description.name.endswith("…" + "n" * 17 + " · seed 0")
    assert 100 < len(description.slug) <= 128
    assert max(len(tag) for tag in description.tags) == 64


def test_many_analyses_are_counted_in_names():
    run = options()
    for name in ("feedforward", "norms", "frequency", "outliers", "score"):
        getattr(run.analysis, name).enabled = True
    assert describe(run, "normscope", "bert").name == "5 analyses · model · sample · seed 0"


@pytest.mark.slow
def test_the_environment_describes_a_run_that_the_config_does_not(monkeypatch, tmp_path):
    for name, value in {"NAME": "theirs", "NOTES": "a note", "JOB_TYPE": "nightly", "TAGS": "one, two"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    assert logged(tmp_path / "run", job_type="ours") == []
    run = run_of(tmp_path / "run")
    assert (run["name"], run["notes"], run["job_type"]) == ("theirs", "a note", "ours")
    assert run["tags"] == ["bert", "sample", "one", "two"]


@pytest.mark.slow
def test_a_valid_environment_gives_no_warning(capsys, tmp_path):
    assert tracked(capsys, tmp_path / "run") == []
    assert run_of(tmp_path / "run")["summary"]["mixing/last"] == 0.25


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_BASE_URL", "not-a-url"),
        ("WANDB_INIT_TIMEOUT", "soon"),
        ("WANDB_TAGS", "x" * 100),
        ("WANDB_SERVICE", "garbage"),
    ],
)
@pytest.mark.spread(1)
def test_an_environment_that_wandb_rejects_disables_tracking_alone(capsys, monkeypatch, tmp_path, name, value):
    monkeypatch.setenv(name, value)
    (line,) = tracked(capsys, tmp_path / "run")
    assert line.startswith("Weights & Biases failed (")
    assert line.endswith("); the run continues without tracking")


@pytest.mark.slow
def test_a_service_that_is_killed_during_the_run(capsys, tmp_path):
    def kill() -> None:
        (service,) = [each for each in psutil.Process().children(recursive=True) if each.name().startswith("wandb")]
        service.kill()

    (line,) = tracked(capsys, tmp_path / "run", kill)
    assert "Weights & Biases failed" in line
    assert tracked(capsys, tmp_path / "next") == []
    assert run_of(tmp_path / "next")["exit"] == 0


@pytest.mark.slow
def test_a_server_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(weights_and_biases, "_INIT_SECONDS", 3)
    (line,) = logged(tmp_path / "run", mode=TrackingMode.online)
    assert line.startswith("Weights & Biases is unreachable (CommError: ")
    assert run_of(tmp_path / "run")["exit"] == 0


@pytest.mark.slow
def test_without_a_key_a_run_is_tracked_offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    progress = {"progress": {"examples": 3, "tokens_per_second": 12.5}}
    (line,) = logged(tmp_path / "run", [progress], mode=TrackingMode.online)
    assert line.startswith("Weights & Biases is unreachable (UsageError: No API key configured.")
    assert line.endswith("; the run is tracked offline, upload it with `wandb sync`")
    run = run_of(tmp_path / "run")
    assert run["exit"] == 1, "the messages have ended before the run said how it did"
    assert [row["progress/tokens_per_second"] for row in run["history"]] == [12.5]
    assert (tmp_path / "run/wandb/run_id").read_text() == run["id"]


@pytest.mark.slow
def test_a_run_that_is_stopped_on_its_page_in_wandb_is_interrupted():
    """A thread of W&B's interrupts its process, which passes that on."""
    program = (
        "import signal, normscope.reporting.weights_and_biases as process\n"
        "process.log = lambda *_: signal.raise_signal(signal.SIGINT)\n"
        "process.main()\n"
    )
    received = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, check=True, timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [signal.SIGINT]


@pytest.mark.slow
def test_a_proxy_that_answers_with_a_page(capsys, monkeypatch, tmp_path):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            page = b"<html><body>Log in to the proxy</body></html>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        (line,) = tracked(capsys, tmp_path / "run", mode=TrackingMode.online)
        server.shutdown()
    assert line.startswith("Weights & Biases is unreachable (")
    assert "tracked offline" in line
    assert run_of(tmp_path / "run")["summary"]["mixing/last"] == 0.25


@pytest.mark.slow
def test_a_temporary_directory_that_is_full(capsys, monkeypatch, tmp_path, saved_model):
    """Room for the four bytes that Python writes to test a directory, and no more."""
    with mounted(tmp_path / "disk", "size=12k") as disk:
        (disk / "filling").write_bytes(b"x" * 8192)
        monkeypatch.setenv("TMPDIR", str(disk))
        monkeypatch.setattr(tempfile, "tempdir", None)
        arguments = [f"model.name={saved_model}", "dataset.limit=2", f"output_dir={tmp_path / 'run'}"]
        outcome = run_here(capsys, monkeypatch, *arguments)
        wandb.teardown()
    assert outcome.status == 0, outcome.err
    assert "output_dir" not in outcome.err
    assert outcome.err.count("without tracking") <= 1
    assert results(tmp_path / "run")["status"] == "completed"


@pytest.mark.parametrize(
    ("environment", "mode"),
    [(None, "offline"), ("", "offline"), ("online", "online"), ("disabled", "disabled"), ("dryrun", "offline")],
)
def test_the_mode_of_the_environment_holds_where_ours_is_not_set(capsys, monkeypatch, environment, mode):
    if environment is None:
        monkeypatch.delenv("WANDB_MODE", raising=False)
    else:
        monkeypatch.setenv("WANDB_MODE", environment)
    assert with_environment(TrackingOptions()).mode == mode
    for ours in TrackingMode:
        assert with_environment(TrackingOptions(mode=ours)).mode is ours
    assert capsys.readouterr().err == ""


def test_an_unknown_mode_in_the_environment_is_reported_and_ignored(capsys, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "garbage")
    assert with_environment(TrackingOptions()).mode is TrackingMode.offline
    assert "WANDB_MODE='garbage'" in capsys.readouterr().err
    assert with_environment(TrackingOptions(mode=TrackingMode.disabled)).mode is TrackingMode.disabled
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("environment", "project"),
    [(None, "normscope"), ("theirs", "theirs"), ("a/b", "normscope"), ("x" * 129, "normscope")],
)
def test_the_project_of_the_environment_holds_where_ours_is_not_set(capsys, monkeypatch, environment, project):
    if environment is None:
        monkeypatch.delenv("WANDB_PROJECT", raising=False)
    else:
        monkeypatch.setenv("WANDB_PROJECT", environment)
    assert with_environment(TrackingOptions()).project == project
    assert ("WANDB_PROJECT" in capsys.readouterr().err) == (environment not in (None, project))
    assert with_environment(TrackingOptions(project="ours")).project == "ours"
