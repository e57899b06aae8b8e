"""Word alignments that cross-attention makes, and how far they agree with those of people.

A map has a number for every target and source token. Words: the sum over a source word's tokens, the mean over a target
word's tokens. Each target word is aligned with the source word of the largest number, or with none where the end of the
sentence has the largest.

Sources: Kobayashi et al. 2020, section 5; Och & Ney 2003, section 3, for the error rate.
"""

import dataclasses
import enum
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Link = tuple[int, int]


class Setting(enum.StrEnum):
    """Which row of a decoder's attention belongs to a target token."""

    AWO = "awo"
    """Alignment with output: the row in which the token is predicted."""
    AWI = "awi"
    """Alignment with input: the row in which the token is read."""


def row_words(words: Int[Tensor, "batch query"], setting: Setting) -> Int[Tensor, "batch query"]:
    """The target word that each row of a decoder's attention belongs to.

    Args:
        words: The word of the token that is predicted in each row; −1 where it is of none.
        setting: A token is read in the row after the one that predicts it.
    """
    if setting is Setting.AWO:
        return words
    return torch.cat([torch.full_like(words[:, :1], -1), words[:, :-1]], dim=1)


def word_maps(
    maps: Float[Tensor, "batch map query key"],
    target_words: Int[Tensor, "batch query"],
    source_words: Int[Tensor, "batch key"],
) -> Float[Tensor, "batch map target_word source_word"]:
    """Maps over tokens as maps over words: sums over a source word's tokens, means over a target word's.

    Args:
        maps: Zero at padded keys.
        target_words: The word that each row belongs to, −1 for none.
        source_words: The word of each key, −1 for special tokens.

    Returns:
        As many target words as the longest sentence has. The last source word is the end of the sentence, all special
        tokens together. Rows of target words without a token are zero.
    """
    rows = _members(target_words, int(target_words.max()) + 1).to(maps)
    rows = rows / rows.sum(dim=-1, keepdim=True).clamp(min=1)
    ends = int(source_words.max()) + 1
    columns = _members(source_words.where(source_words >= 0, torch.full_like(source_words, ends)), ends + 1).to(maps)
    return rows.unsqueeze(1) @ (maps @ columns.transpose(-1, -2).unsqueeze(1))


def aligned_words(
    maps: Float[Tensor, "batch map target_word source_word"],
) -> Int[Tensor, "batch map target_word"]:
    """The source word that each target word is aligned with; −1 where that is the end of the sentence, or nothing."""
    best = maps.argmax(dim=-1)
    nothing = (best == maps.shape[-1] - 1) | (maps.amax(dim=-1) <= 0)
    return best.masked_fill(nothing, -1)


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How far alignments A agree with sure links S and possible links P ⊇ S, over a corpus."""

    links: int
    """|A|."""
    in_sure: int
    """|A ∩ S|."""
    in_possible: int
    """|A ∩ P|."""
    sure: int
    """|S|."""

    @property
    def error_rate(self) -> float:
        """AER = 1 − (|A∩S| + |A∩P|) / (|A| + |S|); 1 where there is neither alignment nor sure link."""
        total = self.links + self.sure
        return 1 - (self.in_sure + self.in_possible) / total if total else 1.0

    @property
    def precision(self) -> float:
        """|A∩P| / |A|; 0 without alignments."""
        return self.in_possible / self.links if self.links else 0.0

    @property
    def recall(self) -> float:
        """|A∩S| / |S|; 0 without sure links."""
        return self.in_sure / self.sure if self.sure else 0.0


def agreement(
    alignments: Iterable[frozenset[Link]], sure: Iterable[frozenset[Link]], possible: Iterable[frozenset[Link]]
) -> Agreement:
    """How far alignments agree with what people made, over the pairs of sentences of a corpus.

    Args:
        alignments: A, a set of links per pair.
        sure: S.
        possible: P, the sure ones among them.
    """
    counts = [
        (len(found), len(found & certain), len(found & allowed), len(certain))
        for found, certain, allowed in zip(alignments, sure, possible, strict=True)
    ]
    return Agreement(*(sum(column) for column in zip(*counts, strict=True))) if counts else Agreement(0, 0, 0, 0)


def _members(words: Int[Tensor, "batch token"], count: int) -> Tensor:
    """Which tokens are of which word: batch, word, token."""
    return words.unsqueeze(1) == torch.arange(count, device=words.device)[:, None]
