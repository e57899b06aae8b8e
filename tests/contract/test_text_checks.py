"""A model that does something else with some texts than with the probes of the proof is refused on these texts.

Every sabotage depends on something that the probes do not have: more than twelve tokens, some token, an even number of tokens,
a late position, a large value. The same model without it is accepted, and its numbers are those of explicit vectors.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BatchEncoding

import normscope
from normscope.errors import InputError
from normscope.models.observer import Observer
from normscope.models.text_check import Check
from normscope.models.verification import verify
from tests.tiny import FAMILY_CONFIGS, layout_of, tiny_model, token_batch

Trigger = Callable[[Tensor], Tensor]

TOKEN = 31
"""A token that no probe has."""

LONG = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]
SHORT = [5, 6, 7]
WITH_TOKEN = [5, 6, TOKEN, 8, 9]


def long(vectors):
    """Texts of more than twelve tokens."""
    return torch.ones_like(vectors[..., :1]) * (0.5 if vectors.shape[-2] > 12 else 1.0)


def late(vectors):
    """Position 15."""
    factor = torch.ones_like(vectors[..., :1])
    factor[..., 15:16, :] = 0.5
    return factor


def even(vectors):
    """Texts with an even number of tokens of more than ten."""
    length = vectors.shape[-2]
    return torch.ones_like(vectors[..., :1]) * (0.5 if length % 2 == 0 and length > 10 else 1.0)


class Times(nn.Module):
    """A module whose output is multiplied by a factor of its own making; the attributes are the module's."""

    def __init__(self, module: nn.Module, factor: Trigger) -> None:
        super().__init__()
        for name, child in module.named_children():
            setattr(self, name, child)
        for name, weight in module.named_parameters(recurse=False):
            setattr(self, name, weight)
        self.run, self.factor = [module], factor

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["run"][0], name)

    def forward(self, *args, **kwargs):
        output = self.run[0](*args, **kwargs)
        if isinstance(output, tuple):
            return (output[0] * self.factor(output[0]), *output[1:])
        return output * self.factor(output)


def multiplied(module: nn.Module, factor: Trigger) -> None:
    """Let a module's own forward return a multiple. It keeps its class, so that nothing else tells."""
    own = type(module).forward

    def forward(self, *args, **kwargs):
        output = own(self, *args, **kwargs)
        if isinstance(output, tuple):
            return (output[0] * factor(output[0]), *output[1:])
        return output * factor(output)

    module.__class__ = type(type(module).__name__, (type(module),), {"forward": forward})


def scaled_attention(model, factor):
    multiplied(model.layers[1].self_attn, factor)


def scaled_norm(model, factor):
    multiplied(model.layers[1].post_attention_layernorm, factor)


def scaled_input_norm(model, factor):
    multiplied(model.layers[1].input_layernorm, factor)


def scaled_network(model, factor):
    multiplied(model.layers[1].mlp.down_proj, factor)


def scaled_activation(model, factor):
    model.layers[1].mlp.act_fn = _Activation(model.layers[1].mlp.act_fn, factor).eval()


class _Activation(nn.Module):
    def __init__(self, own: nn.Module, factor: Trigger) -> None:
        super().__init__()
        self.own, self.factor = own, factor

    def forward(self, vectors):
        return self.own(vectors) * (self.factor(vectors) if vectors.ndim > 1 else 1.0)


def scaled_values(model, factor):
    multiplied(model.layers[1].self_attn.v_proj, factor)


def scaled_output(model, factor):
    multiplied(model.layers[1], factor)


def scaled_heads(model, factor):
    """Between the attention function and W_O."""
    projection = model.layers[1].self_attn.o_proj
    own = type(projection).forward
    projection.__class__ = type(
        "Linear", (type(projection),), {"forward": lambda self, heads: own(self, heads * factor(heads))}
    )


def scaled_bert_attention(model, factor):
    multiplied(model.encoder.layer[1].attention.output.dense, factor)


def scaled_bert_sum(model, factor):
    """The sum of residual and attention output, before the norm."""
    norm = model.encoder.layer[1].attention.output.LayerNorm
    own = type(norm).forward
    norm.__class__ = type(
        "LayerNorm", (type(norm),), {"forward": lambda self, vectors: own(self, vectors + (factor(vectors) - 1) * vectors.roll(1, dims=-1))}
    )


def scaled_bert_norm(model, factor):
    multiplied(model.encoder.layer[1].attention.output.LayerNorm, factor)


def scaled_bert_layer(model, factor):
    multiplied(model.encoder.layer[1], factor)


BLOCKS = {
    "llama attention": ("llama", scaled_attention, "the block output of layer 2"),
    "llama heads": ("llama", scaled_heads, r"the sum of αf\(x\) of layer 2"),
    "llama values": ("llama", scaled_values, "the value of layer 2"),
    "llama input norm": ("llama", scaled_input_norm, "the attention input of layer 2"),
    "llama layer": ("llama", scaled_output, "the layer output of layer 2"),
    "bert attention": ("bert", scaled_bert_attention, r"the sum of αf\(x\) of layer 2"),
    "bert sum": ("bert", scaled_bert_sum, "the output of the block's norm of layer 2"),
    "bert norm": ("bert", scaled_bert_norm, "the output of the block's norm of layer 2"),
    "bert layer": ("bert", scaled_bert_layer, "the layer output of layer 2"),
}
NETWORKS = {
    "network": (scaled_network, "the feed-forward network of layer 2"),
    "activation": (scaled_activation, "the feed-forward network of layer 2"),
    "norm": (scaled_norm, "the input of the feed-forward network of layer 2"),
}


def encoded(ids):
    return BatchEncoding({"input_ids": [ids], "attention_mask": [[1] * len(ids)]})


def verified(family, sabotage, factor):
    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    layout = layout_of(family, None, model.config)
    sabotage(model, factor)
    verify(model, layout, family)
    verify(model, layout, family, feed_forward=True)
    return model, layout


def observed(model, layout, ids, check, *, feed_forward=False):
    blocks = []
    mask = torch.ones(1, len(ids), dtype=torch.long)
    with Observer(model, layout, feed_forward=feed_forward) as observer:
        observer.run(
            {"input_ids": torch.tensor([ids]), "attention_mask": mask},
            blocks.append,
            visit_feed_forward=(lambda _block: None) if feed_forward else None,
            check=check,
        )
    return blocks


@pytest.mark.parametrize("check", [Check.SOME, Check.TOKENS, Check.TEXTS])
@pytest.mark.parametrize("factor", [long, late])
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_that_depends_on_the_text_is_refused(kind, factor, check):
    family, sabotage, message = BLOCKS[kind]
    model, layout = verified(family, sabotage, factor)
    assert len(observed(model, layout, SHORT, check)) == 3
    with pytest.raises(InputError, match=f"cannot be observed exactly on these texts: {message} differs by"):
        observed(model, layout, LONG, check)


@pytest.mark.parametrize("check", [Check.SOME, Check.TOKENS, Check.TEXTS])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_that_depends_on_the_text_is_refused(kind, check):
    sabotage, message = NETWORKS[kind]
    model, layout = verified("llama", sabotage, long)
    observed(model, layout, SHORT, check, feed_forward=True)
    with pytest.raises(InputError, match=f"cannot be observed exactly on these texts: {message} differs by"):
        observed(model, layout, LONG, check, feed_forward=True)
