"""Vectors of words, merged from vectors of tokens for a few sequences and target words at a time (see `words.py`)."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.tensors import to_device
from normscope.maths.words import Pieces, WordGroups

# Entries of a tensor with axes unit × word × width to hold at once; a CPU's cache holds little more.
_AT_ONCE = 2**20
_AT_ONCE_ON_ACCELERATORS = 2**26


class Strip(NamedTuple):
    """Some target words of some sequences, and a range of queries that includes all their tokens."""

    sequences: slice
    words: slice
    queries: slice


class KeyVectors(NamedTuple):
    """Each head's vectors with weights of 1, for the tokens of the source words of some sequences."""

    first: Float[Tensor, "batch unit head width"]
    others: Float[Tensor, "piece head width"]


@dataclasses.dataclass(frozen=True, eq=False)
class WordBatch:
    """Some sequences, their target words in strips, and their source words.

    Source words that no sequence of the batch has are not numbered; in self-attention, the first are the target words.
    """

    groups: WordGroups
    sequences: slice
    units: Int[Tensor, " unit"]
    """The numbers of the source words in `groups`."""
    first: Int[Tensor, "batch unit"]
    """The first token of each source word; 0 for words that a sequence does not have."""
    exists: Bool[Tensor, "batch unit"]
    other_pieces: Int[Tensor, "piece 2"]
    """The other tokens of source words: sequence and token."""
    owners: Int[Tensor, " piece"]
    """The source word of each of these tokens, numbered across all sequences."""
    strips: tuple[Strip, ...]

    def key_vectors(
        self, value: Float[Tensor, "batch head key head_dim"], transform: Float[Tensor, "head head_dim width"]
    ) -> KeyVectors:
        """v M of every head, for the tokens of the source words.

        Args:
            value: v of all sequences.
            transform: M: W_O, perhaps followed by other linear maps.
        """
        by_token = value[self.sequences].transpose(1, 2)  # batch, key, head, head_dim
        rows = torch.arange(len(by_token), device=by_token.device)[:, None]

        def of(chosen: Tensor) -> Tensor:
            return (chosen.transpose(0, 1) @ transform).transpose(0, 1)

        first = of(by_token[rows, self.first].flatten(0, 1)).unflatten(0, self.first.shape)
        return KeyVectors(first, of(by_token[self.other_pieces[:, 0], self.other_pieces[:, 1]]))

    def merged(
        self,
        rows: Float[Tensor, "batch word query"],
        weights: Float[Tensor, "batch head query key"],
        vectors: KeyVectors,
    ) -> Float[Tensor, "batch unit word width"]:
        """Σ_{i∈I} rows_Ii Σ_{j∈J} Σ_h weights^h_ij v^h_j M. The sum is linear, so queries are merged first.

        Args:
            rows: The coefficient of each query in each target word.
            weights: α of the same queries.
            vectors: v M.
        """
        return self.over_keys(rows.unsqueeze(1) @ weights, vectors)

    def over_keys(
        self, weights: Float[Tensor, "batch head query key"], vectors: KeyVectors
    ) -> Float[Tensor, "batch unit query width"]:
        """Σ_{j∈J} Σ_h weights^h_ij v^h_j M of all source words J."""
        by_key = weights.permute(0, 3, 2, 1)  # batch, key, query, head
        rows = torch.arange(len(by_key), device=by_key.device)[:, None]
        first = by_key[rows, self.first] * self.exists[..., None, None]
        sums = torch.bmm(first.flatten(0, 1), vectors.first.flatten(0, 1))
        if len(self.owners):
            others = by_key[self.other_pieces[:, 0], self.other_pieces[:, 1]]
            sums.index_add_(0, self.owners, torch.bmm(others, vectors.others))
        return sums.unflatten(0, self.first.shape)

    def rows_of(self, strip: Strip) -> Float[Tensor, "batch word query"]:
        """The rows of a strip."""
        return self.groups.rows[strip.sequences, strip.words, strip.queries]

    def weighted_strips(
        self, weights_of: Callable[[slice, slice], Float[Tensor, "batch head _ key"]], like: Tensor
    ) -> Iterator[tuple[Strip, Float[Tensor, "batch head query key"]]]:
        """The strips, each with α of its queries.

        From queries to themselves it is 0: the vectors of these pairs include the residual connection.

        Args:
            weights_of: α of a range of queries of a range of sequences.
            like: A tensor on the device and with the dtype of the results.
        """
        for strip in self.strips:
            weights = weights_of(strip.queries, strip.sequences).to(like)
            if self.groups.is_self_attention:
                weights = weights.clone()
                own = torch.arange(weights.shape[2], device=weights.device)
                weights[:, :, own, own + strip.queries.start] = 0
            yield strip, weights

    def with_own_norms(
        self,
        vectors: Float[Tensor, "batch unit word model"],
        norms: Float[Tensor, "batch word unit"],
        rows: Float[Tensor, "batch word query"],
        own: Float[Tensor, "sequences queries model"],
        strip: Strip,
    ) -> Float[Tensor, "batch word unit"]:
        """The norms of a strip's pairs, with what tokens take from themselves added to their word's pair with itself.

        Args:
            vectors: Of all source words and the strip's target words; left as they are.
            norms: The norms of these vectors.
            rows: The coefficient of each of the strip's queries in each target word.
            own: What every token takes from itself.
            strip: The queries and words.
        """
        itself = torch.arange(strip.words.start, strip.words.stop, device=vectors.device)
        pairs = vectors[:, itself, itself - strip.words.start] + rows @ own[strip.sequences, strip.queries]
        norms = norms.clone()
        norms[:, itself - strip.words.start, itself] = torch.linalg.vector_norm(pairs, dim=-1)
        return norms


