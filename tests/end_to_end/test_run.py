"""Whole commands on real and tiny models, and the numbers that they leave."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from normscope.maths.mixing import Method
from tests.end_to_end.forks import PATIENCE_SECONDS
from tests.end_to_end.shell import ROOT, run_here, start
from tests.end_to_end.wandb_file import run_of

TEXTS = [
    ("The tower, built in 1889, is 330 metres tall.", "It was the tallest structure in the world. For how long?"),
    ("Bread, salt and water.", None),
    ("Few of the islanders had ever seen a horse, let alone a train; none had seen snow.", None),
    ("Yes", "No, never, not once."),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rows = [{"text": text, "text_pair": pair} for text, pair in TEXTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_a_run_leaves_what_the_readme_says(capsys, monkeypatch, tmp_path, corpus, saved_model):
    folder = tmp_path / "a run, with = and [brackets]"
    arguments = (f"model.name={saved_model}", "dataset=text", f"dataset.path={corpus}", "layers=[1,3]", "seed=5")
    outcome = run_here(
        capsys, monkeypatch, *arguments, f"output_dir='{folder}'", "dataset.mask_fraction=0.12", "tracking=disabled"
    )
    assert outcome.status == 0, outcome.err
    results = json.loads((folder / "results.json").read_text())
    assert results["status"] == "completed"
    for method in Method:
        low, mean, high = (results["metrics"][f"mixing/{method}/{name}"] for name in ("min", "mean", "max"))
        assert 0 <= low <= mean <= high <= 1
    facts = results["facts"]
    assert (facts["sequences"], facts["examples"], facts["seed"]) == (4, 4, 5)
    assert facts["tokens"] == sum(facts["tokens_by_category"].values())
    assert facts["tokens_by_category"]["mask"] >= 4
    assert facts["verification_error"] < 1e-4
    assert re.fullmatch("[0-9a-f]{64}", facts["model_sha256"])
    table = pd.read_parquet(folder / "tables/mixing_by_layer.parquet")
    assert set(table["layer"]) == {1, 3}
    pd.testing.assert_frame_equal(table, pd.read_csv(folder / "tables/mixing_by_layer.csv"))
    overall = table[table["category"] == "all"].groupby("method")["mean"].mean()
    for method, value in overall.items():
        assert results["metrics"][f"mixing/{method}/mean"] == pytest.approx(value)
    for figure in ("mixing_heatmap", "mixing_by_layer"):
        assert (folder / f"figures/{figure}.png").read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in (folder / f"figures/{figure}.svg").read_text()[:600]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["layers"], config["dataset"]["mask_fraction"]) == ([1, 3], 0.12)
    assert "results in" in outcome.said
    assert "AttnResLn-N" in outcome.out


@pytest.mark.slow
def test_multirun_is_one_group_of_runs(capsys, monkeypatch, tmp_path, saved_model):
    folder = tmp_path / "sweep"
    arguments = ["-m", f"model.name={saved_model}", "model.random_init=false,true", "layers=[1]", "dataset.limit=2"]
    outcome = run_here(capsys, monkeypatch, *arguments, "tracking=offline", f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    runs = [run_of(folder / str(number)) for number in range(2)]
    assert {run["group"] for run in runs} == {"sweep"}
    for number, run in enumerate(runs):
        metrics = json.loads((folder / str(number) / "results.json").read_text())["metrics"]
        assert run["summary"]["mixing/attn_n/mean"] == pytest.approx(metrics["mixing/attn_n/mean"])
        assert "tables/mixing_by_layer" in run["summary"]
        assert any("mixing/heatmap figure" in row for row in run["history"])


def imported(err: str) -> set[str]:
    """The modules that a process says it has imported."""
    return set(re.findall(r"^import time:.*\| +(\S+)$", err, re.MULTILINE))


# Each takes a tenth of a second or more, several of them a whole one.
NEVER_IMPORTED = {"captum", "datasets", "IPython", "matplotlib.pyplot", "scipy.stats", "sklearn", "wandb"}


@pytest.mark.slow  # every day, contract/test_imports.py says who may import what
def test_the_default_run_in_a_process_of_its_own(tmp_path):
    process = start(
        f"output_dir={tmp_path / 'run'}", "dataset.limit=30", PYTHONPROFILEIMPORTTIME="1", WANDB_MODE="offline"
    )
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    before_the_first_batch = imported(err.partition("6 layers on")[0])
    assert {"torch", "transformers.modeling_layers"} <= before_the_first_batch
    assert not NEVER_IMPORTED & imported(err)
    assert "30 sequences" in err
    assert re.search(r"^all +\d+\.\d +\d+\.\d +\d+\.\d +[\d,]+$", out, re.M)
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["facts"]["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    # The paper's finding, on another model and text: the residual connection keeps most of a token.
    assert results["metrics"]["mixing/attn_w/mean"] > 0.8 > 0.4 > results["metrics"]["mixing/attnresln_n/mean"]


def test_help_does_not_wait_for_torch():
    process = start("--help", PYTHONPROFILEIMPORTTIME="1")
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "hydra" in imported(err)
    assert not {"torch", "transformers", "wandb", "pandas"} & imported(err)
    assert out.startswith("python run.py [analysis=NAME]")
    assert "import torch" not in (ROOT / "src/normscope/cli/__init__.py").read_text()


@pytest.mark.slow
def test_a_closed_pipe_gives_no_traceback():
    """`python run.py --help | head -1`."""
    process = start("--help")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    process.wait(PATIENCE_SECONDS)
    assert "Traceback" not in err
