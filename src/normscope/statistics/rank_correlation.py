"""Spearman's ρ of a stream of pairs: exact within a memory budget, with a bounded error beyond it."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import scipy.stats
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError
from normscope.statistics.pair_histogram import Axis, PairHistogram, PairsPart

# With fewer than three pairs, or if one side is constant, the correlation is undefined.
FEWEST_PAIRS = 3


@dataclasses.dataclass(frozen=True)
class Correlation:
    """ρ of one group of pairs."""

    spearman: float | None
    """None if undefined."""
    count: int
    error_bound: float
    """The exact ρ is at most this far away; 0 if ρ is exact."""
    reason: str = ""
    """Why ρ is undefined."""


class RankCorrelation(Accumulator):
    """Accumulates pairs by layer and group, and ranks them at the end.

    Up to `exact_pairs` pairs are kept. Beyond that, all pairs are counted in two-dimensional histograms on logarithmic
    grids, and memory stops growing.

    Args:
        groups: Number of groups; each pair belongs to one.
        first, second: Grids for the two numbers of a pair.
        exact_pairs: Largest number of pairs to keep, over all layers and groups.
    """

    def __init__(self, layers: int, groups: int, first: Axis, second: Axis, exact_pairs: int) -> None:
        self._layers, self._groups = layers, groups
        self._first, self._second = first, second
        self._budget = exact_pairs
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._exact = self._budget > 0
        self._pairs = 0
        self._kept: list[list[_Kept]] = [[] for _ in range(self._layers)]
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
            parts: The pairs, with the number that depends on the query. While pairs are kept, those of a part that does not say
                how many it has are counted, and the host waits for the device.
        """
        self._histograms[layer].add(second, group, self._not_kept(layer, second, group, parts))

    def _not_kept(self, layer: int, second: Tensor, group: Tensor, parts: Iterable[PairsPart]) -> Iterator[PairsPart]:
        """Keep parts while memory allows; the others."""
        for part in parts:
            if self._exact and self._keep(layer, second, group, part):
                continue
            if self._exact:
                self._give_up_exactness()
            yield part

    def _keep(self, layer: int, second: Tensor, group: Tensor, part: PairsPart) -> bool:
        """Keep a part if memory allows."""
        first, group = part.first, group[part.sequences, part.keys]
        counted, seen = (group >= 0)[:, None, None, :], part.known()
        counted = counted if seen is None else counted & seen
        # `counted` may broadcast over heads or queries.
        pairs = int(counted.sum()) * (first.numel() // counted.numel()) if part.pairs is None else part.pairs
        self._pairs += pairs
        if self._pairs > self._budget:
            return False
        # Unchanged: selecting the pairs that count and expanding `second` can wait until the end. Lower precision would turn
        # distinct numbers into ties.
        self._kept[layer].append(_Kept(first, second[part.sequences, :, part.keys], group, counted))
        return True

    def settle(self) -> None:
        """Move the pairs that are kept to CPU memory."""
        for kept in self._kept:
            for place in reversed(range(len(kept))):
                if kept[place].first.device.type == "cpu":
                    break  # and so are all before it
                kept[place] = _Kept(*(part.cpu() for part in kept[place]))

    def compute(self, *, union: bool = False) -> list[list[Correlation]]:
        """ρ per layer (row) and group (column). The first row is for all layers together.

        Args:
            union: Whether to add a last column for all groups together.

        Raises:
            EmptyAccumulatorError: If no pair has been added.
        """
        self.settle()
        if not any(self._kept) and all(histogram.is_empty for histogram in self._histograms):
            raise EmptyAccumulatorError("no pair has been added up")
        of = self._exact_of if self._exact else self._binned_of
        every = range(self._layers)
        groups = [*range(self._groups), *([None] if union else [])]
        return [[of(layers, group) for group in groups] for layers in (every, *([one] for one in every))]

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, as tensors on the CPU."""
        self.settle()
        state = {"exact": torch.tensor(self._exact), "pairs": torch.tensor(self._pairs)}
        for layer, (kept, histogram) in enumerate(zip(self._kept, self._histograms, strict=True)):
            if kept:
                columns = zip(*(update.pairs() for update in kept), strict=True)
                state |= {f"{name}_{layer}": torch.cat(parts) for name, parts in zip(_COLUMNS, columns, strict=True)}
            state[f"low_{layer}"] = torch.tensor(histogram.low)
            state[f"counts_{layer}"] = histogram.counts.cpu().clone(memory_format=torch.contiguous_format)
        return state

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the pairs of an accumulator with the same arguments."""
        self._pairs += int(state["pairs"])
        for layer in range(self._layers):
            columns = [state[f"{name}_{layer}"] for name in _COLUMNS if f"{name}_{layer}" in state]
            if columns:
                self._kept[layer].append(_Kept.of_pairs(*columns))
            self._histograms[layer].merge(int(state[f"low_{layer}"]), state[f"counts_{layer}"])
        if not (self._exact and bool(state["exact"]) and self._pairs <= self._budget):
            self._give_up_exactness()

    def _give_up_exactness(self) -> None:
        self._exact = False
        for kept, histogram in zip(self._kept, self._histograms, strict=True):
            while kept:
                update = kept.pop()
                histogram.add(update.second, update.group, [PairsPart(update.first, seen=update.counted)])

    def _exact_of(self, layers: Iterable[int], group: int | None) -> Correlation:
        chosen = [update.of_group(group) for layer in layers for update in self._kept[layer]]
        if not chosen:
            return _undefined(0)
        first, second = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        return _exact(first, second)

    def _binned_of(self, layers: Iterable[int], group: int | None) -> Correlation:
        parts = [self._histograms[layer].table(group) for layer in layers]
        parts = [(low, counts) for low, counts in parts if counts.size]
        if not parts:
            return _undefined(0)
        start = min(low for low, _ in parts)
        stop = max(low + counts.shape[1] for low, counts in parts)
        table = np.zeros((self._first.cells, stop - start), dtype=np.int64)
        for low, counts in parts:
            table[:, low - start : low - start + counts.shape[1]] += counts
        return _binned(table)


class _Kept(NamedTuple):
    """One update, unchanged."""

    first: Float[Tensor, "batch head query key"]
    second: Float[Tensor, "batch head key"]
    group: Int[Tensor, "batch key"]
    counted: Bool[Tensor, "#batch #head #query #key"]

    @classmethod
    def of_pairs(cls, first: Tensor, second: Tensor, group: Tensor) -> "_Kept":
        """Single pairs, as one query with a key per pair."""
        counted = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        return cls(first[None, None, None], second[None, None], group[None].long(), counted)

    def __deepcopy__(self, _memo: object) -> "_Kept":
        return self  # large, and never modified

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs that count, one entry each, with their groups."""
        counted = self.counted.expand_as(self.first)
        group = self.group[:, None, None, :].expand_as(self.first)
        return (
            self.first[counted],
            self.second.unsqueeze(2).expand_as(self.first)[counted],
            group[counted].to(torch.int16),
        )

    def of_group(self, group: int | None) -> tuple[Tensor, Tensor]:
        """The pairs that count, of one group or of all."""
        counted = self.counted if group is None else self.counted & (self.group == group)[:, None, None, :]
        counted = counted.expand_as(self.first)
        return self.first[counted], self.second.unsqueeze(2).expand_as(self.first)[counted]


_COLUMNS = ("first", "second", "group")


def _undefined(count: int) -> Correlation:
    return Correlation(None, count, 0.0, "fewer than three pairs" if count else "no pairs")


def _exact(first: Tensor, second: Tensor) -> Correlation:
    count = len(first)
    if count < FEWEST_PAIRS:
        return _undefined(count)
    ranks = [_centred_ranks(values) for values in (first, second)]
    spread = [float(rank.square().mean().sqrt()) for rank in ranks]
    if min(spread) == 0:
        return Correlation(None, count, 0.0, "one side is constant")
    return Correlation(float((ranks[0] * ranks[1]).mean()) / (spread[0] * spread[1]), count, 0.0)


def _centred_ranks(values: Float[Tensor, " value"]) -> Float[Tensor, " value"]:
    """Ranks minus their mean. Ties share the mean of their ranks."""
    values = values.float() if values.dtype == torch.bfloat16 else values  # NumPy has no bfloat16; the cast is exact
    return torch.from_numpy(scipy.stats.rankdata(values.numpy())).sub_((len(values) + 1) / 2)


def _binned(table: np.ndarray) -> Correlation:
    """ρ of a histogram, with every pair at the mean rank of its cell, and a bound on the error.

    A rank is its cell's mean rank m plus a deviation e that sums to zero over the cell, with E[e²] at most that of
    distinct values, s² = Σ n(n²−1)/12N. So cov(rank_x, rank_y) − cov(m_x, m_y) = cov(e_x, m_y) + cov(m_x, e_y) +
    cov(e_x, e_y). By Cauchy–Schwarz, the first is at most s_x times the spread of m_y within cells of x, the second
    likewise, the third s_x s_y; each variance lies between that of m and that of m plus s².
    """
    total = int(table.sum())
    if total < FEWEST_PAIRS:
        return _undefined(total)
    share = table[table.any(axis=1)][:, table.any(axis=0)] / total
    means, spreads, deviations = [], [], []
    for axis in (1, 0):
        marginal = share.sum(axis=axis)
        # In units of the number of pairs, so nothing overflows.
        mean_rank = marginal.cumsum() - marginal / 2 - 0.5
        means.append(mean_rank)
        spreads.append(float(np.sqrt((marginal * mean_rank**2).sum())))
        # If every cell holds one pair, the sum is zero, and rounding can make it slightly negative.
        deviations.append(float(np.sqrt(max(0.0, (marginal * (marginal**2 - 1 / total**2)).sum() / 12))))
    if min(spreads) == 0:
        return Correlation(None, total, 0.0, "one side is constant, or varies too little for an estimate")
    (x, y), (v_x, v_y), (s_x, s_y) = means, spreads, deviations
    covariance = float(x @ share @ y)
    # Spread of one side's mean ranks within the cells of the other.
    y_within = np.sqrt(max(0.0, v_y**2 - float((((share @ y) ** 2) / share.sum(axis=1)).sum())))
    x_within = np.sqrt(max(0.0, v_x**2 - float((((x @ share) ** 2) / share.sum(axis=0)).sum())))
    slack = s_x * y_within + s_y * x_within + s_x * s_y
    scales = (v_x * v_y, np.sqrt((v_x**2 + s_x**2) * (v_y**2 + s_y**2)))
    spearman = covariance / scales[0]
    reach = [(covariance + sign * slack) / scale for sign in (-1, 1) for scale in scales]
    bound = max(abs(np.clip(value, -1, 1) - spearman) for value in reach)
    # The added term covers the rounding of the sums, the only error when every cell holds one value.
    return Correlation(float(np.clip(spearman, -1, 1)), total, float(bound) + 1e-12)
