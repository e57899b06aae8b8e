"""Norms against vectors that are built one by one, in float64."""

import pandas as pd
import pytest
import torch

import normscope
from normscope.analyses import dispersion
from normscope.maths import norms as maths
from tests import tiny
from tests.one_text import decompose

F64 = torch.float64
B, H, T, D, M = 2, 3, 5, 4, 12


def test_transformed_norms_of_a_head_that_nearly_vanishes():
    """Squaring W_O would leave no correct digit here in float32."""
    output_weight = torch.diag(torch.tensor([1.0, 1e-5]))[None]
    value = torch.tensor([[[[0.0, 1.0]]]])
    assert maths.transformed_norms(value, maths.norm_factors(output_weight)).item() == pytest.approx(1e-5, rel=1e-5)


def test_transformed_norms_of_a_head_wider_than_the_model():
    output_weight, value = torch.randn(1, 8, 3, dtype=F64), torch.randn(1, 1, 2, 8, dtype=F64)
    explicit = (value @ output_weight).norm(dim=-1)
    torch.testing.assert_close(maths.transformed_norms(value, maths.norm_factors(output_weight)), explicit)


@pytest.mark.parametrize(("model", "head_dim"), [(12, 4), (3, 8), (5, 5)])
def test_singular_values_are_those_of_the_whole_matrix(model, head_dim):
    """In float64, also for heads in half precision; a head may be wider than the model."""
    numbers = torch.Generator().manual_seed(model)
    value, bias, output = (
        torch.randn(H, *shape, generator=numbers) for shape in ((model, head_dim), (head_dim,), (head_dim, model))
    )
    value[1] = 0  # a head that was pruned: its map is x ↦ 0 if there is no bias
    bias[1] = 0
    for dtype in (torch.float64, torch.bfloat16):
        weights = [tensor.to(dtype) for tensor in (value, bias, output)]
        found = maths.singular_values(*weights)
        assert found.dtype == F64
        for head, (v, b, o) in enumerate(zip(*(tensor.double() for tensor in weights), strict=True)):
            matrix = torch.zeros(model + 1, model + 1, dtype=F64)
            matrix[:-1, :-1], matrix[-1, :-1], matrix[-1, -1] = v @ o, b @ o, 1
            every = torch.linalg.svdvals(matrix)
            size = min(model, head_dim) + 1
            torch.testing.assert_close(found[head], every[:size], rtol=1e-10, atol=1e-14)
            assert (every[size:] < 1e-12).all()
    assert found[1].tolist() == [1.0] + [0.0] * min(model, head_dim)


def test_heads_in_the_figure_of_singular_values_come_from_each_layer_in_turn():
    table = pd.DataFrame(
        [(layer, head, place) for layer in (1, 2, 4) for head in range(1, 6) for place in (1, 2)],
        columns=["layer", "head", "index"],
    )
    seen = set()
    for seed in range(20):
        drawn = dispersion.drawn_heads(table, 7, seed)
        assert drawn.equals(dispersion.drawn_heads(table, 7, seed))
        assert list(drawn) == list(table)
        heads = drawn.groupby("layer")["head"].nunique()
        assert sorted(heads) == [2, 2, 3]
        assert set(drawn.groupby(["layer", "head"])["index"].apply(tuple)) == {(1, 2)}
        seen |= set(zip(drawn["layer"], drawn["head"], strict=True))
    assert len(seen) == 15
    assert len(dispersion.drawn_heads(table, 100, 0)) == len(table)


@pytest.mark.slow
def test_the_scatter_plot_has_as_many_pairs_of_each_category():
    """[CLS] is in every text once, and a uniform sample of all pairs would have few of its pairs."""
    texts = ["The cat sat on the mat and slept for a long time, quietly, in the sun.", "We walk by the river, talking."]
    result = normscope.run("norms", texts=texts, scatter_pairs=200, layers=[1, 2])
    points = result.figures["norms_scatter"].table["category"].value_counts()
    assert points.to_dict() == dict.fromkeys(["cls", "sep", "punctuation", "other"], 40)


