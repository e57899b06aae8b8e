"""α of one block, never built whole unless a caller asks for all of it.

It can be read in tiles (of tokens or words), in rows of chosen queries, or pair by pair. The numbers are the same, since all
are α_ij = exp(scale·q_i·k_j + b_ij − ℓ_i). Sums over queries and the diagonal, which most analyses need, are cheaper.
"""

import dataclasses
from collections.abc import Iterator
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths import attention as attention_maths
from normscope.maths.masks import Visibility
from normscope.maths.partition import Partition
from normscope.maths.tensors import pieces, to_device
from normscope.maths.weight_tiles import Tile, weight_received, weight_tiles

WEIGHTS_AT_ONCE = {"cpu": 2**22}
"""Entries of α to materialise at once, by device. 2²² float32 weights (16 MiB) were fastest on a CPU, because of its cache."""

WEIGHTS_AT_ONCE_ON_ACCELERATORS = 2**27
"""The same on other devices, which need large pieces of work to stay busy."""


LARGE_SCORES = 128
"""Scores from which on exp(s − ℓ) is imprecise in float32: both are rounded by |s|·6e-8, so α would be off by some 1e-5."""


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Post-softmax attention α; zero at invisible keys. Rows of padding hold meaningless but finite numbers."""

    query: Float[Tensor, "batch head query head_dim"]
    key: Float[Tensor, "batch head key head_dim"]
    log_normaliser: Float[Tensor, "batch head query"] | None
    """ℓ_i = log Σ_j exp(scale·q_i·k_j), with the sink in the sum if there is one; None if α is given."""
    seen: Visibility
    scale: float
    """Factor on q·k before the softmax."""
    given: Float[Tensor, "batch head query key"] | None = None
    """α as the model's attention module returned it, if query and key alone do not determine it; else None."""
    cap: float | None = None
    """c of a soft cap: the score is c·tanh(scale·q·k / c); None without one."""
    known_large: bool | None = None
    """Whether some scores are larger than `LARGE_SCORES`; None if that must be looked up, for which the host waits."""
    sinks: Float[Tensor, " head"] | None = None
    """Each head's learned score for attending to no key, which takes part in the softmax; None if α sums to one."""
    given_to_nowhere: Float[Tensor, "batch head query"] | None = None
    """1 − Σ_j α_ij of a given α; None if it sums to one."""

    @cached_property
    def whole(self) -> Float[Tensor, "batch head query key"]:
        """α of all pairs."""
        return self.rows(slice(0, self.seen.lengths[1]))

    def tiles(self, vectors: Float[Tensor, "batch head query size"] | None = None) -> Iterator[Tile]:
        """α of all pairs, a few at a time; zero in rows of padding. Tiles without visible keys are left out.

        Iterating over all tiles also sums up `received`, which then costs nothing.

        Args:
            vectors: One vector u_i by head and query, to sum up as well; `gathered` of the same tensor then costs nothing.
        """
        sums = self.seen.keys.new_zeros(*self.query.shape[:2], self.key.shape[2], dtype=self._dtype)
        gathered = None if vectors is None else vectors.new_zeros(*sums.shape, vectors.shape[-1])
        for tile in self._tiles_of_tokens():
            some, rows, keys, weights = tile
            sums[some, :, keys] += weights.sum(dim=2)
            if vectors is not None and gathered is not None:
                gathered[some, :, keys] += weights.transpose(-1, -2).to(vectors) @ vectors[some, :, rows]
            yield tile
        # Where `cached_property` stores it.
        vars(self).setdefault("received", sums.masked_fill_(~self.seen.keys.unsqueeze(1), 0))
        vars(self)["_gathered"] = vectors, gathered

    @cached_property
    def large(self) -> bool:
        """Whether scores are so large that α must be computed as a softmax does, with the largest score of a row subtracted."""
        largest = self.largest
        if largest is None or largest.dtype is torch.float64 or largest.device.type == "meta":
            return False
        return bool(largest > LARGE_SCORES) if self.known_large is None else self.known_large

    @cached_property
    def largest(self) -> Float[Tensor, ""] | None:
        """|ℓ| of the token with the largest, about the size of the largest scores; None if α is given."""
        if self.log_normaliser is None:
            return None
        return self.log_normaliser.abs().masked_fill_(~self.seen.queries.unsqueeze(1), 0).max()

    @property
    def _like(self) -> Tensor:
        known = self.given if self.log_normaliser is None else self.log_normaliser
        assert known is not None
        return known

    @property
    def _dtype(self) -> torch.dtype:
        return self._like.dtype

    def _tiles_of_tokens(self) -> Iterator[Tile]:
        if self.log_normaliser is None or self.large:
            for queries, weights in self.strips(padding=False):
                yield Tile(slice(0, len(weights)), queries, slice(0, weights.shape[3]), weights)
        else:
            yield from weight_tiles(
                self.query,
                self.key,
                self.log_normaliser,
                self.seen.queries,
                self.seen.mask,
                self.scale,
                self.cap,
                self._lone,
            )

    def tiles_of_groups(self, queries: Partition) -> Iterator[Tile]:
        """α of groups of queries, a few at a time: each row is the mean of the rows of a group's tokens."""
        sequences, tokens, keys = self.seen.lengths
        # Every group has at least one token, so a tile of groups covers at least as many queries.
        for some in pieces(slice(0, sequences), self.queries_at_once // tokens):
            for part in pieces(slice(0, queries.count), self.queries_at_once):
                yield Tile(some, part, slice(0, keys), self.of_groups(queries, some, part))

    def strips(self, *, padding: bool = True) -> Iterator[tuple[slice, Float[Tensor, "batch head _ key"]]]:
        """α of consecutive queries and all keys, with the range of the queries, for all sequences together.

        Args:
            padding: See `rows`.
        """
        sequences, queries, _ = self.seen.lengths
        for strip in pieces(slice(0, queries), self.queries_at_once // sequences):
            yield strip, self.rows(strip, padding=padding)

    @property
    def queries_at_once(self) -> int:
        """The number of queries, over all sequences, whose weights may be materialised at once."""
        at_once = WEIGHTS_AT_ONCE.get(self.query.device.type, WEIGHTS_AT_ONCE_ON_ACCELERATORS)
        return max(1, at_once // (self.query.shape[1] * self.key.shape[2]))

    def rows(
        self,
        queries: slice | Int[Tensor, " chosen"],
        sequences: slice = slice(None),
        keys: slice | None = None,
        *,
        padding: bool = True,
    ) -> Float[Tensor, "some head chosen _"]:
        """α of some queries of some sequences.

        Args:
            keys: Which keys; they must include the queries' own tokens. None for all.
            padding: Whether rows of padding may hold meaningless numbers; they are zero otherwise.
        """
        lengths, mask = self.seen.lengths, self.seen.mask
        tokens = self.seen.queries[sequences][:, None, queries]
        every = slice(0, lengths[2])
        keys = every if keys is None else keys
        if self.large and keys != every:  # a softmax is over all keys
            return self.rows(queries, sequences, padding=padding)[..., keys]
        if self.given is not None:
            weights = self.given[sequences][:, :, queries, keys]
            return weights if padding else weights * tokens.unsqueeze(-1)
        assert self.log_normaliser is not None
        log_normaliser = self.log_normaliser[sequences][:, :, queries]
        if not padding:
            log_normaliser = log_normaliser.masked_fill(~tokens, torch.inf)
        query, key = self.query[sequences][:, :, queries], self.key[sequences][:, :, keys]
        term = None
        if mask is not None and isinstance(queries, slice) and mask.is_small(lengths):
            term = mask.term(queries, keys, lengths, query)
            term = term if term is None or len(term) == 1 else term[sequences]
        elif mask is not None:
            term = mask.chosen_term(sequences, queries, keys, lengths, query)
        weights = attention_maths.attention_weights(
            query,
            key,
            term,
            self.scale,
            cap=self.cap,
            sinks=self.sinks,
            log_normaliser=None if self.large else log_normaliser,
        )
        if self.large and not padding:
            weights = weights.masked_fill_(~tokens.unsqueeze(-1), 0)
        if self._lone is None:
            return weights
        places = (torch.arange(lengths[1], device=weights.device)[queries] - keys.start).unsqueeze(-1)
        places = places.expand(*weights.shape[:2], -1, -1)
        own = weights.gather(-1, places).masked_fill_(self._lone[sequences][:, None, queries, None], 1)
        return weights.scatter_(-1, places, own)

    def scores(self, queries: Int[Tensor, " chosen"]) -> Float[Tensor, "batch head chosen key"]:
        """The input of the softmax for some queries, with any cap and positional bias; −∞ at invisible keys.

        Raises:
            ValueError: If the model's own code gave α, which determines scores only up to their differences.
        """
        if self.given is not None:
            raise ValueError("α is given, so its scores are unknown")
        lengths, mask = self.seen.lengths, self.seen.mask
        every, query = slice(0, lengths[2]), self.query[:, :, queries]
        term = None if mask is None else mask.chosen_term(slice(None), queries, every, lengths, query)
        return attention_maths.attention_scores(query, self.key, term, self.scale, self.cap)

    def of_heads(self, heads: slice | Int[Tensor, " chosen"]) -> "AttentionWeights":
        """α of some heads."""

        def chosen(tensor: Tensor | None) -> Tensor | None:
            return tensor if tensor is None or tensor.shape[1] == 1 else tensor[:, heads]

        mask = self.seen.mask
        if mask is not None and (mask.bias is not None or mask.shift is not None):
            mask = dataclasses.replace(mask, bias=chosen(mask.bias), shift=chosen(mask.shift))
        return dataclasses.replace(
            self,
            query=self.query[:, heads],
            key=self.key[:, heads],
            log_normaliser=None if self.log_normaliser is None else self.log_normaliser[:, heads],
            seen=dataclasses.replace(self.seen, mask=mask),
            given=None if self.given is None else self.given[:, heads],
            sinks=None if self.sinks is None else self.sinks[heads],
            given_to_nowhere=None if self.given_to_nowhere is None else self.given_to_nowhere[:, heads],
        )

    def of_groups(
        self, queries: Partition, sequences: slice, groups: slice | Int[Tensor, " chosen"]
    ) -> Float[Tensor, "some head chosen key"]:
        """α of groups of queries: the mean over the tokens of each; zero for groups that a sequence does not have.

        Args:
            groups: Which groups; indices in CPU memory.
        """
        chosen = groups if isinstance(groups, slice) else to_device(groups, self.query.device)
        rows = queries.rows(self._like)
        if rows is None:
            places = queries.places
            return self.rows(places[chosen] if isinstance(places, Tensor) else chosen, sequences)
        tokens = queries.tokens_of(sequences, groups)
        return rows[sequences, chosen][:, :, tokens].unsqueeze(1) @ self.rows(tokens, sequences, padding=False)

    def at(
        self,
        row: Int[Tensor, " pair"],
        head: Int[Tensor, " pair"],
        query: Int[Tensor, " pair"],
        key: Int[Tensor, " pair"],
    ) -> Float[Tensor, " pair"]:
        """α_ij of single pairs."""
        if self.given is not None:
            return self.given[row, head, query, key]
        if self.large:
            found = self.query.new_zeros(row.shape, dtype=self._dtype)
            for strip, weights in self.strips():
                place = (query - strip.start).clamp(0, weights.shape[2] - 1)
                inside = (query >= strip.start) & (query < strip.stop)
                found = torch.where(inside, weights[row, head, place, key], found)
            return found
        assert self.log_normaliser is not None
        mask, place = self.seen.mask, (row, head, query)
        bias = None if mask is None or mask.bias is None else mask.bias.expand(len(self.query), -1, -1, -1)
        weights = attention_maths.weights_of_pairs(
            self.query[place],
            self.key[row, head, key],
            self.log_normaliser[place],
            self.scale,
            None if bias is None else bias[*place, key],
            self.cap,
        )
        seen = None if mask is None else mask.sees(row, query, key)
        weights = weights if seen is None else weights.masked_fill(~seen, 0)
        return weights if self._lone is None else weights.masked_fill(self._lone[row, query] & (query == key), 1)

    @cached_property
    def received(self) -> Float[Tensor, "batch head key"]:
        """Σ_i α_ij over the queries that are tokens: the total weight that each key receives; zero at padding."""
        if self.given is not None:
            return (self.seen.queries.to(self.given.dtype)[:, None, None, :] @ self.given).squeeze(2)
        assert self.log_normaliser is not None
        if self.large:
            strips = (weights.sum(dim=2) for _, weights in self.strips(padding=False))
            return sum(strips, self.log_normaliser.new_zeros(())).masked_fill(~self.seen.keys.unsqueeze(1), 0)
        received = weight_received(
            self.query, self.key, self.log_normaliser, self.seen.queries, self.seen.mask, self.scale, self.cap
        )
        return received.masked_fill(~self.seen.keys.unsqueeze(1), 0)

    def gathered(self, vectors: Float[Tensor, "batch head query size"]) -> Float[Tensor, "batch head key size"]:
        """Σ_i α_ij u_i over the queries that are tokens, for one vector u_i by head and query.

        Iterating over α for this also sums up `received`, which then costs nothing.
        """
        if self._gathered[0] is not vectors:
            for _ in self.tiles(vectors=vectors):
                pass
        gathered = self._gathered[1]
        assert gathered is not None
        return gathered

    @cached_property
    def _gathered(self) -> tuple[Tensor | None, Tensor | None]:
        """The vectors that were last summed up, and their sums."""
        return None, None

    @cached_property
    def own(self) -> Float[Tensor, "batch head query"]:
        """α_ii, the weight of each token on itself; zero in cross-attention."""
        if self.seen.is_cross_attention:
            return torch.zeros_like(self.query[..., 0])
        if self.given is not None:
            return self.given.diagonal(dim1=-2, dim2=-1)
        if self.large:
            strips = [weights.diagonal(strip.start, dim1=-2, dim2=-1) for strip, weights in self.strips()]
            return torch.cat(strips, dim=-1)
        assert self.log_normaliser is not None
        added = None if self.seen.mask is None else self.seen.mask.own_term(self.query)
        weights = attention_maths.weights_of_pairs(
            self.query, self.key, self.log_normaliser, self.scale, added, self.cap
        )
        return weights if self._lone is None else weights.masked_fill_(self._lone.unsqueeze(1), 1)

    @cached_property
    def to_nowhere(self) -> Float[Tensor, "batch head query"] | None:
        """1 − Σ_j α_ij, the weight that a head's sink takes: exp(s − ℓ_i). None without sinks, where α sums to one."""
        if self.sinks is None:
            return self.given_to_nowhere
        assert self.log_normaliser is not None
        return (self.sinks.to(self.log_normaliser.dtype)[:, None] - self.log_normaliser).exp()

    def by_group(
        self,
        members: Bool[Tensor, "group batch key"],
        removed: Float[Tensor, "batch head key head_dim"] | None = None,
    ) -> Float[Tensor, "batch head query group"]:
        """Σ_{j∈group} α_ij of each group of keys.

        Args:
            members: Which keys are in which group.
            removed: What to subtract from the keys first; the softmax is then taken again.
        """
        if self.given is None:
            key = self.key if removed is None else self.key - removed
            return attention_maths.attention_by_group(
                self.query, key, members, self.seen.mask, self.scale, cap=self.cap, sinks=self.sinks
            )
        weights = self.given
        if removed is not None:
            # exp(score − difference) / Σ: log α is the score up to a constant per query, which cancels.
            difference = self.scale * self.query @ removed.transpose(-1, -2)
            scores = weights.log() - difference
            if self.given_to_nowhere is not None:
                scores = torch.cat([scores, self.given_to_nowhere.log().unsqueeze(-1)], dim=-1)
            weights = scores.softmax(dim=-1)[..., : weights.shape[-1]]
        return torch.einsum("bhqk,gbk->bhqg", weights, members.to(weights.dtype))

    @cached_property
    def _lone(self) -> Bool[Tensor, "batch query"] | None:
        """Tokens whose weight on themselves is exactly 1; None in cross-attention and with sinks, where there are none.

        exp(s − ℓ) is 1 only up to rounding errors, which a ranking of weights would treat as differences.
        """
        if self.seen.is_cross_attention or self.sinks is not None:
            return None
        return self.seen.only_itself & self.seen.queries
