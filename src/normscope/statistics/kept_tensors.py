"""Tensors kept as they are: all of them, or a sample."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
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
        self._size, self._dtype = size, torch.empty(0, dtype=dtype).numpy().dtype
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        # NumPy's arrays: torch would take an operation for each.
        self._kept: list[tuple[float, np.ndarray]] = []

    def update(self, numbers: Iterable[float], tensors: Iterable[Tensor | np.ndarray]) -> None:
        """Keep some tensors, which are copied to CPU memory: not while the model runs.

        Args:
            numbers: The number of each tensor.
            tensors: The tensors, or arrays.
        """
        arrays = (tensor.cpu().numpy() if isinstance(tensor, Tensor) else tensor for tensor in tensors)
        copies = (array.astype(self._dtype) for array in arrays)
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
        return Kept([number for number, _ in self._kept], [torch.from_numpy(array) for _, array in self._kept])

    def state_dict(self) -> dict[str, Tensor]:
        """The numbers, the shapes of the tensors, and their values one after the other."""
        self._cut()
        arrays = [array for _, array in self._kept]
        return {
            "numbers": torch.tensor([number for number, _ in self._kept], dtype=torch.float64),
            "shapes": torch.tensor([array.shape for array in arrays], dtype=torch.int64),
            "values": torch.from_numpy(
                np.concatenate([np.zeros(0, self._dtype), *(array.ravel() for array in arrays)])
            ),
        }

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add what another accumulator with the same arguments has kept."""
        shapes = state["shapes"].tolist()
        values = state["values"].clone().split([math.prod(shape) for shape in shapes])
        arrays = (flat.view(shape).numpy() for flat, shape in zip(values, shapes, strict=True))
        self._kept += zip(state["numbers"].view(len(shapes)).tolist(), arrays, strict=True)
        self._cut()

    def _cut(self) -> None:
        self._kept.sort(key=lambda kept: kept[0])
        if self._size is not None:
            del self._kept[self._size :]
