"""A model that does something else than attention blocks is exact or refused, when it is read and in the proof."""

from collections.abc import Callable
from types import MethodType

import pytest
import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.passes import carried_pass, held_pass
from normscope.attribution.scalars import attribute_scalars
from normscope.errors import InputError
from normscope.models.observe.check import Check
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of
from normscope.models.prove.verification import verify
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, facts_for, tiny_model, token_batch


class ShiftedValues(nn.Linear):
    """A projection of the token before."""

    def forward(self, vectors):
        return super().forward(vectors.roll(1, dims=1))


class ClippedValues(nn.Linear):
    def forward(self, vectors):
        return super().forward(vectors).clamp(-1.5, 1.5)


class ConvolvedValues(nn.Linear):
    def forward(self, vectors):
        values = super().forward(vectors)
        return values + 0.1 * values.roll(1, dims=1)


class SmoothedAttention(nn.Linear):
    """W_O after a second mixture of tokens."""

    def forward(self, heads):
        return super().forward(0.9 * heads + 0.1 * heads.mean(dim=1, keepdim=True))


def as_kind(module: nn.Module, kind: type[nn.Module]) -> None:
    module.__class__ = kind


def replaced_forward(module: nn.Module, forward: Callable) -> None:
    module.forward = MethodType(forward, module)


def shifted_values(model):
    as_kind(model.layers[1].self_attn.v_proj, ShiftedValues)


def clipped_values(model):
    as_kind(model.layers[1].self_attn.v_proj, ClippedValues)


def convolved_values(model):
    as_kind(model.layers[1].self_attn.v_proj, ConvolvedValues)


def smoothed_attention(model):
    as_kind(model.layers[1].self_attn.o_proj, SmoothedAttention)


def two_attentions(model):
    attention, other = model.layers[1].self_attn, model.layers[0].self_attn
    own = type(attention).forward

    def both(module, *args, **kwargs):
        return own(module, *args, **kwargs)[0] + other(*args, **kwargs)[0], None

    replaced_forward(attention, both)


def attention_twice(model):
    attention = model.layers[1].self_attn
    own = type(attention).forward

    def twice(module, hidden_states, **kwargs):
        return own(module, own(module, hidden_states, **kwargs)[0], **kwargs)

    replaced_forward(attention, twice)


def second_writer(model):
    layer = model.layers[1]
    own = type(layer).forward
    replaced_forward(
        layer, lambda module, vectors, *args, **kwargs: own(module, vectors, *args, **kwargs) + 0.1 * vectors
    )


def writer_between_layers(model):
    model.layers[1] = Shift(model.layers[1]).eval()


def writer_before_the_norm(model):
    norm = model.norm
    own = type(norm).forward
    replaced_forward(norm, lambda module, vectors: own(module, vectors + torch.ones_like(vectors)))


class Shift(nn.Module):
    """Adds a vector to what a layer reads; the attributes are the layer's."""

    def __init__(self, layer):
        super().__init__()
        for name, module in layer.named_children():
            setattr(self, name, module)
        self.run = [layer]

    def forward(self, vectors, *args, **kwargs):
        return self.run[0](vectors + 0.1, *args, **kwargs)


def functional_dropout(model):
    norm = model.layers[1].post_attention_layernorm
    own = type(norm).forward
    replaced_forward(norm, lambda module, vectors: own(module, nn.functional.dropout(vectors, 0.1, training=True)))


def dropout_left_on(model):
    model.h[1].attn.attn_dropout.p = 0.1
    model.h[1].attn.attn_dropout.train()


def third_branch(model):
    layer = model.layers[1]
    own, extra = type(layer).forward, model.layers[0].mlp
    replaced_forward(layer, lambda module, vectors, **kwargs: own(module, vectors, **kwargs) + extra(vectors))


def weights_that_are_not_used(model):
    """The module returns weights before they are smoothed."""
    attention = model.h[1].attn
    own = type(attention)._attn

    def smoothed(module, query, key, value, mask=None):
        _, weights = own(module, query, key, value, mask)
        return (0.9 * weights + 0.1 * weights.roll(1, dims=-1)) @ value, weights

    attention._attn = MethodType(smoothed, attention)


def another_query(model):
    query = model.encoder.layer[1].attention.self.query
    replaced_forward(query, lambda module, vectors: nn.functional.linear(vectors.flip(1), module.weight, module.bias))


SABOTAGED = {
    "values that read another tensor than keys": (
        "llama",
        shifted_values,
        "its values are made of several tokens' vectors each",
    ),
    "clipped values": ("llama", clipped_values, None),
    "a convolution on values": ("llama", convolved_values, "its values are made of several tokens' vectors each"),
    "queries that read another tensor": (
        "bert",
        another_query,
        "what it gives is not followed to the residual connection",
    ),
    "α smoothed after the softmax": (
        "llama",
        smoothed_attention,
        "vectors of different tokens are mixed between attention and",
    ),
    "weights other than those used": (
        "gptj",
        weights_that_are_not_used,
        "what it gives is not followed to a linear layer",
    ),
    "two attentions in one sum": ("llama", two_attentions, "the outputs of two attentions are added up before"),
    "attention called twice": ("llama", attention_twice, "what it gives is not followed to the residual connection"),
    "a third branch in a parallel block": ("gpt_neox", third_branch, None),
    "a second writer to the stream": ("llama", second_writer, None),
    "a writer between layers": ("llama", writer_between_layers, None),
    "a writer before the final norm": ("llama", writer_before_the_norm, None),
    "dropout in the code": ("llama", functional_dropout, "dropout is active"),
    "dropout left on": ("gptj", dropout_left_on, "dropout is active"),
}
"""The family, the sabotage, and why it is refused; None where what the code does is still a block, and is measured exactly."""


