"""`normscope checkup`: from the command line to lines, a page and a JSON; and the JSON in the hands of its user."""

import json
from pathlib import Path

import pytest
import torch

from normscope.results.checkup_tables import CHECKUP
from normscope.results.result import Result
from tests.architectures import tiny_architecture
from tests.end_to_end.shell import ROOT, run_here

SMOLLM2 = ROOT / "outputs/real_weights/smollm2"

TEXTS = [f"The old bridge number {number} was closed, so we crossed the river by boat." for number in range(14)]


@pytest.fixture
def texts(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))
    return path


@pytest.mark.slow
def test_a_checkup_leaves_a_page_and_a_json(capsys, monkeypatch, tmp_path, saved_model, texts):
    folder = tmp_path / "out"
    words = ["checkup", str(saved_model), "--against", str(saved_model)]
    words += ["dataset=text", f"dataset.path={texts}", "analysis.sinks.length=8", f"output_dir={folder}"]
    outcome = run_here(capsys, monkeypatch, *words)
    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[-1] == str(folder / "checkup.html")
    assert max(map(len, lines[:-1])) <= 80
    assert lines[0].startswith("1. No weight differs from")
    assert {"checkup.html", "checkup.json"} < {path.name for path in folder.iterdir()}
    result = Result.read(folder)
    for name in CHECKUP:
        assert list(result.tables[name]) == list(CHECKUP[name].columns)
        assert name in result.figures
    content = json.loads((folder / "checkup.json").read_text())
    assert content["lines"][0]["found"] in " ".join(lines[:3])
    assert len(content["tables"]["rounding_by_layer"]) == 3 * 3
    assert all(row["weights"] == row["vectors"] == 0 for row in content["tables"]["against"])
    assert content["tables"]["linear_inputs"][0].keys() >= {"module", "ratio"}
    page = (folder / "checkup.html").read_text()
    for section in (
        "findings",
        "linear_inputs",
        "rounding",
        "rounding_by_layer",
        "heads",
        "against",
        "outliers",
        "sinks",
    ):
        assert f'<section id="{section}"' in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layers"),
    [("deberta-v2", {1, 2}), ("jamba", {2, 4}), ("nemotron_h", {2, 4}), ("qwen3_5_text", {2, 4}), ("xlm", {1, 2})],
)
def test_a_model_that_is_observed_in_part_is_rounded_as_a_whole(
    capsys, monkeypatch, tmp_path, tokenizer, texts, name, layers
):
    """Heads are of the layers with softmax attention; rounding and inputs are of all layers, even where no module runs one."""
    folder = tmp_path / name
    model = tiny_architecture(name, torch.float32)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    words = ["checkup", str(folder), "--against", str(folder), "dataset=text", f"dataset.path={texts}"]
    outcome = run_here(capsys, monkeypatch, *words, "analysis.sinks.length=8", f"output_dir={tmp_path / 'out'}")
    assert outcome.status == 0, outcome.err
    tables = Result.read(tmp_path / "out").tables
    assert {*tables["heads"]["layer"]} == layers
    every = {*range(1, model.config.num_hidden_layers + 1)}
    assert {*tables["rounding_by_layer"]["layer"]} == {*tables["against"]["layer"]} == every
    assert (tables["rounding_by_layer"]["change"] > 0).all()
    assert (tables["against"]["vectors"] == 0).all()
    assert {*tables["linear_inputs"]["layer"].dropna()} == every


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny", "--against", "nowhere/at/all"], "--against"),
        (["tiny", "--against", "minilm"], "expected a model of the same shape (bert, 3 layers of "),
        (["tiny", "dataset.limit=5"], "expected at least 10 texts of 8 tokens or more, got 5"),
    ],
)
def test_bad_input_is_one_line(capsys, monkeypatch, tmp_path, saved_model, texts, words, message):
    words = [str(saved_model) if word == "tiny" else word for word in words]
    more = ["dataset=text", f"dataset.path={texts}", "analysis.sinks.length=8", f"output_dir={tmp_path / 'out'}"]
    outcome = run_here(capsys, monkeypatch, "checkup", *words, *more)
    assert outcome.status == 2
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_a_model_without_a_tokenizer_is_one_line(capsys, monkeypatch, tmp_path, saved_model, texts):
    folder = tmp_path / "bare"
    folder.mkdir()
    for file in Path(saved_model).iterdir():
        if "token" not in file.name and "vocab" not in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    words = ["checkup", str(folder), "dataset=text", f"dataset.path={texts}", f"output_dir={tmp_path / 'out'}"]
    outcome = run_here(capsys, monkeypatch, *words)
    assert outcome.status == 2
    assert "tokenizer" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="no weights: python experiments/real_weights/fetch.py smollm2")
def test_a_quantiser_that_skips_what_the_json_says_loses_less(capsys, monkeypatch, tmp_path):
    """With nothing of ours but the JSON: weights and inputs rounded by hooks, on texts that the checkup has not seen."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from normscope.data.corpora import sample_path

    outcome = run_here(capsys, monkeypatch, "checkup", str(SMOLLM2), f"output_dir={tmp_path}")
    assert outcome.status == 0, outcome.err
    skip = json.loads((tmp_path / "checkup.json").read_text())["skip"]
    assert skip["dimensions"] == [247, 507]
    assert {f"model.layers.{layer}.mlp.down_proj" for layer in (11, 28)} < set(skip["modules"])
    rows = [json.loads(line)["text"] for line in sample_path().read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    texts = [tokenizer(text, return_tensors="pt")["input_ids"][:, :64] for text in rows[60:72]]

    def loss(modules, dimensions) -> float:
        model = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
        for name, module in model.model.named_modules():
            if isinstance(module, torch.nn.Linear) and modules is not None and f"model.{name}" not in modules:
                _quantise(module, dimensions if module.in_features == model.config.hidden_size else [])
        with torch.inference_mode():
            return float(torch.stack([model(ids, labels=ids).loss for ids in texts]).mean())

    whole, skipped, random = loss(None, []), loss(skip["modules"], skip["dimensions"]), loss(["none"], [3, 99])
    assert skipped - whole < 0.5 * (random - whole)


def _quantise(module: torch.nn.Linear, kept: list[int]) -> None:
    """One scale for the weights, and one for the inputs of each text."""

    def rounded(values: torch.Tensor) -> torch.Tensor:
        others = values.clone()
        others[..., kept] = 0
        scale = others.abs().max() / 127
        new = (others / scale).round() * scale
        new[..., kept] = values[..., kept]
        return new

    module.weight.data = rounded(module.weight.data)
    module.register_forward_pre_hook(lambda _module, args: (rounded(args[0]),))
