"""Tables of the analyses on tiny models, against every pair and every vector built, in float64."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

from benchmarks.scenarios import analyses_of, analysing, context_of
from normscope.analyses.declarations.frequency import FrequencyOptions
from normscope.analyses.declarations.norms import NormsOptions
from normscope.analyses.frequency import FREQUENCIES, FrequencyAnalysis
from normscope.analyses.norms import NormsAnalysis
from normscope.data.batching import Batch
from normscope.data.categories import CATEGORIES
from normscope.data.token_frequencies import TokenFrequencies
from normscope.models.blocks.block import AttentionBlock
from normscope.models.observe.observer import Observer
from normscope.results.result import Result
from normscope.rounding import brief
from tests.family_modules import parts_of
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model, token_batch

LENGTHS = (9, 4, 1)


def batch_of(model, lengths=LENGTHS) -> Batch:
    inputs = token_batch(model, lengths)
    token_mask = inputs["attention_mask"].bool()
    categories = torch.randint(len(CATEGORIES), token_mask.shape, generator=torch.Generator().manual_seed(2))
    return Batch(
        inputs["input_ids"], None, token_mask, categories.masked_fill(~token_mask, -1), tuple(range(len(lengths)))
    )


def findings(model, name: str, *batches: Batch) -> Result:
    (analysis,) = analyses_of(model, [name])
    for batch in batches:
        analysing(model, batch, [analysis])()
    return analysis.result()


def blocks_of(model, batch: Batch) -> list[AttentionBlock]:
    blocks: list[AttentionBlock] = []
    with Observer(model, facts_for(model.config.model_type, config=model.config)) as observer:
        observer.run(batch.model_inputs(), blocks.append)
    return blocks


def test_heads_that_never_reach_a_share_have_no_number_of_dimensions():
    """The scores of one head are mostly the key bias's."""
    model = tiny_model(FAMILY_CONFIGS["qwen2"], torch.float64)
    attention = parts_of(model)[0].attention
    attention.k_proj.bias[: attention.head_dim] *= 100
    result = findings(model, "score", batch_of(model))
    concentration = result.tables["concentration"].set_index(["layer", "head"])
    row = concentration.loc[(1, 1)]
    assert row["key_bias"] > 0.5
    assert row[["half", "ninety"]].isna().all()
    assert concentration["half"].notna().any()
    assert result.metrics["heads_below_half/share"] == concentration["half"].isna().mean()
    assert result.metrics["dimensions_for_half/mean"] == pytest.approx(
        concentration["half"].dropna().astype(int).mean()
    )


@pytest.mark.slow
def test_heads_without_any_spread_have_no_dimensions_that_explain_it():
    """A query that sees a single key has no spread."""
    model = tiny_model(FAMILY_CONFIGS["gpt2"], torch.float64)
    result = findings(model, "score", batch_of(model, (1, 1)))
    concentration = result.tables["concentration"]
    assert (concentration["variance"] == 0).all()
    assert concentration[["half", "ninety", "outliers", "key_bias", "first", "first_share"]].isna().all().all()
    assert "dimensions_for_half/mean" not in result.metrics
    assert np.isfinite(list(result.metrics.values())).all()
    assert [sentence.table for sentence in result.sentences] == ["weights"]  # what a key receives is known all the same
    assert not any(len(curve) for curve in result.curves.values())


def visible_pairs(model, batch: Batch) -> pd.DataFrame:
    """Every visible pair of every layer and head, with α as the softmax of the scores says it, or the module itself."""
    rows = []
    for block in blocks_of(model, batch):
        norms = torch.einsum("bhkd,hdm->bhkm", block.value, block.parameters.output_weight).norm(dim=-1)
        for row, head, query, key in np.ndindex(*block.weights.shape):
            if block.token_mask[row, query] and block.key_mask[row, key] and block.weights[row, head, query, key] > 0:
                weight, norm = block.weights[row, head, query, key].item(), norms[row, head, key].item()
                category = CATEGORIES[batch.categories[row, key]]
                rows.append((block.layer, head + 1, category, weight, norm))
    return pd.DataFrame(rows, columns=["layer", "head", "category", "alpha", "f"])


@pytest.mark.slow
def test_the_frequency_sample_has_no_room_for_tokens_without_a_rank(monkeypatch):
    monkeypatch.setattr("normscope.analyses.frequency._POINTS", 8)
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    batch = batch_of(model, (20, 17))
    rank = np.zeros(99, dtype=np.int64)
    ranked = batch.input_ids[0, :10].unique()
    rank[ranked] = 1 + np.arange(len(ranked))
    occurrences = int((rank[batch.input_ids[batch.token_mask]] > 0).sum())
    assert occurrences > 8
    context = dataclasses.replace(context_of(model), resources={FREQUENCIES: TokenFrequencies(rank, rank)})
    analysis = FrequencyAnalysis(FrequencyOptions(seed=0), context)
    analysing(model, batch, [analysis])()
    sample = analysis._sampled()
    assert len(sample) == 8
    assert (sample["rank"] > 0).all()


