"""What every token takes from every other through a whole layer, by brute force in float64, for every family."""

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients

from normscope.maths.layer_composition import LAYER_STAGES, LayerStage
from normscope.maths.mixing import ratio
from normscope.models.observe import feed_forward
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from tests.contract.test_feed_forward import CROSS, VARIANTS, blocks_of, inputs_of
from tests.oracles.networks import NetworkBlock
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS, facts_for, rounds_inside, tiny_model, tiny_stack

pytestmark = pytest.mark.networks

# What one norm or rotation in float32 leaves in a float64 layer.
INSIDE = 1e-5


def centred(vectors, norm):
    return vectors - vectors.mean(dim=-1, keepdim=True) if norm.centred else vectors


def sigma(vectors, norm):
    return (centred(vectors, norm).square().mean(dim=-1, keepdim=True) + norm.epsilon).sqrt()


def zero_if_none(bias):
    return 0.0 if bias is None else bias


def slopes_of(block: NetworkBlock):
    """Integrated gradients of g(u) ⊙ w by u and by w, from values and derivatives along the path."""
    weights = block.parameters
    y, g = block.inputs, weights.activation
    u = y @ weights.input_weight + zero_if_none(weights.input_bias)
    if weights.multiplier_weight is None:
        # The mean of a derivative along a path is the difference of its ends, and g(0) = 0.
        return routed(g(u) / torch.where(u == 0, 1.0, u), block), None
    w = y @ weights.multiplier_weight + zero_if_none(weights.multiplier_bias)
    by_u, by_w = torch.zeros_like(u), torch.zeros_like(u)
    for node, share in zip(*np.polynomial.legendre.leggauss(80), strict=True):
        a = (node + 1) / 2
        at = (a * u).requires_grad_()
        with torch.enable_grad():
            derivative = torch.autograd.grad(g(at).sum(), at)[0]
        by_u += share / 2 * derivative * a * w
        by_w += share / 2 * g(at.detach())
    return routed(by_u, block), routed(by_w, block)


def routed(slopes, block: NetworkBlock):
    """The slopes of neurons, times the weights of their experts."""
    return slopes if block.routing is None else slopes * block.routing


def normed(parts, norm, deviation):
    """A norm of a sum, part by part: of pairs, of what belongs to no pair, and of the constant part, which has the bias."""
    pairs, own, constant = (centred(part, norm) * norm.weight for part in parts)
    return pairs / deviation.unsqueeze(2), own / deviation, constant / deviation + zero_if_none(norm.bias)


def read_in_parallel(attention, norm):
    """What a network beside attention reads: of each token, its own norm alone."""
    each = torch.arange(attention.inputs.shape[1])
    own = centred(attention.inputs, norm) * norm.weight / sigma(attention.inputs, norm)
    pairs = own.new_zeros(len(own), len(each), len(each), own.shape[-1])
    pairs[:, each, each] = own
    return pairs, torch.zeros_like(own), torch.zeros_like(own) + zero_if_none(norm.bias)


def brute_force(block: NetworkBlock):
    """The vector of every pair, the constant part and the part that belongs to no pair, at every stage of the layer."""
    attention, weights = block.attention, block.parameters
    pairs = torch.einsum("bhqk,bhkm->bqkm", attention.weights, attention.transformed())
    own = torch.zeros_like(pairs[:, :, 0])  # of cross-attention, where no key is the token itself
    constant = torch.zeros_like(own) + zero_if_none(attention.parameters.output_bias)
    each = torch.arange(pairs.shape[1])

    def plus_inputs(pairs, own):
        if attention.is_cross_attention:
            return pairs, own + attention.inputs
        pairs = pairs.clone()
        pairs[:, each, each] += attention.inputs
        return pairs, own

    norm = attention.parameters.normalisation
    if attention.parameters.norm_position == "branch":
        parts = normed((pairs, own, constant), norm, sigma(attention.attention_output, norm))
        parts = (*plus_inputs(*parts[:2]), parts[2])
    else:
        parts = (*plus_inputs(pairs, own), constant)
        if attention.parameters.norm_position == "post":
            parts = normed(parts, norm, sigma(attention.inputs + attention.attention_output, norm))
    whole = parts[0].sum(dim=2) + parts[1] + parts[2]
    norm, read = weights.normalisation, parts
    if weights.norm_position == "parallel":
        read = read_in_parallel(attention, norm)
    elif weights.norm_position != "post" and norm is not None:
        read = normed(parts, norm, sigma(whole, norm))
    by_u, by_w = slopes_of(block)

    def network(vectors, by_u, by_w):
        neurons = vectors @ weights.input_weight * by_u
        if by_w is not None:
            neurons = neurons + vectors @ weights.multiplier_weight * by_w
        return neurons @ weights.output_weight

    made = [network(read[0], by_u.unsqueeze(2), None if by_w is None else by_w.unsqueeze(2))]
    made += [network(part, by_u, by_w) for part in read[1:]]
    biases = zero_if_none(weights.input_bias) * by_u
    if by_w is not None:
        biases = biases + zero_if_none(weights.multiplier_bias) * by_w
    made[2] = made[2] + biases @ weights.output_weight + zero_if_none(weights.output_bias)
    stages = {LayerStage.BLOCK: parts, LayerStage.NETWORK: tuple(made)}
    if weights.norm_position == "branch":
        after = normed(made, weights.output_normalisation, sigma(block.output, weights.output_normalisation))
        return stages | {LayerStage.NORMALISED: tuple(map(torch.add, after, parts))}
    stages[LayerStage.RESIDUAL] = total = tuple(map(torch.add, made, parts))
    if weights.norm_position == "post":
        stages[LayerStage.NORMALISED] = normed(total, norm, sigma(whole + block.output, norm))
    return stages


