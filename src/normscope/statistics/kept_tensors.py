"""Tensors kept as they are: all of them, or a sample."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError


class Kept(NamedTuple):
    """The result of `KeptTensors`, in increasing order of the numbers."""

    numbers: list[float]
    tensors: list[Tensor]

    def by_number(self) -> dict[int, Tensor]:
        """The tensors by their numbers, if these are whole."""
        return {int(number): tensor for number, tensor in zip(*self, strict=True)}


class KeptTensors(Accumulator):
    """Keeps tensors in the order of a number that each comes with, such as its row in the corpus.

    With a `size`, only those with the smallest numbers are kept. If numbers are random, these are a uniform sample of all, and
    the same one whatever the order of the stream; `Batch.for_samples` draws such numbers for sequences.

    Use it for a sample, or for a few numbers per text, not per token of a corpus.

    Args:
        dtype: Dtype of the stored tensors. Their shapes may differ, but not their number of axes.
        size: How many to keep; None keeps all.
    """

    def __init__(self, dtype: torch.dtype, size: int | None = None) -> None:
        self._dtype, self._size = dtype, size
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._kept: list[tuple[float, Tensor]] = []

    def update(self, numbers: Iterable[float], tensors: Iterable[Tensor]) -> None:
        """Keep some tensors, which are copied to CPU memory: not while the model runs.

        Args:
            numbers: The number of each tensor.
            tensors: The tensors.
        """
        copies = (tensor.to("cpu", self._dtype, copy=True) for tensor in tensors)
        self._kept += zip(numbers, copies, strict=True)
        if self._size is not None:
            self._cut()

    def compute(self) -> Kept:
        """What is kept.

        Raises:
            EmptyAccumulatorError: If nothing has been offered.
        """
        self._cut()
        if not self._kept:
            raise EmptyAccumulatorError("nothing has been kept")
        return Kept([number for number, _ in self._kept], [tensor for _, tensor in self._kept])

    def state_dict(self) -> dict[str, Tensor]:
        """The numbers, the shapes of the tensors, and their values one after the other."""
        self._cut()
        tensors = [tensor for _, tensor in self._kept]
        return {
            "numbers": torch.tensor([number for number, _ in self._kept], dtype=torch.float64),
            "shapes": torch.tensor([tuple(tensor.shape) for tensor in tensors], dtype=torch.int64),
            "values": torch.cat([torch.zeros(0, dtype=self._dtype), *(tensor.flatten() for tensor in tensors)]),
        }

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add what another accumulator with the same arguments has kept."""
        shapes = state["shapes"].tolist()
        values = state["values"].clone().split([math.prod(shape) for shape in shapes])
        tensors = (flat.view(shape) for flat, shape in zip(values, shapes, strict=True))
        self._kept += zip(state["numbers"].view(len(shapes)).tolist(), tensors, strict=True)
        self._cut()

    def _cut(self) -> None:
        self._kept.sort(key=lambda kept: kept[0])
        if self._size is not None:
            del self._kept[self._size :]
