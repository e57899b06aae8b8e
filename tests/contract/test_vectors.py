"""Models that read vectors, images or sound instead of token ids: their blocks are those that hooks give, in float64."""

import pytest
import torch
import transformers
from torch import nn

from normscope.linear.refusals import NotRecognisedError
from normscope.maths.mixing import Method
from normscope.models.observe.check import Check
from normscope.models.observe.observer import Observer
from normscope.models.observe.reading import facts_of
from tests.tiny import FAMILY_CONFIGS, tiny_model, token_batch

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IMAGES = {"image_size": 32, "patch_size": 8}
WHISPER = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_layers": 1}
HEADS = 4


def picture(size: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size, dtype=torch.float64)}


def vit():
    return transformers.ViTModel(transformers.ViTConfig(**SMALL, **IMAGES), add_pooling_layer=False), picture(32)


def clip():
    return transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**SMALL, **IMAGES)), picture(32)


def siglip():
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SMALL, **IMAGES)), picture(32)


def dinov2():
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2, image_size=28, patch_size=7
    )
    return transformers.Dinov2WithRegistersModel(config), picture(28)


def whisper():
    more = {"decoder_attention_heads": 4, "decoder_ffn_dim": 48, "num_mel_bins": 8, "max_source_positions": 20}
    config = transformers.WhisperConfig(**WHISPER, **more)
    sound = {"input_features": torch.randn(2, 8, 40, dtype=torch.float64)}
    return transformers.WhisperModel(config).get_encoder(), sound


MODELS = {each.__name__: each for each in (vit, clip, siglip, dinov2, whisper)}


def made(build) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model, inputs = build()
    model = model.eval().double().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model, inputs


def layers_of(model: nn.Module) -> nn.ModuleList:
    return next(
        each for each in model.modules() if isinstance(each, nn.ModuleList) and hasattr(each[0], "_forward_pre_hooks")
    )


def explicit(model: nn.Module, inputs: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """What every layer of a model with a norm before attention gives, from all vectors F_ij."""
    kept, hooks = [], []

    def keep(name: str, values: dict[str, torch.Tensor]):
        return lambda _module, _args, output: values.__setitem__(name, output)

    for layer in layers_of(model):
        values: dict[str, torch.Tensor] = {}
        kept.append(values)

        def enter(_module, args, kwargs, values=values):
            values["x"] = args[0] if args else kwargs["hidden_states"]

        hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        own = {name.split(".")[-1]: module for name, module in layer.named_modules()}
        for name in ("q_proj", "k_proj", "v_proj"):
            hooks.append(own[name].register_forward_hook(keep(name, values)))
        written = own.get("o_proj", own.get("out_proj"))
        values["weight"], values["bias"] = written.weight, written.bias
        values["scale"] = own["layer_scale1"].lambda1 if "layer_scale1" in own else torch.ones_like(written.bias)
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return kept


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_blocks_are_those_that_hooks_give(build):
    model, inputs = made(build)
    expected, found = explicit(model, inputs), []
    tokens = expected[0]["x"].shape[1]
    token_mask = torch.ones(2, tokens, dtype=torch.bool)
    facts = facts_of(model, inputs=inputs, token_mask=token_mask)
    assert (facts.width, facts.layers, facts.heads, facts.norm_positions) == (32, 2, HEADS, ("pre",))
    assert facts.has_networks
    assert facts.has_value_weights
    assert facts.has_score_weights

    def visit(block) -> None:
        values = expected[block.layer - 1]
        query, key, value = (
            values[name].unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in ("q_proj", "k_proj", "v_proj")
        )
        weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
        transformed = torch.einsum("bhkd,mhd->bhkm", value, values["weight"].unflatten(-1, (HEADS, -1)))
        transformed = transformed * values["scale"]
        vectors = torch.einsum("bhqk,bhkm->bqkm", weights, transformed)
        own = vectors.diagonal(dim1=1, dim2=2).transpose(-1, -2)
        mixed = (vectors.sum(dim=2) - own).norm(dim=-1)
        torch.testing.assert_close(block.weights, weights)
        torch.testing.assert_close(block.transformed_norms, transformed.norm(dim=-1))
        torch.testing.assert_close(block.inputs, values["x"])
        ratios = block.mixing_ratios
        torch.testing.assert_close(ratios[Method.ATTN_N], mixed / (mixed + own.norm(dim=-1)))
        torch.testing.assert_close(ratios[Method.ATTNRES_N], mixed / (mixed + (own + values["x"]).norm(dim=-1)))
        found.append(block.layer)

    errors = []
    with Observer(model, facts, feed_forward=True) as observer:
        observer.run(
            inputs,
            visit,
            visit_feed_forward=lambda layer: errors.append(float(layer.error().max())),
            token_mask=token_mask,
            check=Check.TEXTS,
            proves=True,
        )
    assert found == [1, 2]
    assert max(errors) < 1e-12


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma2", "deberta-v2"])
def test_vectors_instead_of_ids_give_the_same_blocks(family):
    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    inputs = token_batch(model, (9, 6))
    # Gemma multiplies what it looks up in the embedding itself.
    vectors = {"inputs_embeds": model.get_input_embeddings()(inputs["input_ids"])}
    vectors |= {name: value for name, value in inputs.items() if name != "input_ids"}
    facts = facts_of(model)
    assert facts_of(model, inputs=vectors) == facts
    kept = []
    for given in (inputs, vectors):
        kept.append([])
        with Observer(model, facts) as observer:
            observer.run(given, lambda block: kept[-1].append(block), check=Check.TEXTS, proves=True)
    assert len(kept[0]) == len(kept[1]) == facts.layers
    for one, other in zip(*kept, strict=True):
        torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=0)
        for method, ratio in one.mixing_ratios.items():
            torch.testing.assert_close(ratio, other.mixing_ratios[method], rtol=0, atol=0)


def test_vectors_that_no_block_reads_are_refused():
    class Bag(nn.Module):
        def forward(self, vectors):
            return vectors.mean(dim=1, keepdim=True)

    mask = torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(NotRecognisedError, match="no softmax attention was found"):
        facts_of(Bag(), inputs={"vectors": torch.randn(2, 5, 4)}, token_mask=mask)


class Pooling(nn.Module):
    """Attention from vectors that are the same for every text, with the residual connection of a latent array."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.randn(1, 3, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)])
        self.own = own

    def forward(self, vectors):
        if not self.own:
            vectors = self.layers[0](vectors)
        probe = self.probe.expand(len(vectors), -1, -1)
        pooled = probe + self.attention(probe, vectors, vectors)[0]
        return self.layers[0](pooled) if self.own else pooled


def test_a_head_that_pools_is_no_block_and_nothing_may_attend_to_what_it_has_pooled():
    vectors, mask = {"vectors": torch.randn(2, 5, 8)}, torch.ones(2, 5, dtype=torch.bool)
    facts = facts_of(Pooling(own=False).eval(), inputs=vectors, token_mask=mask)
    assert facts.attends == [1]
    with pytest.raises(
        NotRecognisedError,
        match=r"tokens are pooled before it \(test_vectors.py, line .*\), by attention whose .*, line ",
    ):
        facts_of(Pooling(own=True).eval(), inputs=vectors, token_mask=mask)
