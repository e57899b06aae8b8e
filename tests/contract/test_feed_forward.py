"""The feed-forward network of every family, in float64, on a tiny random model with random biases, norms and a padded batch."""

import weakref
from operator import attrgetter

import pytest
import torch
from torch import nn

from normscope.analyses.base import Requirements
from normscope.analyses.registry import analyses
from normscope.errors import InputError
from normscope.maths.normalisation import Normalisation
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.models.observe.observer import Observer
from normscope.models.options import ModelOptions, ModelStack
from normscope.models.prove.verification import BOUNDS, verify
from normscope.running.plan import _refuse_missing_feed_forward
from tests.family_modules import layers_of
from tests.oracles.networks import NetworkBlock, form_of, network_blocks
from tests.tiny import (
    FAMILY_CONFIGS,
    STACK_CONFIGS,
    facts_for,
    rounds_inside,
    tiny_model,
    tiny_stack,
    token_batch,
)

pytestmark = pytest.mark.networks

LENGTHS = (9, 6, 3)
CROSS = sorted(STACK_CONFIGS)
VARIANTS = {
    "T5 1.1": STACK_CONFIGS["t5"] | {"feed_forward_proj": "gated-gelu"},
    "GPT-NeoX, one after the other": FAMILY_CONFIGS["gpt_neox"] | {"use_parallel_residual": False},
    "Llama with biases": FAMILY_CONFIGS["llama"] | {"mlp_bias": True},
    "EuroBERT with biases": FAMILY_CONFIGS["eurobert"] | {"mlp_bias": True},
    "ModernBERT with biases": FAMILY_CONFIGS["modernbert"] | {"mlp_bias": True, "norm_bias": True},
    "another activation": FAMILY_CONFIGS["bert"] | {"hidden_act": "gelu_10"},
    "a learned activation": FAMILY_CONFIGS["gpt2"] | {"activation_function": "prelu"},
    "a wide epsilon": FAMILY_CONFIGS["albert"] | {"layer_norm_eps": 0.3},
    "Phi with norms of queries and keys": FAMILY_CONFIGS["phi"] | {"qk_layernorm": True},
    "StableLM, parallel": FAMILY_CONFIGS["stablelm"] | {"use_parallel_residual": True, "qk_layernorm": True},
    "Cohere with norms of the keys": FAMILY_CONFIGS["cohere"] | {"use_qk_norm": True},
    "OPT, norms after": FAMILY_CONFIGS["opt"] | {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
    "OPT without norm weights": FAMILY_CONFIGS["opt"] | {"layer_norm_elementwise_affine": False, "enable_bias": False},
    "Falcon, one head of keys": FAMILY_CONFIGS["falcon"] | {"new_decoder_architecture": False},
    "Falcon, one after the other": FAMILY_CONFIGS["falcon"]
    | {"new_decoder_architecture": False, "num_kv_heads": 4, "parallel_attn": False, "multi_query": False},
}


def inputs_of(model, facts) -> dict[str, torch.Tensor]:
    inputs = token_batch(model, LENGTHS)
    if facts.reads_target:
        inputs |= {f"decoder_{name}": tensor for name, tensor in token_batch(model, (4, 2, 7), seed=2).items()}
    return inputs


blocks_of = network_blocks


def layer_outputs(model, inputs, stack=None) -> list[torch.Tensor]:
    """What leaves each layer of the untouched model."""
    outputs: list[torch.Tensor] = []

    def leave(_module, _args, output):
        outputs.append(output[0] if isinstance(output, tuple) else output)

    handles = [layer.register_forward_hook(leave) for layer in {*layers_of(model, stack)}]
    with torch.inference_mode():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return outputs


def normed(vectors, norm):
    """Torch's own LayerNorm or RMSNorm; the vectors themselves without a norm."""
    if norm is None:
        return vectors
    size = vectors.shape[-1:]
    if norm.centred:
        bias = None if norm.bias is None else norm.bias.to(vectors)
        return nn.functional.layer_norm(vectors, size, norm.weight.to(vectors), bias, norm.epsilon)
    return nn.functional.rms_norm(vectors, size, norm.weight.to(vectors), norm.epsilon)


def layer_by_hand(block: NetworkBlock) -> torch.Tensor:
    """The layer's output from what enters it, what attention gives, and parameters: nothing else of the pass is used."""
    weights, attention = block.parameters, block.attention
    first = attention.parameters.normalisation
    s = attention.inputs + (
        normed(attention.attention_output, first)
        if attention.parameters.norm_position == "branch"
        else attention.attention_output
    )
    if attention.parameters.norm_position == "post":
        s = normed(s, first)
    read = attention.inputs if weights.norm_position == "parallel" else s
    y = s if weights.norm_position == "post" else normed(read, weights.normalisation)
    u = y @ weights.input_weight + (0 if weights.input_bias is None else weights.input_bias)
    hidden = weights.activation(u)
    if weights.multiplier_weight is not None:
        multiplier_bias = 0 if weights.multiplier_bias is None else weights.multiplier_bias
        hidden = hidden * (y @ weights.multiplier_weight + multiplier_bias)
    hidden = hidden if block.routing is None else hidden * block.routing
    network = hidden @ weights.output_weight + (0 if weights.output_bias is None else weights.output_bias)
    z = s + normed(network, weights.output_normalisation)
    return normed(z, weights.normalisation) if weights.norm_position == "post" else z


def assert_exact(model, facts) -> None:
    """Attention and the network, built from parameters alone, make the output of every layer of the untouched model."""
    bound = 1e-5 if rounds_inside(model) else 1e-10
    inputs = inputs_of(model, facts)
    outputs = layer_outputs(model, inputs, facts.stack)
    blocks = blocks_of(model, facts, inputs)
    assert [block.layer for block in blocks] == list(range(1, len(outputs) + 1))
    for block, output in zip(blocks, outputs, strict=True):
        token_mask = block.token_mask
        made = layer_by_hand(block)
        torch.testing.assert_close(made[token_mask], output[token_mask], rtol=bound, atol=bound)
        last = block.composition().parts(block.stages[-1])
        for whole in (last.own + last.others + last.constant, last.whole):
            torch.testing.assert_close(whole[token_mask], output[token_mask], rtol=bound, atol=bound)
    # 1e-6 is what one float32 norm inside a float64 layer leaves, relative to the length of a vector.
    assert verify(model, facts, "tiny", feed_forward=True).error < (1e-6 if bound == 1e-5 else 1e-12)


@pytest.mark.spread(2)
def test_attention_and_network_make_the_layer(family, family_model):
    assert_exact(family_model, facts_for(family))


@pytest.mark.spread(2)
@pytest.mark.parametrize("model_type", CROSS)
def test_the_network_of_a_decoder_follows_cross_attention(model_type):
    assert_exact(tiny_stack(model_type, "cross", torch.float64), facts_for(model_type, "cross"))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.spread(2)
def test_configs_that_change_the_network(variant):
    config = VARIANTS[variant]
    model = tiny_model(config, torch.float64)
    if config["model_type"] in STACK_CONFIGS:
        model = model.get_encoder()
    assert_exact(model, facts_for(config["model_type"], config=model.config))


@pytest.mark.spread(9)
@pytest.mark.kinds
def test_the_pass_ends_after_the_last_requested_part(family, family_model):
    """Attention before the network before hidden vectors; and nothing after the last of what was asked for runs."""
    facts = facts_for(family)
    layers = layers_of(family_model)
    calls: list[str] = []
    shared = len({id(layer) for layer in layers}) < len(layers)
    first = {id(layer): number for number, layer in reversed(list(enumerate(layers, start=1)))}
    handles = []
    for number, layer in enumerate(layers, start=1):
        if first[id(layer)] == number:
            name, output = "" if shared else f" {number}", attrgetter(form_of(facts, layer).output)(layer)
            handles += [
                layer.register_forward_pre_hook(lambda *_, n=name: calls.append(f"layer{n}"), with_kwargs=True),
                output.register_forward_hook(lambda *_, n=name: calls.append(f"network{n}")),
            ]

    def called(**wanted) -> list[str]:
        calls.clear()
        seen: list[str] = []
        with Observer(family_model, facts, [2], **wanted) as observer:
            observer.run(
                token_batch(family_model, LENGTHS),
                lambda block: seen.append(f"attention {block.layer}"),
                lambda layer, _vectors: seen.append(f"hidden {layer}"),
                lambda block: seen.append(f"network {block.layer}"),
            )
        return [*calls, *seen]

    try:
        both = ["layer 1", "network 1", "layer 2", "network 2"]
        names = [name.split()[0] for name in both] if shared else both
        # A network beside attention runs before the sum that the block is complete with.
        assert called() == [*names[: 4 if facts.norm_positions == ("parallel",) else 3], "attention 2"]
        assert called(feed_forward=True) == [*names, "attention 2", "network 2"]
        # ALBERT's list holds groups of layers, and what enters a group is known before its first layer begins.
        third = [] if shared else ["layer 3"]
        expected = [*names, *third, "hidden 1", "attention 2", "network 2", "hidden 2"]
        assert called(feed_forward=True, hidden=[1, 2]) == expected
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("feed_forward", [False, True])
@pytest.mark.kinds("albert", "bert", "gpt_neox", "gpt2", "olmo2", "t5")
def test_attention_blocks_live_only_while_someone_needs_them(family, family_model, feed_forward):
    blocks: list[weakref.ref] = []
    alive_at_the_network: list[bool] = []
    facts = facts_for(family)
    handles = [
        attrgetter(form_of(facts, layer).output)(layer).register_forward_pre_hook(
            lambda *_: alive_at_the_network.append(bool(blocks) and blocks[-1]() is not None)
        )
        for layer in {*layers_of(family_model)}
    ]

    def visit(block):
        # No earlier layer's: memory does not grow with depth.
        assert not any(earlier() for earlier in blocks)
        blocks.append(weakref.ref(block))

    def visit_feed_forward(block):
        assert block.attention is blocks[-1]()

    try:
        with Observer(family_model, facts, hidden=[3], feed_forward=feed_forward) as observer:
            observer.run(token_batch(family_model, LENGTHS), visit, None, visit_feed_forward)
    finally:
        for handle in handles:
            handle.remove()
    parallel = facts.norm_positions == ("parallel",)
    assert alive_at_the_network == [feed_forward and not parallel] * 3
    assert not any(block() for block in blocks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model_type", ["bert", "modernbert", "gpt2", "gemma", "olmo2", "learned activation"])
@pytest.mark.spread(1)
def test_half_precision_is_measured_in_float32(model_type, dtype):
    config = VARIANTS["a learned activation"] if " " in model_type else FAMILY_CONFIGS[model_type]
    model, facts = tiny_model(config, dtype), facts_for(config["model_type"])
    for block in blocks_of(model, facts, inputs_of(model, facts)):
        for parts in (block.composition().parts(stage) for stage in block.stages):
            assert {part.dtype for part in parts} == {torch.float32}
            # The parts are those of the float32 weights, whatever the model rounds.
        expected = layer_by_hand(block)[block.token_mask]
        made = block.composition().parts(block.stages[-1])
        total = (made.own + made.others + made.constant)[block.token_mask]
        torch.testing.assert_close(
            total, expected, rtol=0, atol=8 * torch.finfo(dtype).eps * float(expected.abs().max())
        )
    assert verify(model, facts, model_type, feed_forward=True).error < BOUNDS[dtype]


class Mixture(nn.Module):
    """A mixture of experts, as families that are relatives of known ones have."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(24, 2).double(), nn.ModuleList([network, network])

    def forward(self, vectors):
        shares = self.router(vectors).softmax(dim=-1)
        return sum(shares[..., [number]] * expert(vectors) for number, expert in enumerate(self.experts))


class Doubled(nn.Module):
    """A network with the family's modules that uses them differently."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = network.gate_proj, network.up_proj, network.down_proj
        self.act_fn, self.network = network.act_fn, network

    def forward(self, vectors):
        return 2 * self.network(vectors)


@pytest.fixture
def llama():
    return tiny_model(FAMILY_CONFIGS["llama"], torch.float64)


def whole_outputs(model) -> list[torch.Tensor]:
    """The last vectors of each layer as the sum of all parts, in one pass."""
    made: list[torch.Tensor] = []

    def visit(block: FeedForwardBlock) -> None:
        parts = block.composition().parts(block.stages[-1])
        assert float(block.error().max()) < 1e-6
        made.append(parts.own + parts.others + parts.constant)

    with Observer(model, facts_for("llama"), feed_forward=True) as observer:
        observer.run(token_batch(model, LENGTHS), lambda _block: None, None, visit)
    return made


@pytest.mark.parametrize("kind", [Mixture, Doubled])
def test_any_network_that_is_affine_is_followed(llama, kind):
    """Experts without transformers' interface, and a network that does something else with the family's modules."""
    llama.layers[1].mlp = kind(llama.layers[1].mlp).eval()
    verify(llama, facts_for("llama"), "llama", feed_forward=True)
    inputs = token_batch(llama, LENGTHS)
    expected = layer_outputs(llama, inputs)
    for got, wanted in zip(whole_outputs(llama), expected, strict=True):
        tokens = inputs["attention_mask"].bool()
        torch.testing.assert_close(got[tokens], wanted[tokens], rtol=1e-6, atol=1e-6)


class Sorted(nn.Module):
    """A network whose output is no affine map of what it reads, even with everything held."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, vectors):
        return self.network(vectors).sort(dim=-1).values


def test_a_network_that_is_not_affine_is_refused_only_if_it_is_needed(llama):
    llama.layers[1].mlp = Sorted(llama.layers[1].mlp).eval()
    verify(llama, facts_for("llama"), "llama")
    with pytest.raises(InputError) as refused:
        verify(llama, facts_for("llama"), "llama", feed_forward=True)
    message = str(refused.value)
    assert "\n" not in message
    assert "the feed-forward network of layer 2 cannot be observed" in message
    assert "sort (test_feed_forward.py, line" in message


@pytest.mark.parametrize("place", ["network", "layer"])
def test_norms_may_stand_anywhere(llama, place):
    """Of the network's output, or after the residual connection, in a family that normalises before its networks."""
    layer, norm = llama.layers[1], nn.LayerNorm(24).double()
    normed = layer.mlp if place == "network" else layer
    forward = type(normed).forward
    normed.forward = lambda *args, **kwargs: norm(forward(normed, *args, **kwargs))
    inputs = token_batch(llama, LENGTHS)
    tokens = inputs["attention_mask"].bool()
    for got, wanted in zip(whole_outputs(llama), layer_outputs(llama, inputs), strict=True):
        torch.testing.assert_close(got[tokens], wanted[tokens], rtol=1e-6, atol=1e-6)


class Shifted(nn.Module):
    """A norm whose γ is one more than its weight, and whose ε is not the one that it stores, as if transformers changed one."""

    __module__ = "transformers.models"

    def __init__(self, norm: nn.Module, *, offset: float = 0.0, factor: float = 1.0) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, getattr(norm, "bias", None)
        self.eps = getattr(norm, "eps", None) or norm.variance_epsilon
        self.offset, self.factor, self.centred = offset, factor, isinstance(norm, nn.LayerNorm)

    def forward(self, vectors):
        norm = Normalisation(self.weight + self.offset, self.bias, self.eps * self.factor, self.centred)
        return norm.normalised(vectors)


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("model_type", "path"),
    [
        ("bert", "encoder.layer.1.attention.output.LayerNorm"),
        ("bert", "embeddings.LayerNorm"),
        ("llama", "layers.1.input_layernorm"),
        ("llama", "norm"),
        ("olmo2", "layers.0.post_attention_layernorm"),
        ("qwen3", "layers.2.self_attn.k_norm"),
    ],
)
@pytest.mark.parametrize("changed", [{"offset": 1.0}, {"factor": 1.01}])
def test_every_norm_is_what_it_does(model_type, path, changed):
    """Not what it stores: γ that is not the weight, and ε that is another by 1 %."""
    model = tiny_model(FAMILY_CONFIGS[model_type], torch.float64)
    model.set_submodule(path, Shifted(model.get_submodule(path), **changed).eval())
    assert verify(model, facts_for(model_type), model_type, feed_forward=True).error < 1e-6


def test_a_decoder_without_a_network_says_so():
    needs = {analyses()["feedforward"].load(): Requirements(feed_forward=True)}
    model = ModelOptions(name="marian", stack=ModelStack.decoder, seed=0)
    with pytest.raises(InputError, match=r"analysis=feedforward needs the feed-forward network, but a decoder's"):
        _refuse_missing_feed_forward(needs, model, facts_for("marian", "decoder"))
