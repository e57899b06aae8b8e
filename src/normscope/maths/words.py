"""Maps of words: what a word takes from another, computed from what its tokens take from the other's tokens.

Vectors are summed over the tokens of a source word and averaged over those of a target word. With I the tokens of the target
word and J those of the source word,

    V_IJ = 1/|I| Σ_{i∈I} Σ_{j∈J} V_ij

at every stage V of a block (`composition.py`) or layer (`layer_composition.py`). The vectors are merged and then measured: the
sum of their norms is only an upper bound on ‖V_IJ‖, because vectors may cancel.

Norms of single heads need no vectors: ‖Σ_{j∈J} a_j f(x_j)‖² = Σ_{j,j'∈J} a_j a_j' ⟨f(x_j), f(x_j')⟩.

Source: word maps of weights are those of Clark et al. 2019, section 4.1 (arXiv:1906.04341).
"""

import dataclasses
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.tensors import to_device


class Pieces(NamedTuple):
    """The tokens of words: the first of each, and the others. Most words have one token, so little has to be merged."""

    of_token: Int[Tensor, "batch token"]
    """The word of each token, counted from 0; any other number if it is in none of these words."""
    first: Int[Tensor, "batch word"]
    """The first token of each word; 0 for words that a sequence does not have."""
    exists: Bool[Tensor, "batch word"]
    others: Int[Tensor, "batch piece"]
    """The other tokens; 0 where a sequence has fewer."""
    owners: Int[Tensor, "batch piece"]
    """The word of each of these tokens; 0 where a sequence has fewer."""
    is_other: Bool[Tensor, "batch piece"]

    @classmethod
    def of(cls, words: Int[Tensor, "batch token"], count: int) -> "Pieces":
        """The pieces of words. On an accelerator, the host would have to wait for their number.

        Args:
            words: The word of each token, counted from 0; −1 for none. Those from `count` on are left out.
            count: Number of words in the sequence that has most.
        """
        _, tokens = words.shape
        known = (words >= 0) & (words < count)
        bins = words.where(known, torch.full_like(words, count))
        places = torch.arange(tokens, device=words.device).expand_as(words)
        first = words.new_full((len(words), count + 1), tokens).scatter_reduce(1, bins, places, "amin")
        is_other = known & (first.gather(1, bins) < places)
        first = first[:, :count]
        # The other pieces move to the left; columns that no sequence needs are cut off.
        order = is_other.logical_not().to(torch.int8).argsort(dim=1, stable=True)
        others = order[:, : int(is_other.sum(dim=1).amax()) if tokens else 0]
        is_other = is_other.gather(1, others)
        owners = bins.gather(1, others)
        return cls(
            words,
            first.masked_fill(first == tokens, 0),
            first < tokens,
            others.masked_fill(~is_other, 0),
            owners.masked_fill(~is_other, 0),
            is_other,
        )

    def to(self, device: torch.device) -> "Pieces":
        """The pieces on another device."""
        return Pieces(*(to_device(field, device) for field in self))

    def part(self, sequences: slice) -> "Pieces":
        """The pieces of some sequences."""
        return Pieces(*(field[sequences] for field in self))


