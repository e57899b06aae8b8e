"""The proof at load refuses every wrong layout and every model that does something else than its layout says."""

import dataclasses
from collections.abc import Callable
from types import MethodType

import pytest
import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.passes import carried_pass, held_pass
from normscope.attribution.scalars import attribute_scalars
from normscope.errors import InputError
from normscope.models.observe.observer import Observer
from normscope.models.observe.text_check import Check, TextCheck
from normscope.models.prove.verification import verify
from tests.contract.mutated_layouts import IN_LAYER, IN_MODEL, NOT_MUTATED, mutations
from tests.tiny import FAMILY_CONFIGS, KINDS, STACK_CONFIGS, layout_of, tiny_model, tiny_stack, token_batch

QUICK = {("bert", None), ("llama", None), ("olmo2", None), ("mixtral", None), ("granite", None), ("t5", "cross")}
"""Families whose layouts are mutated every day; the others are those that differ in more than names."""
CASES = [
    pytest.param(family, stack, id=f"{family}-{stack}" if stack else family, marks=() if quick else pytest.mark.slow)
    for family, stack in [
        *((f, None) for f in FAMILY_CONFIGS),
        *((f, s) for f in STACK_CONFIGS for s in ("encoder", "decoder", "cross")),
    ]
    for quick in [(family, stack) in QUICK]
    if quick or family in KINDS
]

# Mutations that change nothing, and why.
_OWN_WEIGHTS = "the weights that the module returns are the same, and the proof rebuilds them"
_NO_GAMMA = "the norms of OLMo have no weights, so that one is like the other"


def allowed(family: str, field: str) -> str | None:
    """Why a wrong layout may be accepted: nothing that is computed differs."""
    if field == "registry":
        return _OWN_WEIGHTS
    return _NO_GAMMA if family == "olmo" and ("norm" in field or field == "unit_offset") else None


def test_every_field_is_mutated_or_there_is_a_reason():
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.float64)
    layout = layout_of("llama", None, model.config)
    site = layout.sites[0]
    parts = {
        None: layout,
        "stream": layout.stream,
        "site": site,
        "attention": site.attention,
        "residual": site.residual,
    }
    fields = {
        field.name if part is None else f"{part}.{field.name}"
        for part, of in parts.items()
        for field in dataclasses.fields(of)
    }
    mutated = {mutation.field for mutation in mutations(layout, model)}
    mutated |= {f"{part}.{field}" for part, found in IN_LAYER.items() for field in found}
    mutated |= {f"stream.{field}" for field in IN_MODEL} | {"attention.head_norms", "attention.scale"}
    nested = {"sites", "stream", "site.attention", "site.residual"}
    assert fields - mutated - nested == set(NOT_MUTATED)


@pytest.mark.parametrize(("family", "stack"), CASES)
@pytest.mark.spread(1)
def test_a_layout_with_one_wrong_field_is_refused(family, stack):
    """By a message that names the layer, and the part or the module."""
    model = tiny_stack(family, stack, torch.float64) if stack else tiny_model(FAMILY_CONFIGS[family], torch.float64)
    layout = layout_of(family, stack, model.config)
    accepted, vague = [], []
    for mutation in mutations(layout, model):
        try:
            verify(model, mutation.layout, family)
        except InputError as error:
            if "layer" not in str(error) or "\n" in str(error):
                vague.append(f"{mutation}: {error}")
        else:
            if allowed(family, mutation.field) is None:
                accepted.append(str(mutation))
    assert not accepted
    assert not vague
    verify(model, layout, family)


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
    "values that read another tensor than keys": ("llama", shifted_values, "the value of layer 2 differs"),
    "clipped values": ("llama", clipped_values, "the value of layer 2 differs"),
    "a convolution on values": ("llama", convolved_values, "the value of layer 2 differs"),
    "queries that read another tensor": ("bert", another_query, "the query of layer 2 differs"),
    "α smoothed after the softmax": (
        "llama",
        smoothed_attention,
        r"the (attention output|sum of αf\(x\)) of layer 2 differs",
    ),
    "weights other than those used": ("gptj", weights_that_are_not_used, r"the sum of αf\(x\) of layer 2 differs"),
    "two attentions in one sum": ("llama", two_attentions, "the block output of layer 2 differs"),
    "attention called twice": ("llama", attention_twice, "the block output of layer 2 differs"),
    "a third branch in a parallel block": ("gpt_neox", third_branch, "the layer output of layer 2 differs"),
    "a second writer to the stream": ("llama", second_writer, "the layer output of layer 2 differs"),
    "a writer between layers": ("llama", writer_between_layers, "the .* of layer 2 differs"),
    "a writer before the final norm": (
        "llama",
        writer_before_the_norm,
        "the (final norm|model output) of layer 3 differs",
    ),
    "dropout in the code": ("llama", functional_dropout, "the block (input|output) of layer [23] differs"),
    "dropout left on": (
        "gptj",
        dropout_left_on,
        r"expected a model in evaluation mode, got training mode in h\.1\.attn",
    ),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("kind", SABOTAGED)
