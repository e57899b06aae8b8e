"""Score contributions, their spread and attention by group, against every pair built, in float64."""

import numpy as np
import pandas as pd
import pytest
import torch

from normscope.analyses.removals import beside_controls
from normscope.analyses.score import describe_figures
from normscope.maths import masks
from normscope.maths.attention import attention_by_group, attention_weights
from normscope.maths.masks import Mask
from normscope.maths.outliers import deviation_scores, outlier_dimensions
from normscope.maths.scores import (
    causal_score_spread,
    covariances,
    score_spread,
    seen_by,
    visible_contribution_sums,
    visible_score_spread,
)

BATCH, HEADS, TOKENS, MODEL, HEAD_DIM = 3, 2, 5, 6, 3


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs, key_weight = random(BATCH, TOKENS, MODEL), random(HEADS, MODEL, HEAD_DIM)
    bias = random(HEADS, HEAD_DIM)
    key = torch.einsum("bkm,hmd->bhkd", inputs, key_weight) + bias[:, None]
    token_mask = torch.arange(TOKENS) < torch.tensor([5, 3, 4])[:, None]
    members = torch.stack([token_mask, token_mask & (torch.arange(TOKENS) % 2 == 0)])
    return random(BATCH, HEADS, TOKENS, HEAD_DIM), key, key_weight, bias, inputs, token_mask, members


def contributions(query, key_weight, inputs):
    """C with axes batch head query key model."""
    return torch.einsum("bhqd,hmd->bhqm", query, key_weight)[:, :, :, None] * inputs[:, None, None]


def visibility(token_mask, kind):
    visible = token_mask[:, :, None] & token_mask[:, None, :]
    return {"all": visible, "causal": visible.tril(), "window": visible.triu(-1).tril(1)}[kind]


MASKS = {
    "all": lambda token_mask: Mask(keys=token_mask),
    "causal": lambda _token_mask: Mask(causal=True),
    "window": lambda token_mask: Mask(
        keys=token_mask, queries=token_mask, allowed=lambda _b, _h, query, key: (query - key).abs() <= 1, reach=1
    ),
}


def expected_sums(every, members, visible):
    pairs = (visible[None] & members[:, :, None, :]).double()
    return torch.einsum("bhqkm,gbqk->ghm", every, pairs)


@pytest.mark.parametrize("strip", [2, 256])
@pytest.mark.parametrize("shared", [0, 1e4])  # a vector that all keys share changes no spread, and may not blur it
def test_causal_spread(parts, strip, shared, monkeypatch):
    monkeypatch.setattr("normscope.maths.scores._BLOCK", strip)
    query, key, key_weight, _bias, inputs, token_mask, _members = parts
    covariance, variance = expected_spread(contributions(query, key_weight, inputs), visibility(token_mask, "causal"))
    found = causal_score_spread(query, key + shared, token_mask)
    torch.testing.assert_close(covariances(found.directions, key_weight, inputs), covariance)
    torch.testing.assert_close(found.variance, variance)


@pytest.mark.parametrize("strip", [2, 256])
@pytest.mark.parametrize("kind", ["all", "causal", "window"])
def test_sums_over_visible_pairs(parts, kind, strip, monkeypatch):
    monkeypatch.setattr(masks, "STRIP", strip)
    query, _key, key_weight, _bias, inputs, token_mask, members = parts
    visible = visibility(token_mask, kind)
    expected = expected_sums(contributions(query, key_weight, inputs), members, visible)
    meeting = seen_by(query, token_mask, MASKS[kind](token_mask))
    places = [group.flatten().nonzero()[:, 0] for group in members]
    torch.testing.assert_close(visible_contribution_sums(meeting, key_weight, inputs, places), expected)


def expected_spread(every, visible):
    """Covariance of C_j with the score over the keys of every query, one query at a time."""
    covariance, variance = torch.zeros(HEADS, MODEL).double(), torch.zeros(HEADS).double()
    for b, h, q in torch.cartesian_prod(*map(torch.arange, every.shape[:3])).tolist():
        parts = every[b, h, q][visible[b, q]]
        if len(parts):
            score = parts.sum(dim=-1)
            centred = score - score.mean()
            covariance[h] += ((parts - parts.mean(dim=0)) * centred[:, None]).mean(dim=0)
            variance[h] += centred.square().mean()
    return covariance, variance


