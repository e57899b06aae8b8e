"""What the heads of a block pass between pairs of tokens, or between pairs of words."""

import abc
import functools
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.data.batching import Batch
from normscope.maths.masks import Mask, ranked
from normscope.maths.norms import transformed_norms
from normscope.maths.tensors import pieces, to_device
from normscope.maths.words import WordGroups, merged_head_norms
from normscope.models.blocks.block import AttentionBlock
from normscope.statistics.pair_histogram import PairsPart


class Pairs(abc.ABC):
    """The weights and vectors of one block on one batch."""

    def __init__(self, block: AttentionBlock, batch: Batch) -> None:
        self.block = block
        self.batch = batch.measured
        """The queries: one entry per token or word."""

    @property
    def keys(self) -> Batch:
        """The keys, likewise."""
        return self.batch.keys

    @property
    @abc.abstractmethod
    def norms(self) -> Float[Tensor, "batch head key"]:
        """‖f(x_j)‖."""

    @property
    @abc.abstractmethod
    def input_norms(self) -> Float[Tensor, "batch query"]:
        """‖x_i‖."""

    @property
    @abc.abstractmethod
    def received(self) -> Float[Tensor, "batch head key"]:
        """Σ_i α_ij; cheap after `parts`."""

    @property
    @abc.abstractmethod
    def received_norms(self) -> Float[Tensor, "batch head key"]:
        """Σ_i ‖α_ij f(x_j)‖, likewise."""

    @property
    @abc.abstractmethod
    def received_shares(self) -> Float[Tensor, "batch head key"]:
        """Σ_i s_ij: the signed shares of each key in the attention outputs of all queries; cheap after `parts`."""

    @abc.abstractmethod
    def parts(self) -> Iterator[PairsPart]:
        """α of all queries."""

    @abc.abstractmethod
    def of_queries(self, row: int, queries: Int[np.ndarray, " chosen"]) -> Iterator[PairsPart]:
        """α of some queries of one sequence."""

    @property
    def received_alike(self) -> Float[Tensor, "batch key"] | None:
        """Σ_i α_ij if the keys that a query sees had equal weights, 1/n_i for n_i keys; None if that is not defined."""
        return None

    @abc.abstractmethod
    def visible_counts(self, chosen: Bool[Tensor, "batch key"]) -> Int[np.ndarray, "batch query"]:
        """How many of some keys each query sees; 0 at padding. This does not depend on any number that the model computes.

        Args:
            chosen: The keys, none of which is padding; in CPU memory.
        """

    @abc.abstractmethod
    def single(
        self, places: Int[Tensor, "4 pair"], chosen: Bool[Tensor, "batch key"]
    ) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"], Int[Tensor, " pair"], Float[Tensor, " pair"]]:
        """Single pairs: the sequence, head and key of each, and α_ij.

        Args:
            places: Sequence, head, query, and n, for the n-th of the chosen keys that the query sees, from 0; in CPU memory.
            chosen: The keys, likewise.
        """


def pairs_of(block: AttentionBlock, batch: Batch) -> Pairs:
    """The pairs of words if the batch comes with words to measure, otherwise those of tokens."""
    groups = batch.groups
    return TokenPairs(block, batch) if groups is None else WordPairs(block, batch, groups)


