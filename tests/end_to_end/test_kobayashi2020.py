"""The tables of the norms and frequency analyses against every vector built, in float64, with SciPy's correlations."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from transformers import BertModel

from benchmarks.straightforward import METHODS, mixing_ratios
from normscope.data.categories import CATEGORIES, TokenCategories
from tests.end_to_end.shell import run_here, run_once
from tests.end_to_end.test_run import TEXTS

HEADS, LAYERS = 12, 6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text, "text_pair": pair}) + "\n" for text, pair in TEXTS))
    return path


@pytest.fixture(scope="module")
def observed(minilm_folder, tokenizer) -> list[dict]:
    """Per sequence: token ids, categories, α, ‖f‖ and ‖x‖ of every layer, and the mixing ratios."""
    model = BertModel.from_pretrained(minilm_folder, dtype=torch.float64, attn_implementation="eager").eval()
    of_token = TokenCategories.of(tokenizer, 30522).of_token
    sequences = []
    for text, pair in TEXTS:
        inputs = tokenizer(text, pair, return_tensors="pt")
        with torch.no_grad():
            output = model(**inputs, output_attentions=True, output_hidden_states=True)
            norms = []
            for layer, x in zip(model.encoder.layer, output.hidden_states, strict=False):
                value = layer.attention.self.value(x[0]).view(-1, HEADS, 32).transpose(0, 1)
                f = value @ layer.attention.output.dense.weight.T.view(HEADS, 32, -1)
                norms.append(f.norm(dim=-1))
        ids = inputs["input_ids"][0].numpy()
        sequences.append(
            {
                "ids": ids,
                "category": np.array(CATEGORIES)[of_token[ids]],
                "alpha": torch.stack(output.attentions)[:, 0].numpy(),
                "f": torch.stack(norms).numpy(),
                "x": torch.stack(output.hidden_states[:-1])[:, 0].norm(dim=-1).numpy(),
                "ratios": mixing_ratios(model, inputs)[:, :, 0].numpy(),
            }
        )
        model.set_attn_implementation("eager")
    return sequences


@pytest.fixture(scope="module")
def pairs(observed) -> pd.DataFrame:
    """Every (layer, head, query, key) of the corpus."""
    frames = []
    for sequence in observed:
        layer, head, query, key = np.indices(sequence["alpha"].shape).reshape(4, -1)
        frames.append(
            pd.DataFrame(
                {
                    "layer": layer + 1,
                    "category": sequence["category"][key],
                    "alpha": sequence["alpha"][layer, head, query, key],
                    "f": sequence["f"][layer, head, key],
                }
            )
        )
    return pd.concat(frames)


def common(corpus) -> list[str]:
    return ["analysis=[norms,frequency]", "dataset=text", f"dataset.path={corpus}", "tracking=disabled"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, corpus) -> Path:
    """A run with the defaults."""
    folder = tmp_path_factory.mktemp("kobayashi") / "exact"
    outcome = run_once(*common(corpus), f"output_dir={folder}")
    assert outcome.status == 0, outcome.err
    return folder


def run(capsys, monkeypatch, corpus, folder, *arguments: str) -> None:
    outcome = run_here(capsys, monkeypatch, *common(corpus), f"output_dir={folder}", *arguments)
    assert outcome.status == 0, outcome.err


def table(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / "tables" / f"{name}.parquet")


@pytest.mark.slow
def test_the_tables(folder, observed, pairs):
    _check_shares(folder, observed)
    _check_dispersion(folder, observed)
    _check_correlation(folder, pairs)
    _check_frequency(folder, observed)
    _check_sample(folder, pairs)


def _check_shares(folder, observed):
    by_head = table(folder, "norms_by_head").set_index(["layer", "head", "category"])
    by_layer = table(folder, "norms_by_layer").set_index(["layer", "measure", "category"])["sequence_mean"]
    present = set(itertools.chain.from_iterable(sequence["category"] for sequence in observed))
    assert set(by_head.index.get_level_values("category")) == present | {"all"}
    for layer, category in itertools.product(range(LAYERS), [*present, "all"]):
        alpha, alpha_f, f = [], [], []
        for sequence in observed:
            keys = np.ones(len(sequence["ids"]), bool) if category == "all" else sequence["category"] == category
            weights, norms = sequence["alpha"][layer], sequence["f"][layer]
            alpha.append(weights[:, :, keys].sum(axis=2).mean(axis=1))
            alpha_f.append((weights * norms[:, None])[:, :, keys].sum(axis=2).mean(axis=1))
            if keys.any():
                f.append(norms[:, keys].mean(axis=1))
        expected = {"alpha": np.mean(alpha, 0), "alpha_f": np.mean(alpha_f, 0), "f": np.mean(f, 0)}
        for measure, values in expected.items():
            got = [by_head.loc[(layer + 1, head + 1, category), measure] for head in range(HEADS)]
            np.testing.assert_allclose(got, values, rtol=1e-5, atol=1e-6)
            assert by_layer[layer + 1, measure, category] == pytest.approx(values.mean(), rel=1e-5)


def _check_dispersion(folder, observed):
    rows = table(folder, "norms_dispersion").set_index(["layer", "head"])
    inputs = table(folder, "norms_input_dispersion").set_index("layer")
    for layer in range(LAYERS):
        x = np.concatenate([sequence["x"][layer] for sequence in observed])
        np.testing.assert_allclose(inputs.loc[layer + 1], _statistics(x), rtol=1e-5)
        for head in range(HEADS):
            f = np.concatenate([sequence["f"][layer, head] for sequence in observed])
            np.testing.assert_allclose(rows.loc[(layer + 1, head + 1)], _statistics(f), rtol=1e-5)
    summary = table(folder, "norms_dispersion_summary").set_index("row")
    largest = rows["cv"].idxmax()
    assert (summary.loc["max_cv", "layer"], summary.loc["max_cv", "head"]) == largest
    np.testing.assert_allclose(
        summary.loc["average", ["mean", "std", "cv"]].astype(float), rows[["mean", "std", "cv"]].mean()
    )
    assert summary.loc["average", "layer"] == 0
    assert set(table(folder, "norms_input_dispersion_summary")["row"]) == {"max_cv", "min_cv", "average"}


def _statistics(values):
    return [values.mean(), values.std(), values.std() / values.mean(), values.max(), values.min()]


def _check_correlation(folder, pairs):
    found = table(folder, "norms_correlation").set_index(["layer", "category"])
    assert (found["error_bound"] == 0).all()
    assert set(found.index.get_level_values("category")) == {*pairs["category"], "all"}
    for (layer, category), row in found.iterrows():
        chosen = _pairs_of(pairs, layer, category)
        assert row["count"] == len(chosen)
        expected = scipy.stats.spearmanr(chosen["alpha"], chosen["f"]).statistic
        assert row["spearman"] == pytest.approx(expected, abs=1e-4)  # float32 breaks a few ties of float64


def _pairs_of(pairs, layer, category):
    of_layer = pairs if layer == 0 else pairs[pairs["layer"] == layer]
    return of_layer if category == "all" else of_layer[of_layer["category"] == category]


def _check_frequency(folder, observed):
    counts = np.bincount(np.concatenate([sequence["ids"] for sequence in observed]), minlength=30522)
    ids = np.concatenate([sequence["ids"] for sequence in observed])
    measures = {
        "alpha": [sequence["alpha"].mean(axis=(0, 1, 2)) for sequence in observed],
        "f": [sequence["f"].mean(axis=(0, 1)) for sequence in observed],
    } | {method: [s["ratios"][number].mean(axis=0) for s in observed] for number, method in enumerate(METHODS)}
    found = table(folder, "frequency_correlation").set_index(["measure", "specials"])
    by_token = table(folder, "frequency_by_token").set_index("token_id")
    ordinary = ~np.isin(ids, [100, 101, 102, 103, 0])
    for measure, parts in measures.items():
        values = np.concatenate(parts)
        for specials, chosen in (("with", np.ones(len(ids), bool)), ("without", ordinary)):
            row = found.loc[(measure, specials)]
            # More counts, smaller rank.
            expected = scipy.stats.spearmanr(-counts[ids[chosen]], values[chosen]).statistic
            assert row["count"] == chosen.sum()
            assert row["spearman"] == pytest.approx(expected, abs=1e-4)
        np.testing.assert_allclose(by_token.loc[1012, measure], values[ids == 1012].mean(), rtol=1e-5)
    assert by_token.loc[1012, "token"] == "."
    assert by_token.loc[1012, "count"] == counts[1012]
    assert set(table(folder, "frequency_correlation_by_layer")["layer"]) == set(range(1, LAYERS + 1))


def _check_sample(folder, pairs):
    sample = table(folder, "norms_sample")
    assert len(sample) == min(10_000, len(pairs))
    keys = ["layer", "category"]
    distinct = pairs.assign(alpha=pairs["alpha"].round(5), f=pairs["f"].round(4)).drop_duplicates()
    drawn = sample[[*keys, "alpha", "f"]].assign(alpha=sample["alpha"].round(5), f=sample["f"].round(4))
    matched = drawn.merge(distinct, on=[*keys, "alpha", "f"], how="inner")
    assert len(matched) > 0.9 * len(sample)  # the rest rounds to the neighbouring digit


@pytest.mark.slow
def test_an_estimated_correlation_keeps_its_bound(capsys, monkeypatch, corpus, tmp_path, pairs):
    run(capsys, monkeypatch, corpus, tmp_path / "a", "analysis.norms.exact_pairs=0")
    found = table(tmp_path / "a", "norms_correlation").set_index(["layer", "category"])
    assert (found["error_bound"] > 0).all()
    for (layer, category), row in found.iterrows():
        chosen = _pairs_of(pairs, layer, category)
        expected = scipy.stats.spearmanr(chosen["alpha"], chosen["f"]).statistic
        assert row["count"] == len(chosen)
        assert abs(row["spearman"] - expected) <= row["error_bound"]


def test_ranks_from_a_file(capsys, monkeypatch, corpus, tmp_path, observed):
    file = tmp_path / "ranks.txt"
    ranks = {1012: 1, 1010: 2, 2053: 3, 1996: 4}
    file.write_text("".join(f"{rank} {100 - rank} {token}\n" for token, rank in ranks.items()))
    run(capsys, monkeypatch, corpus, tmp_path / "a", f"analysis.frequency.path={file}")
    ids = np.concatenate([sequence["ids"] for sequence in observed])
    values = np.concatenate([sequence["f"].mean(axis=(0, 1)) for sequence in observed])
    expected = scipy.stats.spearmanr([ranks.get(token, 5) for token in ids], values).statistic
    found = table(tmp_path / "a", "frequency_correlation").set_index(["measure", "specials"])
    assert found.loc[("f", "with"), "spearman"] == pytest.approx(expected, abs=1e-4)


def test_a_corpus_of_special_tokens_alone_has_no_correlation(capsys, monkeypatch, tmp_path, saved_model):
    text = tmp_path / "a.txt"
    text.write_text("[SEP]\n[MASK]\n")
    arguments = [f"model.name={saved_model}", "analysis=frequency", "dataset=text", f"dataset.path={text}"]
    outcome = run_here(capsys, monkeypatch, *arguments, "tracking=disabled", f"output_dir={tmp_path / 'a'}")
    assert outcome.status == 0, outcome.err
    assert "ρ is undefined, no pairs" in outcome.err
    assert table(tmp_path / "a", "frequency_correlation").set_index("specials").loc["without", "spearman"].isna().all()


def test_the_conventional_ranks(capsys, monkeypatch, corpus, tmp_path):
    run(
        capsys, monkeypatch, corpus, tmp_path / "a", "analysis.frequency.conventional=true", "dataset.mask_fraction=0.1"
    )
    by_token = table(tmp_path / "a", "frequency_by_token").set_index("token")["rank"]
    assert by_token[["[CLS]", "[SEP]", ".", ","]].tolist() == [1, 2, 3, 4]
    assert by_token[["[MASK]", "?", "a"]].isna().all()
    assert by_token["the"] > 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 2 3\n4 5\n", "line 2: expected `rank count token_id`"),
        ("1 2 99999\n", "token 99999 is not one of the model"),
        ("\n", "got none"),
    ],
)
@pytest.mark.spread(1)
def test_a_malformed_frequency_file(capsys, monkeypatch, corpus, tmp_path, content, message):
    file = tmp_path / "ranks.txt"
    file.write_text(content)
    arguments = ["analysis=frequency", f"analysis.frequency.path={file}", "dataset=text", f"dataset.path={corpus}"]
    outcome = run_here(capsys, monkeypatch, *arguments, "tracking=disabled", f"output_dir={tmp_path / 'a'}")
    assert outcome.status == 2
    assert message in outcome.err


def test_categories_that_never_occur_are_reported(capsys, monkeypatch, tmp_path, saved_model):
    text = tmp_path / "a.txt"
    text.write_text("no stops at all\n")
    arguments = [
        "analysis=norms",
        f"model.name={saved_model}",
        "dataset=text",
        f"dataset.path={text}",
        "tracking=disabled",
    ]
    outcome = run_here(capsys, monkeypatch, *arguments, f"output_dir={tmp_path / 'a'}")
    assert outcome.status == 0, outcome.err
    assert "no token of category punctuation occurs in the corpus" in outcome.err
    for name in ("norms_by_layer", "norms_by_head", "norms_correlation"):
        assert "punctuation" not in set(table(tmp_path / "a", name)["category"])
    assert not table(tmp_path / "a", "norms_by_layer").isna().any().any()


@pytest.mark.slow
def test_one_pass_serves_every_analysis(capsys, monkeypatch, corpus, tmp_path, folder):
    run(capsys, monkeypatch, corpus, tmp_path / "all", "analysis=[mixing,norms,frequency]")
    for name in ("by_layer", "by_head", "scatter", "singular_values", "expansion"):
        assert (tmp_path / f"all/figures/norms_{name}.png").is_file()
    for name in ("norms_by_head", "frequency_correlation"):
        pd.testing.assert_frame_equal(table(tmp_path / "all", name), table(folder, name))
