"""Word alignments from cross-attention.

A map has one value per target token and source token. A word map sums it over the tokens of a source word and averages it over
the tokens of a target word. Each target word is aligned with the source word of largest value, or with none if the end of the
sentence has the largest.

Source: Kobayashi et al. 2020, section 5.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.declarations.alignment import Setting


def row_words(words: Int[Tensor, "batch query"], setting: Setting) -> Int[Tensor, "batch query"]:
    """The target word that each row of a decoder's attention belongs to.

    Args:
        words: The word of the token predicted in each row, −1 for none.
        setting: Which row belongs to a token; it is read one row after it is predicted.
    """
    if setting is Setting.awo:
        return words
    return torch.cat([torch.full_like(words[:, :1], -1), words[:, :-1]], dim=1)


def word_maps(
    maps: Float[Tensor, "batch map query key"],
    target_words: Int[Tensor, "batch query"],
    source_words: Int[Tensor, "batch key"],
    counts: tuple[int, int],
) -> Float[Tensor, "batch map target_word source_word"]:
    """Maps over words: token maps summed over the tokens of a source word and averaged over those of a target word.

    Args:
        maps: Zero at padded keys.
        target_words: The word that each row belongs to, −1 for none.
        source_words: The word of each key, −1 for special tokens.
        counts: Numbers of target and source words, each that of the longest sentence.

    Returns:
        One row per target word. The last source word is the end of the sentence: the sum over all special tokens. Rows of
        target words without a token are zero.
    """
    targets, ends = counts
    rows = _members(target_words, targets).to(maps)
    rows = rows / rows.sum(dim=-1, keepdim=True).clamp(min=1)
    columns = _members(source_words.where(source_words >= 0, torch.full_like(source_words, ends)), ends + 1).to(maps)
    return rows.unsqueeze(1) @ (maps @ columns.transpose(-1, -2).unsqueeze(1))


def aligned_words(
    maps: Float[Tensor, "batch map target_word source_word"],
) -> Int[Tensor, "batch map target_word"]:
    """The source word that each target word is aligned with; −1 if that is the end of the sentence, or if the row is zero."""
    best = maps.argmax(dim=-1)
    unaligned = (best == maps.shape[-1] - 1) | (maps.amax(dim=-1) <= 0)
    return best.masked_fill(unaligned, -1)


def _members(words: Int[Tensor, "batch token"], count: int) -> Tensor:
    """Which tokens belong to which word: batch, word, token."""
    return words.unsqueeze(1) == torch.arange(count, device=words.device)[:, None]
