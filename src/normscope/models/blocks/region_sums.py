"""What one attention block carries between chosen tokens and regions of a text, without ever holding all pairs of tokens."""

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.maths.attention_weights import AttentionWeights
from normscope.maths.choices import PairMeasure
from normscope.maths.partition import Partition
from normscope.maths.tensors import pieces
from normscope.models.blocks.block import AttentionBlock

_AT_ONCE = 256
"""Tokens to sum by region at once, so that the membership matrix stays small."""

_VECTORS_AT_ONCE = 2**22
"""The most numbers that one call of the fused kernel may return: 16 MiB in float32."""

_TILE_AT_ONCE = 4096
"""The same where whole rows stand for tiles."""

_TILED = 0.5
"""The share of a text's rows above which tiles, which skip what no query sees, cost less than whole rows."""

Rows = slice | Int[Tensor, " row"]


class Members(NamedTuple):
    """Which regions some tokens belong to."""

    regions: Rows
    """The regions that have some of the tokens."""
    matrix: Float[Tensor, "token region"] | None
    """1 where a token belongs to a region; None if each token is a region of its own, in order."""

    def sums(self, values: Float[Tensor, "*other token"]) -> Float[Tensor, "*other region"]:
        """The sums over the tokens of each region."""
        return values if self.matrix is None else values @ self.matrix.to(values)


def members(partition: Partition, tokens: Rows, device: torch.device) -> Members | None:
    """The regions of some tokens; None if no token is in any.

    Args:
        partition: The regions, in CPU memory.
        tokens: Which tokens, in CPU memory.
        device: Where their values are.
    """
    owners = partition.of_token[0, tokens]
    regions = owners[owners >= 0].unique()
    if not len(regions):
        return None
    first, last = int(regions[0]), int(regions[-1])
    if len(regions) == len(owners) and bool((owners[1:] == owners[:-1] + 1).all()):
        return Members(slice(first, last + 1), None)
    matrix = (owners[:, None] == regions).float().to(device)
    follow = last - first + 1 == len(regions)
    return Members(slice(first, last + 1) if follow else regions.to(device), matrix)