@pytest.mark.spread(3)
@pytest.mark.parametrize("kind", SABOTAGED)
def test_a_model_that_does_something_else_is_exact_or_refused(kind):
    """With the line of the code; also if the model has changed after it was read."""
    family, sabotage, reason = SABOTAGED[kind]
    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    before = facts_of(model)
    verify(model, before, family, feed_forward=True)
    sabotage(model)
    if reason is None:
        for facts in (facts_of(model), before):
            assert verify(model, facts, family, feed_forward=True).error < 1e-6
        return
    with pytest.raises(
        InputError, match=rf"^the attention of layer \d cannot be measured: .*{reason}.*, line \d+, in \w+.$"
    ):
        verify(model, facts_of(model), family)
    with pytest.raises(InputError, match=f"^the attention of layer .*{reason}|training mode in h"):
        verify(model, before, family)


@pytest.mark.spread(5)
@pytest.mark.parametrize("kind", SABOTAGED)
def test_attribution_follows_what_a_model_does_not_what_its_layout_says(kind):
    """The twins of the refusals above: scores, biases and vectors add up to what the changed code computes."""
    family, sabotage, _ = SABOTAGED[kind]
    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    facts, inputs = facts_for(family, None, model.config), token_batch(model, (9, 9))
    sabotage(model)
    passed = held_pass(model, facts, inputs)
    scalars = (passed.returned * torch.randn_like(passed.returned)).sum(dim=(1, 2))
    found = attribute_scalars(passed, scalars)
    total = found.scores.sum(dim=1) + found.bias + found.remainder
    torch.testing.assert_close(total, scalars.detach(), rtol=1e-9, atol=1e-9)
    if "dropout" in kind:  # no two passes are the same
        return
    carried = carried_pass(model, facts, inputs, torch.eye(9).double()[:, None].expand(-1, 2, -1), bias=True)
    torch.testing.assert_close(carried.parts.sum(dim=0), carried.vectors, rtol=1e-9, atol=1e-9)
    with torch.inference_mode():
        untouched = model(**inputs).last_hidden_state  # whose norms round to float32
    torch.testing.assert_close(passed.returned.detach(), untouched, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(carried.vectors, untouched, rtol=1e-6, atol=1e-6)


class Unseen(nn.Linear):
    """A projection of which no mode learns."""

    def forward(self, vectors):
        with torch._C.DisableTorchFunction():
            return super().forward(vectors)


class Squared(nn.Linear):
    def forward(self, vectors):
        return super().forward(vectors) + vectors.square().mean()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            Unseen,
            r"add in layers\.1 \(LlamaDecoderLayer\) reads a tensor that may or may not be linear",
        ),
        (Squared, r"\w+ in layers\.1\.mlp\.down_proj \(Squared\) is not linear in the tokens' vectors"),
    ],
)
def test_what_attribution_cannot_follow_is_named(kind, reason):
    """No kind of a tensor is lost, and nothing is guessed: the function and its module are named."""
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.float64)
    facts = facts_for("llama", None, model.config)
    as_kind(model.layers[1].mlp.down_proj, kind)
    with pytest.raises(InputError, match=reason):
        held_pass(model, facts, token_batch(model, (9, 6)))


def local(model: PreTrainedModel, dense: int) -> None:
    """Attention that leaves out all but the nearest keys of a text longer than `dense`, and does not say so."""
    for layer in model.h:
        own = type(layer.attn)._attn

        def near(module, query, key, value, mask=None, own=own):
            output, weights = own(module, query, key, value, mask)
            if query.shape[2] > dense:
                used = torch.tril(weights).triu(-4)
                output = (used / used.sum(dim=-1, keepdim=True)) @ value
            return output, weights

        layer.attn._attn = MethodType(near, layer.attn)


def test_attention_that_is_local_in_long_texts_is_refused_when_one_comes():
    model = tiny_model(FAMILY_CONFIGS["gptj"], torch.float32)
    facts = facts_for("gptj")
    local(model, dense=16)
    verify(model, facts, "gptj")
    with Observer(model, facts) as observer:
        for length in (12, 16, 8):
            observer.run(token_batch(model, (length, 5)), lambda _block: None)
        with pytest.raises(
            InputError,
            match=r"^the attention of layer 1 cannot be measured: what it gives is not followed to a linear layer",
        ):
            observer.run(token_batch(model, (3, 30)), lambda _block: None)


@pytest.mark.parametrize("family", [*FAMILY_CONFIGS, *STACK_CONFIGS])
@pytest.mark.spread(1)
def test_everything_that_is_compared_on_texts_is_equal_in_an_exact_model(family):
    model = tiny_model(FAMILY_CONFIGS.get(family) or STACK_CONFIGS[family], torch.float64)
    model = model.get_encoder() if family in STACK_CONFIGS else model
    facts, compared = facts_of(model, "encoder" if family in STACK_CONFIGS else None), []
    with Observer(model, facts, feed_forward=facts.has_networks) as observer:
        for check in (Check.SOME, Check.TEXTS):
            visit = (lambda _block: None) if facts.has_networks else None
            observer.run(token_batch(model, (4, 40, 17)), lambda _block: None, None, visit, check=check)
            compared.extend(observer.compared)
    assert {each.layer for each in compared} == {1, 2, 3}
    assert {"sum of αf(x)", "output"} <= {each.part for each in compared}
    assert max(float(each.error) for each in compared) < 1e-6
