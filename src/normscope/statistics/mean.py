"""Means by layer and group, from sums and counts."""

import dataclasses
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.maths.tensors import to_device
from normscope.statistics.accumulator import EmptyAccumulatorError, TensorAccumulator


@dataclasses.dataclass(frozen=True, eq=False)
class MeanSummary:
    """The result of `Mean`."""

    mean: Float[Tensor, "layer group ..."]
    """NaN where nothing was added."""
    count: Int[Tensor, "layer group"]


class Mean(TensorAccumulator):
    """Accumulates precomputed sums in float64 and their numbers of terms as integers.

    Args:
        groups: Number of groups, each with its own number of terms.
        values: Shape of one sum.
    """

    _reductions: ClassVar = {"total": torch.add, "count": torch.add}

    def __init__(self, layers: int, groups: int, *values: int) -> None:
        self._shape = (layers, groups, *values)
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._total = torch.zeros(self._shape, dtype=torch.float64)
        self._count = torch.zeros(self._shape[:2], dtype=torch.int64)

    def update(self, layer: int, sums: Float[Tensor, "group ..."], counts: Int[Tensor, " group"]) -> None:
        """Add the sums of a batch in one layer.

        Args:
            layer: Index of the layer, from 0.
            sums: Σ over the terms.
            counts: Number of terms in each sum.
        """
        device = self._follow(sums)
        self._total[layer] += sums.to(device).double()
        self._count[layer] += to_device(counts, device)

    def compute(self) -> MeanSummary:
        """The means.

        Raises:
            EmptyAccumulatorError: If nothing has been added.
        """
        state = self.state_dict()
        if not state["count"].any():
            raise EmptyAccumulatorError("nothing has been added up")
        count = state["count"].view(*state["count"].shape, *(1 for _ in state["total"].shape[2:]))
        return MeanSummary(state["total"] / count, state["count"])
