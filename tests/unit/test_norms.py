"""Norms against vectors that are built one by one, in float64."""

import pandas as pd
import pytest
import torch

import normscope
from normscope.maths import norms as maths
from tests import tiny

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


def test_decompose_equals_explicit_vectors(saved_model):
    model = normscope.load(saved_model, device="cpu", dtype="float64")
    text = ("Attention, it turns out, is not a weight.", "Vectors count.")
    found = normscope.decompose(model, text)
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
    assert isinstance(found.table, pd.DataFrame)
    assert "attnresln_n" in repr(found)
    assert "%" in found._repr_html_()


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
