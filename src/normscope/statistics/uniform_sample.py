"""A uniform sample of a stream, independent of its order and batches."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError

# Draws come in pieces of fixed size, so the first n never depend on how many follow.
_PIECE = 16
_SPARE = 4  # pragma: no mutate
"""Positions that are drawn in place of equal ones."""


class UniformSample(Accumulator):
    """Keeps a uniform sample without replacement of all rows offered.

    Every row has a random priority; the sample is the rows with the smallest priorities. Rows come in populations (such
    as the pairs of one sequence in one layer), each named by numbers. A population's priorities depend only on its name
    and the seed, so order, batches and splits over processes do not change the sample. A population of n rows costs
    only as many draws as can still enter, not n: its smallest priorities are drawn in increasing order, as the order
    statistics of n uniform numbers, until one is too large.

    Args:
        size: Number of rows to keep.
        columns: Number of columns in a row.
        seed: Seed of the priorities.
    """

    def __init__(self, size: int, columns: int, seed: int) -> None:
        self._size, self._columns, self._seed = size, columns, seed
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._priorities = torch.zeros(0, dtype=torch.float64)
        self._rows = torch.zeros(0, self._columns, dtype=torch.float64)
        self._lowest = np.zeros(0)
        """The smallest priorities so far, at most `size`, in any order."""
        self._limit = 1.0
        """Rows with a larger priority cannot enter."""
        # Rows that have entered since the sample was last cut to size, on their device.
        self._entered: list[tuple[Tensor, Tensor]] = []

    def update(
        self,
        populations: Sequence[tuple[tuple[int, ...], int]],
        take: Callable[[np.ndarray, np.ndarray], Float[Tensor, "row column"]],
    ) -> None:
        """Offer the rows of several populations.

        Args:
            populations: The name of each, some non-negative numbers, and its number of rows.
            take: Returns the rows that enter, given the number of each row's population, from 0, and its position there.
        """
        # Until the sample is full, most rows would be drawn only to be dropped: a lower limit is tried first.
        limit = min(self._limit, 1.5 * self._size / max(1, sum(rows for _, rows in populations)))
        which, priorities, positions = self._draws(populations, limit)
        if len(which) < self._size and limit < self._limit:
            which, priorities, positions = self._draws(populations, self._limit)
        if not len(which):
            return
        self._lower_limit(priorities)
        enter = priorities <= self._limit
        rows = take(which[enter], positions[enter])
        self._entered.append((torch.from_numpy(priorities[enter]), rows))

    def settle(self) -> None:
        """Cut the sample to size once enough rows have entered."""
        if sum(len(rows) for _, rows in self._entered) > self._size // 4:
            self._cut()

    def compute(self) -> Float[Tensor, "row column"]:
        """The rows of the sample, in random order.

        Raises:
            EmptyAccumulatorError: If nothing has been offered.
        """
        self._cut()
        if not len(self._rows):
            raise EmptyAccumulatorError("no row has been offered")
        return self._rows.clone()

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state."""
        self._cut()
        return {"priorities": self._priorities.clone(), "rows": self._rows.clone()}

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the rows of another sample of the same size and seed."""
        self._entered.append((state["priorities"].clone(), state["rows"].clone()))
        self._lower_limit(state["priorities"].numpy())
        self._cut()

    def _cut(self) -> None:
        if not self._entered:
            return
        entered = [(priorities, rows.cpu().double()) for priorities, rows in self._entered]
        priorities, rows = (torch.cat(part) for part in zip((self._priorities, self._rows), *entered, strict=True))
        self._entered = []
        order = priorities.argsort(stable=True)[: self._size]
        self._priorities, self._rows = priorities[order], rows[order]

    def _lower_limit(self, priorities: np.ndarray) -> None:
        """Lower the limit if rows with these priorities do so."""
        self._lowest = np.concatenate([self._lowest, priorities])
        if len(self._lowest) > self._size:
            self._lowest = np.partition(self._lowest, self._size)[: self._size]
        if len(self._lowest) >= max(1, self._size):
            self._limit = float(self._lowest.max())

    def _draws(
        self, populations: Sequence[tuple[tuple[int, ...], int]], limit: float
    ) -> tuple[Int[np.ndarray, " row"], Float[np.ndarray, " row"], Int[np.ndarray, " row"]]:
        """The rows whose priorities are at most a limit, and of each population no more than the sample can hold: the number
        of its population, its priority and its position."""
        # Two streams: the number of gaps drawn depends on the limit, and the positions must not.
        keys = [[_key(self._seed, *name, stream) for name, _ in populations] for stream in range(2)]
        gap_keys, place_keys = np.array(keys, dtype=np.uint64)
        rows = np.array([rows for _, rows in populations], dtype=np.int64)
        open_, totals = np.arange(len(rows)), np.zeros(len(rows))
        drawn = [(open_[:0], totals[:0])]
        for start in range(0, self._size, _PIECE):
            # −log(1 − U_(i)) grows in exponential steps of mean 1 / (rows left).
            number = np.arange(start, start + _PIECE)
            left = rows[open_, None] - number
            gaps = -np.log1p(-_uniform(gap_keys[open_, None], number)) / left.clip(min=1)
            priorities = -np.expm1(-(totals[open_, None] + gaps.cumsum(axis=1)))
            enter = (left > 0) & (number < self._size) & (priorities <= limit)
            drawn.append((open_[enter.nonzero()[0]], priorities[enter]))
            totals[open_] += gaps.sum(axis=1)
            open_ = open_[enter[:, -1]]
            if not len(open_):
                break
        which, priorities = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        order = which.argsort(kind="stable")
        places = _places(place_keys, rows, np.bincount(which, minlength=len(rows)))
        return which[order], priorities[order], places


def _key(*numbers: int) -> int:
    """64 bits that stand for some numbers."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")


