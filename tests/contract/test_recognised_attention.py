"""Values, weights and gates of recognised blocks, with attention by name or by the model's own code."""

import contextlib

import pytest
import torch
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.linear.block_attention import block_attention
from normscope.linear.blocks import BlockRecogniser
from normscope.linear.layer_calls import LayerCalls
from normscope.linear.refusals import NotRecognisedError
from normscope.models.observe.attention_function import IMPLEMENTATION, active, attention_by
from normscope.models.probes import after_encoder
from tests.architectures import tiny_architecture
from tests.contract.test_own_models import TEXTS
from tests.contract.test_recognised_blocks import TOLERANCE, Unrounded
from tests.tiny import FAMILY_CONFIGS, tiny_model, token_batch
from tests.unit.test_waiting import Refusal


@contextlib.contextmanager
def by_name(model, recogniser):
    """Attention of a model from transformers is announced to the recogniser, if it calls a function by name."""
    if not isinstance(model, PreTrainedModel) or not model._can_set_attn_implementation():
        yield
        return
    token = active.set(recogniser)
    try:
        with attention_by(model, IMPLEMENTATION):
            yield
    finally:
        active.reset(token)


def recognised(model, inputs, stack="", *, announced=True):
    """The blocks of a stack with their attention."""
    found, given = [], dict(inputs)
    tokens = inputs["decoder_attention_mask" if stack in ("decoder", "cross") else "attention_mask"].bool()
    keys = inputs["attention_mask"].bool() if stack == "cross" else tokens

    def visit(block):
        if stack not in ("decoder", "cross") or block.is_self == (stack == "decoder"):
            found.append((block, block_attention(block.trail, tokens, keys)))

    with torch.inference_mode():
        if stack in ("decoder", "cross"):
            given = after_encoder(model, given)
        calls = LayerCalls(model, len(tokens))
        recogniser = BlockRecogniser(model, len(tokens), visit, lambda: calls.number, proves=True)
        announcing = by_name(model, recogniser) if announced else contextlib.nullcontext()
        with announcing, calls, recogniser:
            model(**given)
    return found


@pytest.mark.parametrize("announced", [True, False])
def test_padding_in_front_leaves_no_trace(announced):
    """A causal model's padding then sees no key, which may not become NaN anywhere."""
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.float64)
    inputs = token_batch(model, (9, 9))
    inputs["attention_mask"][1, :3] = 0
    for _, attention in recognised(model, inputs, announced=announced):
        assert attention.alpha.whole.isfinite().all()
        assert attention.alpha.own.isfinite().all()
        assert attention.alpha.received.isfinite().all()


