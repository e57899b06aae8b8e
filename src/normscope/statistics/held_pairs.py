"""All pairs of the groups that have few, for exact rank correlations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
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
    group: Int[Tensor, " key"]

    def of(self, chosen: Bool[Tensor, " key"]) -> "PairsOfKeys":
        """The pairs of some keys."""
        pairs = chosen.repeat_interleave(self.counts)
        return PairsOfKeys(self.first[pairs], self.second[chosen], self.counts[chosen], self.group[chosen])

    @classmethod
    def together(cls, parts: Iterable["PairsOfKeys"]) -> "PairsOfKeys":
        """The pairs of several parts."""
        nothing = cls(*(torch.zeros(0, dtype=dtype) for dtype in (_NUMBERS, _NUMBERS, torch.long, torch.long)))
        return cls(*map(torch.cat, zip(nothing, *parts, strict=True)))

    def ordered(self) -> "PairsOfKeys":
        """The same pairs with their keys in an order that does not depend on how they came."""
        starts = self.counts.cumsum(0) - self.counts
        sums = np.add.reduceat(self.first.double().numpy(), starts.numpy()) if len(starts) else np.zeros(0)
        order = torch.from_numpy(np.lexsort([sums, *(each.numpy() for each in (self.counts, self.second, self.group))]))
        counts = self.counts[order]
        shifts = starts[order] - (counts.cumsum(0) - counts)
        pairs = torch.arange(len(self.first)) + shifts.repeat_interleave(counts)
        return PairsOfKeys(self.first[pairs], self.second[order], counts, self.group[order])


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
        self._parts: list[PairsOfKeys] = []
        self._is_ordered = True
        """Whether there is at most one part, on the CPU and in order."""
        # First numbers (key × head × query), which of them count, second numbers (key × head) and groups, on their devices.
        self._passed: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def holding(
        self, second: Float[Tensor, "batch head key"], group: Int[Tensor, "batch key"], parts: Iterable[PairsPart]
    ) -> Iterator[PairsPart]:
        """The same parts, whose pairs are held as they pass; see `RankCorrelation.update`. Few wait for the device, if any."""
        for part in parts:
            groups = group[part.sequences, part.keys]
            places = ((groups >= 0) & self._has_room[groups]).nonzero()
            if part.first.numel() and len(places):
                keys = to_device(places, second.device).unbind(-1)
                first = part.first.permute(0, 3, 1, 2)[keys]
                known = part.known()
                seen = torch.ones((), dtype=torch.bool, device=first.device).expand_as(first)
                if known is not None:
                    seen = known.expand_as(part.first).permute(0, 3, 1, 2)[keys]
                of_keys = second[part.sequences, :, part.keys].transpose(1, 2)[keys]
                self._passed.append((first, seen, of_keys, groups[places.unbind(-1)]))
                if self.passed > MOST_PASSED:
                    self.settle()
            yield part

    @property
    def passed(self) -> int:
        """How many pairs have passed since the last `settle`, with those that do not count."""
        return sum(first.numel() for first, *_ in self._passed)

    def settle(self) -> None:
        """Tell pairs that count from others, and drop those of groups that have too many."""
        for first, seen, second, group in self._passed:
            counts = seen.sum(dim=-1)
            dtype = torch.promote_types(first.dtype, _NUMBERS)
            pairs = PairsOfKeys(
                first[seen].to(dtype).cpu(),
                second.flatten().to(dtype).cpu(),
                counts.flatten().cpu(),
                group[:, None].expand(counts.shape).flatten(),
            )
            totals = torch.zeros_like(self._totals).index_add(0, pairs.group, pairs.counts)
            self._add(pairs.of(pairs.counts > 0), totals)
        self._passed = []

    @property
    def _has_room(self) -> Bool[Tensor, " group"]:
        return self._totals <= self._most

    def _add(self, pairs: PairsOfKeys, totals: Int[Tensor, " group"]) -> None:
        had_room, self._is_ordered = self._has_room, False
        self._totals = (self._totals + totals).clamp(max=self._most + 1)
        self._parts.append(pairs.of(self._has_room[pairs.group]))
        if (had_room & ~self._has_room).any():
            self._parts = [part.of(self._has_room[part.group]) for part in self._parts]

    def total(self, groups: Sequence[int]) -> int | None:
        """The number of pairs of some groups together, if all of them are held."""
        self.settle()
        return int(self._totals[groups].sum()) if self._has_room[groups].all() else None

    def pairs(self, groups: Sequence[int]) -> PairsOfKeys:
        """The pairs of some groups."""
        pairs = self._ordered()
        return pairs.of(torch.isin(pairs.group, torch.tensor(groups)))

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, as copies on the CPU."""
        held = {f"held_{name}": tensor.clone() for name, tensor in self._ordered()._asdict().items()}
        return held | {"totals": self._totals.clone()}

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of another of the same groups."""
        self.settle()
        self._add(PairsOfKeys(*(state[f"held_{name}"] for name in PairsOfKeys._fields)), state["totals"])

    def _ordered(self) -> PairsOfKeys:
        self.settle()
        if not self._is_ordered or not self._parts:
            self._parts, self._is_ordered = [PairsOfKeys.together(self._parts).ordered()], True
        return self._parts[0]
