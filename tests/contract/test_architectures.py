"""Layouts are inferred from the computation, also for architectures that no list names."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_iter
from transformers import AutoModel, PreTrainedModel, SwitchTransformersConfig

from docs import architectures
from normscope.attribution.passes import held_pass, held_translation
from normscope.attribution.scalars import attribute_scalars
from normscope.errors import InputError
from normscope.models.blocks.block import AttentionBlock
from normscope.models.infer.graph import Graph, NotInferredError
from normscope.models.infer.infer import infer
from normscope.models.infer.layouts import layout_of_config, layout_of_model
from normscope.models.infer.trace import trace
from normscope.models.observe.observer import Observer
from normscope.models.prove.verification import verify
from normscope.models.sites.block_modules import bind_blocks
from normscope.models.sites.layout import ModelLayout
from tests.architectures import tiny_architecture
from tests.tiny import token_batch

UNLISTED = [
    *("ctrl", "esm", "gpt_neo", "hunyuan_v1_dense", "megatron-bert", "nanochat", "nomic_bert", "roformer"),
    *("squeezebert", "xlm"),
]
REFUSED = {
    "convbert": r"the outputs of the heads are not read by a single linear layer \(operation cat in encoder.layer.0",
    "fnet": "no softmax over all tokens was found",
    "xlnet": r"the outputs of the heads are not read by a single linear layer \(operation bmm in layer.0",
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("model_type", UNLISTED)
def test_an_architecture_that_nobody_has_listed_is_exact(model_type):
    """Σ_j αf(x_j) + b_O equals the untouched model's attention output; every layer and feed-forward network is verified."""
    model = tiny_architecture(model_type)
    layout, inputs = layout_of_model(model), token_batch(model, (9, 6))
    assert len(layout.stream.layers) == 2
    assert layout.has_networks
    rounds = verify(model, layout, model_type, feed_forward=True).error
    assert rounds < (1e-6 if any("RMSNorm" in type(module).__name__ for module in model.modules()) else 2e-7)
    outputs: list[torch.Tensor] = []
    hooks = [
        modules.output.register_forward_hook(lambda _module, _args, output: outputs.append(output))
        for modules in bind_blocks(model, layout)
    ]
    with torch.inference_mode():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    blocks: list[AttentionBlock] = []
    with Observer(model, layout) as observer:
        observer.run(inputs, blocks.append)
    for block, output in zip(blocks, outputs, strict=True):
        made = torch.einsum("bhqk,bhkm->bqm", block.weights, block.transformed())
        if block.parameters.output_bias is not None:
            made = made + block.parameters.output_bias
        tokens = block.token_mask
        torch.testing.assert_close(made[tokens], output[tokens], rtol=1e-6, atol=1e-6)


def test_grouped_convolutions_of_one_token_compute_the_same_as_linear_layers():
    original, observed = (tiny_architecture("squeezebert", as_observed=each) for each in (False, True))
    inputs = token_batch(original, (9, 6))
    with torch.inference_mode():
        assert torch.equal(original(**inputs).last_hidden_state, observed(**inputs).last_hidden_state)
    convolution, linear = original.encoder.layers[0].attention.query, observed.encoder.layers[0].attention.query
    vectors = torch.randn(3, 32, 5, dtype=torch.float64)
    rows = vectors.mT @ linear.inner.weight + linear.inner.bias
    torch.testing.assert_close(rows.mT, convolution(vectors), rtol=0, atol=1e-13)


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", REFUSED)
def test_a_refusal_names_the_operation_and_the_module(model_type):
    with pytest.raises(NotInferredError, match=REFUSED[model_type]):
        layout_of_config(architectures.text_config(model_type))


@pytest.mark.spread(1)
@pytest.mark.parametrize("model_type", ["bert", "llama", "t5"])
def test_a_config_shows_what_its_model_does(model_type):
    """A pass without weights gives the same layout as one with weights."""
    model = tiny_architecture(model_type)
    encoder = model.get_encoder() if model_type == "t5" else model
    stack = "encoder" if model_type == "t5" else None
    assert layout_of_config(model.config, stack) == layout_of_model(encoder, stack)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["albert", "esm", "gpt2", "marian", "mixtral", "qwen3"])