@dataclasses.dataclass(frozen=True, eq=False)
class RegionSums:
    """What one block carries between the regions of a text: sums over their tokens, or means over visible pairs for scores.

    Args:
        queries: The regions of queries in a batch of one, in CPU memory.
        keys: Those of keys.
        heads: Which heads; None for all.
    """

    block: AttentionBlock
    measure: PairMeasure
    queries: Partition
    keys: Partition
    heads: Int[Tensor, " chosen"] | None = None

    def rows(self) -> Iterator[tuple[Rows, Float[Tensor, "head some region"]]]:
        """Values for some query regions and all key regions, with the indices of the query regions.

        Where every region of queries is one token, only a few rows are held at a time.
        """
        tokens = self.queries.tokens_of(slice(None), slice(None))
        if self.queries.others.shape[1]:
            yield slice(None), self._summed(tokens)
            return
        for rows, keys, values in self._of_rows(tokens):
            yield self.queries.of_token[0, rows], self._of_keys(values, keys)

    def _summed(self, tokens: Int[Tensor, " query"]) -> Float[Tensor, "head region key_region"]:
        """Values of all regions, summed over their queries as well."""
        shape = len(self._heads), self.queries.count, self.keys.count
        sums = torch.zeros(shape, dtype=torch.float64, device=self.block.query.device)
        if self.measure is PairMeasure.score:
            visible = torch.zeros_like(sums)
            for rows, keys, values in self._of_rows(tokens):
                seen = values.isfinite()
                for total, part in ((sums, values.masked_fill(~seen, 0)), (visible, seen.to(values.dtype))):
                    self._add_rows(total, rows, self._sum_of_keys(part, keys))
            return (sums / visible).masked_fill_(visible == 0, float("-inf"))
        length = self.queries.of_token.shape[1]
        if len(tokens) < _TILED * length or self._gated:
            for rows, keys, values in self._of_rows(tokens):
                self._add_rows(sums, rows, self._of_keys(values, keys))
            return sums
        if self._fused:
            for heads in pieces(slice(0, len(sums)), _VECTORS_AT_ONCE // (length * self._width)):
                self._add_rows(sums[heads], tokens, self._by_kernel(heads)[:, tokens.to(sums.device)])
            return sums
        for tile in self._alpha.tiles():
            of_queries = self._members(self.queries, tile.rows)
            if of_queries is None:
                continue
            for keys in pieces(tile.keys, _TILE_AT_ONCE):
                of_keys = self._members(self.keys, keys)
                if of_keys is not None:
                    weights = tile.weights[..., keys.start - tile.keys.start : keys.stop - tile.keys.start]
                    part = of_keys.sums(self._measured(weights, tile.rows, keys)[0])
                    _add(sums, of_queries, of_keys, of_queries.sums(part.mT).mT)
        return sums

    @property
    def _width(self) -> int:
        """The size of the vectors that the fused kernel adds up."""
        return self.block.query.shape[-1]

    @property
    def _fused(self) -> bool:
        """Whether the fused kernel can add up the keys of all regions at once, as attention to indicators of regions."""
        known = self.block.alpha.given is None and self.block.alpha.cap is None
        return self.measure is PairMeasure.weight and known and self.keys.count <= self._width

    def _by_kernel(self, heads: slice) -> Float[Tensor, "head query region"]:
        """α of some of the chosen heads, summed over the keys of each region."""
        indicators = self.keys.members.transpose(0, 1).to(self.block.query.device)
        return self._alpha.of_heads(heads).by_group(indicators)[0]

    def _add_rows(self, sums: Tensor, rows: Int[Tensor, " row"], values: Float[Tensor, "head row region"]) -> None:
        """Add rows of tokens to those of their regions."""
        of_rows = members(self.queries, rows, sums.device)
        assert of_rows is not None
        _add(sums, of_rows, Members(slice(None), None), of_rows.sums(values.mT).mT)

    def _of_rows(
        self, tokens: Int[Tensor, " query"]
    ) -> Iterator[tuple[Int[Tensor, " row"], slice, Float[Tensor, "head row key"]]]:
        """Values of some queries and the first keys, a few rows at a time."""
        mask, alpha = self.block.mask, self._alpha
        causal = mask is not None and mask.causal and not self._gated
        for rows in tokens.split(alpha.queries_at_once):
            on_device = rows.to(self.block.query.device)
            keys = slice(0, int(rows.max()) + 1 if causal else self._length)
            if self.measure is PairMeasure.score:
                yield rows, slice(0, self._length), alpha.scores(on_device)[0]
            else:
                yield rows, keys, self._measured(alpha.rows(on_device, keys=keys), on_device, keys)[0]

    def _measured(
        self, weights: Float[Tensor, "batch head row key"], rows: Rows, keys: slice
    ) -> Float[Tensor, "batch chosen row key"]:
        """What is measured, from α."""
        match self.measure:
            case PairMeasure.norm if self._gated:
                queries = torch.arange(self.queries.of_token.shape[1], device=weights.device)[rows]
                return self.block.head_norms(weights, queries)[:, self._heads]
            case PairMeasure.norm:
                return weights * self._norms[:, :, None, keys].to(weights)
            case PairMeasure.share:
                readers, values = self._readers_and_values
                return (readers[:, :, rows] @ values[:, :, keys].mT).mul_(weights)
            case _:
                return weights

    @cached_property
    def _gated(self) -> bool:
        """Whether each pair has the norm of a different vector, which takes all keys and heads."""
        return self.measure is PairMeasure.norm and self.block.gate is not None

    @cached_property
    def _heads(self) -> Int[Tensor, " chosen"]:
        every = torch.arange(self.block.query.shape[1]) if self.heads is None else self.heads
        return every.to(self.block.query.device)

    @cached_property
    def _alpha(self) -> AttentionWeights:
        every = self.heads is None or self._gated
        return self.block.alpha if every else self.block.alpha.of_heads(self._heads)

    @cached_property
    def _norms(self) -> Float[Tensor, "batch chosen key"]:
        return self.block.transformed_norms[:, self._heads]

    @cached_property
    def _readers_and_values(self) -> tuple[Tensor, Tensor]:
        return self.block.readers[:, self._heads], self.block.value[:, self._heads]

    @cached_property
    def _known(self) -> dict[tuple[Partition, int, int], Members | None]:
        return {}

    def _members(self, side: Partition, part: slice) -> Members | None:
        """The regions of some tokens. Every tile of a row or column has the same, and so has every layer."""
        place = side, part.start, part.stop
        if place not in self._known:
            self._known[place] = members(side, part, self.block.query.device)
        return self._known[place]

    @property
    def _keys_are_tokens(self) -> bool:
        """Whether every region of keys is one token."""
        return not self.keys.others.shape[1]

    @property
    def _length(self) -> int:
        """Number of keys."""
        return self.keys.of_token.shape[1]

    def _of_keys(self, values: Float[Tensor, "head row key"], keys: slice) -> Float[Tensor, "head row region"]:
        """Values by region of keys."""
        if self.measure is not PairMeasure.score or self._keys_are_tokens:
            return self._sum_of_keys(values, keys)
        seen = values.isfinite()
        visible = self._sum_of_keys(seen.to(values.dtype), keys)
        means = self._sum_of_keys(values.masked_fill(~seen, 0), keys) / visible
        return means.masked_fill_(visible == 0, float("-inf"))

    def _sum_of_keys(self, values: Float[Tensor, "head row key"], keys: slice) -> Float[Tensor, "head row region"]:
        if self._keys_are_tokens:
            behind = self.keys.first[0] >= keys.stop  # which none of these rows sees
            places = self.keys.first[0].masked_fill(behind, 0)
            return values[..., places.to(values.device)].masked_fill_(behind.to(values.device), 0)
        sums = values.new_zeros(*values.shape[:2], self.keys.count)
        for part in pieces(keys, _AT_ONCE):
            of_part = self._members(self.keys, part)
            if of_part is not None:
                sums[..., of_part.regions] += of_part.sums(values[..., part])
        return sums


def _add(sums: Tensor, queries: Members, keys: Members, values: Float[Tensor, "head region key_region"]) -> None:
    """Add the values of some regions to their sums."""
    rows, columns = queries.regions, keys.regions
    if isinstance(rows, Tensor) and isinstance(columns, Tensor):
        sums[:, rows[:, None], columns] += values.to(sums)
    else:
        sums[:, rows, columns] += values.to(sums)
