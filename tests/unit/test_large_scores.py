"""Weights of scores in the thousands are those of a softmax, in every form; models that have them are exact in float32."""

import pytest
import torch

from normscope.errors import InputError
from normscope.maths.attention import attention
from normscope.maths.attention_weights import AttentionWeights
from normscope.maths.masks import Mask, Visibility
from normscope.models.observe.attention_function import attention_by
from normscope.models.observe.check import Check, PartError, PartsCheck
from normscope.models.observe.observer import Observer
from normscope.models.prove.verification import verify
from tests.tiny import FAMILY_CONFIGS, facts_for, tiny_model, token_batch

AGREED = 2e-5
"""By how much transformers' own eager and fused attention differ at most for the models below (relative)."""


def weights_of(size, *, causal, sinks=None):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 40, 8, generator=generator) for _ in range(3))
    query = query * size
    tokens = torch.ones(2, 40, dtype=torch.bool)
    tokens[1, 25:] = False
    mask = Mask(keys=tokens, causal=causal)
    _, log_normaliser = attention(query, key, value, mask, 1.0, sinks=sinks)
    alpha = AttentionWeights(query, key, log_normaliser, Visibility(mask, tokens, tokens, False), 1.0, sinks=sinks)
    scores = query @ key.transpose(-1, -2)  # as the model rounds them
    scores = scores.double().masked_fill(~tokens[:, None, None, :], -torch.inf)
    scores = scores + torch.full_like(scores[0, 0], -torch.inf).triu(1) if causal else scores
    if sinks is None:
        return alpha, tokens, scores.softmax(dim=-1)
    sink = sinks.double()[:, None, None].expand(2, 3, 40, 1)
    return alpha, tokens, torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]


@pytest.mark.parametrize("sinks", [None, torch.tensor([5.0, 500.0, 5000.0])], ids=["", "sinks"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("size", [1, 100, 1000], ids=["small", "hundreds", "thousands"])
def test_every_form_of_the_weights_is_that_of_a_softmax(size, causal, sinks):
    alpha, tokens, expected = weights_of(size, causal=causal, sinks=sinks)
    assert alpha.large == (size > 1 or sinks is not None)
    rows = tokens[:, None, :, None]
    close = {"rtol": 0, "atol": 5e-6}  # small scores are rounded by 20·6e-8, twice

    def same(got, wanted):
        torch.testing.assert_close(got.double(), wanted, **close)

    same(alpha.whole * rows, expected * rows)
    if sinks is None:
        torch.testing.assert_close(alpha.whole.sum(-1), torch.ones(2, 3, 40), **close)
    own = expected.diagonal(dim1=-2, dim2=-1)
    same(alpha.own * tokens[:, None], own * tokens[:, None])
    same(alpha.received, (expected * rows).sum(dim=2))
    total = torch.zeros_like(expected)
    for some, queries, keys, weights in alpha.tiles():
        total[some, :, queries, keys] += weights
    same(total, expected * rows)
    pairs = [torch.tensor(each) for each in ([0, 1, 1], [2, 0, 1], [39, 24, 7], [3, 24, 0])]
    same(alpha.at(*pairs), expected[tuple(pairs)])
    places = torch.tensor([4, 20])
    same(alpha.rows(places, slice(0, 1), slice(0, 21)), expected[:1][:, :, places, :21])


@pytest.mark.spread(2)
@pytest.mark.parametrize("factor", [100, 1000])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_models_with_large_scores_are_exact_in_float32(family, factor):
    model = tiny_model(FAMILY_CONFIGS[family], torch.float32)
    facts = facts_for(family, None, model.config)
    for layer in model.encoder.layer if family == "bert" else model.layers:
        (layer.attention.self.query if family == "bert" else layer.self_attn.q_proj).weight.data.mul_(factor)
    inputs = token_batch(model, (20, 9))
    with torch.inference_mode():
        outputs = []
        for implementation in ("eager", "sdpa"):
            with attention_by(model, implementation):
                outputs.append(model(**inputs).last_hidden_state[inputs["attention_mask"].bool()])
    assert ((outputs[0] - outputs[1]).norm(dim=-1) / outputs[0].norm(dim=-1)).max() < AGREED
    assert verify(model, facts, family).error < AGREED
    errors = []
    with Observer(model, facts) as observer:
        require = observer.check.require
        observer.check.require = lambda found, scores: (errors.extend(found), require(found, scores))
        observer.run(inputs, lambda _block: None, check=Check.TEXTS)
        assert any(observer.check.large.values())
    assert max(float(each.error) for each in errors) < AGREED


def test_a_refusal_that_precision_explains_says_so():
    """And one that it does not explain keeps its reason."""
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float32)
    check = PartsCheck(model, facts_for("bert"))
    for error, explained in ((3e-4, True), (0.5, False)):
        found = PartError(1, "sum of αf(x)", error)
        with pytest.raises(InputError, match=r"the sum of αf\(x\) of layer 1 differs by") as refused:
            check.require([found], {1: torch.tensor(4000.0)})
        reason = "scores as large as 4,000 are too large for its precision: set device.dtype=float64"
        assert (reason in str(refused.value)) is explained
        assert ("float64" in str(refused.value)) is explained