def test_a_model_that_does_something_else_is_refused(kind):
    family, sabotage, message = SABOTAGED[kind]
    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    layout = layout_of(family, None, model.config)
    verify(model, layout, family)
    sabotage(model)
    with pytest.raises(InputError, match=message):
        verify(model, layout, family)


@pytest.mark.spread(5)
@pytest.mark.parametrize("kind", SABOTAGED)
def test_attribution_follows_what_a_model_does_not_what_its_layout_says(kind):
    """The twins of the refusals above: scores, biases and vectors add up to what the changed code computes."""
    family, sabotage, _ = SABOTAGED[kind]
    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    layout, inputs = layout_of(family, None, model.config), token_batch(model, (9, 9))
    sabotage(model)
    passed = held_pass(model, layout, inputs)
    scalars = (passed.returned * torch.randn_like(passed.returned)).sum(dim=(1, 2))
    found = attribute_scalars(passed, scalars)
    total = found.scores.sum(dim=1) + found.bias + found.remainder
    torch.testing.assert_close(total, scalars.detach(), rtol=1e-9, atol=1e-9)
    if "dropout" in kind:  # no two passes are the same
        return
    carried = carried_pass(model, layout, inputs, torch.eye(9).double()[:, None].expand(-1, 2, -1), bias=True)
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
    layout = layout_of("llama", None, model.config)
    as_kind(model.layers[1].mlp.down_proj, kind)
    with pytest.raises(InputError, match=reason):
        held_pass(model, layout, token_batch(model, (9, 6)))


def test_the_layout_of_another_family_is_refused():
    """Gemma 4 looks like OLMo 2, but normalises its values and scales its layers."""
    model = tiny_model(
        FAMILY_CONFIGS["llama"] | {"model_type": "gemma4_text", "head_dim": 8, "vocab_size_per_layer_input": 1000},
        torch.float64,
    )
    with pytest.raises(InputError, match=r"layer \d"):
        verify(model, layout_of("olmo2"), "gemma4_text")


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
    layout = layout_of("gptj")
    local(model, dense=16)
    verify(model, layout, "gptj")
    with Observer(model, layout) as observer:
        for length in (12, 16, 8):
            observer.run(token_batch(model, (length, 5)), lambda _block: None)
        with pytest.raises(InputError, match=r"exactly on these texts: the sum of αf\(x\) of layer 1 differs"):
            observer.run(token_batch(model, (3, 30)), lambda _block: None)


@pytest.mark.parametrize("family", [*FAMILY_CONFIGS, *STACK_CONFIGS])
@pytest.mark.spread(1)
def test_everything_that_is_compared_on_texts_is_equal_in_an_exact_model(family, monkeypatch):
    model = tiny_model(FAMILY_CONFIGS.get(family) or STACK_CONFIGS[family], torch.float64)
    model = model.get_encoder() if family in STACK_CONFIGS else model
    layout, compared = layout_of(family, None, model.config), []
    verify(model, layout, family)
    monkeypatch.setattr(TextCheck, "require", lambda _check, found, _scores: compared.extend(found))
    with Observer(model, layout, feed_forward=layout.has_networks) as observer:
        for check in (Check.SOME, Check.TEXTS):
            visit = (lambda _block: None) if layout.has_networks else None
            observer.run(token_batch(model, (4, 40, 17)), lambda _block: None, None, visit, check=check)
    bound = 1e-6 if observer.check.bound > 1e-10 else 1e-12
    assert {each.layer for each in compared} == {1, 2, 3}
    assert {"sum of αf(x)", "attention output", "layer output"} <= {each.part for each in compared}
    assert max(float(each.error) for each in compared) < bound
