"""Outliers, score contributions and the causal test against every pair built by transformers' own eager model, in float64."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoConfig, BertForMaskedLM, BertModel

from normscope.data.categories import CATEGORIES, TokenCategories
from tests.end_to_end.shell import run_here, run_once
from tests.end_to_end.test_run import TEXTS

HEADS, LAYERS, MODEL = 12, 6, 384
GIVEN = [63, 157, 223, 338]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text, "text_pair": pair}) + "\n" for text, pair in TEXTS))
    return path


@pytest.fixture(scope="module")
def eager(minilm_folder) -> BertModel:
    return BertModel.from_pretrained(minilm_folder, dtype=torch.float64, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def sequences(eager, tokenizer) -> list[dict]:
    """Per sequence: its inputs, categories, hidden vectors, and q, x and W_K of every layer, one sequence at a time."""
    of_token = TokenCategories.of(tokenizer, 30522).of_token
    found = []
    for text, pair in TEXTS:
        inputs = tokenizer(text, pair, return_tensors="pt")
        with torch.no_grad():
            output = eager(**inputs, output_attentions=True, output_hidden_states=True)
            query = [
                layer.attention.self.query(x[0]).view(-1, HEADS, 32).transpose(0, 1)
                for layer, x in zip(eager.encoder.layer, output.hidden_states, strict=False)
            ]
        found.append(
            {
                "inputs": inputs,
                "category": np.array(CATEGORIES)[of_token[inputs["input_ids"][0].numpy()]],
                "hidden": torch.stack(output.hidden_states)[:, 0],
                "query": torch.stack(query),
                "alpha": torch.stack(output.attentions)[:, 0],
            }
        )
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory, corpus):
    """Tables of one run."""
    folder = tmp_path_factory.mktemp("maruta") / "run"
    arguments = ["analysis=[outliers,score]", "dataset=text", f"dataset.path={corpus}", "tracking=disabled"]
    chosen = f"analysis.outliers.dimensions=[{','.join(map(str, GIVEN))}]"
    small = ["analysis.score.ablation_controls=2", "analysis.score.controls=4", "device.batch_tokens=150"]
    outcome = run_once(*arguments, chosen, *small, f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    return lambda name: pd.read_parquet(folder / "tables" / f"{name}.parquet")


def members(sequence, category) -> torch.Tensor:
    return torch.from_numpy((sequence["category"] == category) | (category == "all"))


def key_weights(eager, layer) -> torch.Tensor:
    return eager.encoder.layer[layer].attention.self.key.weight.T.reshape(MODEL, HEADS, 32).permute(1, 0, 2)


def explicit(eager, sequence, layer, dimensions) -> torch.Tensor:
    """C of some dimensions: head, query, key, dimension."""
    projected = torch.einsum("hqd,hmd->hqm", sequence["query"][layer], key_weights(eager, layer)[:, dimensions])
    return projected[:, :, None] * sequence["hidden"][layer][None, None][..., dimensions]


@pytest.mark.slow
def test_contributions_are_means_over_all_pairs(table, eager, sequences):
    contributions = table("score_contributions")
    assert len(contributions) == LAYERS * HEADS * 5 * MODEL
    largest = contributions["mean"].abs().max()
    for layer in range(LAYERS):
        for category in contributions["category"].unique():
            total, pairs = 0.0, 0
            for sequence in sequences:
                chosen = members(sequence, category)
                total = total + explicit(eager, sequence, layer, GIVEN)[:, :, chosen].sum(dim=(1, 2))
                pairs += len(chosen) * int(chosen.sum())
            rows = contributions.query("layer == @layer + 1 and category == @category and dimension in @GIVEN")
            found = rows.pivot(index="head", columns="dimension", values="mean").to_numpy()
            assert np.abs(found - (total / pairs).detach().numpy()).max() < 1e-5 * largest


@pytest.mark.slow
def test_contributions_and_key_bias_add_up_to_the_score(table):
    totals = table("score_totals")
    assert (totals["contributions"] + totals["key_bias"] - totals["score"]).abs().max() < 1e-4
    wide = table("score_by_category")
    assert list(wide.columns[:4]) == ["layer", "dimension", "category", "head_1"]
    one = table("score_contributions").query("layer == 3 and dimension == 157 and category == 'cls' and head == 12")
    assert wide.query("layer == 3 and dimension == 157 and category == 'cls'")["head_12"].item() == one["mean"].item()


@pytest.mark.slow
def test_spread_is_the_variance_of_a_querys_scores(table, eager, sequences):
    ranking, concentration = table("score_spread"), table("score_concentration")
    layer, every = 3, list(range(MODEL))
    covariance, variance, queries = torch.zeros(HEADS, MODEL).double(), torch.zeros(HEADS).double(), 0
    for sequence in sequences:
        parts = explicit(eager, sequence, layer, every).detach()
        score = parts.sum(dim=-1, keepdim=True)
        centred = score - score.mean(dim=2, keepdim=True)
        covariance += (parts * centred).mean(dim=2).sum(dim=1)
        variance += centred.square().mean(dim=2).sum(dim=(1, 2))
        queries += parts.shape[1]
    shares = (covariance / variance[:, None]).numpy()
    rows = ranking[ranking["layer"] == layer + 1].pivot(index="head", columns="dimension", values="share").to_numpy()
    np.testing.assert_allclose(rows, shares, atol=1e-5)
    row = concentration.query("layer == 4 and head == 5").iloc[0]
    ordered = np.sort(shares[4])[::-1].cumsum()
    assert row["half"] == (ordered < 0.5).sum() + 1
    assert row["ninety"] == (ordered < 0.9).argmin() + 1
    assert abs(row["variance"] - variance[4].item() / queries) < 1e-4 * row["variance"]
    assert abs(row["outliers"] - shares[4][GIVEN].sum()) < 1e-5


@pytest.mark.slow
def test_outliers_by_category_are_means_and_spreads(table, sequences):
    by_category, every = table("outliers_by_category"), table("outliers_dimensions")
    assert sorted(by_category["dimension"].unique()) == GIVEN
    for category, rows in by_category.groupby("category"):
        hidden = torch.cat([sequence["hidden"][:, members(sequence, category)] for sequence in sequences], dim=1)
        assert (rows["count"] == hidden.shape[1]).all()
        for column, expected in (("mean", hidden.mean(dim=1)), ("std", hidden.std(dim=1, correction=0))):
            found = rows.pivot(index="layer", columns="dimension", values=column).to_numpy()
            np.testing.assert_allclose(found, expected[:, GIVEN].detach().numpy(), atol=1e-5)
    hidden = torch.cat([sequence["hidden"] for sequence in sequences], dim=1).mean(dim=1).detach().numpy()
    np.testing.assert_allclose(every.pivot(index="layer", columns="dimension", values="mean"), hidden, atol=1e-5)
    score = (hidden - hidden.mean(axis=1, keepdims=True)) / hidden.std(axis=1, keepdims=True)
    np.testing.assert_allclose(every.pivot(index="layer", columns="dimension", values="score"), score, atol=1e-4)
    assert (every["is_outlier"] == (every["score"].abs() > 3)).all()


@pytest.mark.slow
def test_the_norms_that_make_the_outliers_stand_beside_them(table, eager):
    norms = table("outliers_layernorm")
    assert sorted(norms["layer"].unique()) == list(range(LAYERS + 1))
    row = norms.query("layer == 5 and dimension == 223").iloc[0]
    norm = eager.encoder.layer[4].output.LayerNorm
    np.testing.assert_allclose(
        [row["weight"], row["bias"]], [norm.weight[223].item(), norm.bias[223].item()], rtol=1e-6
    )
    medians = [np.median(parameter.abs().detach()) for parameter in (norm.weight, norm.bias)]
    np.testing.assert_allclose([row["median_abs_weight"], row["median_abs_bias"]], medians, rtol=1e-7)


def share_of(alpha, sequence, category):
    return alpha[..., members(sequence, category)].sum(dim=-1).mean(dim=(-1, -2))


@pytest.mark.parametrize("removed", ["157", "outliers"])
@pytest.mark.slow
def test_intervention_takes_the_contributions_out_of_the_scores(table, eager, sequences, removed):
    found = table("score_intervention").query("removed == @removed")
    dimensions = GIVEN if removed == "outliers" else [int(removed)]
    for layer in (1, 3):
        for category in ("cls", "other"):
            before, after = [], []
            for sequence in sequences:
                own = eager.encoder.layer[layer].attention.self.key(sequence["hidden"][layer])
                key = own.view(-1, HEADS, 32).transpose(0, 1)
                scores = sequence["query"][layer] @ key.transpose(-1, -2)
                lessened = scores - explicit(eager, sequence, layer, dimensions).sum(dim=-1)
                before.append(share_of(sequence["alpha"][layer], sequence, category))
                after.append(share_of((lessened / 32**0.5).softmax(dim=-1), sequence, category))
            row = found.query("layer == @layer + 1 and category == @category").iloc[0]
            assert abs(row["before"] - torch.stack(before).mean().item()) < 1e-5
            assert abs(row["after"] - torch.stack(after).mean().item()) < 1e-5
            assert row["change"] == row["after"] - row["before"]
            assert row["controls_low"] <= row["controls_mean"] <= row["controls_high"]


@pytest.mark.parametrize("value", ["zero", "mean"])
@pytest.mark.slow
def test_ablation_replaces_the_dimensions_wherever_a_block_reads_them(table, eager, sequences, value):
    tokens = torch.cat([sequence["hidden"] for sequence in sequences], dim=1)
    means = tokens.mean(dim=1)[:, GIVEN].detach()
    start = 3
    handles = []
    for number in range(start, LAYERS + 1):

        def replace(_module, args, kwargs, number=number):
            vectors = args[0].clone()
            vectors[..., GIVEN] = 0.0 if value == "zero" else means[number - 1]
            return (vectors, *args[1:]), kwargs

        handles.append(eager.encoder.layer[number - 1].register_forward_pre_hook(replace, with_kwargs=True))
    after = []
    for sequence in sequences:
        with torch.no_grad():
            alphas = torch.stack(eager(**sequence["inputs"], output_attentions=True).attentions)[:, 0]
        after.append(torch.stack([share_of(alpha, sequence, "cls") for alpha in alphas]))
    for handle in handles:
        handle.remove()
    rows = table("score_ablation").query(
        "from_layer == @start and value == @value and removed == 'outliers' and category == 'cls'"
    )
    assert rows["layer"].tolist() == [3, 4, 5, 6]
    np.testing.assert_allclose(rows["after"], torch.stack(after).mean(dim=0)[start - 1 :], atol=1e-5)


@pytest.mark.slow
def test_outliers_are_found_automatically(capsys, monkeypatch, tmp_path):
    given = ["analysis=outliers", "tracking=disabled", "layers=[2]", "dataset.limit=40"]
    arguments = [*given, f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *arguments)
    assert outcome.status == 0, outcome.err
    found = pd.read_parquet(tmp_path / "run/tables/outliers_model.parquet")
    assert {157, 223, 338} <= set(found["dimension"])
    assert "3 standard deviations" in outcome.err


def test_no_outlier_leaves_empty_tables_and_names_the_criterion(capsys, monkeypatch, tmp_path, saved_model):
    arguments = ["analysis=[outliers,score]", f"model.name={saved_model}", "dataset.limit=4", "tracking=disabled"]
    strict = "analysis.outliers.threshold=100"
    outcome = run_here(capsys, monkeypatch, *arguments, strict, f"output_dir={tmp_path / 'run'}")
    assert outcome.status == 0, outcome.err
    assert "outlier dimensions: none (mean more than 100 standard deviations" in outcome.err
    tables = tmp_path / "run/tables"
    for name in ("outliers_by_category", "outliers_model", "score_by_category"):
        assert len(pd.read_parquet(tables / f"{name}.parquet")) == 0
    assert not (tables / "score_intervention.parquet").exists()


@pytest.mark.slow
def test_contributions_of_a_sample_are_those_of_its_sequences(capsys, monkeypatch, tmp_path, saved_model, corpus):
    def run(name, *arguments):
        given = ["analysis=score", f"model.name={saved_model}", "dataset=text", "tracking=disabled"]
        quick = ["analysis.score.interventions=false", "analysis.score.ablation=false"]
        outcome = run_here(capsys, monkeypatch, *given, *quick, *arguments, f"output_dir={tmp_path / name}")
        assert outcome.status == 0, outcome.err
        return pd.read_parquet(tmp_path / name / "tables/score_totals.parquet")

    whole = run("whole", f"dataset.path={corpus}")
    everything = run("all", f"dataset.path={corpus}", "analysis.score.sequences=1000")
    pd.testing.assert_frame_equal(whole, everything, rtol=1e-4, atol=1e-5)
    sample = run("some", f"dataset.path={corpus}", "analysis.score.sequences=2", "device.batch_tokens=60")
    pairs = sample.query("layer == 1 and head == 1 and category == 'all'")["pairs"].item()
    assert pairs < whole.query("layer == 1 and head == 1 and category == 'all'")["pairs"].item()
    reverse = tmp_path / "reverse.jsonl"
    reverse.write_text("".join(reversed(corpus.read_text().splitlines(keepends=True))))
    turned = run("turned", f"dataset.path={reverse}", "analysis.score.sequences=2")
    pd.testing.assert_frame_equal(sample, turned, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_hundred_and_thirty_custom_categories(capsys, monkeypatch, tmp_path, saved_model, tokenizer):
    vocabulary = sorted(tokenizer.get_vocab())  # it comes in any order
    words = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 5][:130]
    (tmp_path / "corpus.txt").write_text(" ".join(words) + "\n")
    own = ",".join(f"own{number}:[{word}]" for number, word in enumerate(words))
    outcome = run_here(
        capsys,
        monkeypatch,
        "analysis=[norms,score]",
        f"model.name={saved_model}",
        "dataset=text",
        f"dataset.path={tmp_path / 'corpus.txt'}",
        f"+dataset.categories={{{own}}}",
        "layers=[1]",
        "tracking=disabled",
        "report.enabled=false",
        "analysis.score.interventions=false",
        "analysis.score.ablation=false",
        f"output_dir={tmp_path / 'run'}",
    )
    assert outcome.status == 0, outcome.err
    found = pd.read_parquet(tmp_path / "run/tables/score_contributions.parquet")
    assert set(found["category"]) >= {f"own{number}" for number in range(130)}


@pytest.mark.slow
def test_masked_token_loss_is_the_heads_own(capsys, monkeypatch, tmp_path, saved_model, tokenizer, corpus):
    """Against the masked language model run by hand on the same masked tokens."""
    from normscope.data.encoding import Encoder
    from normscope.data.options import DatasetKind, DatasetOptions
    from normscope.models.interventions import MASKED_SHARE
    from normscope.models.loading import load
    from normscope.models.options import DeviceOptions, ModelOptions

    torch.manual_seed(0)
    whole = BertForMaskedLM(AutoConfig.from_pretrained(saved_model)).eval()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    checkpoint = tmp_path / "mlm"
    whole.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    arguments = ["analysis=score", f"model.name={checkpoint}", "dataset=text", f"dataset.path={corpus}"]
    chosen = ["analysis.outliers.dimensions=[3]", "analysis.score.ablation_controls=2", "tracking=disabled"]
    chosen += ["device.dtype=float64", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *arguments, *chosen)
    assert outcome.status == 0, outcome.err
    found = pd.read_parquet(tmp_path / "run/tables/score_ablation_loss.parquet")

    model = load(ModelOptions(name=str(checkpoint), seed=0), DeviceOptions(name="cpu"))
    encoder = Encoder(model, DatasetOptions(kind=DatasetKind.text, seed=0))
    loss, tokens = 0.0, 0
    whole.double()
    for text, pair in TEXTS:
        inputs = tokenizer(text, pair, return_tensors="pt")
        ids = inputs["input_ids"][0]
        masked = torch.from_numpy(encoder.masked(ids.numpy(), MASKED_SHARE))
        with torch.no_grad():
            logits = whole(**(inputs | {"input_ids": masked[None]})).logits[0]
        hidden = masked != ids
        loss += torch.nn.functional.cross_entropy(logits[hidden], ids[hidden], reduction="sum").item()
        tokens += int(hidden.sum())
    assert found["before"].iloc[0] == pytest.approx(loss / tokens, rel=1e-12)
    assert (found["change"].abs() > 1e-6).all()


@pytest.mark.parametrize("dimensions", ["[5,384]", "[-1]"])
def test_a_dimension_out_of_range_names_the_range(capsys, monkeypatch, tmp_path, dimensions):
    given = ["analysis=score", f"analysis.outliers.dimensions={dimensions}", f"output_dir={tmp_path / 'run'}"]
    outcome = run_here(capsys, monkeypatch, *given)
    assert outcome.status == 2
    assert "analysis.outliers.dimensions=" in outcome.err
    assert "from 0 to 383" in outcome.err
    assert not (tmp_path / "run").exists()
