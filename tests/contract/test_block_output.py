"""What a block makes of what its heads return is read off its steps."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.linear.axes import Axes
from normscope.linear.block_output import KnownWeights, block_output
from normscope.linear.blocks import BlockRecogniser
from normscope.linear.refusals import NotRecognisedError
from tests.contract.test_recognised_blocks import TOLERANCE

D, H, EPSILON = 12, 3, 1e-3


def mean_of(x):
    return x.mean(-1, keepdim=True)


def variance(x):
    return (x - mean_of(x)).pow(2).mean(-1, keepdim=True)


NORMS = {
    "layer norm": lambda x, g, b: F.layer_norm(x, (D,), g, b, EPSILON),
    "without weights": lambda x, _g, _b: F.layer_norm(x, (D,), eps=EPSILON),
    "by hand": lambda x, g, b: (x - mean_of(x)) / torch.sqrt(variance(x) + EPSILON) * g + b,
    "of a sample": lambda x, g, b: g * (x - mean_of(x)) / (x.std(-1, keepdim=True) + EPSILON) + b,
    "centred before": lambda x, g, _b: (c := x - mean_of(x)) * torch.rsqrt(mean_of(c * c) + EPSILON) * g,
    "RMS norm": lambda x, g, _b: F.rms_norm(x, (D,), g, EPSILON),
    "RMS by hand": lambda x, g, _b: x * torch.rsqrt(mean_of(x.pow(2)) + EPSILON) * (1 + g),
    "RMS with a root": lambda x, g, _b: g * x / (mean_of(x.pow(2)) + EPSILON) ** 0.5,
    "ε in a tensor": lambda x, g, _b: x * torch.rsqrt(mean_of(x.pow(2)) + torch.tensor(EPSILON)) * g,
    "ε outside": lambda x, g, _b: g * x / (x.norm(dim=-1, keepdim=True) * D**-0.5 + EPSILON),
    "of its length": lambda x, g, _b: F.normalize(x, dim=-1) * D**0.5 * g,
}
"""Norms as people write them, of x with γ and β."""


class Layer(nn.Module):
    """One layer whose parts keep what they compute: the heads, what the residual connection adds, and the norm's output.

    Args:
        run: Computes the layer of x, given this module.
    """

    def __init__(self, run):
        super().__init__()
        self.run, self.embed, self.norm = run, nn.Embedding(50, D), nn.LayerNorm(D)
        self.qkv, self.out, self.up, self.down = (
            nn.Linear(D, 3 * D),
            nn.Linear(D, D),
            nn.Linear(D, 20),
            nn.Linear(20, D),
        )
        self.g, self.b, self.scale = (nn.Parameter(torch.rand(D) + 0.5) for _ in range(3))

    def attention(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        self.heads = F.scaled_dot_product_attention(query, key, value)
        return self.out(self.heads.transpose(1, 2).flatten(2))

    def network(self, x):
        return self.down(F.gelu(self.up(x)))

    def keep(self, x, attended, normed=None):
        self.kept = x.clone(), attended.clone(), normed

    def forward(self, ids):
        return self.run(self, self.embed(ids))


def run_once(run, shape=(2, 5), *, known=None, layer=None, dtype=torch.float64, axes=None):
    """A layer, and what is read off it."""
    torch.manual_seed(0)
    layer, found = layer or Layer(run).to(dtype).eval(), []
    known, ids = known or KnownWeights(), torch.randint(50, shape)

    def visit(block):
        found.append(block_output(block.trail, len(ids), known))

    with torch.inference_mode(), BlockRecogniser(layer, len(ids), visit, axes=axes):
        layer(ids)
    (output,) = found
    with torch.inference_mode():
        layer(ids)
    return layer, output


def require_parts(layer, output, position, tolerance=TOLERANCE):
    """Check that what is read off a layer gives what the layer has kept."""

    def alike(one, other):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=0, atol=tolerance)

    inputs, attended, normed = layer.kept
    parameters = output.parameters
    assert parameters.norm_position == position
    alike(output.inputs, inputs)
    alike(output.attention_output, attended)
    made = torch.einsum("bhqd,hdm->bqm", layer.heads.to(parameters.output_weight.dtype), parameters.output_weight)
    alike(made if parameters.output_bias is None else made + parameters.output_bias, attended)
    assert (parameters.normalisation is None) == (position in ("pre", "parallel"))
    if parameters.normalisation is not None:
        read = output.attention_output + (output.inputs if position == "post" else 0)
        alike(parameters.normalisation.normalised(read), normed)


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_after_the_residual_connection_is_read_off_its_steps(kind):
    def post(layer, x):
        attended = layer.attention(x)
        normed = NORMS[kind](x + attended, layer.g, layer.b)
        layer.keep(x, attended, normed)
        return normed + layer.network(normed)

    require_parts(*run_once(post), "post")


@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_of_the_branch_is_read_off_its_steps_and_a_factor_before_it_belongs_to_attention(kind):
    def branch(layer, x):
        attended = layer.attention(layer.norm(x)) * layer.scale
        normed = NORMS[kind](attended, layer.g, layer.b)
        layer.keep(x, attended, normed)
        x = x + normed
        return x + layer.network(x)

    require_parts(*run_once(branch), "branch")


def in_place(layer, x):
    attended = layer.attention(layer.norm(x))
    layer.keep(x, attended)
    x += attended
    x += layer.network(layer.norm(x))
    return x


def over_the_output(layer, x):
    attended = layer.attention(layer.norm(x))
    layer.keep(x, attended)
    attended += x
    return attended + layer.network(layer.norm(attended))


def subtracted(layer, x):
    attended = layer.attention(layer.norm(x))
    layer.keep(x, -0.5 * attended)
    x = torch.sub(x, attended, alpha=0.5)
    return x + layer.network(layer.norm(x))


def subtracted_from(layer, x):
    attended = layer.attention(layer.norm(x))
    layer.keep(-x, attended)
    x = torch.rsub(x, attended)
    return x + layer.network(layer.norm(x))


def scaled(layer, x):
    attended = layer.attention(layer.norm(x)) * layer.scale * 0.3
    layer.keep(x, attended)
    x = x + attended
    return x + layer.network(layer.norm(x))


def tokens_first(layer, x):
    x, heads = x.transpose(0, 1), layer.attention(layer.norm(x)).transpose(0, 1)
    layer.keep(x.transpose(0, 1), heads.transpose(0, 1))
    x = x + heads
    return x + layer.network(layer.norm(x))


@pytest.mark.parametrize("run", [in_place, over_the_output, subtracted, subtracted_from, scaled])
def test_what_is_added_is_read_off_the_sum(run):
    require_parts(*run_once(run), "pre")


@pytest.mark.parametrize("shape", [(2, 5), (5, 5), (1, 4), (4, 1), (1, 1), (30, 7)])
@pytest.mark.parametrize("run", [scaled, tokens_first])
def test_texts_come_first_whatever_the_order_of_the_models_axes(run, shape):
    """Shapes tell the order, but not in a batch of as many texts as tokens."""
    axes = Axes(tokens_first=run is tokens_first) if shape == (5, 5) else None
    require_parts(*run_once(run, shape, axes=axes), "pre")


class Convolution(nn.Module):
    """A linear layer as a convolution, whose dimensions are the second axis."""

    def __init__(self, linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x):
        return F.conv1d(x.mT, self.weight.unsqueeze(-1), self.bias).mT


def test_dimensions_may_move_between_the_output_projection_and_the_sum():
    torch.manual_seed(0)
    layer = Layer(scaled).double().eval()
    layer.out = Convolution(layer.out)
    require_parts(*run_once(scaled, layer=layer), "pre")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_network_beside_attention_is_left_out(is_first):
    def parallel(layer, x):
        attended, network = layer.attention(layer.norm(x)), layer.network(layer.norm(x))
        layer.keep(x, attended)
        return attended + network + x if is_first else x + attended + network

    require_parts(*run_once(parallel), "parallel")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (
            lambda _layer, x, y: x + y * x.sigmoid(),
            "a factor on its output is computed from the tokens and is no norm's",
        ),
        (lambda layer, x, y: x + layer.norm(y) * x.sigmoid(), "several factors on its output are computed"),
        (lambda layer, x, y: layer.norm((x + y) * 0.5), "the norm after the residual connection does not read just"),
    ],
)
def test_what_is_no_norm_is_refused(run, reason):
    def layer_of(layer, x):
        x = run(layer, x, layer.attention(x))
        return x + layer.network(x)

    with pytest.raises(NotRecognisedError, match=f"the attention of layer 1 cannot be measured: .*{reason}"):
        run_once(layer_of)


def test_attention_within_pieces_of_texts_is_refused():
    def windowed(layer, x):
        pieces = layer.norm(x).view(4, 3, D)
        x = x + layer.attention(pieces).view(x.shape)
        return x + layer.network(x)

    with pytest.raises(NotRecognisedError, match="layer 1 cannot be measured: its heads return more than its output"):
        run_once(windowed, (2, 6))


def test_weights_are_found_once_and_again_when_a_parameter_has_changed():
    known = KnownWeights()
    layer, before = run_once(scaled, known=known)
    _, again = run_once(scaled, (3, 9), known=known, layer=layer)
    assert again.parameters.output_weight is before.parameters.output_weight
    with torch.no_grad():
        layer.scale *= 2
    layer, after = run_once(scaled, known=known, layer=layer)
    assert torch.equal(after.parameters.output_weight, 2 * before.parameters.output_weight)
    require_parts(layer, after, "pre")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_weights_are_in_float32_or_better_and_take_no_memory(dtype, tolerance):
    layer, output = run_once(in_place, dtype=dtype)
    assert output.parameters.output_weight.dtype is torch.float32
    assert torch.equal(output.parameters.output_weight.flatten(0, 1), layer.out.weight.float().T)
    assert (output.parameters.output_weight.data_ptr() == layer.out.weight.data_ptr()) == (dtype is torch.float32)
    require_parts(layer, output, "pre", tolerance)
