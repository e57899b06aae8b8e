"""Mixtures of experts, whose routes and weights are held, in float64.

The reference runs every expert of the model by itself, on the routes that the model gave it.
"""

import dataclasses

import pytest
import torch
from torch.nn.functional import linear

from normscope.attribution.vectors import Sources, carried
from normscope.maths.activations import ACTIVATIONS
from normscope.maths.choices import ValueBias
from normscope.maths.layer_composition import LayerStage
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of
from normscope.models.prove.verification import verify
from tests.architectures import tiny_architecture
from tests.oracles.networks import network_blocks
from tests.tiny import token_batch

LENGTHS = (9, 6)
QUICK = ["mixtral", "qwen2_moe", "granitemoeshared", "cohere2_moe"]
SLOW = [
    *("aria_text", "ernie4_5_moe", "exaone_moe", "flex_olmo", "flint", "glm4_moe", "granitemoe", "granitemoe_swa"),
    *("hunyuan_v1_moe", "hy_v3", "kolibri1", "mellum", "minimax_m2", "olmoe", "phimoe", "qwen3_moe", "solar_open"),
]


@dataclasses.dataclass
class Ran:
    """What the experts of one layer were given and made, in the untouched model."""

    vectors: torch.Tensor
    chosen: torch.Tensor
    weights: torch.Tensor
    made: torch.Tensor


@pytest.fixture(params=[*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def model(request):
    return tiny_architecture(request.param)


def ran(model, inputs) -> dict[str, Ran]:
    """The experts of the untouched model, by path."""
    found: dict[str, Ran] = {}

    def keep(path):
        def hook(_module, args, kwargs, output):
            found[path] = Ran(*args, *kwargs.values(), output)

        return hook

    handles = [
        module.register_forward_hook(keep(path), with_kwargs=True)
        for path, module in model.named_modules()
        if hasattr(module, "down_proj") and hasattr(module, "_apply_gate")
    ]
    with torch.inference_mode():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return found


def expert(module, number: int, vectors: torch.Tensor) -> torch.Tensor:
    """FF_e(y), with the weights as the module stores them."""
    read, written = module.gate_up_proj[number], module.down_proj[number]
    if module.is_transposed:
        read, written = read.T, written.T
    gate, up = linear(vectors, read).chunk(2, dim=-1)
    return linear(module.act_fn(gate) * up, written)


def close(got: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    """Check vectors relative to the longest."""
    size = expected.norm(dim=-1).max()
    torch.testing.assert_close(got / size, expected / size, rtol=0, atol=bound)


@pytest.mark.spread(1)
def test_a_mixture_is_the_sum_of_its_experts_by_their_weights(model):
    """What the network adds is made of Σ_e r_e FF_e(y), against the experts one by one; the layer is the sum of its parts."""
    facts, inputs = facts_of(model), token_batch(model, LENGTHS)
    assert verify(model, facts, "tiny", feed_forward=True).error < 1e-6
    known, seen = ran(model, inputs), []
    tokens = inputs["attention_mask"].bool().flatten()
    for path, record in known.items():
        module, vectors = model.get_submodule(path), record.vectors.flatten(0, -2)
        expected = torch.zeros_like(vectors)
        for token, (chosen, weights) in enumerate(zip(record.chosen, record.weights, strict=True)):
            for number, weight in zip(chosen.tolist(), weights, strict=True):
                expected[token] += weight * expert(module, number, vectors[token])
        torch.testing.assert_close(expected[tokens], record.made.flatten(0, -2)[tokens], rtol=1e-9, atol=1e-9)

    def visit(block: FeedForwardBlock) -> None:
        seen.append(block.layer)
        parts = block.composition().parts(LayerStage.NETWORK)
        close((parts.own + parts.others + parts.constant)[block.token_mask], parts.whole[block.token_mask], 1e-6)

    with Observer(model, facts, feed_forward=True) as observer:
        observer.run(inputs, lambda _block: None, None, visit)
    assert seen == facts.attends


def test_routes_are_held():
    """Each expert's part is the expert's own slopes times its weight: with one expert, the experts' network itself."""
    model = tiny_architecture("mixtral")
    (block, *_) = network_blocks(model, facts_of(model), token_batch(model, (5,)))
    free = block.routing == 0
    assert free.any()
    parts = block.composition().parts(LayerStage.NETWORK)
    weights, inputs = block.parameters, block.inputs
    own = block.composition().parts(LayerStage.BLOCK).own
    norm = weights.normalisation
    read = norm.scaled(own) / norm.deviation(block.norm_inputs).unsqueeze(-1)
    silu, u, w = ACTIVATIONS["SiLU"], inputs @ weights.input_weight, inputs @ weights.multiplier_weight
    mean = silu.path_slope(u)
    by_u = w * (silu.value(u) / u - mean) * block.routing
    neurons = read @ weights.input_weight * by_u + read @ weights.multiplier_weight * (mean * u * block.routing)
    close(parts.own[block.token_mask], (neurons @ weights.output_weight)[block.token_mask], 1e-6)


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", QUICK)
def test_vectors_add_up_to_the_last_hidden_vectors(model_type):
    """DecompX's completeness with the router's weights held."""
    model = tiny_architecture(model_type)
    facts, inputs = facts_of(model), token_batch(model, LENGTHS)
    tokens = inputs["attention_mask"].bool()
    vectors, hidden, _ = carried(model, facts, inputs, Sources(range(tokens.shape[1]), True), ValueBias.token)
    close(vectors.sum(dim=0)[tokens], hidden[tokens], 1e-10)


class Mixture(torch.nn.Module):
    """Experts as transformers stores them, one for each token, and a network beside them."""

    def __init__(self, experts: torch.nn.Module, shared: torch.nn.Module) -> None:
        super().__init__()
        self.experts, self.shared = experts, shared

    def forward(self, vectors):
        flat = vectors.flatten(0, 1)
        chosen = flat[:, :2].topk(1).indices
        weights = torch.ones(len(flat), 1, dtype=flat.dtype, device=flat.device)
        return self.experts(flat, chosen, weights).view_as(vectors) + self.shared(vectors)


@pytest.mark.parametrize("bias", [True, False])
def test_a_network_of_any_form_may_be_beside_the_experts(bias):
    """With biases, and ungated beside gated experts."""
    model = tiny_architecture("mixtral")
    size = model.config.hidden_size
    for layer in model.layers:
        linear_layers = torch.nn.Linear(size, 8, bias=False), torch.nn.Linear(8, size, bias=bias)
        shared = torch.nn.Sequential(linear_layers[0], torch.nn.SiLU(), linear_layers[1])
        layer.mlp = Mixture(layer.mlp.experts, shared.double())
    facts = facts_of(model.eval())
    assert facts.has_networks
    assert verify(model, facts, "tiny", feed_forward=True).error < 1e-6


def test_experts_with_biases_are_followed():
    """gpt-oss multiplies the biases of its experts by their weights: they belong to no token."""
    model = tiny_architecture("gpt_oss")
    facts = facts_of(model)
    assert verify(model, facts, "tiny", feed_forward=True).error < 1e-6
