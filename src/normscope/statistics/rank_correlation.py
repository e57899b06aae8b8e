"""Spearman's ρ of a stream of pairs: exact for few pairs, otherwise an estimate from a histogram, with a bound on its error."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.tensors import to_device
from normscope.rounding import VISIBLE
from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError
from normscope.statistics.held_pairs import MOST_PASSED, HeldPairs, PairsOfKeys
from normscope.statistics.pair_histogram import Axis, PairHistogram, PairsPart

# With fewer than three pairs, or if one side is constant, the correlation is undefined.
FEWEST_PAIRS = 3

EXACT = 10_000_000
"""Most pairs of an exact ρ."""
_HELD = 5 * EXACT
"""Most pairs that are held at a time: 200 MB in float32."""

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

    @property
    def stated(self) -> "Correlation":
        """The same without ρ where its error may be as large as itself, unless no reader would see the error."""
        if self.spearman is None or self.error_bound < max(VISIBLE, abs(self.spearman)):
            return self
        return Correlation(None, self.count, self.error_bound, "its error may be as large as itself")


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

    Groups with few pairs also hold these, and their ρ is exact.

    Args:
        groups: Number of groups; each pair belongs to one.
        first, second: Grids for the two numbers of a pair, with the rounding of these numbers.
        exact: Most pairs of an exact ρ, over all layers; fewer if there are so many groups that they would hold too many.
    """

    def __init__(self, layers: int, groups: int, first: Axis, second: Axis, exact: int = EXACT) -> None:
        self._layers, self._groups = layers, groups
        self._first, self._second = first, second
        self._exact = exact
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._histograms = [PairHistogram(self._first, self._second, self._groups) for _ in range(self._layers)]
        most = min(self._exact, _HELD // self._groups) // self._layers
        self._held = [HeldPairs(self._groups, most) for _ in range(self._layers)]

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
            group: Group of each key, in CPU memory; −1 leaves the key out.
            parts: The pairs, with the number that depends on the query.
        """
        held = self._held[layer].holding(second, group, parts)
        self._histograms[layer].add(second, to_device(group, second.device), held)
        if sum(pairs.passed for pairs in self._held) > MOST_PASSED:
            self.settle()

    def settle(self) -> None:
        """Read what updates have left on the device."""
        for pairs in self._held:
            pairs.settle()

    def compute(self, columns: Sequence[Sequence[int]] | None = None) -> list[list[Correlation]]:
        """ρ per layer (row). The first row is for all layers together.

        Args:
            columns: The groups that each column has together; by default a column for each group.

        Raises:
            EmptyAccumulatorError: If no pair has been added.
        """
        if all(histogram.is_empty for histogram in self._histograms):
            raise EmptyAccumulatorError("no pair has been added up")
        every = range(self._layers)
        if columns is None:
            columns = [[group] for group in range(self._groups)]
        return [[self._of(layers, groups) for groups in columns] for layers in (every, *([one] for one in every))]

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, as tensors on the CPU."""
        return {
            f"{name}_{layer}": tensor
            for layer, parts in enumerate(zip(self._histograms, self._held, strict=True))
            for part in parts
            for name, tensor in part.state_dict().items()
        }

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the pairs of an accumulator with the same arguments."""
        for layer, parts in enumerate(zip(self._histograms, self._held, strict=True)):
            for part in parts:
                part.merge_state_dict({name: state[f"{name}_{layer}"] for name in part.state_dict()})

    def _of(self, layers: Iterable[int], groups: Sequence[int]) -> Correlation:
        chosen = [self._histograms[layer] for layer in layers if not self._histograms[layer].is_empty]
        if not chosen:
            return _undefined(0)
        held = [self._held[layer] for layer in layers]
        totals = [of_layer.total(groups) for of_layer in held]
        if None not in totals and sum(filter(None, totals)) <= self._exact:
            pairs = PairsOfKeys.together(of_layer.pairs(groups) for of_layer in held)
            return _exact(pairs, self._first.tolerance, self._second.tolerance)
        parts = [histogram.table(groups) for histogram in chosen]
        start = min(low for low, _ in parts)
        stop = max(low + counts.shape[1] for low, counts in parts)
        table = np.zeros((stop - start, self._first.cells), dtype=np.int64).T  # as the tables that are added
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

    spread: float
    """Root mean square of the mean ranks of cells over all pairs, v."""
    within: float
    """The largest root mean square of the ranks within their cells, s."""
    moved: float
    """The largest root mean square of what the rounding of numbers near edges does to ranks, d."""


def _side(
    shares: Float[np.ndarray, " cell"], pairs: int, near: int, equal: Bool[np.ndarray, " cell"] | bool = False
) -> tuple[_Side, Float[np.ndarray, " cell"]]:
    """One side, and the mean ranks of its cells, centred at zero."""
    mean_ranks = shares.cumsum() - shares / 2 - 0.5
    spread = float(np.sqrt((shares * mean_ranks**2).sum()))
    # If every cell holds one pair, the sum is zero, and rounding can make it slightly negative.
    variances = np.where(equal, 0.0, shares * (shares**2 - 1 / pairs**2) / 12)
    within = float(np.sqrt(max(0.0, variances.sum())))
    beside = float(np.max(shares[1:] + shares[:-1], initial=shares.max()))
    share = min(1.0, near / pairs)
    return _Side(spread, within, float(np.sqrt(share)) * min(share, beside)), mean_ranks


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
    x, x_ranks = _side(share.sum(axis=1), total, int(near[0]))
    y, y_ranks = _side(share.sum(axis=0), total, int(near[1]), equal[occur])
    # Spread of one side's mean ranks within the cells of the other.
    of_y, of_x = share @ y_ranks, x_ranks @ share
    y_within = np.sqrt(max(0.0, y.spread**2 - float((of_y**2 / share.sum(axis=1)).sum())))
    x_within = np.sqrt(max(0.0, x.spread**2 - float((of_x**2 / share.sum(axis=0)).sum())))
    slack = x.within * y_within + y.within * x_within + x.within * y.within
    return _bounded(x, y, float(x_ranks @ of_y), slack, total)


def _bounded(x: _Side, y: _Side, covariance: float, slack: float, total: int) -> Correlation:
    """ρ of mean ranks, and a bound on its error; see `_estimate`.

    Args:
        covariance: That of the mean ranks.
        slack: By how much ranks within cells can change it.
        total: Number of pairs.
    """
    if x.spread <= x.moved or y.spread <= y.moved:
        return Correlation(None, total, 0.0, "one side is constant, or varies too little for an estimate")
    largest_x, largest_y = np.hypot(x.spread, x.within), np.hypot(y.spread, y.within)
    slack += x.moved * largest_y + y.moved * largest_x + x.moved * y.moved
    smallest = (x.spread - x.moved) * (y.spread - y.moved)
    largest = (largest_x + x.moved) * (largest_y + y.moved)
    spearman = covariance / (x.spread * y.spread)
    reach = [(covariance + sign * slack) / scale for sign in (-1, 1) for scale in (smallest, largest)]
    # The added term covers the rounding of the sums, the only error when every cell holds one value.
    bound = max(float(abs(np.clip(value, -1, 1) - spearman)) for value in reach) + 1e-12
    return Correlation(float(np.clip(spearman, -1, 1)), total, bound)


_AT_ONCE = 2**16  # pragma: no mutate
"""Pairs ranked at a time, few enough for the processor's cache."""


def _exact(pairs: PairsOfKeys, *tolerances: float) -> Correlation:
    """ρ of the numbers themselves. What rounding may have done to their order bounds the error."""
    total = len(pairs.first)
    if total < FEWEST_PAIRS:
        return _undefined(total)
    counts = pairs.counts.numpy()
    y, y_ranks = _of_keys(pairs.second.numpy(), counts, tolerances[1])
    distinct, cells = np.unique(y_ranks, return_inverse=True)
    values, cells = _in_order(pairs.first.numpy(), np.repeat(cells.astype(np.int32), counts))
    # Ranks in halves, centred at zero: whole numbers, whose sums are exact and do not depend on the order of equal values.
    sums, squares, moved = np.zeros(len(distinct)), 0.0, 0.0
    reached = np.zeros(total + 1, dtype=np.int32)  # for each value, how many reach no further than up to it
    stop = passed = 0
    while stop < total:
        start, largest = stop, values[: stop + _AT_ONCE][-1:]
        stop += int(np.searchsorted(values[start:], largest, "right")[0])
        begins, ends = _runs(np.diff(values[start:stop]) > 0)
        often, ranks = ends - begins, begins + ends + (2 * start - total)
        sums += np.bincount(cells[start:stop], np.repeat(ranks, often), len(sums))
        squares += float(often @ np.square(ranks, dtype=float))
        last = _last(values[start:], begins, tolerances[0])
        reached[start : start + last[-1] + 1] += np.bincount(last, often).astype(np.int32)
        first = passed + reached[start:stop].cumsum() - start
        passed = int(first[-1]) + start
        moved += float(often @ np.square(np.maximum(begins - first[begins], last - ends), dtype=float))
    x = _Side(float(np.sqrt(squares / total)) / (2 * total), 0.0, float(np.sqrt(moved / total)) / total)
    return _bounded(x, y, float(sums @ distinct) / (2 * total) / total, 0.0, total)


def _of_keys(
    second: Float[np.ndarray, " key"], counts: Int[np.ndarray, " key"], tolerance: float
) -> tuple[_Side, Float[np.ndarray, " key"]]:
    """One side, and the mean rank of each key's pairs, given how many it has.

    Numbers are taken for equal, as vectors of equal tokens are, if they are all so close to each other, and to no others, that
    rounding may have told them apart.
    """
    order = np.argsort(second)
    values, pairs = second[order], np.append(0, counts[order].cumsum())
    apart = values[1:] > values[:-1] * (1 + tolerance)
    begins, ends = _runs(apart)
    equal = np.repeat(values[ends - 1] <= values[begins] * (1 + tolerance), ends - begins)
    begins, ends = _runs((np.diff(values) > 0) & (apart | ~equal[1:]))
    low, high, total = pairs[begins], pairs[ends], int(pairs[-1])
    last = _last(values, begins, tolerance)
    first = np.searchsorted(np.repeat(last, ends - begins), begins, "right")
    moves = np.where(equal[begins], 0, np.maximum(low - pairs[first], pairs[last] - high)) / total
    ranks = (low + high) / (2 * total) - 0.5
    mean_ranks = np.empty(len(values))
    mean_ranks[order] = np.repeat(ranks, ends - begins)
    spread, moved = (float(np.sqrt((high - low) @ each**2 / total)) for each in (ranks, moves))
    return _Side(spread, 0.0, moved), mean_ranks


def _in_order(
    values: Float[np.ndarray, " value"], cells: Int[np.ndarray, " value"]
) -> tuple[Float[np.ndarray, " value"], Int[np.ndarray, " value"]]:
    """Values ≥ 0 in increasing order, and a 32-bit number that each comes with."""
    if values.dtype != np.float32:
        order = np.argsort(values)
        return values[order], cells[order]
    # The bits of floats have the same order. This takes a fifth of the time of `argsort`.
    both = values.view(np.int32).astype(np.int64)
    both <<= 32
    both |= cells
    both.sort()
    return (both >> 32).astype(np.int32).view(np.float32), both.astype(np.int32)


def _runs(apart: Bool[np.ndarray, " gap"]) -> Int[np.ndarray, "2 run"]:
    """Where runs of values begin and end, given which values are apart from the one before."""
    begins = np.flatnonzero(np.append(True, apart))
    return np.stack([begins, np.append(begins[1:], len(apart) + 1)])


def _last(
    values: Float[np.ndarray, " value"], some: Int[np.ndarray, " some"], tolerance: float
) -> Int[np.ndarray, " some"]:
    """Where the values end that are so close to some of them that they may be equal, or in the other order.

    Args:
        values: In increasing order.
        some: The places of those that are asked for, in increasing order.
        tolerance: Relative.
    """
    reach = values[some] * (1 + tolerance)
    within = int(np.searchsorted(values, reach[-1:], "right")[0])
    return np.searchsorted(values[:within], reach, "right")