def test_no_category_has_no_members():
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    context = dataclasses.replace(context_of(model), categories=[])
    assert context.members(batch_of(model, (3, 2))).shape == (0, 2, 3)


@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.spread(1)
def test_rank_correlations_are_those_of_the_numbers_in_float64(scale):
    """Sharp attention has weights that float32 cannot tell from zero, and neighbours that it cannot tell apart."""
    model = tiny_model(FAMILY_CONFIGS["gpt2"], torch.float64)
    for modules in parts_of(model):
        modules.attention.c_attn.weight[:, :24] *= scale
    batch = batch_of(model, (30, 24, 1))
    pairs = visible_pairs(model, batch)
    analysis = NormsAnalysis(NormsOptions(seed=0), context_of(model))
    analysing(model, batch, [analysis])()
    result = analysis.result()
    correlation = result.tables["correlation"]
    assert set(correlation["category"]) == {*CATEGORIES, "all"}
    assert set(correlation["layer"]) == {0, 1, 2, 3}
    for row in correlation.itertuples():
        chosen = pairs[((pairs["layer"] == row.layer) | (row.layer == 0))]
        chosen = chosen[(chosen["category"] == row.category) | (row.category == "all")]
        assert row.count == len(chosen)
        expected = spearmanr(chosen["alpha"], chosen["f"]).statistic
        assert abs(row.spearman - expected) <= row.error_bound + 1e-7  # rounding breaks ties
    everything = correlation.query("layer == 0 and category == 'all'")["spearman"].item()
    assert result.metrics["spearman/all"] == everything
    written = f"a rank correlation of {brief(everything, signed=True)}"
    assert any(written in sentence for sentence in result.sentences)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_rank_correlations_do_not_depend_on_the_size_of_batches(family, dtype):
    """With rotary positions, equal tokens have equal ‖f(x)‖ in the first layer, up to rounding."""
    model, tables = tiny_model(FAMILY_CONFIGS[family], dtype), []
    tokens = torch.randint(5, 9, (24, 17), generator=torch.Generator().manual_seed(0))
    categories, lengths = torch.full((1, 17), CATEGORIES.index("other")), [3 + number % 15 for number in range(24)]
    for size in (1, 5, 24):
        analysis = NormsAnalysis(NormsOptions(seed=0), dataclasses.replace(context_of(model), dtype=dtype))
        for start in range(0, 24, size):
            rows = slice(start, start + size)
            token_mask = torch.arange(17) < torch.tensor(lengths[rows])[:, None]
            of_tokens = categories.expand(token_mask.shape).masked_fill(~token_mask, -1)
            batch = Batch(tokens[rows], None, token_mask, of_tokens, tuple(range(24))[rows])
            analysing(model, batch, [analysis])()
        tables.append(analysis.result().tables["correlation"].set_index(["layer", "category"]))
    for other in tables[1:]:
        assert other["count"].equals(tables[0]["count"])
        assert ((other["spearman"] - tables[0]["spearman"]).abs() < 1e-3).all()
        assert (other["error_bound"] - tables[0]["error_bound"]).abs().max() < 1e-2


@pytest.mark.slow
def test_correlations_with_frequency_are_those_of_the_numbers_in_float64():
    """Tokens that the model tells apart by less than float32 does."""
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    for embedding in (model.embeddings.word_embeddings, model.embeddings.position_embeddings):
        embedding.weight *= 1e-8
    batch = batch_of(model, (30, 24, 7))
    token_mask = batch.token_mask
    measures = {name: [] for name in ("alpha", "f")}
    for block in blocks_of(model, batch):
        received = torch.einsum("bhqk,bq->bhk", block.weights, token_mask.double()).mean(dim=1)
        measures["alpha"].append((received / token_mask.sum(dim=-1, keepdim=True))[token_mask])
        transformed = torch.einsum("bhkd,hdm->bhkm", block.value, block.parameters.output_weight)
        measures["f"].append(transformed.norm(dim=-1).mean(dim=1)[token_mask])
    ranks = 1 + batch.input_ids[token_mask]
    result = findings(model, "frequency", batch).tables
    for measure, by_layer in measures.items():
        for layer, values in enumerate([torch.stack(by_layer).mean(dim=0), *by_layer]):
            table = result["correlation_by_layer"].query("layer == @layer") if layer else result["correlation"]
            row = table[(table["measure"] == measure) & (table["specials"] == "with")].iloc[0]
            assert row["count"] == len(ranks)
            if pd.isna(row["spearman"]):
                assert values.max() < 1.05 * values.min()
                assert row["reason"] == "one side is constant, or varies too little for an estimate"
            else:
                assert abs(row["spearman"] - spearmanr(ranks, values).statistic) <= row["error_bound"]
