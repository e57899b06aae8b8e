"""What the heads of a block pass between pairs of tokens, or between pairs of words."""

import functools
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.data.batching import Batch
from normscope.maths.masks import Mask, Visibility
from normscope.maths.norms import transformed_norms
from normscope.maths.partition import merged_head_norms
from normscope.maths.tensors import pieces, to_device
from normscope.maths.weight_tiles import Tile
from normscope.models.blocks.block import AttentionBlock
from normscope.statistics.pair_histogram import PairsPart


class Pairs:
    """The weights and vectors of one block on one batch.

    Between words, α is summed over the tokens of a source word, and averaged over those of a target word. The vector of a word
    is the mean of its tokens' vectors, x_J = 1/|J| Σ_{j∈J} x_j and, because f is affine, f(x_J) = 1/|J| Σ_{j∈J} f(x_j). What a
    word receives is not α_IJ f(x_J) but the sum of its tokens' αf(x_j), which is what `received_norms` measures.
    """

    def __init__(self, block: AttentionBlock, batch: Batch) -> None:
        self.block = block
        self.batch = batch.measured
        """The queries: one entry per token or word."""
        self._queries, self._keys = batch.partition, batch.keys.partition
        self._merges = batch.units is not None
        self._sums: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> Batch:
        """The keys, likewise."""
        return self.batch.keys

    @cached_property
    def norms(self) -> Float[Tensor, "batch head key"]:
        """‖f(x_j)‖."""
        if not self._merges:
            return self.block.transformed_norms
        return transformed_norms(self._keys.means(self.block.value), self.block.parameters.norm_factors)

    @cached_property
    def input_norms(self) -> Float[Tensor, "batch query"]:
        """‖x_i‖."""
        return torch.linalg.vector_norm(self._queries.means(self.block.inputs), dim=-1)

    @property
    def received(self) -> Float[Tensor, "batch head key"]:
        """Σ_i α_ij; cheap after `parts`."""
        return self._received[0] if self._merges else self.block.received

    @property
    def received_norms(self) -> Float[Tensor, "batch head key"]:
        """Σ_i ‖α_ij f(x_j)‖, likewise; between words, Σ_I ‖1/|I| Σ_{i∈I} Σ_{j∈J} α_ij f(x_j)‖."""
        return self._received[1] if self._merges else self.received * self.norms

    @property
    def received_shares(self) -> Float[Tensor, "batch head key"]:
        """Σ_i s_ij: the signed shares of each key in the attention outputs of all queries; cheap after `parts`.

        A source word has the shares of its tokens in the mean output of each target word.
        """
        return self._keys.sums(self.block.received_shares(self._queries.rows(self.block.value)))

    @property
    def _received(self) -> tuple[Tensor, Tensor]:
        if self._sums is None:
            for _ in self._tiles_of_words():
                pass
        assert self._sums is not None
        return self._sums

    def parts(self) -> Iterator[PairsPart]:
        """α of all queries."""
        tiles = self._tiles_of_words() if self._merges else self.block.alpha.tiles(self.block.readers)
        for some, queries, keys, weights in tiles:
            place = queries.start, queries.stop, keys.start, keys.stop
            unseen = self.batch.once(
                ("unseen", self.block.mask, *place), functools.partial(self._unseen, queries, keys)
            )
            yield PairsPart(weights, some, keys, functools.partial(self._seen, queries, keys, some), unseen[some])

    def _tiles_of_words(self) -> Iterator[Tile]:
        """α of all target words. Norms are measured on the way, since they need α as well."""
        block, like = self.block, self.block.value
        vectors = like @ block.parameters.norm_factors
        received = like.new_zeros(*like.shape[:2], self._keys.count)
        norms = torch.zeros_like(received)
        for some, words, _, means in block.alpha.tiles_of_groups(self._queries):
            keys, means = self._keys.part(some), means.to(like)
            weights = keys.sums(means)
            received[some] += weights.sum(dim=2)
            norms[some] += merged_head_norms(means, vectors[some], keys).sum(dim=2)
            yield Tile(some, words, slice(0, self._keys.count), weights)
        self._sums = received, norms

    def _seen(self, queries: slice, keys: slice, sequences: slice = slice(None)) -> Bool[Tensor, "some 1 query #key"]:
        if self._visibility.is_complete:
            return self._visibility.queries[sequences, None, queries, None]
        return self._visibility.of(queries, sequences, keys)

    def _unseen(self, queries: slice, keys: slice) -> Int[Tensor, "batch 1 #key"]:
        # The same in every layer and, unlike the mask, small enough to be kept until the last.
        return (~self._seen(queries, keys)).sum(dim=2)

    @cached_property
    def _visibility(self) -> Visibility:
        """Which keys each query sees."""
        of_tokens = self.block.alpha.seen
        if not self._merges:
            return of_tokens
        mask = self.batch.once(("words seen", self.block.mask), self._mask_of_words)
        return Visibility(mask, self.batch.token_mask, self.keys.token_mask, of_tokens.is_cross_attention)

    def _mask_of_words(self) -> Mask:
        """A target word sees a source word if one of its tokens sees one of the other's."""
        queries, keys = self._queries.host, self._keys.host
        # Padding belongs to no word, so that the positions are enough.
        sequences, tokens = queries.of_token.shape
        indices = (torch.arange(n) for n in (tokens, keys.of_token.shape[1], sequences))
        visible = (self.block.mask or Mask()).of_positions.visible(*indices)
        if visible is None:
            return Mask(keys=self.keys.token_mask)
        of_tokens = visible[:, 0].float().expand(sequences, -1, -1)
        seen = keys.sums(queries.means(of_tokens)) > 0
        on_device = to_device(seen, self.block.value.device)

        def allowed(sequence: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (seen if key.device == seen.device else on_device)[sequence, query, key]

        return Mask(allowed=allowed)

    def of_queries(self, row: int, queries: Int[np.ndarray, " chosen"]) -> Iterator[PairsPart]:
        """α of some queries of one sequence."""
        some, keys = slice(row, row + 1), slice(0, self.norms.shape[2])
        for part in pieces(slice(0, len(queries)), self.block.alpha.queries_at_once):
            chosen = torch.from_numpy(queries[part])
            weights = self._keys.part(some).sums(self.block.alpha.of_groups(self._queries, some, chosen))
            seen = functools.partial(self._visibility.of, to_device(chosen, weights.device), some)
            yield PairsPart(weights, some, keys, seen)

    @property
    def received_alike(self) -> Float[Tensor, "batch key"] | None:
        """Σ_i 1/n_i over the queries i that see a key, of the n_i keys that they see: what each key would receive if these had
        equal weights. None for words."""
        if self._merges:
            return None
        received: Tensor = self.batch.once(("received alike", self.block.mask), self._receive_alike)
        return received.to(self.norms)

    def _receive_alike(self) -> Float[Tensor, "batch key"]:
        rule, keys = (self.block.mask or Mask()).of_positions, self.keys.host.token_mask
        counts = torch.from_numpy(self.visible_counts(keys)).double()
        shares = counts.reciprocal().masked_fill_(counts == 0, 0)
        received = torch.zeros(keys.shape, dtype=torch.float64)
        sequences, queries, columns = (torch.arange(n) for n in (len(keys), shares.shape[1], keys.shape[1]))
        for some, of in rule.strips(len(queries), len(columns)):
            visible = rule.visible(queries[some], columns[of], sequences)
            seen = torch.ones(1, 1) if visible is None else visible[:, 0]
            received[:, of] += (seen * shares[:, some, None]).sum(dim=1)
        return to_device(received * keys, self.norms.device)

    def visible_counts(self, chosen: Bool[Tensor, "batch key"]) -> Int[np.ndarray, "batch query"]:
        """How many of some keys each query sees; 0 at padding. This does not depend on any number that the model computes.

        Args:
            chosen: The keys, none of which is padding; in CPU memory.
        """
        queries = self.batch.host.token_mask
        seen = (self._visibility.mask or Mask()).visible_counts(chosen, queries.shape[1])
        return np.asarray(seen.masked_fill(~queries, 0).numpy())

    def single(
        self, places: Int[Tensor, "4 pair"], chosen: Bool[Tensor, "batch key"]
    ) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"], Int[Tensor, " pair"], Float[Tensor, " pair"]]:
        """Single pairs: the sequence, head and key of each, and α_ij.

        Args:
            places: Sequence, head, query, and n, for the n-th of the chosen keys that the query sees, from 0; in CPU memory.
            chosen: The keys, likewise.
        """
        device = self.block.value.device
        # The tokens of words are looked up in CPU memory, since their number must be known there.
        where = torch.device("cpu") if self._merges else device
        row, head, query, rank = to_device(places, where)
        key = self._visibility.key_at(row, query, rank, to_device(chosen, where))
        if not self._merges:
            return row, head, key, self.block.alpha.at(row, head, query, key)
        weights = self._weights_of_words(row, head, query, key)
        row, head, key = to_device(torch.stack([row, head, key]), device)
        return row, head, key, weights

    def _weights_of_words(
        self,
        row: Int[Tensor, " pair"],
        head: Int[Tensor, " pair"],
        query: Int[Tensor, " pair"],
        key: Int[Tensor, " pair"],
    ) -> Float[Tensor, " pair"]:
        """α of single pairs of words, which are given in CPU memory."""
        of_target = self._queries.host.of_token[row] == query[:, None]
        of_source = self._keys.host.of_token[row] == key[:, None]
        # Every token of the target word with every token of the source word.
        pair, target = of_target.nonzero().unbind(-1)
        place, source = of_source[pair].nonzero().unbind(-1)
        pair, target = pair[place], target[place]
        device = self.block.value.device
        tokens = to_device(torch.stack([row[pair], head[pair], target, source]), device)
        weights = self.block.alpha.at(*tokens).to(self.norms)
        sums = weights.new_zeros(len(row)).index_add_(0, to_device(pair, device), weights)
        return sums / to_device(of_target.sum(dim=-1), device)
