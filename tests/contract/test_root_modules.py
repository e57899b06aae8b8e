"""Modules that run every layer in their own `forward`: linear layers in lists, or bare parameters that a loop indexes."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope
from normscope.models.observe.observer import Observer
from tests.one_text import decompose

TOKENS, WIDTH, HEADS, LAYERS = 61, 32, 4, 3
SIZE = WIDTH // HEADS
IDS = [5, 9, 7, 3, 9]


class Recording(nn.Module):
    """Keeps what its layers compute: α, and what attention adds."""

    def __init__(self):
        super().__init__()
        self.alpha, self.added = [], []

    def attend(self, query, key, value, project):
        """Causal attention; heads come second."""
        later = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).triu(1)
        alpha = (query @ key.mT / math.sqrt(SIZE)).masked_fill(later, -1e9).softmax(-1)
        added = project(alpha @ value)
        self.alpha.append(alpha)
        self.added.append(added)
        return added


class Lists(Recording):
    """Attention of linear layers in lists."""

    def __init__(self, post=False, fused=False):
        super().__init__()
        self.embed, self.position = nn.Embedding(TOKENS, WIDTH), nn.Embedding(64, WIDTH)
        self.norm_1, self.norm_2 = (nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS)) for _ in range(2))
        self.q, self.k, self.v, self.o = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)) for _ in range(4)
        )
        self.up = nn.ModuleList(nn.Linear(WIDTH, 40) for _ in range(LAYERS))
        self.down = nn.ModuleList(nn.Linear(40, WIDTH) for _ in range(LAYERS))
        self.post, self.fused = post, fused

    def forward(self, ids):
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        for layer in range(LAYERS):
            read = x if self.post else self.norm_1[layer](x)
            heads = [
                each[layer](read).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for each in (self.q, self.k, self.v)
            ]
            project = self.o[layer]
            if self.fused:
                made = functional.scaled_dot_product_attention(*heads, is_causal=True)
                x = x + project(made.transpose(1, 2).flatten(2))
            else:
                x = x + self.attend(*heads, lambda made, project=project: project(made.transpose(1, 2).flatten(2)))
            x = self.norm_1[layer](x) if self.post else x
            x = x + self.down[layer](functional.gelu(self.up[layer](x if self.post else self.norm_2[layer](x))))
            x = self.norm_2[layer](x) if self.post else x
        return x


class Stacked(Recording):
    """Attention of bare parameters, each with an axis of layers or in a list."""

    def __init__(self, listed=False, norms=True):
        super().__init__()
        shapes = {
            **dict.fromkeys(("wq", "wk", "wv"), (HEADS, WIDTH, SIZE)),
            "wo": (HEADS, SIZE, WIDTH),
            "w1": (WIDTH, 40),
            "w2": (40, WIDTH),
            "b1": (40,),
            **dict.fromkeys(("b2", "gain_1", "gain_2", "shift_1", "shift_2"), (WIDTH,)),
        }
        for name, shape in shapes.items():
            stacked = torch.randn(LAYERS, *shape) * 0.2 + name.startswith("gain")
            made = nn.ParameterList(map(nn.Parameter, stacked)) if listed else nn.Parameter(stacked)
            setattr(self, name, made)
        self.embed, self.position = (nn.Parameter(torch.randn(rows, WIDTH)) for rows in (TOKENS, 64))
        self.norms = norms

    def forward(self, ids):
        x = self.embed[ids] + self.position[: ids.shape[1]]
        for layer in range(LAYERS):
            read = self.normed(x, self.gain_1[layer], self.shift_1[layer])
            heads = [torch.einsum("bpm,hmk->bhpk", read, each[layer]) for each in (self.wq, self.wk, self.wv)]
            out = self.wo[layer]
            x = x + self.attend(*heads, lambda made, out=out: torch.einsum("bhpk,hkm->bpm", made, out))
            read = self.normed(x, self.gain_2[layer], self.shift_2[layer])
            # The bias is added to the sum, since + has no precedence over another +.
            x = x + torch.relu(read @ self.w1[layer] + self.b1[layer]) @ self.w2[layer] + self.b2[layer]
        return x

    def normed(self, x, gain, shift):
        return functional.layer_norm(x, (WIDTH,), gain, shift) if self.norms else x


MODELS = {
    "lists": Lists,
    "lists, post-norm": lambda: Lists(post=True),
    "stacked": Stacked,
    "stacked without norms": lambda: Stacked(norms=False),
    "parameters in lists": lambda: Stacked(listed=True),
    "parameters in lists without norms": lambda: Stacked(listed=True, norms=False),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_vectors_are_those_that_the_module_computes(name):
    torch.manual_seed(0)
    model = MODELS[name]().double()
    wrapped = normscope.wrap(model)
    assert wrapped.layers_verification.error < 1e-14
    model.alpha.clear()
    model.added.clear()
    with torch.no_grad():
        model(torch.tensor([IDS]))
    blocks = []
    with Observer(wrapped.model, wrapped.facts) as observer:
        ids = torch.tensor([IDS])
        observer.run({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, blocks.append)
    assert len(blocks) == LAYERS
    for block, alpha, added in zip(blocks, model.alpha, model.added, strict=True):
        torch.testing.assert_close(block.weights, alpha, rtol=0, atol=1e-14)
        made = torch.einsum("bhqk,bhkm->bqm", block.weights, block.transformed())
        made = made if block.parameters.output_bias is None else made + block.parameters.output_bias
        torch.testing.assert_close(made, added, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_fused_attention_in_the_root_gives_the_same():
    torch.manual_seed(0)
    plain, fused = Lists().double(), Lists(fused=True).double()
    fused.load_state_dict(plain.state_dict())
    one, other = (decompose(normscope.wrap(model), IDS, heads=True) for model in (plain, fused))
    torch.testing.assert_close(one.head_maps["attn_n"], other.head_maps["attn_n"], rtol=0, atol=1e-13)
