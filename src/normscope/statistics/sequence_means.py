"""Means of one value per sequence."""

import dataclasses
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.statistics.accumulator import EmptyAccumulatorError, TensorAccumulator


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceSummary:
    """The result of `SequenceMeans`."""

    mean: Float[Tensor, "layer row group"]
    """Over all tokens: each sequence is weighted by its length."""
    sequence_mean: Float[Tensor, "layer row group"]
    """Over all sequences: each counts once."""
    sequences: int


class SequenceMeans(TensorAccumulator):
    """Accumulates one value per sequence, layer, row and group; sums in float64, counts as integers."""

    _reductions: ClassVar = dict.fromkeys(("total", "weighted", "sequences", "tokens"), torch.add)

    def __init__(self, layers: int, rows: int, groups: int) -> None:
        self._shape = (layers, rows, groups)
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        shape = self._shape
        self._total = torch.zeros(shape, dtype=torch.float64)
        self._weighted = torch.zeros(shape, dtype=torch.float64)
        self._sequences = torch.zeros(shape[0], dtype=torch.int64)
        self._tokens = torch.zeros(shape[0], dtype=torch.int64)

    def update(self, layer: int, values: Float[Tensor, "row batch group"], lengths: Int[Tensor, " batch"]) -> None:
        """Add the values of a batch's sequences in one layer.

        Args:
            layer: Index of the layer, from 0.
            values: The mean over each sequence's tokens.
            lengths: Number of tokens of each sequence.
        """
        device = self._follow(values)
        values, lengths = values.to(device).double(), lengths.to(device)
        self._total[layer] += values.sum(dim=1)
        self._weighted[layer] += torch.einsum("rbg,b->rg", values, lengths.double())
        self._sequences[layer] += len(lengths)
        self._tokens[layer] += lengths.sum()

    def compute(self) -> SequenceSummary:
        """The means.

        Raises:
            EmptyAccumulatorError: If no sequence has been added.
        """
        state = self.state_dict()
        if not state["sequences"].all():
            raise EmptyAccumulatorError("no sequence has been added up")
        return SequenceSummary(
            mean=state["weighted"] / state["tokens"][:, None, None],
            sequence_mean=state["total"] / state["sequences"][:, None, None],
            sequences=int(state["sequences"][0]),
        )
