"""Tokens that a query cannot see are no value in a map: on the page, in figures and in lists."""

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import normscope
from normscope.reporting.page.explorer import packed
from normscope.results.maps import TokenMap
from tests.tiny import FAMILY_CONFIGS
from tests.unit.test_explorer import unpacked

TOKENS = tuple("abcde")
CAUSAL = np.tri(5, dtype=bool)
WINDOW = CAUSAL & ~np.tri(5, k=-2, dtype=bool)
"""Each token sees itself and the one before."""


def weighted(*masks, **more):
    """Maps whose weights are uniform over what each mask shows, in one layer each."""
    weights = np.stack([mask / mask.sum(axis=1, keepdims=True) for mask in masks])
    return TokenMap("", TOKENS, TOKENS, tuple(range(1, len(masks) + 1)), {"attn_w": weights, **more})


def test_a_weight_of_nothing_is_a_key_that_is_not_seen():
    shown = weighted(CAUSAL, WINDOW, share=np.zeros((2, 5, 5)))
    for measure in ("attn_w", "share"):
        assert (shown.seen(measure) == np.stack([CAUSAL, WINDOW])).all()


def test_layers_pass_on_what_earlier_layers_saw():
    layers = 3
    shown = weighted(*[WINDOW] * layers, rollout=np.zeros((layers, 5, 5)))
    for layer, query, key in np.ndindex(layers, 5, 5):
        # A step back for each layer.
        assert shown.seen("rollout")[layer, query, key] == (0 <= query - key <= layer + 1)


def test_maps_without_weights_are_causal_if_nothing_comes_from_later_tokens():
    values = np.random.default_rng(0).random((2, 5, 5))
    values[:, 3, 1] = 0  # which ALTI has for what adds nothing
    only = TokenMap("", TOKENS, TOKENS, (1, 2), {"alti": values})
    assert only.seen("alti").all()
    causal = dataclasses.replace(only, maps={"alti": values * CAUSAL})
    assert (causal.seen("alti") == CAUSAL).all()


@pytest.mark.parametrize("kind", ["difference", "targets", "single", "cross"])
def test_other_maps_have_all_values(kind):
    zeros = np.zeros((1, 5, 5))
    shown = {
        "difference": lambda: dataclasses.replace(weighted(CAUSAL), is_difference=True),
        "targets": lambda: TokenMap("", TOKENS, TOKENS, (0,), {"token_score": zeros}),
        "single": lambda: TokenMap("", ("a",), ("a",), (1,), {"rollout": zeros[:, :1, :1]}),
        "cross": lambda: TokenMap("", TOKENS[:2], TOKENS, (1,), {"alti": zeros[:, :2]}, is_cross_attention=True),
    }[kind]()
    assert shown.seen(shown.leading).all()


def test_the_page_and_figures_have_no_value_there():
    weights = CAUSAL / CAUSAL.sum(axis=1, keepdims=True)
    of_heads = np.stack([weights, weights])[None]
    shown = dataclasses.replace(weighted(CAUSAL), head_maps={"attn_w": of_heads})
    page = packed(shown)
    for codes, shape in ((page["maps"]["attn_w"], (1, 5, 5)), (page["head_maps"]["attn_w"], (1, 2, 5, 5))):
        found = unpacked(codes, shape)
        np.testing.assert_allclose(found[..., CAUSAL], np.broadcast_to(weights, shape)[..., CAUSAL], rtol=1e-3)
        assert np.isnan(found[..., ~CAUSAL]).all()
    cells = shown.figure().values_of("attn_w").to_numpy()
    np.testing.assert_array_equal(np.isnan(cells), ~CAUSAL)


def test_a_causal_model_sees_no_later_tokens(tokenizer):
    torch.manual_seed(0)
    config = AutoConfig.for_model(**FAMILY_CONFIGS["gpt2"] | {"vocab_size": len(tokenizer)})
    model = normscope.wrap(AutoModelForCausalLM.from_config(config).eval(), tokenizer)
    (shown,) = normscope.decompose(model, "the old cat sat").maps
    before = np.tri(len(shown.queries), dtype=bool)
    for measure in shown.maps:
        assert (shown.seen(measure) == before).all(), measure
