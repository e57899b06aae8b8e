"""Spearman's ρ of a stream of pairs: an estimate from a histogram, with a bound on its error."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError
from normscope.statistics.pair_histogram import Axis, PairHistogram, PairsPart

# With fewer than three pairs, or if one side is constant, the correlation is undefined.
FEWEST_PAIRS = 3

_EPSILONS = 64
"""Relative, in units of a type's rounding: how far batches of other sizes move what a model computes."""


@dataclasses.dataclass(frozen=True)
class Correlation:
    """ρ of one group of pairs."""

    spearman: float | None
    """None if undefined."""
    count: int
    error_bound: float
    """The ρ of exact arithmetic is at most this far away."""
    reason: str = ""
    """Why ρ is undefined."""


def correlation(one: Float[np.ndarray, " pair"], other: Float[np.ndarray, " pair"]) -> float | None:
    """Pearson's correlation, which for ranks is Spearman's ρ; None if either side is constant."""
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float(one @ other) / size if size else None


def rounded(axis: Axis, dtype: torch.dtype) -> Axis:
    """The axis for numbers that were computed in some type."""
    return dataclasses.replace(axis, tolerance=_EPSILONS * torch.finfo(dtype).eps)


class RankCorrelation(Accumulator):
    """Counts pairs by layer and group in two-dimensional histograms on logarithmic grids, in memory that does not grow.

    Args:
        groups: Number of groups; each pair belongs to one.
        first, second: Grids for the two numbers of a pair, with the rounding of these numbers.
    """

    def __init__(self, layers: int, groups: int, first: Axis, second: Axis) -> None:
        self._layers, self._groups = layers, groups
        self._first, self._second = first, second
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._histograms = [PairHistogram(self._first, self._second, self._groups) for _ in range(self._layers)]

    def update(
        self,
        layer: int,
        second: Float[Tensor, "batch head key"],
        group: Int[Tensor, "batch key"],
        parts: Iterable[PairsPart],
    ) -> None:
        """Add the pairs (first_bhqk, second_bhk) of one layer.

        Args:
            layer: Index of the layer, from 0.
            second: The number of each key; ≥ 0.
            group: Group of each key; −1 leaves the key out.
            parts: The pairs, with the number that depends on the query.
        """
        self._histograms[layer].add(second, group, parts)

    def compute(self, *, union: bool = False) -> list[list[Correlation]]:
        """ρ per layer (row) and group (column). The first row is for all layers together.

        Args:
            union: Whether to add a last column for all groups together.

        Raises:
            EmptyAccumulatorError: If no pair has been added.
        """
        if all(histogram.is_empty for histogram in self._histograms):
            raise EmptyAccumulatorError("no pair has been added up")
        every = range(self._layers)
        groups = [*range(self._groups), *([None] if union else [])]
        return [[self._of(layers, group) for group in groups] for layers in (every, *([one] for one in every))]

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, as tensors on the CPU."""
        return {
            f"{name}_{layer}": tensor
            for layer, histogram in enumerate(self._histograms)
            for name, tensor in histogram.state_dict().items()
        }

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the pairs of an accumulator with the same arguments."""
        for layer, histogram in enumerate(self._histograms):
            histogram.merge_state_dict({name: state[f"{name}_{layer}"] for name in histogram.state_dict()})

    def _of(self, layers: Iterable[int], group: int | None) -> Correlation:
        chosen = [self._histograms[layer] for layer in layers if not self._histograms[layer].is_empty]
        if not chosen:
            return _undefined(0)
        parts = [histogram.table(group) for histogram in chosen]
        start = min(low for low, _ in parts)
        stop = max(low + counts.shape[1] for low, counts in parts)
        table = np.zeros((self._first.cells, stop - start), dtype=np.int64)
        for low, counts in parts:
            table[:, low - start : low - start + counts.shape[1]] += counts
        near = np.sum([histogram.near.numpy() for histogram in chosen], axis=0)
        smallest = np.min([histogram.ranges[0].numpy() for histogram in chosen], axis=0)[start:stop]
        largest = np.max([histogram.ranges[1].numpy() for histogram in chosen], axis=0)[start:stop]
        equal = largest * (1 - self._second.tolerance) <= smallest
        return _estimate(table, near, equal)


def _undefined(count: int) -> Correlation:
    return Correlation(None, count, 0.0, "fewer than three pairs" if count else "no pairs")


