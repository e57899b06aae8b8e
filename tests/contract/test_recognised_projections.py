"""What keys of recognised blocks are made of is followed through any code between W_K and attention."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.linear.blocks import BlockRecogniser
from normscope.linear.projections import Projections
from normscope.maths.keys import PlaneMap
from tests.contract.test_own_models import TEXTS
from tests.contract.test_recognised_blocks import TOLERANCE


def close(one, other, tolerance, mask=None, name=""):
    if mask is not None:
        one, other = (each if each.ndim == 3 else each.transpose(1, 2) for each in (one, other))
        one, other = one[mask], other[mask]
    size = float(other.abs().max().clamp(min=1))
    torch.testing.assert_close(one, other, rtol=0, atol=tolerance * size, msg=lambda text: f"{name}: {text}")


class Turned(nn.Module):
    """Attention whose keys are made by some code of the linear layer's outputs and of angles."""

    def __init__(self, of):
        super().__init__()
        self.embed, self.of = nn.Embedding(99, 8), of
        self.q, self.k, self.o = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.angles = nn.Buffer(torch.rand(32, 4))

    def forward(self, ids):
        x = self.embed(ids)
        q, k = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k))
        k = self.of(k, self.angles[: ids.shape[1]])
        return x + self.o(F.scaled_dot_product_attention(q, k, k).transpose(1, 2).flatten(-2))


def halves(k, angles):
    one, other = k.chunk(2, dim=-1)
    cosine, sine = angles[:, :2].cos(), angles[:, :2].sin()
    return torch.cat([one * cosine - other * sine, other * cosine + one * sine], dim=-1)


def in_place(k, angles):
    k = k.clone()
    k[..., :] = halves(k, angles)
    return k.mul_(angles)


CODE = {
    "halves": (halves, True),
    "in place": (in_place, True),
    "a norm and a rotation": (lambda k, angles: halves(F.layer_norm(k, (4,)), angles), True),
    "a rotation and a norm": (lambda k, angles: F.normalize(halves(k, angles), dim=-1), True),
    "a bias": (lambda k, _angles: k + torch.arange(4.0).double(), True),
    "a bias for each position": (lambda k, angles: k + angles, False),
    "half of a rotation": (lambda k, angles: torch.cat([halves(k, angles)[..., :2], k[..., 2:]], dim=-1), False),
    "all dimensions": (lambda k, angles: k @ angles[:4], False),
    "an activation": (lambda k, _angles: k.tanh(), False),
}


@pytest.mark.parametrize("kind", CODE)
def test_keys_of_any_code_are_followed_or_have_no_weights(kind):
    """Keys equal those that attention reads, and the transposed map is that of the keys."""
    of, is_linear = CODE[kind]
    torch.manual_seed(0)
    model, ids, found = Turned(of).double().eval(), torch.tensor(TEXTS), []

    def visit(block):
        made = Projections(block.trail, len(ids), 2)
        assert (made.key is not None) == is_linear
        if made.key is not None:
            key_map, inputs = made.find_key_map(), made.attention_inputs
            keys = torch.einsum("bkm,hmd->bhkd", inputs, made.key.weight) + made.key.bias.unsqueeze(1)
            close(key_map(keys), block.trail.attention[0].numbers(len(ids)).call.key, TOLERANCE)
            directions = torch.randn_like(keys)
            one, other = (directions * key_map(keys)).sum(), (key_map.back(directions) * keys).sum()
            torch.testing.assert_close(one, other)
        found.append(block)

    with torch.inference_mode(), BlockRecogniser(model, len(ids), visit):
        model(ids)
    assert len(found) == 1


def test_the_identity_maps_keys_to_themselves():
    vectors = torch.randn(2, 3, 4, 8)
    assert PlaneMap().same_for_all_keys
    assert PlaneMap()(vectors) is vectors
    assert PlaneMap().back(vectors) is vectors