class TokenPairs(Pairs):
    """Pairs of tokens: what the block has."""

    @property
    def norms(self) -> Float[Tensor, "batch head key"]:
        """‖f(x_j)‖."""
        return self.block.transformed_norms

    @cached_property
    def input_norms(self) -> Float[Tensor, "batch query"]:
        """‖x_i‖."""
        return torch.linalg.vector_norm(self.block.inputs, dim=-1)

    @property
    def received(self) -> Float[Tensor, "batch head key"]:
        """Σ_i α_ij."""
        return self.block.received

    @property
    def received_norms(self) -> Float[Tensor, "batch head key"]:
        """Σ_i ‖α_ij f(x_j)‖."""
        return self.received * self.norms

    @property
    def received_shares(self) -> Float[Tensor, "batch head key"]:
        """Σ_i s_ij."""
        return self.block.received_shares()

    def parts(self) -> Iterator[PairsPart]:
        """α of all queries."""
        block = self.block
        for some, part, keys, weights in block.alpha.tiles(vectors=block.readers):
            place = part.start, part.stop, keys.start, keys.stop
            unseen = self.batch.once(("unseen", block.mask, *place), functools.partial(self._unseen, part, keys))
            seen = functools.partial(self._seen, part, keys, some)
            yield PairsPart(weights, some, keys, seen, unseen[some])

    def _seen(self, queries: slice, keys: slice, sequences: slice = slice(None)) -> Bool[Tensor, "some 1 query #key"]:
        if self.block.alpha.seen.is_complete:
            return self.block.token_mask[sequences, None, queries, None]
        return self.block.alpha.seen.of(queries, sequences, keys)

    def _unseen(self, queries: slice, keys: slice) -> Int[Tensor, "batch 1 #key"]:
        # The same in every layer and, unlike the mask, small enough to be kept until the last.
        return (~self._seen(queries, keys)).sum(dim=2)

    def of_queries(self, row: int, queries: Int[np.ndarray, " chosen"]) -> Iterator[PairsPart]:
        """α of some queries of one sequence."""
        some, keys = slice(row, row + 1), slice(0, self.norms.shape[2])
        for part in pieces(slice(0, len(queries)), self.block.alpha.queries_at_once):
            chosen = to_device(torch.from_numpy(queries[part]), self.norms.device)
            weights = self.block.alpha.rows(chosen, some)
            seen = functools.partial(self.block.alpha.seen.of, chosen, some)
            yield PairsPart(weights, some, keys, seen)

    @property
    def received_alike(self) -> Float[Tensor, "batch key"]:
        """Σ_i 1/n_i over the queries i that see a key, of the n_i keys that they see."""
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
        """How many of some keys each query sees."""
        queries = self.batch.host.token_mask
        seen = (self.block.mask or Mask()).visible_counts(chosen, queries.shape[1])
        return np.asarray(seen.masked_fill(~queries, 0).numpy())

    def single(
        self, places: Int[Tensor, "4 pair"], chosen: Bool[Tensor, "batch key"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Single pairs."""
        device = self.norms.device
        row, head, query, rank = to_device(places, device)
        key = self.block.alpha.seen.key_at(row, query, rank, to_device(chosen, device))
        return row, head, key, self.block.alpha.at(row, head, query, key)


class WordPairs(Pairs):
    """Pairs of words: α is summed over the tokens of a source word, and averaged over those of a target word.

    The vector of a word is the mean of its tokens' vectors, x_J = 1/|J| Σ_{j∈J} x_j and, because f is affine,
    f(x_J) = 1/|J| Σ_{j∈J} f(x_j). What a word receives is not α_IJ f(x_J) but the sum of its tokens' αf(x_j), which is what
    `received_norms` measures.
    """

    def __init__(self, block: AttentionBlock, batch: Batch, groups: WordGroups) -> None:
        super().__init__(block, batch)
        self._groups = groups.like(block.value)
        self._sums: tuple[Tensor, Tensor] | None = None

    @cached_property
    def norms(self) -> Float[Tensor, "batch head key"]:
        """‖f(x_J)‖."""
        means = self._groups.means(self.block.value.transpose(-1, -2)).transpose(-1, -2)
        return transformed_norms(means, self.block.parameters.norm_factors)

    @cached_property
    def input_norms(self) -> Float[Tensor, "batch query"]:
        """‖x_I‖."""
        return torch.linalg.vector_norm(self._groups.rows @ self.block.inputs, dim=-1)

    @property
    def received(self) -> Float[Tensor, "batch head key"]:
        """Σ_I α_IJ."""
        return self._received[0]

    @property
    def received_norms(self) -> Float[Tensor, "batch head key"]:
        """Σ_I ‖1/|I| Σ_{i∈I} Σ_{j∈J} α_ij f(x_j)‖."""
        return self._received[1]

    @property
    def received_shares(self) -> Float[Tensor, "batch head key"]:
        """Σ_I s_IJ: a source word has the shares of its tokens in the mean output of each target word."""
        return self._groups.sums(self.block.received_shares(self._groups.rows))

    @property
    def _received(self) -> tuple[Tensor, Tensor]:
        if self._sums is None:
            for _ in self.parts():
                pass
        assert self._sums is not None
        return self._sums

    def parts(self) -> Iterator[PairsPart]:
        """α of all target words. Norms are measured on the way, since they need α as well."""
        groups, block = self._groups, self.block
        vectors = block.value @ block.parameters.norm_factors
        received = vectors.new_zeros(*vectors.shape[:2], groups.count)
        norms = torch.zeros_like(received)
        for some, words, _, means in block.alpha.tiles(groups):
            of_some = groups.part(some)
            weights = of_some.sums(means)
            received[some] += weights.sum(dim=2)
            norms[some] += merged_head_norms(means, vectors[some], of_some).sum(dim=2)
            seen = functools.partial(self._seen_by, some, words)
            unseen = (~seen()).sum(dim=2)
            yield PairsPart(weights, some, slice(0, groups.count), seen, unseen)
        self._sums = received, norms

    def of_queries(self, row: int, queries: Int[np.ndarray, " chosen"]) -> Iterator[PairsPart]:
        """α of some target words of one sequence."""
        some, units = slice(row, row + 1), slice(0, self._groups.count)
        for part in pieces(slice(0, len(queries)), self.block.alpha.queries_at_once):
            words = torch.from_numpy(queries[part])
            means = self.block.alpha.of_words(self._groups, some, words)
            weights = self._groups.part(some).sums(means)
            seen = functools.partial(self._seen_by, some, to_device(words, self.norms.device))
            yield PairsPart(weights, some, units, seen)

    def _seen_by(self, sequences: slice, words: slice | Tensor) -> Bool[Tensor, "some 1 chosen key"]:
        return self._seen[sequences, None, words]

    @cached_property
    def _seen(self) -> Bool[Tensor, "batch query key"]:
        """Whether a token of a target word sees one of a source word."""
        return to_device(self._seen_on_host, self.block.value.device)

    @property
    def _seen_on_host(self) -> Bool[Tensor, "batch query key"]:
        return self.batch.once(("words seen", self.block.mask), self._see)

    def _see(self) -> Bool[Tensor, "batch query key"]:
        groups, mask = self._groups.host, self.block.mask or Mask()
        exist = self.batch.host.token_mask[:, :, None] & self.keys.host.token_mask[:, None, :]
        # Padding belongs to no word, so that the positions are enough.
        sequences, queries = groups.targets.of_token.shape
        indices = (torch.arange(n) for n in (queries, groups.units.of_token.shape[1], sequences))
        visible = mask.of_positions.visible(*indices)
        if visible is None:
            return exist
        of_keys = groups.rows @ visible[:, 0].to(groups.rows)
        return exist & (groups.sums(of_keys.expand(sequences, -1, -1)) > 0)

    def visible_counts(self, chosen: Bool[Tensor, "batch key"]) -> Int[np.ndarray, "batch query"]:
        """How many of some source words each target word sees."""
        return np.asarray((self._seen_on_host & chosen[:, None]).sum(dim=-1).numpy())

    def single(
        self, places: Int[Tensor, "4 pair"], chosen: Bool[Tensor, "batch key"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Single pairs."""
        row, head, query, rank = places
        groups = self._groups.host
        key = ranked(self._seen_on_host[row, query] & chosen[row], rank)
        of_target = groups.targets.of_token[row] == query[:, None]
        of_source = groups.units.of_token[row] == key[:, None]
        # Every token of the target word with every token of the source word.
        pair, target = of_target.nonzero().unbind(-1)
        place, source = of_source[pair].nonzero().unbind(-1)
        pair, target = pair[place], target[place]
        device = self.norms.device
        tokens = to_device(torch.stack([row[pair], head[pair], target, source]), device)
        weights = self.block.alpha.at(*tokens).to(self.norms)
        sums = weights.new_zeros(len(row)).index_add_(0, to_device(pair, device), weights)
        row, head, key = to_device(torch.stack([row, head, key]), device)
        return row, head, key, sums / to_device(of_target.sum(dim=-1), device)
