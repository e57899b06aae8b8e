"""A small decoder whose layers differ, and what its blocks compute, written out one by one."""

import dataclasses
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from tests.own_models import MLP, D, T, V, weight


@dataclasses.dataclass(frozen=True)
class Kind:
    """What one layer is made of."""

    heads: int = 4
    key_heads: int | None = None
    """Heads of keys and values; as many as of queries by default."""
    order: Literal["apart", "qkv", "vqk", "by head"] = "apart"
    """Three linear layers, or one whose outputs have this order."""
    scaled: bool = False
    """Whether a factor for each dimension is on the attention output (LayerScale)."""
    normed: bool = False
    """Whether queries and keys are normalised, head by head."""
    gated: bool = False
    """Whether a gate multiplies the outputs of the heads."""
    position: Literal["pre", "post", "parallel", "branch"] = "pre"
    reads_norm: bool = True
    """Whether attention reads the norm of the layer's input, not the input itself (`pre`)."""
    number: float = 1.0
    """A factor on what attention and the network add."""


VARIED: dict[str, list[Kind]] = {
    "numbers of heads": [Kind(heads=4), Kind(heads=2), Kind(heads=8)],
    "heads that share keys": [Kind(), Kind(key_heads=2), Kind(heads=8, key_heads=1)],
    "LayerScale in one layer": [Kind(), Kind(scaled=True), Kind()],
    "factors": [Kind(number=0.5), Kind(), Kind(number=2.0)],
    "places of projections": [Kind(order="apart"), Kind(order="qkv"), Kind(order="apart")],
    "orders of heads": [Kind(order="qkv"), Kind(order="by head"), Kind(order="vqk")],
    "norms of queries and keys": [Kind(), Kind(normed=True), Kind()],
    "gates": [Kind(), Kind(), Kind(gated=True)],
    "norms before attention": [Kind(reads_norm=False), Kind(), Kind(reads_norm=False)],
    "positions of norms": [Kind(position="pre"), Kind(position="parallel"), Kind(position="branch")],
    "everything": [
        Kind(heads=2, order="by head", scaled=True),
        Kind(heads=8, key_heads=2, normed=True, reads_norm=False),
        Kind(order="vqk", number=0.7, position="parallel"),
    ],
}
"""Layers that differ, by what they differ in."""


class Parts(NamedTuple):
    """What the attention of a layer computes, by head."""

    weights: Tensor
    """α: batch, head, query, key."""
    value: Tensor
    """Batch, head, key, dimension."""
    gate: Tensor
    """Batch, head, query, dimension; ones without a gate."""
    output_weight: Tensor
    """W_O with all factors on what it makes: head, dimension, model."""
    output_bias: Tensor


class Attention(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind, self.size = kind, D // kind.heads
        keys = self.size * (kind.key_heads or kind.heads)
        if kind.order == "apart":
            self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, keys), nn.Linear(D, keys)
        else:
            self.fused = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)
        if kind.normed:
            self.of_q, self.of_k = nn.RMSNorm(self.size), nn.RMSNorm(self.size)
        if kind.gated:
            self.gate = nn.Linear(D, D)

    def split(self, x: Tensor) -> list[Tensor]:
        kind, (batch, tokens, _) = self.kind, x.shape
        match kind.order:
            case "apart":
                parts = [self.q(x), self.k(x), self.v(x)]
            case "by head":
                parts = [*self.fused(x).view(batch, tokens, kind.heads, 3, self.size).unbind(3)]
            case order:
                named = dict(zip(order, self.fused(x).chunk(3, dim=-1), strict=True))
                parts = [named[name] for name in "qkv"]
        return [part.view(batch, tokens, -1, self.size).transpose(1, 2) for part in parts]

    def parts(self, x: Tensor) -> Parts:
        q, k, v = self.split(x)
        if self.kind.normed:
            q, k = self.of_q(q), self.of_k(k)
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (q @ k.mT * self.size**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        gate = torch.ones_like(v)
        if self.kind.gated:
            gate = torch.sigmoid(self.gate(x)).view(*x.shape[:2], -1, self.size).transpose(1, 2)
        by_head = self.out.weight.T.view(self.kind.heads, self.size, D)
        return Parts(weights, v, gate, by_head, self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.parts(x)
        heads = parts.weights @ parts.value
        heads = heads * parts.gate if self.kind.gated else heads
        return self.out(heads.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind, self.attn, self.mlp = kind, Attention(kind), MLP()
        self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        if kind.scaled:
            self.gamma = weight(D)

    def read(self, x: Tensor) -> Tensor:
        before = self.kind.reads_norm and self.kind.position in ("pre", "parallel")
        return self.ln_1(x) if before else x

    def scaled(self, made: Tensor) -> Tensor:
        made = made * self.gamma if self.kind.scaled else made
        return made if self.kind.number == 1 else made * self.kind.number

    def forward(self, x: Tensor) -> Tensor:
        made, number = self.scaled(self.attn(self.read(x))), self.kind.number
        network = self.mlp if number == 1 else lambda read: self.mlp(read) * number
        match self.kind.position:
            case "pre":
                x = x + made
                return x + network(self.ln_2(x))
            case "parallel":
                return x + made + network(self.ln_2(x))
            case "branch":
                x = x + self.ln_1(made)
                return x + self.ln_2(network(x))
            case "post":
                x = self.ln_1(x + made)
                return self.ln_2(x + network(x))

    def parts(self, x: Tensor) -> Parts:
        """What the block computes, with its factors in W_O and b_O."""
        parts = self.attn.parts(self.read(x))
        return parts._replace(
            output_weight=self.scaled(parts.output_weight), output_bias=self.scaled(parts.output_bias)
        )


class Varied(nn.Module):
    """A decoder with layers of these kinds."""

    def __init__(self, kinds: list[Kind]) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(V, D), nn.Embedding(T, D)
        self.layers = nn.ModuleList(Layer(kind) for kind in kinds)
        self.final = nn.LayerNorm(D)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.embed(ids) + self.position(torch.arange(ids.shape[1]))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedded(ids)
        for layer in self.layers:
            x = layer(x)
        return self.final(x)

    def blocks(self, ids: Tensor) -> list[tuple[Tensor, Parts]]:
        """What every layer reads, and what its block computes."""
        found, x = [], self.embedded(ids)
        for layer in self.layers:
            found.append((x, layer.parts(x)))
            x = layer(x)
        return found


def varied(name: str) -> Varied:
    """A model in float64 whose norms and biases do something."""
    torch.manual_seed(3)
    model = Varied(VARIED[name]).double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model.requires_grad_(False)
