"""Counts of pairs of positive numbers on a two-dimensional logarithmic grid, in bounded memory."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.tensors import lanes, pieces, to_device, wide
from normscope.statistics.accumulator import accumulation_device

Seen = Bool[Tensor, "#batch #head #query #key"] | Callable[[], Tensor]
"""Which pairs of a query and a key count."""

_INT32_MAX = 2**31 - 1
_WHOLE = 2**24  # pragma: no mutate
"""Most cells of a grid that is stored whole: 64 MiB. Larger grids would take too much of an accelerator's memory."""
_SHIFT = 0.43
"""In cells. With this number, no 1/n and no n up to 2,048 is near an edge of an axis in use; a test counts them."""
# Pairs counted at a time, few enough that their cells stay in the processor's cache.
_PIECE = 2**18  # pragma: no mutate
_PIECE_ON_ACCELERATORS = 2**24  # pragma: no mutate


@dataclasses.dataclass(frozen=True)
class Axis:
    """A logarithmic grid for positive numbers, read off the bits of a float32: exponent and leading mantissa bits.

    It is monotone, needs no logarithm, and is the same in every process that shares a corpus. Edges of cells lie beside the
    numbers that occur most often, such as 1, 1/2 and whole numbers: equal numbers that rounding has made different rarely fall
    into two cells.
    """

    lowest_exponent: int
    """Zero and all numbers below 2^lowest_exponent · (1 + 2^−bits) share the first cell."""
    highest_exponent: int
    """All numbers from 2^highest_exponent upwards share the last cell."""
    bits: int
    """There are 2^bits cells per factor of two, equally wide."""
    tolerance: float = 0.0
    """Relative. Numbers closer than this may be equal, or in the other order: rounding decides."""

    @property
    def cells(self) -> int:
        """Number of cells."""
        return ((self.highest_exponent - self.lowest_exponent) << self.bits) + 1

    @property
    def shift(self) -> int:
        """How far below an edge of the bits an edge of a cell lies, in units of a float32's last bit."""
        return int(_SHIFT * (1 << 23 - self.bits))

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
        places = torch.add(_bits(values), self.shift, out=out).bitwise_right_shift_(23 - self.bits)
        return places.clamp_(self.origin, self.origin + self.cells - 1)

    def near_edge(self, values: Float[Tensor, "..."], out: Int[Tensor, "..."] | None = None) -> Int[Tensor, "..."]:
        """−1 for numbers so close to an edge that rounding may have moved them across it, and 0 for others.

        As 32-bit numbers, since comparing and counting truth values takes twice as long on a CPU.

        Args:
            values: The numbers.
            out: Holds the result, if given.
        """
        size = 1 << 23 - self.bits
        # The last bit of a float32 is between 2^−24 and 2^−23 of a number.
        reach = min(math.ceil(self.tolerance * 2**24), size // 2)
        above = torch.add(_bits(values), self.shift + reach, out=out).bitwise_and_(size - 1)
        return above.sub_(2 * reach).bitwise_right_shift_(31)


class PairsPart(NamedTuple):
    """Some queries' pairs with some keys."""

    first: Float[Tensor, "some head query key"]
    """The number that depends on the query; ≥ 0."""
    sequences: slice = slice(None)
    keys: slice = slice(None)
    seen: Seen | None = None
    """Which pairs count, or a function that returns this; None if all do."""
    unseen: Int[Tensor, "some #head #key"] | None = None
    """For each key, how many of the queries' pairs with it do not count, if `first` is zero there. It spares `seen`."""

    def known(self) -> Bool[Tensor, "#some #head #query #key"] | None:
        """Which pairs count; None if all do."""
        return self.seen() if callable(self.seen) else self.seen


def _bits(values: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    return values.float().contiguous().view(torch.int32)


class PairHistogram:
    """Counts pairs by group; also how many lie near edges, and which range of the second number every cell holds.

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
        # Axes lane, and second × group × first, so that a key's cells are neighbours in memory; then extra cells for pairs that
        # do not count. The counts are the sums over lanes, each of which is counted by another thread.
        self._flat = torch.zeros(1, first.cells, dtype=torch.int32)
        # First and last cell of the second axis that occur, on the device.
        self._low = torch.tensor(second.cells, dtype=torch.int32)
        self._high = torch.tensor(-1, dtype=torch.int32)
        self._pairs = 0
        self._near = torch.zeros(2, dtype=torch.int64)
        self._smallest = torch.full((second.cells,), math.inf, dtype=torch.float64)
        self._largest = torch.full((second.cells,), -math.inf, dtype=torch.float64)

    @property
    def near(self) -> Int[Tensor, "2"]:
        """How many pairs have a first and a second number near an edge of a cell; see `Axis.near_edge`."""
        return self._near.cpu()

    @property
    def ranges(self) -> tuple[Float[Tensor, " second"], Float[Tensor, " second"]]:
        """The smallest and the largest second number of every cell; infinite if it is empty."""
        return self._smallest.cpu(), self._largest.cpu()

    @property
    def low(self) -> int:
        """First cell of the second axis that occurs."""
        return int(self._low)

    @property
    def counts(self) -> Int[Tensor, "first second group"]:
        """The counts; the second axis covers the cells that occur, from `low` on."""
        return self._cells(self.low, int(self._high)).sum(dim=0, dtype=self._flat.dtype)

    @property
    def is_empty(self) -> bool:
        """Whether no pair has been counted."""
        return int(self._high) < 0

    def add(
        self,
        second: Float[Tensor, "batch head key"],
        group: Int[Tensor, "batch key"],
        parts: Iterable[PairsPart],
    ) -> None:
        """Count pairs (first_bhqk, second_bhk).

        Args:
            second: The number of each key.
            group: Group of each key; −1 leaves the key out.
            parts: The pairs, with the number that depends on the query. `unseen` is subtracted from the first cell.
        """
        rows: Tensor | None = None
        unseen: Tensor | None = None
        for part in parts:
            if part.first.numel() == 0:
                continue
            if rows is None:
                rows = self._rows_of(second, group)
                base = (rows - self._first.origin).unsqueeze(2)
                counter = _Counter(self._first, base.device)
                near = self._second.near_edge(second).masked_fill_((group < 0)[:, None, :], 0)
            self._make_room_for(part.first.numel())
            hidden = None
            if part.unseen is None:
                seen = part.known()
                hidden = None if seen is None else ~seen.expand(len(part.first), -1, -1, -1)
            counter.count(self._flat, part.first, base[part.sequences, :, :, part.keys], hidden, self._elsewhere)
            if self._second.tolerance:
                pairs = _pairs_of_keys(part, hidden)
                self._near[1] -= (near[part.sequences, :, part.keys] * pairs).sum()
            if part.unseen is not None:
                if unseen is None:
                    unseen = torch.zeros_like(rows)
                unseen[part.sequences, :, part.keys] += part.unseen
        if rows is not None:
            self._near[0] += counter.near
        if rows is not None and unseen is not None:
            self._flat[0].index_add_(0, rows.flatten(), unseen.neg_().to(self._flat.dtype).flatten())

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, as copies on the CPU."""
        return {
            "low": torch.tensor(self.low),
            "counts": self.counts.cpu().clone(memory_format=torch.contiguous_format),
            "near": self._near.cpu().clone(),
            "smallest": self._smallest.cpu().clone(),
            "largest": self._largest.cpu().clone(),
        }

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of another histogram of the same grids."""
        low, counts = int(state["low"]), state["counts"]
        if counts.numel() == 0:
            return
        device = self._near.device
        self._near = self._near + state["near"].to(device)
        self._smallest = torch.minimum(self._smallest, state["smallest"].to(device))
        self._largest = torch.maximum(self._largest, state["largest"].to(device))
        high = low + counts.shape[1] - 1
        self._pairs += int(counts.sum())
        self._hold(*torch.tensor([low, high], dtype=torch.int32, device=self._flat.device))
        with torch.inference_mode():  # counts from a forward pass cannot be updated in place outside it
            self._cells(low, high)[0].add_(counts.to(self._flat))

    def table(self, groups: Sequence[int]) -> tuple[int, np.ndarray]:
        """First cell of the second axis, and the counts (first × second) of some groups together."""
        by_key = self._cells(self.low, int(self._high)).permute(0, 2, 3, 1)  # as in memory
        return self.low, by_key[:, :, list(groups)].sum(dim=(0, 2)).T.cpu().numpy()

    def _cells(self, low: int, high: int) -> Int[Tensor, "lane first second group"]:
        """The stored counts of a range of the second axis."""
        stored = self._flat[:, : -self._first.cells].unflatten(1, (-1, self._groups, self._first.cells))
        return stored.permute(0, 3, 1, 2)[:, :, low - self._start : high + 1 - self._start]

    @property
    def _elsewhere(self) -> int:
        """Where pairs are counted that do not count."""
        return self._flat.shape[1] - self._first.cells

    def _rows_of(
        self, second: Float[Tensor, "batch head key"], group: Int[Tensor, "batch key"]
    ) -> Int[Tensor, "batch head key"]:
        """Where the cells of each key begin."""
        cells = self._second.cell(second)
        self._hold(*cells.aminmax())
        self._extend_ranges(cells, second, (group >= 0)[:, None, :].expand_as(second))
        rows = cells.sub_(self._start).mul_(self._groups).add_(group.int()[:, None, :]).mul_(self._first.cells)
        return rows.masked_fill_((group < 0)[:, None, :], self._elsewhere)

    def _extend_ranges(self, cells: Tensor, second: Tensor, counted: Tensor) -> None:
        device = accumulation_device(second.device)
        index, values, counted = cells.long().to(device).flatten(), wide(second).flatten(), counted.to(device).flatten()
        for ranges, reduce, nothing in ((self._smallest, "amin", math.inf), (self._largest, "amax", -math.inf)):
            ranges.scatter_reduce_(0, index, values.masked_fill(~counted, nothing), reduce)

    def _make_room_for(self, pairs: int) -> None:
        """Count in 64 bits as soon as there may be more pairs than 32 bits hold."""
        self._pairs += pairs
        if self._pairs > _INT32_MAX and self._flat.dtype != torch.int64:
            self._hold(self._low, self._high)

    def _hold(self, low: Int[Tensor, ""], high: Int[Tensor, ""]) -> None:
        """Make room for a range of cells of the second axis, on its device, and for as many pairs as there are now."""
        device = low.device
        low = torch.minimum(to_device(self._low, device), low)
        high = torch.maximum(to_device(self._high, device), high)
        dtype = torch.int64 if self._pairs > _INT32_MAX else torch.int32
        start, stop = (0, self._second.cells) if self._is_whole else (int(low), int(high) + 1)
        size = self._first.cells * ((stop - start) * self._groups + 1)
        shape = (lanes(device), size)
        if (self._flat.shape, self._flat.dtype, self._flat.device) != (shape, dtype, device):
            first, counts = self.low, self.counts
            self._start, self._flat = start, _zeros(shape, dtype, device)
            if counts.numel():
                self._cells(first, first + counts.shape[1] - 1)[0].copy_(counts)
        self._low, self._high = low, high
        sums = accumulation_device(device)
        self._near, self._smallest, self._largest = (
            to_device(tensor, sums) for tensor in (self._near, self._smallest, self._largest)
        )


class _Counter:
    """Counts numbers in the cells of a grid, piece by piece, in memory that is used again.

    Args:
        axis: The grid.
        device: Where the numbers are.
    """

    def __init__(self, axis: Axis, device: torch.device) -> None:
        self._axis, self._device = axis, device
        self._at_once = _PIECE if device.type == "cpu" else _PIECE_ON_ACCELERATORS
        self._hold(0, torch.int32)
        self.near = torch.zeros((), dtype=torch.int64, device=device)
        """How many of the numbers lie near an edge."""

    def _hold(self, size: int, dtype: torch.dtype) -> None:
        """Make room for a number of places, and for what each number adds to counts of a dtype."""
        self._places = torch.empty(size, dtype=torch.int32, device=self._device)
        self._index = torch.empty(size, dtype=torch.int64, device=self._device)
        self._ones = torch.ones(size, dtype=dtype, device=self._device)

    def count(
        self,
        counts: Int[Tensor, "lane cell"],
        numbers: Float[Tensor, "batch head query key"],
        base: Int[Tensor, "batch head 1 key"],
        hidden: Bool[Tensor, "batch #head #query #key"] | None,
        elsewhere: int,
    ) -> None:
        """Add one to a cell for each number.

        Args:
            counts: The counts, which are updated.
            base: Where the cells of each key begin, less the grid's `origin`.
            hidden: Which numbers do not count; None if all do.
            elsewhere: Where these are counted.
        """
        sequences, heads, *pairs = numbers.shape
        at_once = max(1, self._at_once // math.prod(pairs))
        for some in pieces(slice(0, sequences), at_once // heads):
            for of in pieces(slice(0, heads), at_once):
                part = None if hidden is None else hidden[some, of if hidden.shape[1] > 1 else slice(None)]
                self._count_piece(counts, numbers[some, of], base[some, of], part, elsewhere)

    def _count_piece(
        self, counts: Tensor, numbers: Tensor, base: Tensor, hidden: Tensor | None, elsewhere: int
    ) -> None:
        number, by_lane = numbers.numel(), (len(counts), -(-numbers.numel() // len(counts)))
        if len(self._ones) < math.prod(by_lane) or self._ones.dtype != counts.dtype:
            self._hold(math.prod(by_lane), counts.dtype)
        numbers, out = numbers.float().contiguous(), self._places[:number].view(numbers.shape)
        places = self._axis.place(numbers, out).add_(base)
        if hidden is not None:
            places.masked_fill_(hidden, elsewhere)
        index = self._index[: math.prod(by_lane)]
        index[:number].copy_(places.view(-1))
        index[number:] = elsewhere
        # Twice as fast as `index_add_` or `bincount` on a CPU.
        counts.scatter_add_(1, index.view(by_lane), self._ones[: len(index)].view(by_lane))
        if self._axis.tolerance:
            near = self._axis.near_edge(numbers, out)
            self.near -= (near if hidden is None else near.masked_fill_(hidden, 0)).sum(dtype=torch.int32)


def _pairs_of_keys(part: PairsPart, hidden: Tensor | None) -> Int[Tensor, "some #head #key"]:
    """How many pairs with each key count."""
    queries = part.first.shape[2]
    if part.unseen is not None:
        return queries - part.unseen
    if hidden is None:
        return torch.full((1, 1, 1), queries, device=part.first.device)
    return hidden.logical_not().expand(-1, -1, queries, -1).sum(dim=2)


def _zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Int[Tensor, "lane cell"]:
    """Zeros. On a CPU they are NumPy's, which take no memory until they are written to."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(shape, dtype=np.int64 if dtype == torch.int64 else np.int32))
    return torch.zeros(shape, dtype=dtype, device=device)
