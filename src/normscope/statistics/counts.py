"""Counts of whatever is counted, per layer."""

import torch
from jaxtyping import Int
from torch import Tensor

from normscope.statistics.accumulator import EmptyAccumulatorError, TensorAccumulator


class Counts(TensorAccumulator):
    """Adds up whole numbers.

    Args:
        layers: Number of layers.
        values: Axes of what is counted in a layer.
    """

    _tensors = ("counts", "seen")

    def __init__(self, layers: int, *values: int) -> None:
        self._counts = torch.zeros(layers, *values, dtype=torch.int64)
        self._seen = torch.zeros((), dtype=torch.bool)

    def update(self, layer: int, counts: Int[Tensor, "..."]) -> None:
        """Add the counts of a batch in one layer (index from 0)."""
        device = self._follow(counts)
        self._counts[layer] += counts.to(device)
        self._seen.fill_(True)

    def merge(self, other: "Counts") -> "Counts":
        """A new tally that has seen what both have seen."""
        merged = Counts(*self._counts.shape)
        mine, theirs = self.state(), other.state()
        merged.load({"counts": mine["counts"] + theirs["counts"], "seen": mine["seen"] | theirs["seen"]})
        return merged

    def compute(self) -> Int[Tensor, "layer ..."]:
        """The counts.

        Raises:
            Nothing: If nothing has been counted.
        """
        if not self._seen:
            raise EmptyAccumulatorError("nothing has been counted")
        return self._counts.cpu().clone()
