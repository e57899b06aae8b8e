"""Integer counters by layer."""

from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from normscope.statistics.accumulator import EmptyAccumulatorError, TensorAccumulator


class Counts(TensorAccumulator):
    """Accumulates integer counts.

    Args:
        values: Shape of the counts of a layer.
    """

    _reductions: ClassVar = {"counts": torch.add, "seen": torch.logical_or}

    def __init__(self, layers: int, *values: int) -> None:
        self._shape = (layers, *values)
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._counts = torch.zeros(self._shape, dtype=torch.int64)
        self._seen = torch.zeros((), dtype=torch.bool)

    def update(self, layer: int, counts: Int[Tensor, "..."]) -> None:
        """Add the counts of a batch in one layer (index from 0)."""
        device = self._follow(counts)
        self._counts[layer] += counts.to(device)
        self._seen.fill_(True)

    def compute(self) -> Int[Tensor, "layer ..."]:
        """The counts.

        Raises:
            EmptyAccumulatorError: If nothing has been counted.
        """
        if not self._seen:
            raise EmptyAccumulatorError("nothing has been counted")
        return self._counts.cpu().clone()
