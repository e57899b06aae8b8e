"""Vectors of groups, merged from vectors of tokens for a few sequences and targets at a time (see `partition.py`)."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.partition import Partition
from normscope.maths.tensors import pieces, to_device

# Entries of a tensor with axes source × target × width to hold at once; a CPU's cache holds little more.
_AT_ONCE = 2**20
_AT_ONCE_ON_ACCELERATORS = 2**26


class Strip(NamedTuple):
    """Some targets of some sequences, and a range of queries that includes all their tokens."""

    sequences: slice
    targets: slice
    queries: slice
    rows: Float[Tensor, "batch target query"]
    """1/|I| at the tokens of each target."""


class SourceVectors(NamedTuple):
    """Each head's vectors with weights of 1, for the tokens of the sources of some sequences."""

    first: Float[Tensor, "batch source head width"]
    others: Float[Tensor, "other head width"]


@dataclasses.dataclass(frozen=True, eq=False)
class GroupBatch:
    """Some sequences, their targets in strips, and their sources.

    Sources that no sequence of the batch has are not numbered; in self-attention, the first are the targets.
    """

    sequences: slice
    sources: Int[Tensor, " source"]
    """Their numbers in the partition."""
    first: Int[Tensor, "batch source"]
    """The first token of each source; 0 for those that a sequence does not have."""
    exists: Bool[Tensor, "batch source"]
    others: Int[Tensor, "other 2"]
    """The other tokens of sources: sequence and token."""
    owners: Int[Tensor, " other"]
    """The source of each of these tokens, numbered across all sequences."""
    strips: tuple[Strip, ...]

    def key_vectors(
        self, value: Float[Tensor, "batch head key head_dim"], transform: Float[Tensor, "head head_dim width"]
    ) -> SourceVectors:
        """v M of every head, for the tokens of the sources.

        Args:
            value: v of all sequences.
            transform: M: W_O, perhaps followed by other linear maps.
        """
        by_token = value[self.sequences].transpose(1, 2)  # batch, key, head, head_dim
        rows = torch.arange(len(by_token), device=by_token.device)[:, None]

        def of(chosen: Tensor) -> Tensor:
            return (chosen.transpose(0, 1) @ transform).transpose(0, 1)

        first = of(by_token[rows, self.first].flatten(0, 1)).unflatten(0, self.first.shape)
        return SourceVectors(first, of(by_token[self.others[:, 0], self.others[:, 1]]))

    def merged(
        self,
        rows: Float[Tensor, "batch target query"],
        weights: Float[Tensor, "batch head query key"],
        vectors: SourceVectors,
    ) -> Float[Tensor, "batch source target width"]:
        """Σ_{i∈I} rows_Ii Σ_{j∈J} Σ_h weights^h_ij v^h_j M. The sum is linear, so queries are merged first.

        Args:
            rows: The coefficient of each query in each target.
            weights: α of the same queries.
            vectors: v M.
        """
        by_key = (rows.unsqueeze(1) @ weights).permute(0, 3, 2, 1)  # batch, key, target, head
        sequence = torch.arange(len(by_key), device=by_key.device)[:, None]
        first = by_key[sequence, self.first] * self.exists[..., None, None]
        sums = torch.bmm(first.flatten(0, 1), vectors.first.flatten(0, 1))
        if len(self.owners):
            others = by_key[self.others[:, 0], self.others[:, 1]]
            sums.index_add_(0, self.owners, torch.bmm(others, vectors.others))
        return sums.unflatten(0, self.first.shape)

    @staticmethod
    def with_own_norms(
        vectors: Float[Tensor, "batch source target model"],
        norms: Float[Tensor, "batch target source"],
        own: Float[Tensor, "sequences queries model"],
        strip: Strip,
    ) -> Float[Tensor, "batch target source"]:
        """The norms of a strip's pairs, with what tokens take from themselves added to their group's pair with itself.

        Args:
            vectors: Of all sources and the strip's targets; left as they are.
            norms: The norms of these vectors.
            own: What every token takes from itself.
            strip: The queries and targets.
        """
        itself = torch.arange(strip.targets.start, strip.targets.stop, device=vectors.device)
        pairs = vectors[:, itself, itself - strip.targets.start] + strip.rows @ own[strip.sequences, strip.queries]
        norms = norms.clone()
        norms[:, itself - strip.targets.start, itself] = torch.linalg.vector_norm(pairs, dim=-1)
        return norms


