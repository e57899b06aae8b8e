"""Layouts are inferred from the computation, also for architectures that no list names."""

import pytest
import torch
from torch.utils._pytree import tree_iter
from transformers import AutoModel, PreTrainedModel, SwitchTransformersConfig

from docs import architectures
from normscope.attribution.passes import held_pass, held_translation
from normscope.attribution.scalars import attribute_scalars
from normscope.errors import InputError
from normscope.linear.refusals import NotRecognisedError
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of, facts_of_config
from normscope.models.prove.verification import verify
from tests.architectures import tiny_architecture
from tests.tiny import token_batch

UNLISTED = [
    *("ctrl", "esm", "gpt_neo", "hunyuan_v1_dense", "megatron-bert", "nanochat", "nomic_bert", "roformer"),
    *("squeezebert", "xlm"),
]
REFUSED = {
    "convbert": r"layer 1 .* is not followed to a linear layer \(modeling_convbert.py, line \d+, in forward\)",
    "fnet": "no softmax attention was found",
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("model_type", UNLISTED)
def test_an_architecture_that_nobody_has_listed_is_exact(model_type):
    """Σ_j αf(x_j) + b_O equals the untouched model's attention output; every layer and feed-forward network is verified."""
    model = tiny_architecture(model_type)
    facts, inputs = facts_of(model), token_batch(model, (9, 6))
    assert facts.layers == 2
    assert facts.has_networks
    rounds = verify(model, facts, model_type, feed_forward=True).error
    assert rounds < (1e-6 if any("RMSNorm" in type(module).__name__ for module in model.modules()) else 2e-7)
    blocks: list[AttentionBlock] = []
    with Observer(model, facts) as observer:
        observer.run(inputs, blocks.append)
    assert [block.layer for block in blocks] == facts.attends
    for block in blocks:
        made = torch.einsum("bhqk,bhkm->bqm", block.weights, block.transformed())
        if block.parameters.output_bias is not None:
            made = made + block.parameters.output_bias
        tokens = block.token_mask
        torch.testing.assert_close(made[tokens], block.attention_output[tokens], rtol=1e-6, atol=1e-6)


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", REFUSED)
def test_a_refusal_names_the_layer_and_the_line(model_type):
    with pytest.raises(InputError, match=REFUSED[model_type]):
        facts_of_config(architectures.text_config(model_type))


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["bert", "llama", "t5"])
def test_a_config_shows_what_its_model_does(model_type):
    """A pass without weights gives the same layout as one with weights."""
    model = tiny_architecture(model_type)
    encoder = model.get_encoder() if model_type == "t5" else model
    stack = "encoder" if model_type == "t5" else None
    assert facts_of_config(model.config, stack) == facts_of(encoder, stack)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["albert", "esm", "gpt2", "marian", "mixtral", "qwen3"])
def test_the_page_of_models_is_up_to_date(model_type):
    rows = [row for row in architectures.stored() if row.model_type == model_type]
    assert rows == list(architectures.rows(model_type))


@pytest.mark.slow
def test_the_towers_of_the_page_are_those_of_transformers():
    assert [row.model_type for row in architectures.stored_towers()] == [*architectures.towers()]


def test_every_tower_of_the_page_is_measured_or_has_a_reason():
    rows = architectures.stored_towers()
    assert all(bool(row.block) is not bool(row.reason) for row in rows)
    assert sum(bool(row.block) for row in rows) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["dinov3_vit", "hubert", "qwen2_vl", "resnet", "swin", "whisper"])
def test_the_towers_of_the_page_are_up_to_date(model_type):
    (row,) = (row for row in architectures.stored_towers() if row.model_type == model_type)
    assert architectures.tower_row(model_type, row.reads) == row


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted({row.model_type for row in architectures.stored() if row.block}))
def test_every_architecture_of_the_page_is_proved(model_type):
    """What a layout says of a default config, the proof holds against a tiny model with random weights."""
    # XGLM hides keys with a number that is too small for float64.
    model = tiny_architecture(model_type, torch.float32 if model_type == "xglm" else torch.float64)
    rows = {row.stack: row for row in architectures.stored() if row.model_type == model_type}
    for stack in ("encoder", "decoder", "cross") if model.config.is_encoder_decoder else ("",):
        observed = model.get_encoder() if stack == "encoder" else model
        if not rows[stack].block:
            with pytest.raises((InputError, NotRecognisedError, TypeError)):
                verify(observed, facts_of(observed, stack or None), model_type)
            continue
        facts = facts_of(observed, stack or None)
        assert verify(observed, facts, model_type, feed_forward=facts.has_networks)
        assert ", ".join(facts.norm_positions) == rows[stack].block
        assert facts.has_networks == (rows[stack].network in ("yes", "part"))
        if rows[stack].attribution:
            assert _is_followed(observed, facts) == (rows[stack].attribution == "yes")