def test_spread_where_everything_is_visible(parts):
    query, key, key_weight, _bias, inputs, token_mask, _members = parts
    covariance, variance = expected_spread(contributions(query, key_weight, inputs), visibility(token_mask, "all"))
    found = score_spread(query, key, token_mask)
    torch.testing.assert_close(covariances(found.directions, key_weight, inputs), covariance)
    torch.testing.assert_close(found.variance, variance)
    torch.testing.assert_close(covariance.sum(dim=-1), found.variance)


@pytest.mark.parametrize("strip", [2, 256])
@pytest.mark.parametrize("kind", ["all", "causal", "window"])
def test_spread_over_visible_keys(parts, kind, strip, monkeypatch):
    monkeypatch.setattr(masks, "STRIP", strip)
    query, key, key_weight, _bias, inputs, token_mask, _members = parts
    visible = visibility(token_mask, kind)
    covariance, variance = expected_spread(contributions(query, key_weight, inputs), visible)
    found = visible_score_spread(query, key, token_mask, MASKS[kind](token_mask))
    torch.testing.assert_close(covariances(found.directions, key_weight, inputs), covariance)
    torch.testing.assert_close(found.variance, variance)


@pytest.mark.parametrize("groups", [2, 5])  # fewer, and more than a head is wide
def test_attention_by_group_is_the_sum_of_weights(parts, groups):
    query, key, *_, token_mask, _members = parts
    members = torch.stack([token_mask & (torch.arange(TOKENS) % groups == group) for group in range(groups)])
    mask = Mask(keys=token_mask)
    term = masks.additive_mask(token_mask[:, None, None, :], torch.float64)
    expected = torch.einsum("bhqk,gbk->bhqg", attention_weights(query, key, term, 0.5), members.double())
    torch.testing.assert_close(attention_by_group(query, key, members, mask, 0.5), expected)


def test_dimensions_that_agree_are_no_outliers():
    assert (deviation_scores(torch.ones(1, 4), "sigma") == 0).all()
    flags = torch.tensor([[True, True, False], [True, False, False]])
    assert outlier_dimensions(flags, 0.0) == [0, 1]


def test_changes_beside_those_of_random_sets():
    columns = beside_controls(np.array([1.0, 2.0]), np.array([[0.0, 0.5, 1.0], [3.0, 3.0, 3.0]]))
    assert {name: values.tolist() for name, values in columns.items()} == {
        "change": [1.0, 2.0],
        "controls_mean": [0.5, 3.0],
        "controls_low": pytest.approx([0.025, 3.0]),
        "controls_high": pytest.approx([0.975, 3.0]),
    }
    without = beside_controls(np.array([1.0]), np.empty((1, 0)))
    assert np.isnan([without[f"controls_{end}"] for end in ("mean", "low", "high")]).all()


@pytest.mark.parametrize("controls", [0.25, np.nan])
def test_controls_are_drawn_and_described_if_there_are_any(controls):
    removed = {"removed": "outliers", "category": "cls", "layer": 1, "before": 0.5, "after": 0.25}
    row = removed | {f"controls_{end}": controls for end in ("mean", "low", "high")}
    contributions = pd.DataFrame(columns=["layer", "head", "category", "dimension", "mean"], dtype=float)
    weights = pd.DataFrame({"layer": [1], "category": ["cls"], "sum": [0.5], "one_key": [0.5]})
    tables = {"weights": weights, "contributions": contributions, "intervention": pd.DataFrame([row])}
    lines = ["before", "after"]
    expected = lines if np.isnan(controls) else [*lines, "controls"]
    figure = describe_figures(tables, [0])["intervention"]
    assert list(figure.series_titles) == expected
    assert list(dict.fromkeys(figure.table["line"])) == expected
    assert ("random" in figure.caption) == ("controls" in expected)
    assert figure.table["alpha"].notna().all()
