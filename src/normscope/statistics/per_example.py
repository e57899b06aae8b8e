"""Tensors kept for single rows of a corpus, by layer."""

from collections.abc import Mapping

import torch
from torch import Tensor

from normscope.statistics.accumulator import Accumulator, EmptyAccumulatorError


class PerExampleTensors(Accumulator):
    """Keeps one tensor per layer and row. Use it for tensors that are themselves the result, not for a whole corpus.

    Args:
        dtype: Dtype of the stored tensors.
    """

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        self._layers, self._dtype = layers, dtype
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._kept: dict[int, Tensor] = {}
        # What has been added since the end of the last batch, on its device.
        self._added: list[tuple[int, int, Tensor]] = []

    def update(self, layer: int, row: int, values: Tensor) -> None:
        """Keep the values of one row in one layer (index from 0); all layers of a row have the same shape."""
        self._added.append((layer, row, values))

    def settle(self) -> None:
        """Move the values to CPU memory."""
        for layer, row, values in self._added:
            if row not in self._kept:
                self._kept[row] = torch.zeros(self._layers, *values.shape, dtype=self._dtype)
            self._kept[row][layer] = values.to("cpu", self._dtype)
        self._added = []

    def compute(self) -> dict[int, Tensor]:
        """The tensors by row, in the order of the rows; the first axis of each is the layer.

        Raises:
            EmptyAccumulatorError: If no row has been kept.
        """
        self.settle()
        if not self._kept:
            raise EmptyAccumulatorError("no row has been kept")
        return {row: self._kept[row].clone() for row in sorted(self._kept)}

    def state_dict(self) -> dict[str, Tensor]:
        """Rows, their shapes, and their values concatenated."""
        self.settle()
        rows = sorted(self._kept)
        return {
            "rows": torch.tensor(rows, dtype=torch.int64),
            "shapes": torch.tensor([tuple(self._kept[row].shape) for row in rows], dtype=torch.int64),
            "values": torch.cat([torch.zeros(0, dtype=self._dtype), *(self._kept[row].flatten() for row in rows)]),
        }

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the rows of another accumulator. A row in both is identical in both and kept once."""
        self.settle()
        rows = state["rows"].tolist()
        shapes = [tuple(shape) for shape in state["shapes"].tolist()]
        sizes = state["shapes"].prod(dim=-1).tolist() if rows else []
        values = state["values"].clone().split(sizes)
        for row, shape, flat in zip(rows, shapes, values, strict=True):
            self._kept.setdefault(row, flat.view(shape))
