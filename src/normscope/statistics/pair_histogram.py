"""Counts of pairs of positive numbers on a two-dimensional logarithmic grid, in bounded memory."""

import dataclasses

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_INT32_MAX = 2**31 - 1
# Pairs counted at a time, few enough that their cells stay in the processor's cache.
_PIECE = 2**19  # pragma: no mutate


@dataclasses.dataclass(frozen=True)
class Axis:
    """A logarithmic grid for positive numbers, read off the bits of a float32: exponent and leading mantissa bits.

    It is monotone, needs no logarithm, and is the same in every process that shares a corpus.
    """

    lowest_exponent: int
    """Zero and all numbers below 2^lowest_exponent · (1 + 2^−bits) share the first cell."""
    highest_exponent: int
    """All numbers from 2^highest_exponent upwards share the last cell."""
    bits: int
    """There are 2^bits cells per factor of two, equally wide."""

    @property
    def cells(self) -> int:
        """Number of cells."""
        return ((self.highest_exponent - self.lowest_exponent) << self.bits) + 1

    def cell(self, values: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The cell of each number, as int32."""
        cells = values.float().contiguous().view(torch.int32) >> (23 - self.bits)
        return cells.sub_((self.lowest_exponent + 127) << self.bits).clamp_(0, self.cells - 1)


class PairHistogram:
    """Counts pairs by group. Only the range of the second grid that occurs is stored.

    Args:
        first, second: The grids.
        groups: Number of groups.
    """

    def __init__(self, first: Axis, second: Axis, groups: int) -> None:
        self._first, self._second, self._groups = first, second, groups
        self.low = 0
        # Axes first × second × group, then one extra cell for pairs that do not count.
        self._flat = torch.zeros(1, dtype=torch.int32)
        self._pairs = 0

    @property
    def counts(self) -> Int[Tensor, "first second group"]:
        """The counts; the second axis begins at cell `low`."""
        return self._flat[:-1].view(self._first.cells, -1, self._groups)

    def add(
        self,
        first: Float[Tensor, "batch head query key"],
        second: Float[Tensor, "batch head key"],
        group: Int[Tensor, "batch key"],
        seen: Bool[Tensor, "#batch #head #query #key"] | None,
    ) -> None:
        """Count the pairs (first_bhqk, second_bhk).

        Args:
            first: The number that depends on the query.
            second: The number that does not.
            group: Group of each key; −1 leaves the key out.
            seen: Which pairs count; None if all do.
        """
        if first.numel() == 0:
            return
        cells = self._second.cell(second)
        self._hold(int(cells.min()), int(cells.max()), second.device)
        self._pairs += first.numel()
        if self._pairs > _INT32_MAX:
            self._flat = self._flat.long()
        base = cells.sub_(self.low).mul_(self._groups).add_(group.clamp(min=0).int()[:, None, :])
        left_out = (group < 0)[:, None, None, :]
        hidden = left_out if seen is None else left_out | ~seen
        rows = max(1, _PIECE // max(1, first[0].numel()))
        for start in range(0, len(first), rows):
            piece = slice(start, start + rows)
            self._add(first[piece], base[piece], hidden[piece])

    def _add(self, first: Tensor, base: Tensor, hidden: Tensor) -> None:
        width = self.counts.shape[1]
        index = self._first.cell(first).mul_(width * self._groups).add_(base.unsqueeze(2))
        if bool(hidden.any()):
            index.masked_fill_(hidden, self._flat.numel() - 1)
        self._flat.index_add_(0, index.flatten(), self._flat.new_ones(1).expand(index.numel()))

    def merge(self, low: int, counts: Int[Tensor, "first second group"]) -> None:
        """Add the counts of another histogram of the same grids."""
        if counts.numel() == 0:
            return
        counts = counts.to(self._flat.device)
        self._hold(low, low + counts.shape[1] - 1, self._flat.device)
        self._pairs += int(counts.sum())
        if self._pairs > _INT32_MAX:
            self._flat = self._flat.long()
        offset = low - self.low
        with torch.inference_mode():  # counts from a forward pass cannot be updated in place outside it
            self.counts[:, offset : offset + counts.shape[1]] += counts.to(self._flat.dtype)

    def table(self, group: int | None) -> tuple[int, np.ndarray]:
        """First cell of the second axis, and the counts (first × second) of one group, or of all if None."""
        counts = self.counts.sum(dim=-1) if group is None else self.counts[:, :, group]
        return self.low, counts.cpu().numpy().astype(np.int64)

    def _hold(self, low: int, high: int, device: torch.device) -> None:
        """Make room for these cells of the second axis."""
        held = self.counts
        if held.numel():
            low, high = min(low, self.low), max(high, self.low + held.shape[1] - 1)
            if (low, high - low + 1) == (self.low, held.shape[1]) and held.device == device:
                return
        cells = self._first.cells * (high - low + 1) * self._groups
        flat = torch.zeros(cells + 1, dtype=self._flat.dtype, device=device)
        wider = flat[:-1].view(self._first.cells, -1, self._groups)
        if held.numel():
            wider[:, self.low - low : self.low - low + held.shape[1]] = held
        self._flat, self.low = flat, low
