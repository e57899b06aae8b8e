"""Means by integer keys that are not known in advance."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError

_FEWEST_ADDED = 1000
"""Observations that are always held back before they are added up."""


@dataclasses.dataclass(frozen=True, eq=False)
class KeyedSummary:
    """The result of `KeyedMeans`, in increasing order of the keys."""

    keys: Int[Tensor, "row key"]
    mean: Float[Tensor, "row value"]
    count: Int[Tensor, " row"]
    """Number of terms of each mean."""


class KeyedMeans(Accumulator):
    """Accumulates sums and their numbers of terms by key; sums in float64. It grows with the number of distinct keys.

    With a `size`, only the smallest keys are kept. If keys are hashes, these are a uniform sample of all, and the same one
    whatever the order of the stream.

    Args:
        keys: Number of integers in a key.
        values: Number of sums of a key.
        size: Number of keys to keep; None keeps all.
    """

    def __init__(self, keys: int, values: int, size: int | None = None) -> None:
        self._shape, self._size = (keys, values), size
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        keys, values = self._shape
        self._keys = torch.zeros(0, keys, dtype=torch.int64)
        self._total = torch.zeros(0, values, dtype=torch.float64)
        self._count = torch.zeros(0, dtype=torch.int64)
        # Keys, sums and counts that have not been added up, on their device.
        self._added: list[tuple[Tensor, Tensor, Tensor]] = []
        self._rows = 0
        """How many keys these have."""

    def update(
        self, keys: Int[Tensor, "row key"], sums: Float[Tensor, "row value"], counts: Int[Tensor, " row"]
    ) -> None:
        """Add some sums; keys may repeat.

        Args:
            keys: The key of each sum.
            sums: Σ over the terms.
            counts: Number of terms in each sum.
        """
        self._added.append((keys, sums, counts))
        self._rows += len(keys)

    def settle(self) -> None:
        """Add up what has been added, once there is as much of it as of keys."""
        if self._rows > max(len(self._keys), _FEWEST_ADDED):
            self._add_up()

    def compute(self) -> KeyedSummary:
        """The means.

        Raises:
            EmptyAccumulatorError: If nothing has been added.
        """
        state = self.state_dict()
        if not len(state["keys"]):
            raise EmptyAccumulatorError("nothing has been added up")
        return KeyedSummary(state["keys"], state["total"] / state["count"].unsqueeze(1), state["count"])

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state."""
        self._add_up()
        return {"keys": self._keys.clone(), "total": self._total.clone(), "count": self._count.clone()}

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of an accumulator with the same arguments."""
        self._added.append((state["keys"], state["total"], state["count"]))
        self._add_up()

    def _add_up(self) -> None:
        if not self._added:
            return
        parts = [(self._keys, self._total, self._count), *self._added]
        keys, totals, counts = (torch.cat([part.cpu() for part in kind]) for kind in zip(*parts, strict=True))
        self._added, self._rows = [], 0
        distinct, rows = _distinct(keys)
        self._keys = distinct[: self._size].clone()
        total = torch.zeros(len(distinct), self._shape[1], dtype=torch.float64).index_add_(0, rows, totals.double())
        count = torch.zeros(len(distinct), dtype=torch.int64).index_add_(0, rows, counts)
        self._total, self._count = total[: self._size].clone(), count[: self._size].clone()


def _distinct(keys: Int[Tensor, "row key"]) -> tuple[Int[Tensor, "distinct key"], Int[Tensor, " row"]]:
    """The distinct keys, increasing, and the place of each key among them.

    `torch.unique(dim=0)` returns the same, but compares row by row and takes ten times as long.
    """
    order = torch.from_numpy(np.lexsort(keys.numpy().T[::-1]))
    ordered = keys[order]
    is_new = torch.ones(len(keys), dtype=torch.bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(dim=1)
    places = torch.zeros_like(order)
    places[order] = is_new.cumsum(dim=0) - 1
    return ordered[is_new], places
