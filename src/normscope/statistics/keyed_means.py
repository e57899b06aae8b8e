"""Means by integer keys that are not known in advance."""

import dataclasses
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError


@dataclasses.dataclass(frozen=True, eq=False)
class KeyedSummary:
    """The result of `KeyedMeans`, in increasing order of the keys."""

    keys: Int[Tensor, "row key"]
    mean: Float[Tensor, "row value"]
    count: Int[Tensor, " row"]


class KeyedMeans(Accumulator):
    """Accumulates rare observations by key; sums in float64. Its size grows with the number of distinct keys.

    Args:
        keys: Number of integers in a key.
        values: Number of values of an observation.
    """

    def __init__(self, keys: int, values: int) -> None:
        self._shape = keys, values
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        keys, values = self._shape
        self._keys = torch.zeros(0, keys, dtype=torch.int64)
        self._total = torch.zeros(0, values, dtype=torch.float64)
        self._count = torch.zeros(0, dtype=torch.int64)

    def update(self, keys: Int[Tensor, "observation key"], values: Float[Tensor, "observation value"]) -> None:
        """Add some observations; keys may repeat."""
        if len(keys):
            self._add(keys.cpu(), values.cpu().double(), torch.ones(len(keys), dtype=torch.int64))

    def compute(self) -> KeyedSummary:
        """The means.

        Raises:
            EmptyAccumulatorError: If no observation has been added.
        """
        if not len(self._keys):
            raise EmptyAccumulatorError("no observation has been added up")
        return KeyedSummary(self._keys.clone(), self._total / self._count.unsqueeze(1), self._count.clone())

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state."""
        return {"keys": self._keys.clone(), "total": self._total.clone(), "count": self._count.clone()}

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of an accumulator with the same arguments."""
        if len(state["keys"]):
            self._add(state["keys"], state["total"], state["count"])

    def _add(self, keys: Tensor, totals: Tensor, counts: Tensor) -> None:
        every, rows = torch.cat([self._keys, keys]).unique(dim=0, return_inverse=True)
        self._keys = every
        self._total = torch.zeros(len(every), self._shape[1], dtype=torch.float64).index_add_(
            0, rows, torch.cat([self._total, totals])
        )
        self._count = torch.zeros(len(every), dtype=torch.int64).index_add_(0, rows, torch.cat([self._count, counts]))
