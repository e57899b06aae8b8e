"""Models whose layers differ: each block is exact, and tables have rows for the heads that exist."""

import functools

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention

import normscope
from normscope.data.conllu_file import ConlluFile
from normscope.maths.mixing import OF_STAGE, Method
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of
from normscope.models.prove.verification import verify
from normscope.running.options import run_options
from normscope.running.pipeline import analyse
from tests.one_text import attribute, decompose
from tests.tiny import FAMILY_CONFIGS, tiny_model, token_batch
from tests.treebank import TREEBANK
from tests.varied_layers import VARIED, varied

TEXTS = [[5, 7, 12, 3, 40, 8], [9, 1, 4, 8, 22, 17]]
IDS = torch.tensor(TEXTS)
EXACT = {"rtol": 1e-9, "atol": 1e-9}


QUICK = {"everything", "gates", "positions of norms"}
"""Together, they differ in all ways."""
EACH = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIED]


@functools.cache
def wrapped(name):
    return normscope.wrap(varied(name))


def expected_blocks(name):
    with torch.no_grad():
        return varied(name).blocks(IDS)


def contributions(parts):
    """α_ij (g_i ⊙ v_j) W_O: batch, head, query, key, model."""
    return torch.einsum("bhqk,bhkd,bhqd,hdm->bhqkm", parts.weights, parts.value, parts.gate, parts.output_weight)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", EACH)
def test_each_block_is_what_its_own_layer_computes(name):
    """α, values, W_O with all factors, ratios and norms against explicit vectors of all pairs."""
    model = wrapped(name)
    assert model.verification.error < 1e-10
    blocks = list(normscope.observe(model, TEXTS))
    for block, (read, parts) in zip(blocks, expected_blocks(name), strict=True):
        torch.testing.assert_close(block.inputs, read, **EXACT)
        torch.testing.assert_close(block.weights, parts.weights, **EXACT)
        torch.testing.assert_close(block.value, parts.value, **EXACT)
        torch.testing.assert_close(block.parameters.output_weight, parts.output_weight, **EXACT)
        of_heads = contributions(parts)
        pairs = of_heads.sum(dim=1)
        torch.testing.assert_close(block.attention_output, pairs.sum(dim=2) + parts.output_bias, **EXACT)
        torch.testing.assert_close(block.head_norms(block.weights), of_heads.norm(dim=-1), **EXACT)
        torch.testing.assert_close(GroupedBlock.of_tokens(block).maps()[Method.ATTN_N], pairs.norm(dim=-1), **EXACT)
        preserving = pairs.diagonal(dim1=1, dim2=2).mT
        mixing = (pairs.sum(dim=2) - preserving).norm(dim=-1)
        ratio = mixing / (mixing + preserving.norm(dim=-1))
        torch.testing.assert_close(block.mixing_ratios[Method.ATTN_N][:, 1:], ratio[:, 1:], **EXACT)
        of_last = OF_STAGE[block.composition.stages[-1]]
        shares = GroupedBlock.of_tokens(block).pair_shares().sum(dim=-1) + block.shares[of_last].bias
        torch.testing.assert_close(shares, torch.ones_like(shares), **EXACT)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", EACH)
def test_whole_layers_are_followed(name):
    """Scores, biases and what every layer's heads and network add make up a scalar of the last vectors."""
    model = wrapped(name)
    target = lambda hidden: hidden[-1, 3]  # noqa: E731
    found = attribute(model, TEXTS[0], target, by=["layer", "head"])
    assert found.target == pytest.approx(float(varied(name)(IDS[:1])[0, -1, 3]), rel=1e-6)
    assert found.scores.sum() + found.bias + found.remainder == pytest.approx(found.target, rel=1e-9)
    assert abs(found.remainder) < 1e-9
    of_heads = found.effects[found.effects["part"] == "attention"]
    counts = {number: kind.heads for number, kind in enumerate(VARIED[name], start=1)}
    assert of_heads.groupby("layer")["head"].max().to_dict() == counts
    assert of_heads["value"].notna().all()
    assert list(found.strongest(3).columns) == ["layer", "head", "value"]
    found.result.figure("heads")
    found.result.explorer()
    assert model.layers_verification.error < 1e-10


def test_methods_are_those_of_all_layers():
    facts = wrapped("positions of norms").facts
    assert facts.norm_positions == ("pre", "parallel", "branch")
    assert [str(method) for method in facts.methods] == ["attn_w", "attn_n", "attnres_w"]
    ratios = normscope.run("mixing", model=wrapped("positions of norms"), texts=TEXTS).tables["mixing_by_layer"]
    assert {*ratios["method"]} == {"attn_w", "attnres_w", "attn_n"}
    assert {*ratios["layer"]} == {1, 2, 3}


