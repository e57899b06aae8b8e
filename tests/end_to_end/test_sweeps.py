"""Sweeps by Weights & Biases, by launchers on several processes, and the report on a group's runs."""

import itertools
import json

import pandas as pd
import pytest
import yaml

from normscope.reporting.comparison import runs, wandb_report
from tests.end_to_end import forks
from tests.end_to_end.shell import ROOT, run_here

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


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_agents_start_commands_that_compose(path):
    from tests.contract.test_configs import composed

    commands = list(agent_commands(path))
    assert len({tuple(command) for command in commands}) == len(commands) > 1
    for command in commands:
        assert command[0] == "normscope"
        composed(*command[1:])


def test_a_command_of_an_agent_runs(capsys, monkeypatch, tmp_path):
    command = next(iter(agent_commands(ROOT / "experiments/sweeps/layers.yaml")))
    given = [*command[1:], "tracking=disabled", "dataset.limit=4", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 0, outcome.err
    assert pd.read_parquet(tmp_path / "run/tables/mixing_by_layer.parquet")["layer"].unique().tolist() == [1]


@pytest.mark.parametrize(
    ("launcher", "more"),
    [
        pytest.param("joblib", ["hydra.launcher.n_jobs=2"], marks=pytest.mark.slow),
        ("submitit_local", ["hydra.launcher.timeout_min=600"]),
    ],
)
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


def test_the_report_on_a_group_compares_runs_layers_tables_and_figures(capsys, monkeypatch, saved_model, tmp_path):
    wr = pytest.importorskip("wandb_workspaces.reports.v2")
    given = [f"model.name={saved_model}", "dataset.limit=3", "tracking=disabled", f"output_dir={tmp_path / '0'}"]
    assert run_here(capsys, monkeypatch, *given).status == 0
    found, _ = runs.read([tmp_path])
    built = wandb_report.report("me", "normscope", "my-sweep", found)
    panels = [panel for block in built.blocks if isinstance(block, wr.PanelGrid) for panel in block.panels]
    kinds = {type(panel).__name__ for panel in panels}
    assert kinds == {"RunComparer", "LinePlot", "BarPlot", "MediaBrowser", "WeavePanelSummaryTable"}
    metrics = json.loads((tmp_path / "0/results.json").read_text())["metrics"]
    assert {panel.metrics[0] for panel in panels if isinstance(panel, wr.BarPlot)} == set(metrics)
    assert all("Group" in str(block.runsets[0].filters) for block in built.blocks if isinstance(block, wr.PanelGrid))

    def refused(*_, **__):
        raise ConnectionError("not logged in")

    monkeypatch.setattr(wr.Report, "save", refused)
    assert wandb_report.main([str(tmp_path), "--entity", "me", "--group", "my-sweep"]) == 2
    assert "wandb login" in capsys.readouterr().err
