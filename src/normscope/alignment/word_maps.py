"""Word alignments from cross-attention.

A map has one value per target token and source token. Between words, it is summed over the tokens of a source and averaged
over those of a target. Each target word is aligned with the source word of largest value, or with none if the end of the
sentence has the largest.

Source: Kobayashi et al. 2020, section 5.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.declarations.alignment import Setting
from normscope.maths.partition import Partition


def row_words(words: Int[Tensor, "batch query"], setting: Setting) -> Int[Tensor, "batch query"]:
    """The target word that each row of a decoder's attention belongs to.

    Args:
        words: The word of the token predicted in each row, −1 for none.
        setting: Which row belongs to a token; it is read one row after it is predicted.
    """
    if setting is Setting.awo:
        return words
    return torch.cat([torch.full_like(words[:, :1], -1), words[:, :-1]], dim=1)


def words_and_end(words: Int[Tensor, "batch key"], count: int) -> Partition:
    """The words of sources, and last the end of the sentence: all special tokens.

    Args:
        words: The word of each key, −1 for special tokens and padding.
        count: Number of words of the longest sentence.
    """
    return Partition.of(words.where(words >= 0, torch.full_like(words, count)), count + 1)


def aligned_words(
    maps: Float[Tensor, "batch map target_word source_word"],
) -> Int[Tensor, "batch map target_word"]:
    """The source word that each target word is aligned with; −1 if that is the end of the sentence, or if the row is zero."""
    best = maps.argmax(dim=-1)
    unaligned = (best == maps.shape[-1] - 1) | (maps.amax(dim=-1) <= 0)
    return best.masked_fill(unaligned, -1)
