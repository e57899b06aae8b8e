"""How often the largest entry of a map is the right word."""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.analyses.syntax.arcs import Arcs
from normscope.statistics.intervals import share_interval

CANDIDATES = ("all", "no_self", "no_special", "words")
DIRECTIONS = ("dependent-head", "head-dependent")

LONGEST_OFFSET = 10
"""Fixed offsets of at most this many words, in either direction, compete for the best."""


class Moments(NamedTuple):
    """Sums over sentences of their correct arcs c and arcs n, from which a share and its interval follow."""

    correct: np.ndarray
    """Σ c."""
    squares: np.ndarray
    """Σ c²."""
    products: np.ndarray
    """Σ c n."""
    arcs: np.ndarray
    """Σ n."""
    arc_squares: np.ndarray
    """Σ n²."""
    sentences: np.ndarray
    """Number of sentences with n > 0."""

    @property
    def share(self) -> np.ndarray:
        """p = Σ c / Σ n; NaN without arcs."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.correct / np.asarray(self.arcs, dtype=float))

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """The 95% interval of the share by Clopper and Pearson, with sentences as the sample.

        The arcs of a sentence depend on each other. They count as n* = p(1 − p)/s² independent ones, where s² = S/(S−1)
        Σ (c − p n)² / (Σ n)² is the linearised variance of a ratio over S sentences. n* is at most Σ n, and at least
        (Σ n)² / Σ n²: the arcs of a sentence then are all right or all wrong together. This is n* where all arcs are right, or
        all wrong, which does not show how they depend on each other. NaN with fewer than two sentences.

        Source: Korn & Graubard 1998, Survey Methodology 24(2), pages 193-201; Cochran 1977, Sampling Techniques, section 6.3.
        """
        p, arcs = self.share, np.asarray(self.arcs, dtype=float)
        residual = np.maximum(self.squares - 2 * p * self.products + p**2 * self.arc_squares, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = residual * (self.sentences / (self.sentences - 1.0)) / arcs**2
            fewest = np.where(self.sentences > 1, arcs**2 / self.arc_squares, np.nan)
            # fmax: 0/0, where all arcs are right or all are wrong, is the fewest.
            effective = np.fmax(np.minimum(p * (1 - p) / variance, arcs), fewest)
        return share_interval(p, np.where(np.isnan(fewest), np.nan, effective))


def correct_arcs(
    maps: Float[Tensor, "batch map word unit"], arcs: Arcs
) -> Bool[Tensor, "candidates direction map arc"]:
    """Whether the largest entry of the row of one end of an arc is its other end.

    Rows without an entry above zero predict nothing. Of equal entries, the first counts.

    Args:
        maps: What each word takes from each unit.
    """
    words, units = maps.shape[2:]
    # Special tokens are the last units; the word itself has the number of its row.
    itself = torch.eye(words, units, dtype=torch.bool, device=maps.device)
    special = arcs.special[:, None, None]
    absent = ~arcs.units[:, None, None]
    results = []
    for candidates in CANDIDATES:
        excluded = absent
        if candidates in ("no_self", "words"):
            excluded = excluded | itself
        if candidates in ("no_special", "words"):
            excluded = excluded | special
        largest = maps.masked_fill(excluded, -torch.inf).max(dim=-1)
        predicted = largest.indices.masked_fill(largest.values <= 0, -1)
        ends = (arcs.dependent, arcs.head), (arcs.head, arcs.dependent)
        results.append(torch.stack([(predicted[arcs.sentence, :, row] == column[:, None]).T for row, column in ends]))
    return torch.stack(results)


def by_relation(values: Bool[Tensor, "*map arc"], arcs: Arcs, relations: int) -> Int[Tensor, "*map batch relation"]:
    """Sums of values over the arcs of each sentence and relation; relation 0 is the union of those that count."""
    shape = values.shape[:-1]
    sentences = len(arcs.words)
    flat = values.reshape(math.prod(shape), values.shape[-1]).long()
    sums = flat.new_zeros(len(flat), sentences * relations)
    sums.index_add_(1, arcs.sentence * relations + arcs.relation, flat)
    sums.index_add_(1, arcs.sentence * relations, flat * arcs.counted)
    return sums.view(*shape, sentences, relations)


def by_half(values: Int[Tensor, "*map batch relation"], halves: Int[Tensor, " batch"]) -> Tensor:
    """Sums over the sentences of each half of the corpus: map, half, relation."""
    sums = values.new_zeros(*values.shape[:-2], 2, values.shape[-1])
    return sums.index_add_(values.dim() - 2, halves, values)


def products(correct: Int[Tensor, "..."], counts: Int[Tensor, "..."]) -> tuple[Tensor, Tensor, Tensor]:
    """c, c² and c n of every sentence."""
    return correct, correct.square(), correct * counts
