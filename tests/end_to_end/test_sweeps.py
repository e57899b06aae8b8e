"""Sweeps by Weights & Biases, by launchers on several processes, their jobs alone, and the report on a group's runs."""

import itertools
import json
import shlex
from pathlib import Path

import pandas as pd
import pytest
import wandb
import yaml

import normscope
from normscope.reporting.comparison import runs, wandb_report
from tests.end_to_end import forks
from tests.end_to_end.shell import ROOT, run_here
from tests.end_to_end.wandb_file import run_of

SWEEPS = sorted((ROOT / "experiments" / "sweeps").glob("*.yaml"))


def agent_commands(path):
    """The command lines that `wandb agent` would start, made by its own code."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    sweep = yaml.safe_load(path.read_text())
    names = list(sweep["parameters"])
    choices = [spec.get("values", [spec.get("value")]) for spec in sweep["parameters"].values()]
    for values in itertools.product(*choices):
        args = {name: {"value": value} for name, value in zip(names, values, strict=True)}
        command = {"program": sweep["program"], "args": args}
        flags = create_sweep_command_args(command)
        filled = []
        for part in create_sweep_command(sweep["command"]):
            filled += {
                "${program}": [sweep["program"]],
                "${args_no_hyphens}": flags["args_no_hyphens"],
                "${env}": [],
                "/usr/bin/env": [],
            }.get(part, [part])
        yield filled


@pytest.mark.slow
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_agents_start_commands_that_compose(path):
    from tests.contract.test_configs import composed

    commands = list(agent_commands(path))
    assert len({tuple(command) for command in commands}) == len(commands) > 1
    assert {command[0] for command in commands} == {"normscope"}
    for command in commands[:: max(1, len(commands) // 3)]:
        composed(*command[1:])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # W&B leaves the file of a sweep's parameters open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("path", SWEEPS[:1], ids=lambda path: path.stem)
def test_a_command_of_an_agent_runs(capsys, monkeypatch, tmp_path, saved_model, path):
    """In the environment that an agent sets; only the model, the amount of data and the folder are not the sweep's."""
    command = next(iter(agent_commands(path)))
    sweep = yaml.safe_load(path.read_text())
    parameters = {
        name: {"value": spec.get("value", spec.get("values", [None])[0])} for name, spec in sweep["parameters"].items()
    }
    (tmp_path / "parameters.yaml").write_text(yaml.safe_dump({"wandb_version": 1} | parameters))
    for name, value in {
        "SWEEP_ID": "abcd1234",
        "RUN_ID": "e" * 8,
        "SWEEP_PARAM_PATH": tmp_path / "parameters.yaml",
    }.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    wandb.teardown()  # it reads its environment once per process
    folder = tmp_path / "run"
    given = ["tracking=offline", "dataset.limit=2", f"model.name={saved_model}", f"output_dir={folder}"]
    outcome = run_here(capsys, monkeypatch, *command[1:], *given)
    wandb.teardown()
    assert outcome.status == 0, outcome.err
    run = run_of(folder)
    assert run["id"] == "e" * 8
    assert run["config"]["cfg"]["model"]["name"] == str(saved_model)
    for name, value in parameters.items():
        assert run["config"][name] == value["value"]
    if "metric" in sweep:
        assert isinstance(run["summary"][sweep["metric"]["name"]], float)
    if "layers" in parameters:
        assert pd.read_parquet(folder / "tables/mixing_by_layer.parquet")["layer"].unique().tolist() == [1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_job_is_a_run_of_its_own(capsys, monkeypatch, tmp_path, saved_model):
    """The environment may name one run of W&B, which the jobs would write over one another."""
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("WANDB_RESUME", "must")
    wandb.teardown()
    small = [f"model.name={saved_model}", "dataset.limit=2", "device=cpu", "tracking=offline", "report.enabled=false"]
    ran = run_here(capsys, monkeypatch, "-m", "seed=1,2", f"output_dir={tmp_path / 'sweep'}", *small)
    wandb.teardown()
    assert ran.status == 0, ran.err
    runs = [run_of(tmp_path / "sweep" / job) for job in "01"]
    assert len({"mine", *(run["id"] for run in runs)}) == 3
    assert [run["config"]["seed"] for run in runs] == [1, 2]
    assert [(tmp_path / "sweep" / job / "wandb/run_id").read_text() for job in "01"] == [run["id"] for run in runs]


@pytest.mark.slow
def test_the_command_of_a_job_runs_this_job_alone(capsys, monkeypatch, tmp_path, saved_model):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "sweep"
    small = [f"model.name={saved_model}", "dataset.limit=2", "device=cpu", "tracking=disabled", "report.enabled=false"]
    ran = run_here(capsys, monkeypatch, "-m", "layers=[1],[2]", "seed=3", f"output_dir={folder}", *small)
    assert ran.status == 0, ran.err
    job = normscope.read(folder / "1")
    program, *arguments = shlex.split(job.facts["command"].removeprefix("python "))
    assert program == "run.py"
    before = sorted(path.name for path in folder.iterdir())
    outcome = run_here(capsys, monkeypatch, *arguments)
    assert outcome.status == 0, outcome.err
    alone = Path(outcome.out.splitlines()[-1])
    assert alone.parent == tmp_path / "outputs"
    assert sorted(path.name for path in folder.iterdir()) == before
    again = normscope.read(alone)
    assert again.metrics == job.metrics
    others = {key: value for key, value in again.config.items() if key not in ("output_dir", "tracking")}
    assert others == {key: value for key, value in job.config.items() if key not in ("output_dir", "tracking")}
    for name, table in job.tables.items():
        assert table.equals(again.tables[name]), name


launchers = pytest.mark.parametrize(
    ("launcher", "more"),
    [
        pytest.param("joblib", ["hydra.launcher.n_jobs=2"], marks=pytest.mark.slow),
        pytest.param("submitit_local", ["hydra.launcher.timeout_min=600"], marks=pytest.mark.slow),
    ],
)


@launchers
def test_launchers_run_jobs_elsewhere_and_compare_them_here(saved_model, tmp_path, launcher, more):
    pytest.importorskip(f"hydra_plugins.hydra_{launcher.split('_')[0]}_launcher")
    outcome = forks.run(
        *("-m", f"hydra/launcher={launcher}", *more),
        *(f"model.name={saved_model}", "layers=[1],[77]", "dataset.limit=3", "tracking=disabled", "device=cpu"),
        *("report.enabled=false", f"output_dir={tmp_path / 'sweep'}"),
    )
    assert outcome.status == 1, outcome.err
    assert "1 of 2 jobs failed" in outcome.err, outcome.err
    assert "layers=[77]" in outcome.err
    assert set(pd.read_parquet(tmp_path / "sweep/comparison.parquet")["run"]) == {"0"}


@pytest.mark.slow
def test_the_report_on_a_group_compares_runs_layers_tables_and_figures(capsys, monkeypatch, saved_model, tmp_path):
    wr = pytest.importorskip("wandb_workspaces.reports.v2")
    given = [f"model.name={saved_model}", "dataset.limit=3", "tracking=disabled", f"output_dir={tmp_path / '0'}"]
    assert run_here(capsys, monkeypatch, *given).status == 0
    found, _ = runs.read([tmp_path])
    built = wandb_report.report("me", "normscope", "my-sweep", found, ["The first difference.", "The second."])
    assert built.blocks[0].text == "1. The first difference.\n2. The second.", "it opens with the verdict"
    panels = [panel for block in built.blocks if isinstance(block, wr.PanelGrid) for panel in block.panels]
    kinds = {type(panel).__name__ for panel in panels}
    assert kinds == {"RunComparer", "CustomChart", "BarPlot", "MediaBrowser", "WeavePanelSummaryTable"}
    metrics = json.loads((tmp_path / "0/results.json").read_text())["metrics"]
    bars = {panel.title: panel.metrics for panel in panels if isinstance(panel, wr.BarPlot)}
    shares = {
        f"signed share of {what} (%)"
        for what in ("other tokens", "the token itself", "the residual connection", "biases")
    }
    assert set(bars) == {"mixing ratio (%)", "largest mixing ratio (%)", "smallest mixing ratio (%)", *shares}
    assert {getattr(name, "name", name) for names in bars.values() for name in names} == set(metrics)
    charts = [panel for panel in panels if isinstance(panel, wr.CustomChart)]
    assert [chart.query["summaryTable"]["tableKey"] for chart in charts] == [
        f"Custom Chart Tables/mixing/{name} by layer_table" for name in ("mean", "share")
    ]
    assert charts[0].chart_strings == {"title": "Mixing ratios: mixing ratio (%)", "xname": "layer"}
    assert all("Group" in str(block.runsets[0].filters) for block in built.blocks if isinstance(block, wr.PanelGrid))
    texts = "\n".join(block.text for block in built.blocks if isinstance(block, wr.MarkdownBlock))
    for part in (
        "- mixing ratio (%): Mean mixing ratio of all tokens in all chosen layers.",
        "`mixing_by_layer`: one row per layer, method and category",
    ):
        assert part in texts

    def refused(*_, **__):
        raise ConnectionError("not logged in")

    monkeypatch.setattr(wr.Report, "save", refused)
    refusal = run_here(capsys, monkeypatch, "compare", str(tmp_path), "--wandb", "me", "--group", "my-sweep")
    assert refusal.status == 2
    assert "wandb login" in refusal.err