def _is_followed(model: PreTrainedModel, facts: ModelFacts) -> bool:
    """Whether scores and biases add up to a scalar of the last hidden vectors."""
    inputs = token_batch(model, (9, 6))
    if facts.stack == "cross":
        inputs |= {"decoder_input_ids": inputs["input_ids"][:, :5]}
    try:
        passed = held_translation(model, inputs) if facts.stack == "cross" else held_pass(model, facts, inputs)
    except InputError:
        return False
    made = next(each for each in tree_iter(passed.output) if isinstance(each, torch.Tensor) and each.requires_grad)
    scalars = (made * torch.randn_like(made) * passed.token_mask.unsqueeze(-1)).sum(dim=(1, 2))
    found = attribute_scalars(passed, scalars)
    total = found.scores.sum(dim=1) + found.bias + found.remainder
    torch.testing.assert_close(total, scalars.detach().double(), rtol=1e-4, atol=1e-6)
    return True


@pytest.mark.spread(1)
@pytest.mark.parametrize("stack", ["decoder", "cross"])
def test_the_two_attentions_of_a_decoder_that_computes_them_itself_are_told_apart(stack):
    """In the probes of the proof, source and target are equally long."""
    model = tiny_architecture("mvp")
    facts = facts_of(model, stack)
    assert not facts.calls_function
    assert verify(model, facts, "mvp").error < 1e-13


@pytest.mark.spread(1)
@pytest.mark.parametrize("experts", [7, 8, 11, 12])
def test_a_router_over_as_many_experts_as_recorded_tokens_is_no_attention(experts):
    """The recorded texts have 11 tokens, and targets 7; a sink adds one."""
    config = SwitchTransformersConfig(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=40,
        num_layers=2,
        num_decoder_layers=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_heads=4,
        num_experts=experts,
    )
    torch.manual_seed(0)
    model = AutoModel.from_config(config, dtype=torch.float64).eval()
    for stack in ("encoder", "decoder", "cross"):
        facts = facts_of(model.get_encoder() if stack == "encoder" else model, stack)
        assert facts.heads_of == {1: 4, 2: 4}


def test_keys_normalised_over_all_heads_are_sums_over_dimensions_of_the_input():
    """ESM C subtracts the mean of all heads' keys, in W_K here; each key is still a sum over the dimensions of its token."""
    model = tiny_architecture("esmc")
    facts, inputs = facts_of(model), token_batch(model, (9, 6))
    given: list[torch.Tensor] = []
    for layer in model.layers:
        layer.self_attn.k_norm.register_forward_hook(lambda _module, _args, output: given.append(output))
    blocks: list[AttentionBlock] = []
    with Observer(model, facts) as observer:
        observer.run(inputs, blocks.append)
    # The observer has run the norms on probes of its own.
    for block, normed in zip(blocks, [each for each in given if len(each) == 2], strict=True):
        parts = torch.einsum("bkm,hmd->mbhkd", block.attention_inputs, block.parameters.key_weight)
        bias = block.parameters.key_bias[:, None].expand_as(parts[0])
        tokens = block.token_mask
        key = sum(block.key_map(part) for part in [*parts, bias]).transpose(1, 2)
        torch.testing.assert_close(key[tokens], block.key.transpose(1, 2)[tokens], rtol=1e-10, atol=1e-10)
        # The rotation that comes after the norm keeps the size of each head's key, up to its cosines' float32.
        sizes = normed.unflatten(2, key.shape[2:]).norm(dim=-1)
        torch.testing.assert_close(key.norm(dim=-1)[tokens], sizes[tokens], rtol=1e-6, atol=1e-6)