def group_batches(
    queries: Partition, keys: Partition, like: Tensor, width: int, *, is_cross_attention: bool
) -> Iterator[GroupBatch]:
    """The sequences in batches of at least one, small enough for tensors with axes source × target × width.

    Args:
        queries: The targets.
        keys: The sources; in self-attention, the first are the targets.
        like: A tensor on the device and with the dtype of the results.
        width: Size of the vectors.
        is_cross_attention: Whether no key is a query itself.
    """
    at_once = (_AT_ONCE if like.device.type == "cpu" else _AT_ONCE_ON_ACCELERATORS) // max(1, width)
    targets, sources = _lengths(queries.host.exists), keys.host.exists.sum(dim=1).tolist()
    start = 0
    while start < len(targets):
        stop, most = start + 1, (targets[start], sources[start])
        while stop < len(targets):
            longer = max(most[0], targets[stop]), max(most[1], sources[stop])
            if (stop + 1 - start) * longer[0] * longer[1] > at_once:
                break
            stop, most = stop + 1, longer
        if most[0]:
            some = slice(start, stop)
            strips = tuple(_strips(queries, like, some, most[0], max(1, at_once // max(1, most[1]))))
            yield _batch(keys.host.part(some), some, strips, like.device, 0 if is_cross_attention else most[0])
        start = stop


def _batch(
    keys: Partition, sequences: slice, strips: tuple[Strip, ...], device: torch.device, numbered: int
) -> GroupBatch:
    """Some sequences.

    Args:
        keys: Their sources, in CPU memory.
        numbered: The first so many sources are numbered whether or not a sequence has them.
    """
    used = keys.exists.any(dim=0)
    used[:numbered] = True
    sources = used.nonzero()[:, 0]
    numbers = used.cumsum(0) - 1
    others = keys.is_other.nonzero()
    tokens, owners = (of[others[:, 0], others[:, 1]] for of in (keys.others, keys.owners))
    return GroupBatch(
        sequences=sequences,
        sources=to_device(sources, device),
        first=to_device(keys.first[:, sources], device),
        exists=to_device(keys.exists[:, sources], device),
        others=to_device(torch.stack([others[:, 0], tokens], dim=1), device),
        owners=to_device(others[:, 0] * len(sources) + numbers[owners], device),
        strips=strips,
    )


def _strips(queries: Partition, like: Tensor, sequences: slice, targets: int, at_once: int) -> Iterator[Strip]:
    rows = queries.rows(like)
    assert rows is not None
    if sequences.stop - sequences.start > 1 or targets <= at_once:
        yield Strip(sequences, slice(0, targets), slice(0, rows.shape[2]), rows[sequences, :targets])
        return
    for chosen in pieces(slice(0, targets), at_once):
        held = queries.host.tokens_of(sequences, chosen)
        if len(held):
            tokens = slice(int(held[0]), int(held[-1]) + 1)
            yield Strip(sequences, chosen, tokens, rows[sequences, chosen, tokens])


def _lengths(exists: Bool[Tensor, "batch group"]) -> list[int]:
    """1 + the number of the last group that exists."""
    numbers = torch.arange(1, exists.shape[1] + 1, device=exists.device)
    lengths: list[int] = (exists * numbers).amax(dim=1).tolist() if exists.shape[1] else [0] * len(exists)
    return lengths
