"""Counts of pairs of positive numbers on a two-dimensional logarithmic grid, in bounded memory."""

import dataclasses
import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.pieces import pieces
from normscope.maths.transfers import to_device

_INT32_MAX = 2**31 - 1
_WHOLE = 2**24  # pragma: no mutate
"""Most cells of a grid that is stored whole: 64 MiB. Larger grids would take too much of an accelerator's memory."""
# Pairs counted at a time, few enough that their cells stay in the processor's cache.
_PIECE = 2**17  # pragma: no mutate
_PIECE_ON_ACCELERATORS = 2**24  # pragma: no mutate


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
        return self.place(values).sub_(self.origin)

    @property
    def origin(self) -> int:
        """The place of the first cell."""
        return (self.lowest_exponent + 127) << self.bits

    def place(self, values: Float[Tensor, "..."], out: Int[Tensor, "..."] | None = None) -> Int[Tensor, "..."]:
        """The cell of each number plus `origin`, in one pass less.

        Args:
            values: The numbers.
            out: Holds the result, if given.
        """
        places = torch.bitwise_right_shift(values.float().contiguous().view(torch.int32), 23 - self.bits, out=out)
        return places.clamp_(self.origin, self.origin + self.cells - 1)


class PairHistogram:
    """Counts pairs by group.

    A grid of at most `_WHOLE` cells is stored whole. Of a larger grid (if there are many groups), only the range of the second
    axis that occurs is stored, and every update waits for the device to report that range.

    Args:
        first, second: The grids.
        groups: Number of groups.
    """

    def __init__(self, first: Axis, second: Axis, groups: int) -> None:
        self._first, self._second, self._groups = first, second, groups
        self._is_whole = first.cells * second.cells * groups <= _WHOLE
        self._start = 0
        """First cell of the second axis that is stored."""
        # Axes second × group × first, so that a key's cells are neighbours in memory; then extra cells for pairs that do not
        # count.
        self._flat = torch.zeros(first.cells, dtype=torch.int32)
        # First and last cell of the second axis that occur, on the device.
        self._low = torch.tensor(second.cells, dtype=torch.int32)
        self._high = torch.tensor(-1, dtype=torch.int32)
        self._pairs = 0

    @property
    def low(self) -> int:
        """First cell of the second axis that occurs."""
        return int(self._low)

    @property
    def counts(self) -> Int[Tensor, "first second group"]:
        """The counts; the second axis covers the cells that occur, from `low` on."""
        return self._cells(self.low, int(self._high))

    def add(
        self,
        first: Float[Tensor, "batch head query key"],
        second: Float[Tensor, "batch head key"],
        group: Int[Tensor, "batch key"],
        seen: Bool[Tensor, "#batch #head #query #key"] | None,
        *,
        unseen: Int[Tensor, "batch #head #key"] | None = None,
    ) -> None:
        """Count the pairs (first_bhqk, second_bhk).

        Args:
            first: The number that depends on the query.
            second: The number that does not.
            group: Group of each key; −1 leaves the key out.
            seen: Which pairs count; None if all do.
            unseen: Instead of `seen`, if `first` is zero wherever a pair does not count: for each key, the number of queries
                whose pair with it does not count. These are counted with the others, then subtracted from the first cell.
        """
        if first.numel() == 0:
            return
        cells = self._second.cell(second)
        self._pairs += first.numel()
        self._hold(*cells.aminmax())
        elsewhere = self._flat.numel() - self._first.cells
        rows_of = cells.sub_(self._start).mul_(self._groups).add_(group.int()[:, None, :]).mul_(self._first.cells)
        rows_of.masked_fill_((group < 0)[:, None, :], elsewhere)
        base = (rows_of - self._first.origin).unsqueeze(2)
        hidden = None if seen is None else ~seen.expand(len(first), -1, -1, -1)
        sequences, heads, *pairs = first.shape
        at_once = max(1, (_PIECE if self._flat.device.type == "cpu" else _PIECE_ON_ACCELERATORS) // math.prod(pairs))
        size = max(1, min(sequences, at_once // heads)) * min(heads, at_once) * math.prod(pairs)
        # Used again for every piece, so that they stay in the cache.
        places, index = (torch.empty(size, dtype=dtype, device=base.device) for dtype in (torch.int32, torch.int64))
        ones = self._flat.new_ones(size)
        for some in pieces(slice(0, sequences), at_once // heads):
            for of in pieces(slice(0, heads), at_once):
                part = first[some, of]
                count = part.numel()
                place = self._first.place(part, out=places[:count].view(part.shape)).add_(base[some, of])
                if hidden is not None:
                    place.masked_fill_(hidden[some, of if hidden.shape[1] > 1 else slice(None)], elsewhere)
                # Twice as fast as `index_add_` or `bincount` on a CPU.
                self._flat.scatter_add_(0, index[:count].copy_(places[:count]), ones[:count])
        if unseen is not None:
            self._flat.index_add_(0, rows_of.flatten(), -unseen.to(self._flat.dtype).expand_as(rows_of).flatten())

    def merge(self, low: int, counts: Int[Tensor, "first second group"]) -> None:
        """Add the counts of another histogram of the same grids."""
        if counts.numel() == 0:
            return
        high = low + counts.shape[1] - 1
        self._pairs += int(counts.sum())
        self._hold(*torch.tensor([low, high], dtype=torch.int32, device=self._flat.device))
        with torch.inference_mode():  # counts from a forward pass cannot be updated in place outside it
            self._cells(low, high).add_(counts.to(self._flat))

    def table(self, group: int | None) -> tuple[int, np.ndarray]:
        """First cell of the second axis, and the counts (first × second) of one group, or of all if None."""
        counts = self.counts.sum(dim=-1) if group is None else self.counts[:, :, group]
        return self.low, counts.cpu().numpy().astype(np.int64)

    def _cells(self, low: int, high: int) -> Int[Tensor, "first second group"]:
        """The stored counts of a range of the second axis."""
        stored = self._flat[: -self._first.cells].view(-1, self._groups, self._first.cells).permute(2, 0, 1)
        return stored[:, low - self._start : high + 1 - self._start]

    def _hold(self, low: Int[Tensor, ""], high: Int[Tensor, ""]) -> None:
        """Make room for a range of cells of the second axis, on its device, and for as many pairs as there are now."""
        device = low.device
        low = torch.minimum(to_device(self._low, device), low)
        high = torch.maximum(to_device(self._high, device), high)
        dtype = torch.int64 if self._pairs > _INT32_MAX else torch.int32
        start, stop = (0, self._second.cells) if self._is_whole else (int(low), int(high) + 1)
        size = self._first.cells * ((stop - start) * self._groups + 1)
        if (self._flat.numel(), self._flat.dtype, self._flat.device) != (size, dtype, device):
            first, counts = self.low, self.counts
            self._start, self._flat = start, _zeros(size, dtype, device)
            if counts.numel():
                self._cells(first, first + counts.shape[1] - 1).copy_(counts)
        self._low, self._high = low, high


def _zeros(size: int, dtype: torch.dtype, device: torch.device) -> Int[Tensor, " cell"]:
    """Zeros. On a CPU they are NumPy's, which take no memory until they are written to."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(size, dtype=np.int64 if dtype == torch.int64 else np.int32))
    return torch.zeros(size, dtype=dtype, device=device)