class _Side(NamedTuple):
    """The ranks of one of the two numbers, in units of the number of pairs."""

    mean_ranks: Float[np.ndarray, " cell"]
    """Centred at zero."""
    spread: float
    """Root mean square of `mean_ranks` over all pairs, v."""
    within: float
    """The largest root mean square of the ranks within their cells, s."""
    moved: float
    """The largest root mean square of what the rounding of numbers near edges does to ranks, d."""


def _side(
    shares: Float[np.ndarray, " cell"], pairs: int, near: int, equal: Bool[np.ndarray, " cell"] | bool = False
) -> _Side:
    mean_ranks = shares.cumsum() - shares / 2 - 0.5
    spread = float(np.sqrt((shares * mean_ranks**2).sum()))
    # If every cell holds one pair, the sum is zero, and rounding can make it slightly negative.
    variances = np.where(equal, 0.0, shares * (shares**2 - 1 / pairs**2) / 12)
    within = float(np.sqrt(max(0.0, variances.sum())))
    beside = float(np.max(shares[1:] + shares[:-1], initial=shares.max()))
    share = min(1.0, near / pairs)
    return _Side(mean_ranks, spread, within, float(np.sqrt(share)) * min(share, beside))


def _estimate(
    table: Int[np.ndarray, "first second"], near: Int[np.ndarray, "2"], equal: Bool[np.ndarray, " second"]
) -> Correlation:
    """ρ with every pair at the mean rank of its cells, and a bound on the error.

    If no rounding had moved a number across an edge, a rank would be its cell's mean rank m plus a deviation e that sums to
    zero over the cell, with E[e²] at most that of distinct values, s² = Σ n(n²−1)/12N³ over the cells whose values differ. So
    cov(rank_x, rank_y) − cov(m_x, m_y) = cov(e_x, m_y) + cov(m_x, e_y) + cov(e_x, e_y). By Cauchy–Schwarz, the first is at
    most s_x times the spread of m_y within cells of x, the second likewise, the third s_x s_y; each variance lies between that
    of m, v², and v² + s².

    Moving the numbers near an edge across it changes their ranks alone, each by at most the number of pairs near that edge. A
    share ε of the pairs is near edges, and at most w near one edge, where w is the largest share of two neighbouring cells. So
    ranks move by at most d = √ε min(ε, w), as a root mean square; the covariance by d_x r_y + r_x d_y + d_x d_y with
    r² = v² + s²; and the spread of the ranks by d.

    Args:
        table: Counts.
        near: Number of pairs near an edge, of the first and of the second axis.
        equal: Whether all values of a cell of the second axis are equal, up to rounding.
    """
    total = int(table.sum())
    if total < FEWEST_PAIRS:
        return _undefined(total)
    occur = table.any(axis=0)
    share = table[table.any(axis=1)][:, occur] / total
    x = _side(share.sum(axis=1), total, int(near[0]))
    y = _side(share.sum(axis=0), total, int(near[1]), equal[occur])
    if x.spread <= x.moved or y.spread <= y.moved:
        return Correlation(None, total, 0.0, "one side is constant, or varies too little for an estimate")
    covariance = float(x.mean_ranks @ share @ y.mean_ranks)
    # Spread of one side's mean ranks within the cells of the other.
    of_y, of_x = share @ y.mean_ranks, x.mean_ranks @ share
    y_within = np.sqrt(max(0.0, y.spread**2 - float((of_y**2 / share.sum(axis=1)).sum())))
    x_within = np.sqrt(max(0.0, x.spread**2 - float((of_x**2 / share.sum(axis=0)).sum())))
    largest_x, largest_y = np.hypot(x.spread, x.within), np.hypot(y.spread, y.within)
    slack = x.within * y_within + y.within * x_within + x.within * y.within
    slack += x.moved * largest_y + y.moved * largest_x + x.moved * y.moved
    smallest = (x.spread - x.moved) * (y.spread - y.moved)
    largest = (largest_x + x.moved) * (largest_y + y.moved)
    spearman = covariance / (x.spread * y.spread)
    reach = [(covariance + sign * slack) / scale for sign in (-1, 1) for scale in (smallest, largest)]
    bound = max(abs(np.clip(value, -1, 1) - spearman) for value in reach)
    # The added term covers the rounding of the sums, the only error when every cell holds one value.
    return Correlation(float(np.clip(spearman, -1, 1)), total, float(bound) + 1e-12)