def _uniform(keys: UInt64[np.ndarray, "*#row"], number: Int[np.ndarray, "*#row"]) -> Float[np.ndarray, "*row"]:
    """Uniform numbers below 1, by the stream's key and their number in it.

    SplitMix64 (Steele, Lea and Flood 2014): any number of any stream costs the same, so those of all streams are made at once.
    """
    state = keys + (number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((state ^ (state >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def _places(
    keys: UInt64[np.ndarray, " population"],
    rows: Int[np.ndarray, " population"],
    counts: Int[np.ndarray, " population"],
) -> Int[np.ndarray, " row"]:
    """For each population in turn, the first numbers below its number of rows that differ, in its stream.

    The first n of a population depend neither on how many are asked for nor on the other populations.
    """
    asked = counts.nonzero()[0]
    found = [np.zeros((0, 2), dtype=np.int64)]
    spare = _SPARE
    while len(asked):
        drawn = counts[asked] + spare
        which, starts = np.repeat(asked, drawn), drawn.cumsum() - drawn
        number = np.arange(len(which)) - np.repeat(starts, drawn)
        places = (_uniform(keys[which], number) * rows[which]).astype(np.int64)
        # In the order of the stream, those that no earlier one of their population equals.
        order = np.lexsort([places, which])
        again = np.append(False, (np.diff(places[order]) == 0) & (np.diff(which[order]) == 0))
        first = np.ones(len(which), dtype=bool)
        first[order[again]] = False
        rank = first.cumsum()
        rank -= np.repeat(rank[starts] - 1, drawn)
        missing = np.add.reduceat(first, starts, dtype=np.int64) < counts[asked]
        keep = first & (rank <= counts[which]) & ~np.repeat(missing, drawn)
        found.append(np.stack([which[keep], places[keep]], axis=1))
        asked, spare = asked[missing], 2 * spare
    every = np.concatenate(found)
    return every[every[:, 0].argsort(kind="stable"), 1]