@pytest.mark.slow
def test_a_head_without_vectors_varies_by_nothing(saved_model):
    """Its mean norm is 0, so that it has no coefficient of variation, and no ratio of singular values."""
    model = normscope.load(saved_model, device="cpu", dtype="float64")
    size = model.model.config.hidden_size // model.model.config.num_attention_heads
    model.model.encoder.layer[0].attention.output.dense.weight.data[:, :size] = 0
    result = normscope.run("norms", model=model, texts=["The cat sat on the mat."])
    table = result.tables["norms_dispersion"].set_index(["layer", "head"])
    assert pd.isna(table.loc[(1, 1), "cv"])
    assert result.metrics["norms/f/cv_min"] == table["cv"].min()
    assert (result.metrics["norms/f/cv_max/layer"], result.metrics["norms/f/cv_max/head"]) == table["cv"].idxmax()
    values = result.tables["norms_singular_values"].groupby(["layer", "head"])["value"]
    assert values.min()[(1, 1)] == 0
    ratios = (values.max() / values.min()).drop((1, 1))
    assert result.metrics["norms/singular_values/ratio_max"] == pytest.approx(ratios.max())


def test_decompose_equals_explicit_vectors(saved_model):
    model = normscope.load(saved_model, device="cpu", dtype="float64")
    text = ("Attention, it turns out, is not a weight.", "Vectors count.")
    found = decompose(model, text)
    for index, block in enumerate(normscope.observe(model, text)):
        vectors = torch.einsum("bhqk,bhkm->bqkm", block.weights, block.transformed())[0]
        torch.testing.assert_close(found.maps["attn_n"][index], vectors.norm(dim=-1))
        diagonal = torch.arange(len(vectors))
        vectors[diagonal, diagonal] += block.inputs[0]
        torch.testing.assert_close(found.maps["attnres_n"][index], vectors.norm(dim=-1))
        normalised = block.parameters.normalisation.scaled(vectors) / block.composition.deviation[0, :, None, None]
        torch.testing.assert_close(found.maps["attnresln_n"][index], normalised.norm(dim=-1))
    pairs = found.pairs[(found.pairs["layer"] == 3) & (found.pairs["query"] == 2) & (found.pairs["key"] == 5)]
    assert pairs["attnresln_n"].item() == found.maps["attnresln_n"][2, 2, 5].item()
    assert (found.tokens[0], found.tokens[-1]) == ("[CLS]", "[SEP]")
    assert "attnresln_n" in repr(found.result)
    assert "<img" in found.result._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "llama", "mistral"])
def test_uniform_weights_prefer_no_vectors(family):
    """Short texts of tokens with short vectors and long texts of tokens with long ones; all weights of a query are equal.

    Over the pairs of all texts, ρ is negative, because weights are larger in short texts. No query prefers shorter vectors.
    """
    model = tiny.tiny_model(tiny.FAMILY_CONFIGS[family] | {"sliding_window": 4}, torch.float64)
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("query", "q_proj", "position_embeddings")):
            parameter.zero_()
    loaded = normscope.wrap(model)
    every = list(range(5, 99))
    lengths = [float(first_block(loaded, token).transformed().norm(dim=-1).mean()) for token in every]
    ordered = [token for _, token in sorted(zip(lengths, every, strict=True))]
    texts = [ordered[:3], ordered[3:6], ordered[-12:], ordered[-24:-12]]
    results = normscope.run("norms", model=loaded, texts=texts, layers=1)
    assert results.metrics["norms/spearman/all"] < -0.05
    assert results.metrics["norms/f/uniform"] == pytest.approx(results.metrics["norms/alpha_f/all"], rel=1e-12)
    assert not any("vectors tend to get" in sentence for sentence in results.sentences)


def first_block(model, token):
    return next(iter(normscope.observe(model, [token])))