def word_batches(groups: WordGroups, width: int) -> Iterator[WordBatch]:
    """The sequences in batches of at least one, small enough for tensors with axes unit × word × width."""
    at_once = (_AT_ONCE if groups.rows.device.type == "cpu" else _AT_ONCE_ON_ACCELERATORS) // max(1, width)
    keys = groups.host.units
    words, units = _lengths(groups.host.targets.exists), keys.exists.sum(dim=1).tolist()
    start = 0
    while start < len(words):
        stop, most = start + 1, (words[start], units[start])
        while stop < len(words):
            longer = max(most[0], words[stop]), max(most[1], units[stop])
            if (stop + 1 - start) * longer[0] * longer[1] > at_once:
                break
            stop, most = stop + 1, longer
        if most[0]:
            yield _batch(groups, slice(start, stop), keys, most[0], max(1, at_once // max(1, most[1])))
        start = stop


def _batch(groups: WordGroups, sequences: slice, keys: Pieces, words: int, at_once: int) -> WordBatch:
    keys = keys.part(sequences)
    used = keys.exists.any(dim=0)
    if groups.is_self_attention:
        used[:words] = True
    units = used.nonzero()[:, 0]
    numbers = used.cumsum(0) - 1
    others = keys.is_other.nonzero()
    of_others = keys.others[others[:, 0], others[:, 1]], keys.owners[others[:, 0], others[:, 1]]
    batch = WordBatch(
        groups=groups,
        sequences=sequences,
        units=to_device(units, groups.rows.device),
        first=to_device(keys.first[:, units], groups.rows.device),
        exists=to_device(keys.exists[:, units], groups.rows.device),
        other_pieces=to_device(torch.stack([others[:, 0], of_others[0]], dim=1), groups.rows.device),
        owners=to_device(others[:, 0] * len(units) + numbers[of_others[1]], groups.rows.device),
        strips=(),
    )
    whole = slice(0, groups.rows.shape[2])
    if sequences.stop - sequences.start > 1 or words <= at_once:
        return dataclasses.replace(batch, strips=(Strip(sequences, slice(0, words), whole),))
    strips = []
    for start in range(0, words, at_once):
        chosen = slice(start, min(words, start + at_once))
        held = groups.host.rows[sequences.start, chosen].any(dim=0).nonzero()
        if len(held):
            strips.append(Strip(sequences, chosen, slice(int(held[0]), int(held[-1]) + 1)))
    return dataclasses.replace(batch, strips=tuple(strips))


def _lengths(exists: Bool[Tensor, "batch word"]) -> list[int]:
    """1 + the number of the last word that exists."""
    numbers = torch.arange(1, exists.shape[1] + 1, device=exists.device)
    lengths: list[int] = (exists * numbers).amax(dim=1).tolist() if exists.shape[1] else [0] * len(exists)
    return lengths