@dataclasses.dataclass(frozen=True, eq=False)
class WordGroups:
    """Which tokens make up which words. In self-attention, the first units of the keys are the target words, in order.

    Shapes of tensors depend on how many tokens each word has. Groups on an accelerator therefore keep a copy in CPU memory,
    which can be read without waiting.
    """

    rows: Float[Tensor, "batch word query"]
    """1/|I| at the tokens of a target word; zero for words that a sequence does not have."""
    targets: Pieces
    """The target words."""
    units: Pieces
    """The source words; keys that belong to none, such as padding, have −1."""
    is_self_attention: bool = True
    """Whether queries and keys are the same tokens, so that a token's own vector belongs to a pair."""
    on_host: "WordGroups | None" = dataclasses.field(default=None, repr=False)
    """The groups in CPU memory from which these were copied; see `host`."""

    @classmethod
    def of(cls, targets: Pieces, units: Pieces, dtype: torch.dtype, *, is_self_attention: bool = True) -> "WordGroups":
        """Groups from the tokens of words.

        Args:
            targets: The target words.
            units: The source words.
            dtype: Dtype of the maps.
            is_self_attention: Whether queries and keys are the same tokens.
        """
        return cls(_shares(targets, dtype), targets, units, is_self_attention)

    @property
    def count(self) -> int:
        """Number of source words."""
        return self.units.first.shape[1]

    @property
    def columns(self) -> Float[Tensor, "batch key unit"]:
        """1 at the source word of each key."""
        units = self.units.of_token
        return (units.unsqueeze(-1) == torch.arange(self.count, device=units.device)).to(self.rows.dtype)

    @cached_property
    def host(self) -> "WordGroups":
        """The same groups in CPU memory."""
        if self.on_host is not None:
            return self.on_host
        return self if self._device.type == "cpu" else self.to(torch.device("cpu"))

    @property
    def _device(self) -> torch.device:
        return self.rows.device

    @cached_property
    def siblings(self) -> Int[Tensor, "pair 3"]:
        """Pairs of different keys of one source word, each pair in one order only: sequence, one key, other key."""
        if self.host is not self:
            return to_device(self.host.siblings, self._device)
        units = self.units.of_token
        together = (units.unsqueeze(1) == units.unsqueeze(2)) & (units >= 0).unsqueeze(1)
        return together.triu(1).nonzero()

    @cached_property
    def ordered_siblings(self) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"], Int[Tensor, " pair"]]:
        """The same pairs in both orders: sequences, queries, keys."""
        sequence, one, other = self.siblings.unbind(-1)
        return torch.cat([sequence, sequence]), torch.cat([one, other]), torch.cat([other, one])

    @cached_property
    def words_of_siblings(self) -> tuple[Int[Tensor, "word 2"], Int[Tensor, " pair"]]:
        """Source words of several tokens, as sequence and unit, and for each pair the index of its word among them."""
        if self.host is not self:
            words, numbers = self.host.words_of_siblings
            return to_device(words, self._device), to_device(numbers, self._device)
        sequence, one, _ = self.siblings.unbind(-1)
        owners = torch.stack([sequence, self.units.of_token[sequence, one]], dim=1)
        words, numbers = owners.unique(dim=0, return_inverse=True)
        return words, numbers

    def queries_of(self, sequences: slice, words: slice | Int[Tensor, " chosen"]) -> Int[Tensor, " query"]:
        """The queries that are tokens of some target words.

        Args:
            words: Which target words; indices in CPU memory.
        """
        held = self.host.rows[sequences, words].flatten(0, 1).any(dim=0)
        return to_device(held.nonzero()[:, 0], self._device)

    def sums(self, values: Float[Tensor, "batch *axes key"]) -> Float[Tensor, "batch *axes unit"]:
        """Sums over the keys of each source word."""
        pieces = self.units
        # Axes between sequence and key become one, so that one index serves them all.
        by_key = values.flatten(1, -2) if values.dim() > 2 else values.unsqueeze(1)
        first = by_key.gather(2, pieces.first.unsqueeze(1).expand(-1, by_key.shape[1], -1))
        sums = first * pieces.exists.unsqueeze(1)
        if pieces.others.shape[1]:
            shape = -1, by_key.shape[1], -1
            others = by_key.gather(2, pieces.others.unsqueeze(1).expand(*shape)) * pieces.is_other.unsqueeze(1)
            sums.scatter_add_(2, pieces.owners.unsqueeze(1).expand(*shape), others)
        return sums.view(*values.shape[:-1], self.count)

    def means(self, values: Float[Tensor, "batch *axes key"]) -> Float[Tensor, "batch *axes unit"]:
        """Means over the keys of each source word; 0 for words that a sequence does not have."""
        counts = self.sums(torch.ones_like(self.units.of_token, dtype=values.dtype)).clamp(min=1)
        return self.sums(values) / counts.view(len(counts), *(1 for _ in values.shape[1:-1]), -1)

    def to(self, device: torch.device) -> "WordGroups":
        """The groups on another device."""
        if device == self._device:
            return self
        return dataclasses.replace(
            self,
            rows=to_device(self.rows, device),
            targets=self.targets.to(device),
            units=self.units.to(device),
            on_host=None if device.type == "cpu" else self.host,
        )

    def part(self, sequences: slice) -> "WordGroups":
        """The groups of some sequences."""
        if sequences == slice(0, len(self.rows)):
            return self
        return dataclasses.replace(
            self,
            rows=self.rows[sequences],
            targets=self.targets.part(sequences),
            units=self.units.part(sequences),
            on_host=None if self.on_host is None else self.on_host.part(sequences),
        )

    def like(self, tensor: Tensor) -> "WordGroups":
        """The groups with the dtype and on the device of a tensor."""
        moved = (self.host if tensor.device.type == "cpu" else self).to(tensor.device)
        if moved.rows.dtype == tensor.dtype:
            return moved
        # 1/3 rounded to float32 is not 1/3 in float64.
        return dataclasses.replace(moved, rows=_shares(moved.targets, tensor.dtype))


def _shares(words: Pieces, dtype: torch.dtype) -> Float[Tensor, "batch word query"]:
    """1/|I| at the tokens of each word."""
    numbers = torch.arange(words.first.shape[1], device=words.first.device)
    members = (words.of_token.unsqueeze(1) == numbers[:, None]).to(dtype)
    return members / members.sum(dim=-1, keepdim=True).clamp(min=1)


def word_weights(
    weights: Float[Tensor, "batch head query key"], groups: WordGroups
) -> Float[Tensor, "batch head word unit"]:
    """α between words: the total weight on a source word's tokens, averaged over the target word's tokens."""
    return groups.sums(groups.rows.unsqueeze(1) @ weights)


def merged_head_norms(
    means: Float[Tensor, "batch head word key"], vectors: Float[Tensor, "batch head key rank"], groups: WordGroups
) -> Float[Tensor, "batch head word unit"]:
    """‖Σ_j m_j f(x_j)‖ over the tokens j of each source word, for weights m_j ≥ 0.

    Most words have one token, for which this is m_j ‖f(x_j)‖. For the others, the square is
    Σ_j m_j² ‖f(x_j)‖² + 2 Σ_{j<j'} m_j m_j' ⟨f(x_j), f(x_j')⟩.

    Args:
        means: m: α, averaged over the tokens of each target word.
        vectors: f(x_j), or any vectors with the same products.
    """
    lengths = means * torch.linalg.vector_norm(vectors, dim=-1).unsqueeze(2)
    norms = groups.sums(lengths)
    pairs = groups.siblings
    if not len(pairs):
        return norms
    sequence, one, other = pairs.unbind(-1)
    words, numbers = groups.words_of_siblings
    # First axis: pairs, then words of several tokens. The others: head and target word.
    products = means[sequence, :, :, one] * means[sequence, :, :, other]
    grams = (vectors[sequence, :, one] * vectors[sequence, :, other]).sum(dim=-1)
    squares = products.new_zeros(len(words), *products.shape[1:])
    squares.index_add_(0, numbers, products.mul_(2 * grams.unsqueeze(-1)))
    squares += groups.sums(lengths.square())[words[:, 0], :, :, words[:, 1]]
    # Rounding can make a zero square slightly negative.
    norms[words[:, 0], :, :, words[:, 1]] = squares.clamp(min=0).sqrt()
    return norms
