"""A uniform sample of a stream, independent of its order and batches."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError

# Draws come in pieces of fixed size, so the first n never depend on how many follow.
_PIECE = 64


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
        draws = [self._draws(name, population, self._limit) for name, population in populations]
        sizes = [len(positions) for _, positions in draws]
        if not sum(sizes):
            return
        priorities, positions = (np.concatenate(parts) for parts in zip(*draws, strict=True))
        self._lower_limit(priorities)
        enter = priorities <= self._limit
        rows = take(np.repeat(np.arange(len(draws)), sizes)[enter], positions[enter])
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

    def _draws(self, name: tuple[int, ...], population: int, limit: float) -> tuple[np.ndarray, np.ndarray]:
        """The smallest priorities of a population, as long as they are below a limit, and their positions."""
        # Two generators: the number of gaps drawn depends on the limit, and the positions must not.
        generator = np.random.default_rng([self._seed, *name, 0])
        wanted = min(population, self._size)
        gaps = np.zeros(0)
        positions: dict[int, None] = {}  # in order of drawing, each once
        total = 0.0
        while len(gaps) < wanted and total <= -np.log1p(-min(limit, 1 - 1e-16)):
            # −log(1 − U_(i)) grows in exponential steps of mean 1 / (rows left).
            left = population - np.arange(len(gaps), len(gaps) + _PIECE)
            gaps = np.concatenate([gaps, generator.exponential(size=_PIECE) / left.clip(min=1)])
            total = float(gaps.sum())
        priorities = -np.expm1(-gaps.cumsum()[:wanted])
        priorities = priorities[priorities < limit] if limit < 1 else priorities
        places = np.random.default_rng([self._seed, *name, 1]) if len(priorities) else generator
        while len(positions) < len(priorities):
            positions.update(dict.fromkeys(places.integers(population, size=_PIECE).tolist()))
        return priorities, np.fromiter(positions, dtype=np.int64)[: len(priorities)]
