"""Attention blocks are recognised while a model's own code runs, exactly, or refused with the line that computes them."""

import contextlib

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from docs import architectures
from normscope.errors import InputError
from normscope.linear.blocks import BlockRecogniser
from normscope.linear.layer_calls import LayerCalls
from normscope.linear.provenance import Made
from normscope.linear.refusals import NotRecognisedError
from normscope.maths.mixing import Method
from normscope.models.observe.observer import Observer, Replacement
from normscope.models.observe.reading import facts_of
from normscope.models.probes import after_encoder
from normscope.models.stored.model_code import StopForward
from tests.architectures import tiny_architecture
from tests.contract.test_own_models import TEXTS
from tests.contract.test_proof import SABOTAGED
from tests.tiny import FAMILY_CONFIGS, tiny_model, token_batch

ARCHITECTURES = sorted({row.model_type for row in architectures.stored() if row.block})
# Nearly all equal what is observed to 1e-15.
TOLERANCE = 1e-12


class Unrounded(TorchFunctionMode):
    """Runs a model without its own casts to float32, after which nothing is exact."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        if name == "softmax" and kwargs.get("dtype") is torch.float32 and args[0].dtype is torch.float64:
            kwargs["dtype"] = None
        made = function(*args, **kwargs)
        rounds = name in ("to", "float", "type_as") and args[0].dtype is torch.float64 and made.dtype is torch.float32
        return args[0] if rounds else made


def of_stack(model, stack):
    """What runs, and its inputs; for a decoder, what its encoder has made of the source."""
    inputs = token_batch(model, (9, 6))
    if stack not in ("decoder", "cross"):
        return (model.get_encoder() if stack == "encoder" else model), inputs
    target = {
        "decoder_input_ids": inputs["input_ids"][:, :5],
        "decoder_attention_mask": torch.tensor([[1] * 5, [1] * 4 + [0]]),
    }
    return model, inputs | target


def recognised(model, inputs, stack="", *, proves=True):
    """The blocks of a stack."""
    blocks, given = [], dict(inputs)
    with torch.inference_mode():
        if stack in ("decoder", "cross"):
            given = after_encoder(model, given)
        texts, calls = len(given["attention_mask"]), LayerCalls(model, len(given["attention_mask"]))
        with calls, BlockRecogniser(model, texts, blocks.append, lambda: calls.number, proves=proves):
            model(**given)
    return [block for block in blocks if stack not in ("decoder", "cross") or block.is_self == (stack == "decoder")]


def brute_force(model, inputs, layer):
    """Attn-N and AttnRes-N of a Llama layer: a vector for each pair of tokens, from the outputs of its modules."""
    module, made = model.layers[layer], {}
    attention = module.self_attn
    hooks = [
        module.input_layernorm.register_forward_pre_hook(lambda _module, args: made.update(x=args[0])),
        attention.v_proj.register_forward_hook(lambda _module, _args, output: made.update(v=output)),
    ]
    implementation, model.config._attn_implementation = model.config._attn_implementation, "eager"
    with torch.inference_mode(), Unrounded():
        weights = model(**inputs, output_attentions=True).attentions[layer]
    model.config._attn_implementation = implementation
    for hook in hooks:
        hook.remove()
    heads = weights.shape[1]
    value = made["v"].unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
    value = value.repeat_interleave(heads // value.shape[1], dim=1)
    pairs = torch.einsum("bhij,bhjd->bijhd", weights, value).flatten(-2) @ attention.o_proj.weight.T
    own = pairs.diagonal(dim1=1, dim2=2).mT
    others = (pairs.sum(dim=2) - own).norm(dim=-1)
    return {
        Method.ATTN_N: others / (others + own.norm(dim=-1)),
        Method.ATTNRES_N: others / (others + (own + made["x"]).norm(dim=-1)),
    }


CROSSING = {
    "their mean": lambda values: values + 0.1 * values.mean(dim=1, keepdim=True),
    "their sum so far": lambda values: values.cumsum(dim=1),
    "another order": lambda values: values[:, torch.arange(values.shape[1]).flip(0)],
    "the next one": lambda values: torch.cat([values[:, 1:], values[:, :1]], dim=1),
}


@pytest.mark.parametrize("kind", CROSSING)
def test_values_that_other_tokens_share_are_refused(kind):
    model = tiny_model(FAMILY_CONFIGS["llama"], torch.float64)
    model.layers[1].self_attn.v_proj.register_forward_hook(lambda _module, _args, output: CROSSING[kind](output))
    with pytest.raises(NotRecognisedError, match="layer 2 .* its values are made of several tokens' vectors"):
        recognised(model, token_batch(model, (9, 6)))


@pytest.mark.parametrize("kind", SABOTAGED)
def test_changed_code_is_followed_or_refused(kind):
    family, sabotage, reason = SABOTAGED[kind]
    model = tiny_model(FAMILY_CONFIGS[family], torch.float64)
    inputs = token_batch(model, (9, 6))
    sabotage(model)
    if reason is not None:
        with pytest.raises(
            NotRecognisedError, match=r"^(the )?attention (of layer \d )?cannot be measured: .*, line \d"
        ):
            recognised(model, inputs)
        return
    with Unrounded():
        blocks = recognised(model, inputs)
    assert [block.layer for block in blocks] == [1, 2, 3]
    if family == "llama":
        tokens = inputs["attention_mask"].bool()
        found = {}
        with Unrounded(), Observer(model, facts_of(model)) as observer:
            observer.run(inputs, lambda block: found.setdefault(block.layer, dict(block.mixing_ratios)))
        for method, ratio in brute_force(model, inputs, 1).items():
            torch.testing.assert_close(found[2][method][tokens], ratio[tokens], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("convbert", r"layer 1 .* not followed to a linear layer \(modeling_convbert.py, line \d+, in forward\)"),
        ("fnet", "no softmax attention was found"),
        ("falcon_h1", r"layer 1 .* takes from other tokens as well \(modeling_falcon_h1.py, line \d+, in forward\)"),
        pytest.param("longformer", "layer 1 .* not followed to the residual connection", marks=pytest.mark.slow),
        pytest.param("nystromformer", "layer 1 .* not followed to a linear layer", marks=pytest.mark.slow),
        pytest.param("rwkv", "no softmax attention was found", marks=pytest.mark.slow),
    ],
)
def test_what_is_no_block_is_refused_with_the_line_of_the_models_code(model_type, reason):
    model = tiny_architecture(model_type)
    with pytest.raises(NotRecognisedError, match=reason):
        recognised(model, token_batch(model, (9, 6)))


class Weights(nn.Module):
    """Computes attention weights and does something else."""

    def __init__(self, use):
        super().__init__()
        self.embed, self.project, self.use = nn.Embedding(99, 8), nn.Linear(8, 8), use

    def forward(self, ids):
        x = self.embed(ids)
        weights = (x @ x.mT).softmax(dim=-1)
        return self.use(self, x, weights)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda _self, x, weights: x + weights.sum(dim=-1, keepdim=True), "multiply no values"),
        (lambda _self, x, weights: x + weights @ x, "not followed to a linear layer"),
        (lambda self, x, weights: self.project(weights @ x), "not followed to the residual connection"),
        (lambda self, x, weights: x + self.project(weights @ x).cumsum(dim=1), "different tokens are mixed"),
        (lambda self, x, weights: x[:, :1] + self.project(weights[:, :1] @ x), "only some of its keys"),
        (lambda self, x, weights: x + self.project(weights.mT @ x), None),
    ],
)
def test_attention_is_never_left_out_in_silence(use, reason):
    torch.manual_seed(0)
    model, ids, blocks = Weights(use).double().eval(), torch.tensor(TEXTS), []
    refused = contextlib.nullcontext() if reason is None else pytest.raises(NotRecognisedError, match=reason)
    with refused, torch.inference_mode(), BlockRecogniser(model, 2, blocks.append, proves=True):
        model(ids)
    assert len(blocks) == (reason is None)


def test_layers_are_entered_replaced_and_left_as_the_observer_has_it():
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    inputs = token_batch(model, (9, 6))
    tokens, values = inputs["attention_mask"].bool(), torch.tensor([0.5, -2.0], dtype=torch.float64)
    expected = {}
    with Observer(model, facts_of(model), hidden=range(4)) as observer:
        replacements = {2: Replacement(torch.tensor([1, 5]), values)}
        observer.run(inputs, lambda _block: None, expected.__setitem__, replacements=replacements)
    entered, left = {}, {}

    def enter(layer, vectors):
        entered[layer] = vectors
        if layer != 2:
            return None
        replaced = vectors.clone()
        replaced[..., [1, 5]] = values
        return replaced

    with torch.inference_mode(), LayerCalls(model, 2, enter, left.__setitem__):
        model(**inputs)
    for layer in (1, 2, 3):
        torch.testing.assert_close(entered[layer][tokens], expected[layer - 1][tokens], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(left[3][tokens], expected[3][tokens], rtol=0, atol=TOLERANCE)


def test_a_pass_ends_with_the_last_layer_that_is_needed():
    model = tiny_model(FAMILY_CONFIGS["bert"], torch.float64)
    entered = []

    def enter(layer, _vectors):
        entered.append(layer)
        if layer == 2:
            raise StopForward

    hooks = [len(layer._forward_pre_hooks) for layer in model.encoder.layer]
    with torch.inference_mode(), pytest.raises(StopForward), LayerCalls(model, 2, enter):
        model(**token_batch(model, (9, 6)))
    assert entered == [1, 2]
    assert [len(layer._forward_pre_hooks) for layer in model.encoder.layer] == hooks


def test_the_way_between_vectors_is_read_from_what_made_them():
    start = Made("tokens")
    scaled = Made("mul", [Made("view", [start])])
    assert scaled.unscaled() is start
    assert Made("linear", [scaled]).comes_from(start)
    moved = Made("linear", [Made("roll", [start], by_token=False)])
    assert not Made("linear", [moved]).comes_from(start)
    assert moved.reads(start)
    assert Made("add", [moved, start]).reads_other_tokens(start)
    assert not Made("add", [scaled, start]).reads_other_tokens(start)
    scores = Made("add", [Made("matmul", [start, start], by_token=False)])
    assert scores.is_of_scores
    assert not Made("linear", [scores]).is_of_scores


def test_a_model_without_attention_is_refused():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4)).eval()
    refused = pytest.raises(InputError, match="no softmax attention was found")
    with refused, torch.inference_mode(), BlockRecogniser(model, 1, lambda _block: None):
        model(torch.tensor([[1, 2]]))