class Handwritten(nn.Module):
    """Attention of one head as people write it; `attend` computes α from queries and keys."""

    def __init__(self, attend, between=lambda x, _self: x):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(99, 8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.scale, self.norm = nn.Parameter(torch.tensor([[[0.3]]])), nn.LayerNorm(8)
        self.attend, self.between = attend, between

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return x + self.out(self.between(self.attend(q, k, self) @ v, self))


SCORES = {
    "a scaled product": lambda q, k, _self: (q @ k.mT / 8**0.5).softmax(-1),
    "scaled queries": lambda q, k, _self: ((q / 8**0.5) @ k.mT).softmax(-1),
    "both scaled": lambda q, k, _self: ((q * 8**-0.25) @ (k / 8**0.25).mT).softmax(-1),
    "keys times queries": lambda q, k, _self: (k @ q.mT).mT.div(8**0.5).softmax(-1),
    "an einsum": lambda q, k, _self: torch.einsum("...jd,...id->...ij", k, q).mul(8**-0.5).softmax(-1),
    "added to a bias": lambda q, k, _self: torch.baddbmm(q.new_ones(1, 1, 1), q, k.mT, alpha=8**-0.5).softmax(-1),
    "with a sink": lambda q, k, _self: torch.cat([q @ k.mT * 8**-0.5, q.new_zeros(*q.shape[:2], 1)], dim=-1).softmax(
        -1
    )[..., :-1],
}


def attention_of(model):
    """Attention of a model with one block."""
    found, tokens = [], torch.tensor(TEXTS) >= 0
    with (
        torch.inference_mode(),
        BlockRecogniser(model, 2, lambda block: found.append(block_attention(block.trail, tokens, tokens))),
    ):
        model(torch.tensor(TEXTS))
    return found[0]


@pytest.mark.parametrize("kind", SCORES)
def test_queries_and_keys_are_those_of_the_scores_without_numbers(kind):
    """Whatever is multiplied by a number, the scale is the product of the numbers."""
    torch.manual_seed(0)
    model = Handwritten(SCORES[kind]).double().eval()
    alpha = attention_of(model).alpha
    q, k, _ = model.qkv(model.embed(torch.tensor(TEXTS))).chunk(3, dim=-1)
    torch.testing.assert_close(alpha.query, q.unsqueeze(1))
    torch.testing.assert_close(alpha.key, k.unsqueeze(1))
    assert alpha.scale == pytest.approx(8**-0.5)
    torch.testing.assert_close(alpha.whole, SCORES[kind](q, k, model).unsqueeze(1))
    assert (alpha.to_nowhere is not None) == (kind == "with a sink")
    if alpha.to_nowhere is not None:
        torch.testing.assert_close(alpha.to_nowhere, 1 - alpha.whole.sum(-1))


@pytest.mark.parametrize(
    ("attend", "between", "reason"),
    [
        (lambda q, k, self: (q @ k.mT * self.scale).softmax(-1), None, "not a multiple of q·k plus other terms"),
        (SCORES["a scaled product"], lambda heads, self: self.norm(heads), "a mean is subtracted from the outputs"),
    ],
)
def test_attention_without_queries_keys_or_a_gate_is_refused(attend, between, reason):
    model = Handwritten(attend, between or (lambda heads, _self: heads)).double().eval()
    with pytest.raises(NotRecognisedError, match=reason):
        attention_of(model)


@pytest.mark.parametrize("announced", [True, False])
def test_gates_of_heads_stand_beside_them(announced):
    """Qwen3-Next and AFMoE multiply by a number for each dimension, LFM3 by one for each head."""
    for model_type in ("qwen3_next", "lfm3"):
        model = tiny_architecture(model_type, torch.float64)
        inputs = token_batch(model, (9, 6))
        with Unrounded():
            found = recognised(model, inputs, announced=announced)
        for block, attention in found:
            heads = torch.einsum("bhqk,bhkd,bhqd->bqhd", attention.alpha.whole, attention.value, attention.gate)
            read = block.trail.written.step.operands[0]
            tokens = inputs["attention_mask"].bool()
            read = read.reshape(*heads.shape[:2], -1)
            torch.testing.assert_close(heads.flatten(2)[tokens], read[tokens], rtol=0, atol=TOLERANCE)


def test_a_norm_of_heads_without_a_mean_is_a_gate():
    """Its deviation belongs to the query's token, its weights to W_O."""

    def between(heads, self):
        return heads * (heads.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt() * self.norm.weight

    torch.manual_seed(0)
    model = Handwritten(SCORES["scaled queries"], between).double().eval()
    found = attention_of(model)
    heads = found.alpha.whole @ found.value
    expected = (heads.square().mean(dim=-1, keepdim=True) + 1e-6).rsqrt()
    torch.testing.assert_close(found.gate, expected.expand_as(found.gate))


@pytest.mark.parametrize("family", ["bert", "llama", "gemma2"])
def test_nothing_waits_for_the_device_where_attention_is_announced(family):
    """With masks on the host, and what is known of the size of scores."""
    model = tiny_model(FAMILY_CONFIGS[family], torch.float32)
    inputs = token_batch(model, (9, 6))
    host, blocks = [inputs["attention_mask"]], []
    model, inputs = model.to("meta"), {name: tensor.to("meta") for name, tensor in inputs.items()}
    tokens = inputs["attention_mask"].bool()

    def visit(block):
        attention = block_attention(block.trail, tokens, tokens, known_large=False)
        blocks.append((attention.alpha.own, attention.alpha.received))

    calls = LayerCalls(model, len(tokens))
    recogniser = BlockRecogniser(model, len(tokens), visit, lambda: calls.number, masks_on_host=host)
    with torch.inference_mode(), by_name(model, recogniser), Refusal(), calls, recogniser:
        model(**inputs)
    assert len(blocks) == model.config.num_hidden_layers


class Fused(Handwritten):
    """The same with fused attention and a mask."""

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.attend)
        return x + self.out(heads.transpose(1, 2).flatten(2))


TOKENS = len(TEXTS[0])
OTHERS = ~torch.eye(TOKENS, dtype=torch.bool)


@pytest.mark.parametrize(
    "mask",
    [
        OTHERS,
        torch.randn(2, TOKENS, TOKENS).double().masked_fill(~OTHERS, -torch.inf),
        OTHERS[:1].roll(1),
        torch.stack([OTHERS, OTHERS.roll(1, dims=0)]),
    ],
    ids=["no token sees itself", "nor with biases", "a hidden key", "heads see other keys"],
)
def test_masks_of_fused_attention_are_those_of_a_softmax(mask):
    torch.manual_seed(0)
    model = Fused(mask).double().eval()
    alpha = attention_of(model).alpha
    q, k, _ = model.qkv(model.embed(torch.tensor(TEXTS))).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    added = mask if mask.is_floating_point() else torch.zeros(mask.shape).double().masked_fill(~mask, -torch.inf)
    expected = (q @ k.mT / 2 + added).softmax(-1)
    torch.testing.assert_close(alpha.whole, expected)
    torch.testing.assert_close(alpha.own, expected.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(alpha.received, expected.sum(dim=-2))
