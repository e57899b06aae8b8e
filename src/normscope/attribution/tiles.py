"""Pairs of tokens, a few at a time: only those that attention connects."""

import dataclasses
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.models.blocks.block import AttentionBlock

_QUERIES = 32
"""Queries of a tile: enough for α and the values to be read seldom."""

_KEPT = 2**22
"""Entries of f(x) of a sequence that are kept between its tiles."""


class KeyVectors:
    """The vectors of a sequence's keys, before and after W.

    Args:
        value: v.
    """

    def __init__(self, value: Float[Tensor, "head key head_dim"]) -> None:
        self._value = value
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}

    def transformed(
        self, keys: slice, output_weight: Float[Tensor, "head head_dim out"]
    ) -> Float[Tensor, "some head out"]:
        """v^h_j W^h of some keys, in the type of W."""
        heads, count, _ = self._value.shape
        if heads * count * output_weight.shape[-1] > _KEPT:
            return _transformed(self._value[:, keys], output_weight)
        if id(output_weight) not in self._kept:
            # W is kept as well, so that no other tensor gets its id.
            self._kept[id(output_weight)] = output_weight, _transformed(self._value, output_weight)
        return self._kept[id(output_weight)][1][keys]


def _transformed(value: Tensor, output_weight: Tensor) -> Tensor:
    return torch.bmm(value.to(output_weight), output_weight).transpose(0, 1).contiguous()


@dataclasses.dataclass(frozen=True, eq=False)
class PairTile:
    """Some queries and some keys of one sequence."""

    sequence: int
    queries: slice
    keys: slice
    weights: Float[Tensor, "head query key"]
    """α."""
    vectors: KeyVectors
    """The vectors of all keys of the sequence."""

    def subtracted(
        self,
        vectors: Float[Tensor, "query out"],
        output_weight: Float[Tensor, "head head_dim out"],
        scale: Float[Tensor, "#key query 1"] | None = None,
    ) -> Float[Tensor, "key query out"]:
        """p_i − c_ij Σ_h α^h_ij v^h_j W^h of every pair, in the type of W.

        Args:
            vectors: p.
            output_weight: W: W_O, or W_O with what follows folded into it.
            scale: c; one by default.
        """
        weights = self.weights.to(output_weight).permute(2, 1, 0)
        if scale is not None:
            weights = weights * scale
        transformed = self.vectors.transformed(self.keys, output_weight)
        return torch.baddbmm(vectors, weights.contiguous(), transformed, alpha=-1)

    def own(self) -> tuple[Int[Tensor, " token"], Int[Tensor, " token"]]:
        """The queries, and the keys, of the pairs in which both are the same token, counted from the tile's first."""
        start, stop = max(self.queries.start, self.keys.start), min(self.queries.stop, self.keys.stop)
        tokens = torch.arange(start, max(start, stop), device=self.weights.device)
        return tokens - self.queries.start, tokens - self.keys.start


def pair_tiles(block: AttentionBlock, pairs: int) -> Iterator[PairTile]:
    """All pairs of tokens of a block but padding and keys that no query of a tile sees.

    In self-attention, every query's own key is in one tile, seen or not.

    Args:
        pairs: Maximum number of pairs of a tile, unless a single one is more.
    """
    for sequence, length in enumerate(block.token_mask.sum(dim=-1).tolist()):
        vectors = KeyVectors(block.value[sequence])
        for start in range(0, length, _QUERIES):
            queries = slice(start, min(start + _QUERIES, length))
            weights = block.alpha.rows(queries, slice(sequence, sequence + 1))[0]
            used = (weights != 0).any(dim=1).any(dim=0)
            if not block.is_cross_attention:
                used[queries] = True
            seen = used.nonzero().flatten().tolist()
            step = max(1, pairs // (queries.stop - start))
            for at in range(seen[0], seen[-1] + 1, step):
                keys = slice(at, min(at + step, seen[-1] + 1))
                yield PairTile(sequence, queries, keys, weights[..., keys], vectors)