def test_the_page_of_models_is_up_to_date(model_type):
    rows = [row for row in architectures.stored() if row.model_type == model_type]
    assert rows == list(architectures.rows(model_type))


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
            with pytest.raises((InputError, NotInferredError, TypeError)):
                verify(observed, layout_of_model(observed, stack or None), model_type)
            continue
        layout = layout_of_model(observed, stack or None)
        assert verify(observed, layout, model_type, feed_forward=layout.has_networks)
        assert ", ".join(layout.norm_positions) == rows[stack].block
        assert layout.has_networks == (rows[stack].network in ("yes", "part"))
        if rows[stack].attribution:
            assert _is_followed(observed, layout) == (rows[stack].attribution == "yes")


def _is_followed(model: PreTrainedModel, layout: ModelLayout) -> bool:
    """Whether scores and biases add up to a scalar of the last hidden vectors."""
    inputs = token_batch(model, (9, 6))
    if layout.stack == "cross":
        inputs |= {"decoder_input_ids": inputs["input_ids"][:, :5]}
    try:
        passed = held_translation(model, inputs) if layout.stack == "cross" else held_pass(model, layout, inputs)
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
    layout = layout_of_model(model, stack)
    assert not layout.registry
    assert verify(model, layout, "mvp").error < 1e-13


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
    for stack, attention in [("encoder", "layer.0"), ("decoder", "layer.0"), ("cross", "layer.1")]:
        layout = layout_of_model(model.get_encoder() if stack == "encoder" else model, stack)
        assert layout.attends == [1, 2]
        assert all(f".{attention}." in site.attention.module for site in layout.sites)


def test_keys_normalised_over_all_heads_are_sums_over_dimensions_of_the_input():
    """ESM C subtracts the mean of all heads' keys, in W_K here; each key is still a sum over the dimensions of its token."""
    model = tiny_architecture("esmc")
    layout, inputs = layout_of_model(model), token_batch(model, (9, 6))
    given: list[torch.Tensor] = []
    for layer in model.layers:
        layer.self_attn.k_norm.register_forward_hook(lambda _module, _args, output: given.append(output))
    blocks: list[AttentionBlock] = []
    with Observer(model, layout) as observer:
        observer.run(inputs, blocks.append)
    # The observer has run the norms on probes of its own.
    for block, normed in zip(blocks, [each for each in given if len(each) == 2], strict=True):
        assert block.parameters.key_normalisation.centred
        parts = torch.einsum("bkm,hmd->mbhkd", block.attention_inputs, block.parameters.key_weight)
        bias = block.parameters.key_bias[:, None].expand_as(parts[0])
        unturned = block.key_map._replace(cosine=None, sine=None)
        made = sum(unturned(part) for part in [*parts, bias]).transpose(1, 2).flatten(2)
        tokens = block.token_mask
        torch.testing.assert_close(made[tokens], normed[tokens], rtol=1e-10, atol=1e-10)
        key = sum(block.key_map(part) for part in [*parts, bias]).transpose(1, 2)
        torch.testing.assert_close(key[tokens], block.key.transpose(1, 2)[tokens], rtol=1e-10, atol=1e-10)


class InPlace(nn.Module):
    """Changes a view of a tensor, and reads the tensor."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)

    def forward(self, input_ids):
        vectors = self.embedding(input_ids)
        vectors[:, 1:].mul_(2)
        return vectors + 1


def test_a_view_that_is_changed_in_place_changes_the_tensor():
    recorded = trace(InPlace(), {"input_ids": torch.zeros(2, 3, dtype=torch.long)})
    graph = Graph(recorded)
    made = graph.ancestors(recorded.values(recorded.output))
    assert {"embedding", "mul_"} <= {value.source.name for value in made if value.source is not None}


def test_a_model_without_attention_has_none():
    recorded = trace(InPlace(), {"input_ids": torch.zeros(2, 3, dtype=torch.long)})
    with pytest.raises(NotInferredError, match="no softmax over all tokens"):
        infer(Graph(recorded), 3, 3)
