"""What a module's own code makes of weights, values and sums is refused with its line, or measured as it is."""

import pytest
import torch
from torch import nn

import normscope
from normscope.attribution.passes import held_pass
from normscope.errors import InputError
from tests.own_models import D, H, V
from tests.tiny import token_batch


class Attention(nn.Module):
    """Attention that does something to its weights or values."""

    def __init__(self, weights=lambda alpha: alpha, values=lambda v: v):
        super().__init__()
        self.project, self.out, self.weights, self.values = nn.Linear(D, 3 * D), nn.Linear(D, D), weights, values

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (H, -1)).transpose(1, 2) for each in self.project(x).chunk(3, dim=-1))
        alpha = self.weights((q @ k.mT).softmax(dim=-1))
        return self.out((alpha @ self.values(v)).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A block with a norm after the sum."""

    def __init__(self, attention, norm):
        super().__init__()
        self.attention, self.norm = attention, norm

    def forward(self, x):
        return self.norm(x + self.attention(x))


class Model(nn.Module):
    """One layer."""

    def __init__(self, attention, norm=None):
        super().__init__()
        self.embed, self.layers = nn.Embedding(V, D), nn.ModuleList([Layer(attention, norm or nn.LayerNorm(D))])

    def forward(self, ids):
        return self.layers[0](self.embed(ids))


class BatchNorm(nn.BatchNorm1d):
    """A norm over texts and tokens."""

    def forward(self, x):
        return super().forward(x.mT).mT


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (lambda alpha: alpha * alpha, r"multiply no values as the softmax gave them, .*\(test_refusals.py, line \d+"),
        (lambda alpha: 0.5 * alpha, r"multiply no values as the softmax gave them, .*\(test_refusals.py, line \d+"),
        (
            lambda alpha: 0.9 * alpha + 0.1,
            r"multiply no values as the softmax gave them, .*\(test_refusals.py, line \d+",
        ),
        (lambda alpha: torch.where(alpha > 0.2, alpha, 0.0), "sum of the attention weights of layer 1 differs by"),
    ],
)
def test_weights_that_are_changed_after_the_softmax_are_refused(weights, reason):
    torch.manual_seed(0)
    with pytest.raises(InputError, match=reason):
        normscope.wrap(Model(Attention(weights)).double())


class SeparateOutputs(Attention):
    """A W_O for each head, whose outputs are added up."""

    def forward(self, x):
        v = self.project(x).chunk(3, dim=-1)[2].unflatten(-1, (H, -1)).transpose(1, 2)
        heads = (x @ x.mT).softmax(dim=-1).unsqueeze(1) @ v
        weights = self.out.weight.view(D, H, -1)
        return sum(heads[:, head] @ weights[:, head].T for head in range(H))


def test_several_output_projections_are_one_line():
    torch.manual_seed(0)
    with pytest.raises(InputError, match=r"several linear layers read what its heads return \(test_refusals.py, line"):
        normscope.wrap(Model(SeparateOutputs()).double())


def test_a_norm_that_is_no_multiple_of_the_sum_is_one_line():
    torch.manual_seed(0)
    with pytest.raises(InputError, match=r"what carries on is neither .* \(test_refusals.py, line \d+, in forward\)"):
        normscope.wrap(Model(Attention(), BatchNorm(D)).double())


class Alone(nn.Module):
    """Attention without W_O in the model itself, whose methods do not call it `self`."""

    def __init__(own):
        super().__init__()
        own.embed = nn.Embedding(V, D)

    def forward(own, ids):
        x = own.embed(ids)
        return x + (x @ x.mT).softmax(dim=-1) @ x


def test_a_refusal_names_the_line_of_the_model_never_one_of_ours():
    with pytest.raises(InputError, match=r"not followed to a linear layer \(test_refusals.py, line \d+, in forward\)"):
        normscope.wrap(Alone().double())


def test_clipped_values_are_those_of_the_block_and_have_no_weights():
    torch.manual_seed(0)
    wrapped = normscope.wrap(Model(Attention(values=lambda v: v.clamp(-0.1, 0.1))).double())
    (block,) = normscope.observe(wrapped, [5, 7, 12, 3])
    assert float(block.value.abs().max()) == pytest.approx(0.1)
    assert block.parameters.value is None
    assert not wrapped.facts.has_value_weights


class Network(nn.Module):
    """A layer that changes tensors in place, and does not use what that returns."""

    def __init__(self, change):
        super().__init__()
        self.attention, self.up, self.down, self.change = Attention(), nn.Linear(D, D), nn.Linear(D, D), change

    def forward(self, x):
        x = x + self.attention(x)
        hidden = self.up(x)
        self.change(hidden)
        return x + self.down(hidden)


@pytest.mark.parametrize("name", ["relu_", "tanh_", "clamp_", "silu_"])
def test_what_code_changes_in_place_is_changed_while_it_is_followed(name):
    torch.manual_seed(0)
    model = Model(Attention()).double()
    given = {"clamp_": (-0.1, 0.1)}.get(name, ())
    change = nn.functional.silu if name == "silu_" else getattr(torch.Tensor, name)
    model.layers[0] = Network(lambda hidden: change(hidden, *given, **({"inplace": True} if name == "silu_" else {})))
    wrapped = normscope.wrap(model.double())
    inputs = token_batch(wrapped.model, (5, 5))
    followed = held_pass(wrapped.model, wrapped.facts, inputs).output[0]
    torch.testing.assert_close(followed, wrapped.model(**inputs)[0], rtol=0, atol=1e-12)
    assert wrapped.layers_verification.error < 1e-12
