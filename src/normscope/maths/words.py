"""Maps of words: what a word takes from another, from what its tokens take from the other's tokens.

From a source word sum, of a target word mean. With I the tokens of a target word and J those of a source word,

    V_IJ = 1/|I| Σ_{i∈I} Σ_{j∈J} V_ij

at every stage V of a block (`composition.py`) or layer (`layer_composition.py`). The vectors are merged and then measured: the
sum of their norms is only an upper bound of ‖V_IJ‖, because vectors may cancel.

Norms of single heads need no vectors: ‖Σ_{j∈J} a_j f(x_j)‖² = Σ_{j,j'∈J} a_j a_j' ⟨f(x_j), f(x_j')⟩.

Source: word maps of weights are those of Clark et al. 2019, section 4.1 (arXiv:1906.04341).
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Entries of a tensor with axes query × key × width to hold at once; a CPU's cache holds few more.
_AT_ONCE = 2**20


class Strip(NamedTuple):
    """Some target words of some sequences, and the queries that hold their tokens."""

    sequences: slice
    words: slice
    queries: slice


@dataclasses.dataclass(frozen=True, eq=False)
class WordGroups:
    """Which tokens make up which words. In self-attention, the first units of the keys are the target words, in order."""

    rows: Float[Tensor, "batch word query"]
    """1/|I| at the tokens of a target word; zero for words that a sequence does not have."""
    units: Int[Tensor, "batch key"]
    """The source word of each key, counted from 0; −1 for none, as at padding."""
    count: int
    """Number of source words."""
    is_self_attention: bool = True
    """Whether queries and keys are the same tokens, so that a token's own vector belongs to a pair."""

    @classmethod
    def of(
        cls,
        units: Int[Tensor, "batch key"],
        targets: int,
        count: int,
        dtype: torch.dtype,
        queries: Int[Tensor, "batch query"] | None = None,
    ) -> "WordGroups":
        """Groups from the word of each token.

        Args:
            units: The source word of each key; −1 for none.
            targets: Number of target words: those below it.
            count: Number of source words.
            dtype: Dtype of the maps.
            queries: The target word of each query in cross-attention; None if queries and keys are the same tokens.
        """
        of_query = units if queries is None else queries
        members = (of_query.unsqueeze(1) == torch.arange(targets, device=units.device)[:, None]).to(dtype)
        rows = members / members.sum(dim=-1, keepdim=True).clamp(min=1)
        return cls(rows, units, count, queries is None)

    @property
    def together(self) -> Bool[Tensor, "batch key key"]:
        """Which keys belong to the same word."""
        return (self.units.unsqueeze(1) == self.units.unsqueeze(2)) & (self.units >= 0).unsqueeze(1)

    @property
    def columns(self) -> Float[Tensor, "batch key unit"]:
        """1 at the source word of each key."""
        return (self.units.unsqueeze(-1) == torch.arange(self.count, device=self.units.device)).to(self.rows.dtype)

    def strips(self, width: int) -> Iterator[Strip]:
        """The target words in portions for which tensors with axes query × key × width are small."""
        batch, words, queries = self.rows.shape
        size = queries * self.units.shape[1] * width
        whole = slice(0, words), slice(0, queries)
        if size <= _AT_ONCE or words == 1:
            step = max(1, _AT_ONCE // max(1, size))
            for start in range(0, batch, step):
                yield Strip(slice(start, min(batch, start + step)), *whole)
            return
        step = max(1, words * _AT_ONCE // size)
        for row in range(batch):
            for start in range(0, words, step):
                chosen = slice(start, min(words, start + step))
                used = self.rows[row, chosen].any(dim=0).nonzero()
                if len(used):
                    yield Strip(slice(row, row + 1), chosen, slice(int(used[0]), int(used[-1]) + 1))

    def rows_of(self, strip: Strip) -> Float[Tensor, "batch word query"]:
        """The rows of a strip."""
        return self.rows[strip.sequences, strip.words, strip.queries]

    def others(self, weights: Float[Tensor, "batch head query key"], strip: Strip) -> Tensor:
        """Weights of a strip's queries without those on themselves, whose vectors include the residual connection."""
        if not self.is_self_attention:
            return weights
        weights = weights.clone()
        own = torch.arange(weights.shape[2], device=weights.device)
        weights[:, :, own, own + strip.queries.start] = 0
        return weights

    def merged(self, values: Float[Tensor, "batch key ..."], strip: Strip) -> Float[Tensor, "batch unit ..."]:
        """Sums over the keys of each source word."""
        batch, _, *rest = values.shape
        units = self.units[strip.sequences]
        bins = torch.arange(batch, device=units.device)[:, None] * (self.count + 1) + units.where(
            units >= 0, torch.full_like(units, self.count)
        )
        sums = values.new_zeros(batch * (self.count + 1), *rest)
        sums.index_add_(0, bins.flatten(), values.flatten(0, 1))
        return sums.unflatten(0, (batch, self.count + 1))[:, :-1]

    def with_own(
        self,
        vectors: Float[Tensor, "batch unit word model"],
        rows: Float[Tensor, "batch word query"],
        own: Float[Tensor, "sequences queries model"],
        strip: Strip,
    ) -> Float[Tensor, "batch unit word model"]:
        """The vectors of a strip's pairs, with what tokens take from themselves added to the pair of their word with itself.

        Args:
            vectors: Of all source words and the strip's target words.
            rows: The share of each of the strip's queries in each target word.
            own: What every token takes from itself.
            strip: The queries and words.
        """
        if not self.is_self_attention:
            return vectors
        words = torch.arange(strip.words.start, strip.words.stop, device=vectors.device)
        vectors = vectors.clone()
        vectors[:, words, words - strip.words.start] += rows @ own[strip.sequences, strip.queries]
        return vectors

    def like(self, tensor: Tensor) -> "WordGroups":
        """The groups with the dtype and on the device of a tensor."""
        return dataclasses.replace(self, rows=self.rows.to(tensor), units=self.units.to(tensor.device))


def word_weights(
    weights: Float[Tensor, "batch head query key"], groups: WordGroups
) -> Float[Tensor, "batch head word unit"]:
    """α between words: what a target word's tokens give to all tokens of a source word, in the mean."""
    return groups.rows.unsqueeze(1) @ weights @ groups.columns.unsqueeze(1)


def word_head_norms(
    weights: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch head key head_dim"],
    factors: Float[Tensor, "head head_dim rank"],
    groups: WordGroups,
) -> Float[Tensor, "batch head word unit"]:
    """‖1/|I| Σ_i Σ_j α_ij f(x_j)‖ of single heads.

    Args:
        weights: Post-softmax α.
        value: v, with b_V inside.
        factors: See `norms.norm_factors`.
        groups: The words.
    """
    transformed = value @ factors
    grams = (transformed @ transformed.transpose(-1, -2)) * groups.together.unsqueeze(1)
    means = groups.rows.unsqueeze(1) @ weights
    squares = ((means @ grams) * means) @ groups.columns.unsqueeze(1)
    # Rounding can make a zero square slightly negative.
    return squares.clamp(min=0).sqrt()
