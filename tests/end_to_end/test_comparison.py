"""A sweep ends with a comparison of its runs, even if jobs fail; so does the command, on any folders."""

import csv
import json
import re

import pandas as pd
import pytest
import torch

from normscope.reporting.comparison import compare as compare_runs
from normscope.reporting.run_tables import COMPARISON
from tests.end_to_end.browser import needs_browser, opened
from tests.end_to_end.shell import run_here, run_once
from tests.tiny import FAMILY_CONFIGS, tiny_model


@pytest.fixture(scope="module")
def deeper_model(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("models") / "deeper"
    config = FAMILY_CONFIGS["bert"] | {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": 5,
        "max_position_embeddings": 160,
    }
    tiny_model(config, torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sweep(saved_model, deeper_model, tmp_path_factory):
    """Two models and two analyses; layer 5 is not in the smaller model, so that jobs fail."""
    folder = tmp_path_factory.mktemp("sweep") / "sweep"
    outcome = run_once(
        "-m",
        f"model.name={saved_model},{deeper_model}",
        "analysis=mixing,norms",
        "dataset.limit=6",
        "layers=all,[5]",
        "tracking=disabled",
        "device=cpu",
        f"output_dir={folder}",
    )
    return outcome, folder


def test_a_sweep_compares_what_completed_and_names_what_failed(sweep, deeper_model):
    outcome, folder = sweep
    assert outcome.status == 1
    assert "2 of 8 jobs failed" in outcome.err
    assert "comparison.html" in outcome.err
    values = pd.read_parquet(folder / "comparison.parquet")
    assert list(values) == list(COMPARISON.columns)
    runs = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/results.json")}
    completed = {name for name, result in runs.items() if result["status"] == "completed"}
    assert set(values["run"]) == completed
    assert len(completed) == 6
    for row in values[values["layer"] == 0].itertuples():
        assert row.value == runs[row.run]["metrics"][row.metric]
    deepest = values[(values["layer"] > 0) & (values["depth"] == 1)]
    assert set(deepest["layer"]) == {FAMILY_CONFIGS["bert"]["num_hidden_layers"], 5}
    page = (folder / "comparison.html").read_text()
    assert page.count("expected all or numbers from 1 to") >= 2, "failed jobs are named with their reasons"
    assert str(deeper_model) in page


def test_exports_hold_the_tables_numbers(sweep):
    _, folder = sweep
    values = pd.read_parquet(folder / "comparison.parquet")
    whole = values[values["layer"] == 0].set_index(["metric", "label"])["value"]
    with (folder / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} == set(whole.index.get_level_values(0))
    for row in rows:
        for label, cell in row.items():
            if label != "metric" and cell:
                assert float(cell) == whole[row["metric"], label]
    latex = (folder / "comparison.tex").read_text()
    body = latex[latex.index(r"\midrule") : latex.index(r"\bottomrule")].splitlines()[1:]
    assert len(body) == len(rows)
    for line, row in zip(body, rows, strict=True):
        cells = [cell.strip() for cell in line.removesuffix(r" \\").split(" & ")]
        assert cells[0].replace(r"\_", "_") == row["metric"]
        for shown, exact in zip(cells[1:], list(row.values())[1:], strict=True):
            assert shown == "--" if not exact else float(shown) == pytest.approx(float(exact), abs=5.1e-5)


@needs_browser
def test_the_page_in_a_browser(sweep):
    _, folder = sweep
    shown, console = opened(folder / "comparison.html")
    assert console == []
    assert shown.count('aria-roledescription="line mark"') >= 2
    assert shown.count("<caption>") == 3
    assert re.search(r'<select id="along">.*</select>', shown)


def test_differences_and_seeds(capsys, monkeypatch, saved_model, tmp_path):
    outcome = run_here(
        capsys,
        monkeypatch,
        "-m",
        f"model.name={saved_model}",
        "model.random_init=true",
        "model.seed=1,2,3",
        "dataset.limit=4",
        "tracking=disabled",
        f"output_dir={tmp_path}",
    )
    assert outcome.status == 0, outcome.err
    runs, failures = compare_runs.run_folders.read([tmp_path])
    found = compare_runs.compared(runs, failures, tmp_path / "1")
    assert list(found.runs["label"]) == ["model.seed=1", "model.seed=2", "model.seed=3"]
    assert found.baseline == "model.seed=2"
    own = found.values[found.values["label"] == found.baseline]
    assert (own["difference"] == 0).all()
    row = found.seeds[found.seeds["metric"] == "mixing/attn_n/mean"].iloc[0]
    numbers = [run.metrics["mixing/attn_n/mean"] for run in runs]
    assert row["runs"] == 3
    assert row["mean"] == pytest.approx(sum(numbers) / 3)
    # Student's t with two degrees of freedom is 4.303 at 97.5 %.
    assert row["high"] - row["mean"] == pytest.approx(4.30265 * pd.Series(numbers).std() / 3**0.5, rel=1e-4)


def test_the_command_on_any_folders(sweep, capsys, tmp_path):
    _, folder = sweep
    capsys.readouterr()
    chosen = [str(folder / name) for name in sorted(path.parent.name for path in folder.glob("*/results.json"))[:2]]
    assert compare_runs.main([*chosen, "--output", str(tmp_path / "both"), "--baseline", chosen[1]]) == 0
    assert (tmp_path / "both/comparison.html").exists()
    assert compare_runs.main([str(tmp_path / "nowhere")]) == 2
    assert compare_runs.main([*chosen, "--baseline", "nothing"]) == 2
    assert "expected one of" in capsys.readouterr().err
