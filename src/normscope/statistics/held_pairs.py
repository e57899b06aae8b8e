"""All pairs of the groups that have few, for exact rank correlations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.maths.tensors import to_device
from normscope.statistics.pair_histogram import PairsPart


class PairsOfKeys(NamedTuple):
    """Pairs in CPU memory, those of a key in a row."""

    first: Float[Tensor, " pair"]
    second: Float[Tensor, " key"]
    """The number that all pairs of a key share."""
    counts: Int[Tensor, " key"]
    """Number of pairs of each key, at least 1."""

    @classmethod
    def together(cls, parts: Iterable["PairsOfKeys"]) -> "PairsOfKeys":
        """The pairs of several parts."""
        nothing = cls(*(torch.zeros(0, dtype=dtype) for dtype in (_NUMBERS, _NUMBERS, torch.long)))
        return cls(*map(torch.cat, zip(nothing, *parts, strict=True)))

    def ordered(self) -> "PairsOfKeys":
        """The same pairs with their keys in an order that does not depend on how they came."""
        first, second, counts = (each.numpy() for each in self)
        starts = counts.cumsum() - counts
        sums = np.add.reduceat(first, starts, dtype=float) if len(starts) else np.zeros(0)
        order = np.lexsort([sums, counts, second])
        counts = counts[order]
        pairs = np.arange(len(first)) + np.repeat(starts[order] - (counts.cumsum() - counts), counts)
        return PairsOfKeys(*map(torch.from_numpy, (first[pairs], second[order], counts)))


MOST_PASSED = 2**25
"""Pairs that are left on the device before any are dropped: 160 MB in float32."""

_NUMBERS = torch.float32
"""The least precise type in which numbers are held."""


class HeldPairs:
    """The pairs of one layer, by group. Groups that have more than `most` hold none."""

    def __init__(self, groups: int, most: int) -> None:
        self._most = most
        self._totals = torch.zeros(groups, dtype=torch.long)
        """Number of pairs of each group; `most` + 1 stands for all larger numbers."""
        self._parts: list[list[PairsOfKeys]] = [[] for _ in range(groups)]
        # First numbers (key × head × query), which of them count, second numbers (key × head), on their devices, and groups.
        self._passed: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.passed = 0
        """How many pairs have passed since the last `settle`, with those that do not count."""

    def holding(
        self, second: Float[Tensor, "batch head key"], group: Int[Tensor, "batch key"], parts: Iterable[PairsPart]
    ) -> Iterator[PairsPart]:
        """The same parts, whose pairs are held as they pass; see `RankCorrelation.update`. Few wait for the device, if any."""
        for part in parts:
            groups = group[part.sequences, part.keys]
            places = ((groups >= 0) & (self._totals <= self._most)[groups]).nonzero()
            if part.first.numel() and len(places):
                places = places[groups[places.unbind(-1)].argsort(stable=True)]
                keys = to_device(places, second.device).unbind(-1)
                sequences, _, queries, _ = part.first.shape
                seen, known = torch.ones(1, 1, 1, dtype=torch.bool, device=second.device), part.known()
                if known is not None:
                    seen = known.expand(sequences, -1, queries, part.first.shape[3]).permute(0, 3, 1, 2)[keys]
                first = part.first.permute(0, 3, 1, 2)[keys]
                of_keys = second[part.sequences, :, part.keys].transpose(1, 2)[keys]
                self._passed.append((first, seen, of_keys, groups[places.unbind(-1)]))
                self.passed += first.numel()
                if self.passed > MOST_PASSED:
                    self.settle()
            yield part

    def settle(self) -> None:
        """Tell pairs that count from others, and drop those of groups that have too many."""
        for first, seen, second, group in self._passed:
            counts = seen.expand(-1, -1, first.shape[2]).sum(dim=-1).expand(second.shape).cpu()
            dtype = torch.promote_types(first.dtype, _NUMBERS)
            pairs = PairsOfKeys(
                first.masked_select(seen).to(dtype).cpu(), second.flatten().to(dtype).cpu(), counts.flatten()
            )
            totals = torch.zeros_like(self._totals).index_add(0, group, counts.sum(dim=-1))
            self._add(pairs, torch.bincount(group, minlength=len(totals)) * second.shape[1], totals)
        self._passed, self.passed = [], 0

    def _add(self, pairs: PairsOfKeys, keys: Int[Tensor, " group"], totals: Int[Tensor, " group"]) -> None:
        """Hold pairs that come group by group.

        Args:
            keys: How many of the keys are in each group.
            totals: Number of pairs of each group, also if none come.
        """
        self._totals = (self._totals + totals).clamp(max=self._most + 1)
        start = 0
        of_groups = (each.split(keys.tolist()) for each in (pairs.second, pairs.counts))
        for group, (second, counts) in enumerate(zip(*of_groups, strict=True)):
            stop = start + int(counts.sum())
            if self._totals[group] > self._most:
                self._parts[group] = []
            elif start < stop:
                # A copy, since a part of a tensor keeps all of it in memory.
                first, occurs = pairs.first[start:stop].clone(), counts > 0
                self._parts[group].append(PairsOfKeys(first, second[occurs], counts[occurs]))
            start = stop

    def total(self, groups: Sequence[int]) -> int | None:
        """The number of pairs of some groups together, if all of them are held."""
        self.settle()
        totals = self._totals[groups]
        return int(totals.sum()) if (totals <= self._most).all() else None

    def pairs(self, groups: Sequence[int]) -> PairsOfKeys:
        """The pairs of some groups."""
        self.settle()
        return PairsOfKeys.together(part for group in groups for part in self._parts[group])

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, as copies on the CPU."""
        self.settle()
        self._parts = [[PairsOfKeys.together(parts).ordered()] for parts in self._parts]
        held = {f"held_{name}": tensor for name, tensor in self.pairs(range(len(self._parts)))._asdict().items()}
        keys = torch.tensor([len(part.second) for (part,) in self._parts])
        return held | {"held_keys": keys, "totals": self._totals.clone()}

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of another of the same groups.

        Raises:
            ValueError: If its numbers do not fit each other.
        """
        self.settle()
        pairs = PairsOfKeys(*(state[f"held_{name}"] for name in PairsOfKeys._fields))
        keys, totals = state["held_keys"], state["totals"]
        fits = keys.shape == totals.shape == self._totals.shape and len(pairs.second) == len(pairs.counts) == keys.sum()
        if not fits or (keys < 0).any() or (pairs.counts < 1).any() or pairs.counts.sum() != len(pairs.first):
            raise ValueError("held pairs do not fit the numbers of their groups")
        self._add(pairs, keys, totals)
