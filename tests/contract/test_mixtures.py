"""Mixtures of experts: one wide network whose neurons are multiplied by the weights of their experts, in float64.

The reference runs every expert of the model by itself, on the routes that the model gave it.
"""

import dataclasses

import pytest
import torch
from torch.nn.functional import linear

from normscope.attribution.vectors import Sources, carried
from normscope.maths.choices import ValueBias
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.layouts import layout_of_model
from normscope.models.observer import Observer
from normscope.models.verification import verify
from tests.architectures import tiny_architecture
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


def blocks_of(model, inputs) -> list[FeedForwardBlock]:
    blocks: list[FeedForwardBlock] = []
    with Observer(model, layout_of_model(model), feed_forward=True) as observer:
        observer.run(inputs, lambda _block: None, None, blocks.append)
    return blocks


@pytest.mark.spread(1)
def test_a_mixture_is_the_sum_of_its_experts_by_their_weights(model):
    """Σ_e r_e FF_e(y), and the wide network with the same routes, against the experts one by one."""
    layout, inputs = layout_of_model(model), token_batch(model, LENGTHS)
    assert layout.has_networks
    assert verify(model, layout, "tiny", feed_forward=True).error < 1e-6
    known, routed = ran(model, inputs), 0
    for site, block in zip(layout.sites, blocks_of(model, inputs), strict=True):
        form = site.network
        if not form.routed:
            continue
        routed += 1
        module, record = model.get_submodule(form.input), known[form.input]
        vectors = record.vectors.flatten(0, -2)
        expected = torch.zeros_like(vectors)
        for token, (chosen, weights) in enumerate(zip(record.chosen, record.weights, strict=True)):
            for number, weight in zip(chosen.tolist(), weights, strict=True):
                expected[token] += weight * expert(module, number, vectors[token])
        tokens = block.token_mask.flatten()
        torch.testing.assert_close(expected[tokens], record.made.flatten(0, -2)[tokens], rtol=1e-9, atol=1e-9)
        assert block.routing is not None
        own = module.down_proj.numel() // vectors.shape[-1]
        weights = block.parameters.output_weight[:own]
        made = block.activations[..., :own] @ weights
        factor = site.residual.scale
        close(made.flatten(0, 1)[tokens], expected[tokens] * factor, 3e-7)  # some roundings to float32, at 6e-8
        assert (block.routing.shape[-1] > own) is (form.shared is not None)
        neurons = (block.routing[..., :own] != 0).sum(dim=-1)
        assert (neurons <= record.chosen.shape[1] * own // len(module.down_proj)).all()
    assert routed


@pytest.mark.spread(2)
def test_the_parts_of_a_layer_add_up(model):
    """Own, others and constant give what the untouched layer returns; each is what the network makes of it."""
    for block in blocks_of(model, token_batch(model, LENGTHS)):
        parts = block.composition()
        tokens = block.token_mask
        made = parts.made_of_itself() + parts.made_of_others() + parts.parts.constant
        close(made[tokens], block.output[tokens], 1e-6)  # their norms compute in float32
        last = parts.stages[-1]
        output = parts.own(last) + parts.others(last) + parts.constant(last)
        close(output[tokens], block.layer_output[tokens], 1e-6)


@pytest.mark.spread(1)
def test_vectors_add_up_to_the_last_hidden_vectors(model):
    """DecompX's completeness with the router's weights held."""
    layout, inputs = layout_of_model(model), token_batch(model, LENGTHS)
    tokens = inputs["attention_mask"].bool()
    vectors, hidden, _ = carried(model, layout, inputs, Sources(range(tokens.shape[1]), True), ValueBias.token)
    close(vectors.sum(dim=0)[tokens], hidden[tokens], 1e-10)


def test_slopes_hold_the_router():
    """The gradient of a token's output through held slopes knows nothing of the router's own dependence on the token."""
    model = tiny_architecture("mixtral")
    (block, *_) = blocks_of(model, token_batch(model, (5,)))
    slopes = block.composition().query_slopes
    experts = model.layers[0].mlp.experts
    free = block.routing == 0
    assert free.any()
    assert (slopes.input[free] == 0).all()
    assert (slopes.multiplier[free] == 0).all()
    assert experts.down_proj.shape[0] * experts.down_proj.shape[2] == block.routing.shape[-1]


def test_experts_with_biases_are_refused_with_the_reason():
    model = tiny_architecture("gpt_oss")
    layout = layout_of_model(model)
    assert not layout.has_networks
    assert layout.unknown_network is not None
    assert "its experts have biases" in layout.unknown_network
    assert "layer 1" in layout.unknown_network
    assert "mlp.experts" in layout.unknown_network


class Mixture(torch.nn.Module):
    """Experts as transformers stores them, on fixed routes, and a network beside them."""

    def __init__(self, experts: torch.nn.Module, shared: torch.nn.Module) -> None:
        super().__init__()
        self.experts, self.shared = experts, shared

    def forward(self, vectors):
        flat = vectors.flatten(0, 1)
        chosen = torch.zeros(len(flat), 1, dtype=torch.long, device=flat.device)
        weights = torch.ones(len(flat), 1, dtype=flat.dtype, device=flat.device)
        return self.experts(flat, chosen, weights).view_as(vectors) + self.shared(vectors)


@pytest.mark.parametrize(
    ("shared", "reason"),
    [
        (
            lambda size: torch.nn.Sequential(
                torch.nn.Linear(size, 8, bias=False), torch.nn.SiLU(), torch.nn.Linear(8, size)
            ),
            "biases",
        ),
        (
            lambda size: torch.nn.Sequential(
                torch.nn.Linear(size, 8, bias=False), torch.nn.SiLU(), torch.nn.Linear(8, size, bias=False)
            ),
            "only one is gated",
        ),
    ],
)
def test_a_network_beside_the_experts_of_another_form_is_refused(shared, reason):
    model = tiny_architecture("mixtral")
    size = model.config.hidden_size
    for layer in model.layers:
        layer.mlp = Mixture(layer.mlp.experts, shared(size).double())
    layout = layout_of_model(model.eval())
    assert not layout.has_networks
    assert reason in str(layout.unknown_network)