@pytest.mark.parametrize("name", EACH)
def test_decompositions_have_the_heads_of_each_layer(name):
    found = decompose(wrapped(name), TEXTS[0], heads=True)
    for layer, (_, parts) in enumerate(expected_blocks(name)):
        heads = parts.weights.shape[1]
        of_heads = contributions(parts).norm(dim=-1)
        torch.testing.assert_close(found.head_maps["attn_w"][layer, :heads], parts.weights[0], **EXACT)
        torch.testing.assert_close(found.head_maps["attn_n"][layer, :heads], of_heads[0], **EXACT)
        assert not found.head_maps["attn_w"][layer, heads:].any()
        torch.testing.assert_close(found.maps["attn_w"][layer], parts.weights[0].mean(dim=0), **EXACT)
    assert found.map.heads == max(kind.heads for kind in VARIED[name])
    assert not pd.isna(found.map.maps["attn_w"]).any()


HEADS = "numbers of heads"


def test_tables_by_layer_and_head_have_rows_for_the_heads_that_exist():
    """Means over sequences of α and ‖αf(x)‖ on all keys of a query, and of the largest weight that a token receives."""
    counts = {1: [*range(1, 5)], 2: [1, 2], 3: [*range(1, 9)]}
    sinks = {"length": 6, "sequences": 2}
    results = normscope.run(["norms", "score", "sinks"], model=wrapped(HEADS), texts=TEXTS * 2, sinks=sinks)
    tables = {name: table for name, table in results.tables.items() if {"layer", "head"} <= {*table.columns}}
    assert {"norms_by_head", "score_concentration", "score_contributions"} <= {*tables}
    for name, table in tables.items():
        of_heads = table[(table["layer"] > 0) & (table["head"] > 0)]
        assert {layer: sorted({*rows["head"]}) for layer, rows in of_heads.groupby("layer")} == counts, name
    by_head = results.tables["norms_by_head"].query("category == 'all'").set_index(["layer", "head"])
    concentration = results.tables["score_concentration"].set_index(["layer", "head"])
    for layer, (_, parts) in enumerate(expected_blocks(HEADS), start=1):
        norms = contributions(parts).norm(dim=-1).sum(dim=-1).mean(dim=(0, 2))
        for head in counts[layer]:
            assert by_head.loc[(layer, head), "alpha_f"] == pytest.approx(float(norms[head - 1]), rel=1e-6)
            assert concentration.loc[(layer, head), "variance"] > 0
    assert results.metrics["norms/share/heads"] == 14
    assert ", 3 layers, up to 8 heads" in repr(wrapped(HEADS))
    assert ", 3 layers, 4 heads" in repr(wrapped("gates"))


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["mixing", "feedforward", "frequency", "outliers"])
def test_analyses_of_blocks_and_layers_run(name):
    assert normscope.run(name, model=wrapped("everything"), texts=TEXTS * 2).metrics


def llama_with_other_heads(**changes):
    """Llama whose second layer has two heads instead of four."""
    model = tiny_model(FAMILY_CONFIGS["llama"] | changes, torch.float64)
    config = LlamaConfig(**model.config.to_dict() | {"num_attention_heads": 2, "num_key_value_heads": 1})
    config.head_dim = model.config.head_dim
    config._attn_implementation = model.config._attn_implementation
    torch.manual_seed(1)
    attention = LlamaAttention(config, layer_idx=1).double().eval()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    attention.config = model.config
    model.layers[1].self_attn = attention.requires_grad_(False)
    return model


def test_layers_of_a_transformers_model_may_differ_in_heads():
    model = llama_with_other_heads()
    facts, given = facts_of(model), []
    assert facts.heads_of == {1: 4, 2: 2, 3: 4}
    assert facts.calls_function
    assert verify(model, facts, "llama", feed_forward=True).error < 1e-6
    inputs = token_batch(model, (7, 5))
    with Observer(model, facts) as observer:
        observer.run(inputs, (blocks := []).append)
    for layer in model.layers:
        layer.self_attn.o_proj.register_forward_hook(lambda _module, _args, output: given.append(output))
    with torch.inference_mode():
        model(**inputs)
    for block, output in zip(blocks, given, strict=True):
        tokens = block.token_mask
        made = torch.einsum("bhqk,bhkm->bqm", block.weights, block.transformed()) + block.parameters.output_bias
        torch.testing.assert_close(made[tokens], output[tokens], **EXACT)


def test_heads_that_a_layer_lacks_follow_no_dependency_relation(tokenizer, tmp_path):
    (tmp_path / "bank.conllu").write_text(TREEBANK)
    model = normscope.wrap(llama_with_other_heads(vocab_size=len(tokenizer)), tokenizer)
    settings = {
        "model": {"name": model.name},
        "device": {"name": "cpu"},
        "dataset": {"kind": "conllu"},
        "analysis": {"syntax": {"enabled": True}},
        "report": {"enabled": False},
    }
    result = analyse(run_options(settings), model, ConlluFile(tmp_path / "bank.conllu"), progress=False)
    counts = {1: 4, 2: 2, 3: 4}
    every, best = result.tables["syntax_heads"], result.tables["syntax_best"]
    assert {layer: rows["head"].max() for layer, rows in every[every["layer"] > 0].groupby("layer")} == counts
    assert (best["head"] <= best["layer"].map(counts)).all()
