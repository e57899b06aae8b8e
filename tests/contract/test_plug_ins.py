"""An analysis from another package works everywhere that ours do, and nothing below `src` names it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from normscope.analyses.registry import analyses
from tests.end_to_end import forks
from tests.end_to_end.shell import ROOT
from tests.end_to_end.wandb_file import run_of
from tests.tiny import saved_config

PLUG_IN = Path(__file__).parent / "plug_in"
EXAMPLE = ROOT / "experiments" / "plug_in"

# Commands run one after another in one process. Prints each one's status and output; only the first run draws its figures.
_DRIVER = """
import contextlib, io, json, runpy, sys
model = sys.argv[2]
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["run.py", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path("run.py", run_name="__main__")
        except SystemExit as exit_:
            status = exit_.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
import normscope
results = normscope.run("planted", model=model, texts=["A text."], layers=[2], power=3)
print(json.dumps({"metrics": results.metrics, "layers": results.tables["planted_by_layer"]["layer"].tolist()}), flush=True)
"""

SMALL = ["device=cpu", "dataset.limit=3", "device.batch_tokens=256"]


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """Where pip has installed the package `experiments/plug_in`, built from a copy, as building leaves folders behind."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "source")
    offline = ["--no-index", "--no-build-isolation", "--no-deps", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", folder / "installed", folder / "source"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return folder / "installed"


@pytest.fixture(scope="module")
def searched(example) -> str:
    """PYTHONPATH of a user who has installed two packages: the planted one and the example."""
    return os.pathsep.join(map(str, (ROOT / "src", ROOT, PLUG_IN, example)))


def test_the_documentation_shows_the_example():
    toml, code = re.search(
        r"```toml\n(.*?)```.*?```python\n(.*?)```", (ROOT / "docs/tutorials/own-analysis.md").read_text(), re.S
    ).groups()
    assert code == (EXAMPLE / "normscope_input_length.py").read_text()
    assert len(code.splitlines()) < 50
    entry_points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    assert tomllib.loads(toml)["project"]["entry-points"] == entry_points


def contract(installed: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The suite for plug-ins, as the author of one runs it."""
    path = os.pathsep.join(map(str, (ROOT / "src", installed)))
    options = ["-p", "no:cacheprovider", "-q", "-rA", f"--basetemp={folder / 'pytest'}"]
    command = [sys.executable, "-m", "pytest", "--pyargs", "normscope.testing", *options]
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=500
    )


@pytest.mark.slow
def test_the_example_meets_the_contract(example, tmp_path):
    finished = contract(example, tmp_path)
    assert finished.returncode == 0, finished.stdout
    assert "9 passed" in finished.stdout
    assert "skipped" not in finished.stdout


_BROKEN = """
import dataclasses, pandas as pd, torch
from normscope.analyses.base import Analysis
from normscope.results.result import Result
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.results.axes import LAYER
from normscope.results.declare import Column, Declared, Table
from normscope.statistics.mean import Mean

@dataclasses.dataclass
class Options(AnalysisConfig):
    pass

COLUMN = Column("Number of batches.", kind="whole")
INFO = AnalysisInfo("broken", "Broken", Options, "broken_analysis:Broken", question="How many batches?",
                    declared=Declared(tables={"by_layer": Table(rows=(LAYER,), values={"batches": COLUMN})}))

class Broken(Analysis):
    info = INFO
    batches = 0

    def __init__(self, options, context):
        super().__init__(options, context)
        self.accumulators = {"nothing": Mean(1, 1)}

    def update_attention(self, block, batch):
        torch.rand(1)
        self.batches += 1
        self.accumulators["nothing"].update(0, torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.long))

    def result(self):
        table = pd.DataFrame({"layer": [1], "batches": [self.batches + 0.5]})
        return Result({"by_layer": table, "more": table}, metrics={"undeclared": 1.0})
"""


@pytest.mark.slow
def test_the_contract_finds_what_is_wrong(tmp_path):
    """It counts batches, keeps them outside its state, and publishes what it has not declared."""
    (tmp_path / "broken_analysis.py").write_text(_BROKEN)
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[normscope.analyses]\nbroken = broken_analysis:INFO\nabsent = no_such_module:INFO\n"
    )
    finished = contract(tmp_path, tmp_path)
    assert finished.returncode == 1
    failed = {
        re.split(r"\W", line.split("::")[1])[0] for line in finished.stdout.splitlines() if line.startswith("FAILED")
    }
    assert failed == {
        "test_plug_ins_are_installed_and_can_be_imported",
        "test_its_tables_are_those_that_it_declares",
        "test_its_metrics_are_those_that_it_declares",
        "test_it_does_not_depend_on_batches",
        "test_parts_of_a_corpus_add_up",
    }, finished.stdout


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, saved_model, searched):
    """Several commands of such a user, and the folder that they wrote to."""
    folder = tmp_path_factory.mktemp("plug-in")
    config = saved_config({"model_type": "t5", "d_model": 24, "num_layers": 2}, folder / "t5")
    model = f"model.name={saved_model}"
    commands = {
        "help": ["--help"],
        "run": [
            "analysis=[planted,mixing]",
            model,
            *SMALL,
            "tracking=offline",
            f"output_dir={folder}/run",
            "layers=[2]",
        ],
        "refused": ["analysis=planted", model, *SMALL, f"output_dir={folder}/refused", "analysis.planted.power=0"],
        "typo": ["analysis=planted", "analysis.planted.pwoer=3"],
        "no network": [
            "analysis=planted",
            f"model.name={config}",
            "model.random_init=true",
            "model.stack=decoder",
            f"model.tokenizer={saved_model}",
            *SMALL,
            f"output_dir={folder}/refused",
        ],
        "sweep": [
            "-m",
            "analysis=planted",
            "analysis.planted.power=2,3",
            model,
            *SMALL,
            f"output_dir={folder}/sweep",
            "tracking=disabled",
            "report.enabled=false",
        ],
        "reproduced": [
            f"reproduce={folder}/run",
            f"output_dir={folder}/reproduced",
            "tracking=disabled",
            "report.enabled=false",
        ],
        "completed": [f"resume={folder}/run"],
        "documented": [
            "analysis=input_length",
            "analysis.input_length.order=1",
            model,
            *SMALL,
            "tracking=disabled",
            "report.enabled=false",
            f"output_dir={folder}/documented",
        ],
    }
    driver = folder / "driver.py"
    driver.write_text(_DRIVER)
    finished = forks.run(json.dumps(list(commands.values())), str(saved_model), program=driver, PYTHONPATH=searched)
    assert finished.status == 0, finished.err
    lines = [json.loads(line) for line in finished.out.splitlines() if line.startswith("[")]
    in_memory = [json.loads(line) for line in finished.out.splitlines() if line.startswith("{")]
    return dict(zip([*commands, "in memory"], [*lines, *in_memory], strict=True)), folder


@pytest.mark.slow
def test_help_and_the_schema_know_it(outcomes):
    outcome, _ = outcomes
    assert "planted" in outcome["help"][1]
    status, _, err = outcome["typo"]
    assert status == 2
    assert "did you mean analysis.planted.power?" in err


@pytest.mark.slow
def test_its_own_check_refuses_bad_input(outcomes):
    (status, _, err), folder = outcomes[0]["refused"], outcomes[1]
    assert status == 2
    assert err.strip() == "normscope: analysis.planted.power=0.0: expected a number of at least 1"
    assert not (folder / "refused").exists()


@pytest.mark.slow
def test_a_stack_without_a_feed_forward_network_is_refused(outcomes):
    (status, _, err), folder = outcomes[0]["no network"], outcomes[1]
    assert status == 2
    assert err.strip() == (
        "normscope: model.stack=decoder: analysis=planted needs the feed-forward network, but a decoder's self-attention is "
        "followed by cross-attention; set model.stack=encoder or cross"
    )
    assert not (folder / "refused").exists()


@pytest.mark.slow
def test_it_runs_on_texts_in_memory(outcomes):
    results = outcomes[0]["in memory"]
    assert results["layers"] == [1, 2, 3]
    assert list(results["metrics"]) == ["planted/length/mean"]


@pytest.mark.slow
def test_a_run_publishes_it(outcomes):
    (status, out, err), folder = outcomes[0]["run"], outcomes[1] / "run"
    assert status == 0, err
    table = pd.read_parquet(folder / "tables" / "planted_by_layer.parquet")
    # It requires all layers, whichever the user has chosen for the others.
    assert table["layer"].tolist() == [1, 2, 3]
    assert pd.read_parquet(folder / "tables" / "mixing_by_layer.parquet")["layer"].unique().tolist() == [2]
    assert (folder / "figures" / "planted_by_layer.png").exists()
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    assert metrics["planted/length/mean"] == pytest.approx(table["length"].mean())
    page = (folder / "report.html").read_text()
    for part in ("Length of inputs", "How long inputs are.", "A planted paper", "Inputs are", "read this beside"):
        assert part in page
    assert "planted" in out
    assert "planted: read this beside the numbers" in err
    logged = json.dumps(run_of(folder))
    for part in ("planted/length/mean", "planted_by_layer", "planted/length by layer"):
        assert part in logged, part


@pytest.mark.slow
def test_sweeps_compare_it(outcomes):
    (status, _, err), folder = outcomes[0]["sweep"], outcomes[1] / "sweep"
    assert status == 0, err
    values = pd.read_parquet(folder / "comparison.parquet")
    assert set(values["label"]) == {"planted.power=2.0", "planted.power=3.0"}
    assert "planted/length/mean" in set(values["metric"])


@pytest.mark.slow
def test_its_runs_are_reproduced(outcomes):
    status, out, err = outcomes[0]["reproduced"]
    assert status == 0, err
    assert "numbers are the same" in out
    status, _, err = outcomes[0]["completed"]
    assert status == 2
    assert "the run is already complete" in err


@pytest.mark.slow
def test_several_processes_share_it(outcomes, tmp_path, saved_model, searched):
    arguments = ["analysis=planted", f"model.name={saved_model}", *SMALL, "tracking=disabled", "report.enabled=false"]
    ranks = forks.run_several(2, *arguments, f"output_dir={tmp_path}/run", PYTHONPATH=searched)
    assert [outcome.status for outcome in ranks] == [0, 0], ranks
    alone, shared = (
        pd.read_parquet(folder / "tables" / "planted_by_layer.parquet")
        for folder in (outcomes[1] / "run", tmp_path / "run")
    )
    pd.testing.assert_frame_equal(shared, alone, rtol=1e-12)


@pytest.mark.slow
def test_the_analysis_that_contributing_shows_works(outcomes):
    status, out, err = outcomes[0]["documented"]
    assert status == 0, err
    table = pd.read_parquet(outcomes[1] / "documented" / "tables" / "input_length_by_layer.parquet")
    assert table.columns.tolist() == ["layer", "length"]
    # What it declares is published.
    results = json.loads((outcomes[1] / "documented" / "results.json").read_text())
    assert results["metrics"] == {"input_length/mean": pytest.approx(table["length"].mean())}
    curves = pd.read_parquet(outcomes[1] / "documented" / "tables" / "curves.parquet")
    assert curves["curve"].unique().tolist() == ["input_length/length"]
    assert curves["value"].tolist() == pytest.approx(table["length"].tolist())
    assert "input_length" in out
    assert re.search(r"^mean +\d", out, re.MULTILINE)


@pytest.mark.slow
def test_a_broken_plug_in_is_skipped_with_a_warning(monkeypatch, caplog, tmp_path):
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text(
        "[normscope.analyses]\nbroken = no_such_module:INFO\nnumber = math:pi\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    known = analyses.__wrapped__()
    assert set(known) == set(analyses())
    assert "analysis plug-in broken (no_such_module:INFO) cannot be imported" in caplog.text
    assert "analysis plug-in number (math:pi) is ignored: expected an AnalysisInfo, got float" in caplog.text