def assert_parts(model, facts, bound=None):
    """Own, others, constant part, ratios and maps of every stage are those of the explicit pairs."""
    bound = bound or (INSIDE if rounds_inside(model) else 1e-10)
    close = {"rtol": bound, "atol": bound}
    for block in blocks_of(model, facts, inputs_of(model, facts)):
        tokens, keys = block.token_mask, block.attention.key_mask
        composition = block.composition()
        expected = brute_force(block)
        assert composition.stages == tuple(expected) == LAYER_STAGES[block.parameters.norm_position]
        maps, norms = block.pair_maps(), composition.relative_norms()
        for stage, (pairs, apart, constant) in expected.items():
            cross = block.attention.is_cross_attention
            own = apart if cross else apart + pairs.diagonal(dim1=1, dim2=2).transpose(1, 2)
            others = pairs.sum(dim=2) - (0.0 if cross else own)
            for made, brute in (
                (composition.parts(stage).own, own),
                (composition.parts(stage).others, others),
                (composition.parts(stage).constant, constant),
                (maps[stage], pairs.norm(dim=-1)),
                (ratio(*norms[stage]), ratio(others.norm(dim=-1), own.norm(dim=-1))),
            ):
                torch.testing.assert_close(made[tokens], brute[tokens], **close, msg=lambda m, s=stage: f"{s}: {m}")
        assert keys.any()


@pytest.mark.spread(5)
@pytest.mark.kinds
def test_parts_of_every_family(family, family_model):
    assert_parts(family_model, facts_for(family))


@pytest.mark.spread(2)
@pytest.mark.parametrize("model_type", CROSS)
def test_parts_behind_cross_attention(model_type):
    assert_parts(tiny_stack(model_type, "cross", torch.float64), facts_for(model_type, "cross"))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.spread(2)
def test_parts_of_variants(variant):
    config = VARIANTS[variant]
    model = tiny_model(config, torch.float64)
    facts = facts_for(config["model_type"], config=model.config)
    assert_parts(model.get_encoder() if config["model_type"] in STACK_CONFIGS else model, facts)


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "gemma", "llama"])
def test_the_network_is_what_captum_gives(model_type):
    """From the activation's inputs to the network's output, with every token's vector and the biases as inputs of their own."""
    model, facts = tiny_model(FAMILY_CONFIGS[model_type], torch.float64), facts_for(model_type)
    block = blocks_of(model, facts, inputs_of(model, facts), [2])[0]
    weights = block.parameters
    read = brute_force_of_input(block)  # token, summand, model: of the first sequence
    u = read @ weights.input_weight
    w = None if weights.multiplier_weight is None else read @ weights.multiplier_weight
    if weights.input_bias is not None:
        u[:, -1] += weights.input_bias
    position, dimension = 5, 3

    def output(u, *w):
        neurons = weights.activation(u.sum(dim=1))
        return ((neurons * w[0].sum(dim=1) if w else neurons) @ weights.output_weight)[:, dimension]

    inputs = tuple(part[position : position + 1] for part in (u, w) if part is not None)
    attributions = IntegratedGradients(output).attribute(inputs, n_steps=200, method="gausslegendre")
    expected = sum(part.sum(dim=-1)[0] for part in attributions)
    parts = block.composition().parts(LayerStage.NETWORK)
    own, others, constant = (part[0, position, dimension] for part in parts[:3])
    # Llama's norms compute in float32 even here.
    bound = INSIDE if rounds_inside(model) else 1e-8
    bias = 0.0 if weights.output_bias is None else weights.output_bias[dimension]
    wanted = torch.stack([expected[position], expected[:-1].sum() - expected[position], expected[-1] + bias])
    torch.testing.assert_close(torch.stack([own, others, constant]), wanted, rtol=bound, atol=bound)


def explicit_pairs(block):
    return torch.einsum("bhqk,bhkm->bqkm", block.attention.weights, block.attention.transformed())


def brute_force_of_input(block):
    """The summands of what the network reads for each token of the first sequence; the last is the constant part."""
    norm, attention = block.parameters.normalisation, block.attention
    pairs = explicit_pairs(block)
    pairs[:, torch.arange(pairs.shape[1]), torch.arange(pairs.shape[1])] += attention.inputs
    constant = torch.zeros_like(attention.inputs) + zero_if_none(attention.parameters.output_bias)
    before = torch.cat([pairs, constant.unsqueeze(2)], dim=2)
    if attention.parameters.norm_position == "post":
        norm = attention.parameters.normalisation
    read = centred(before, norm) * norm.weight / sigma(before.sum(dim=2), norm).unsqueeze(2)
    read[:, :, -1] += zero_if_none(norm.bias)
    return read[0]


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "gpt_neox", "modernbert", "olmo2", "mpnet"])
@pytest.mark.spread(2)
def test_maps_in_small_pieces_are_the_same(model_type, monkeypatch):
    """One key at a time: with windows, causal masks, own weights and padding."""
    model, facts = tiny_model(FAMILY_CONFIGS[model_type], torch.float64), facts_for(model_type)

    def visit(block: FeedForwardBlock) -> None:
        whole = block.pair_maps()
        with monkeypatch.context() as context:
            context.setitem(feed_forward.PAIR_ENTRIES, "cpu", 1)
            for stage, maps in block.pair_maps().items():
                torch.testing.assert_close(maps, whole[stage], rtol=1e-10, atol=1e-12)

    with Observer(model, facts, feed_forward=True) as observer:
        observer.run(inputs_of(model, facts), lambda _block: None, None, visit)
