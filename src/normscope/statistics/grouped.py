"""Mean, spread, maximum and minimum of a value over groups of tokens, per layer, and the mean over sequences."""

import dataclasses
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.statistics.accumulator import EmptyAccumulatorError, TensorAccumulator


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedSummary:
    """The result of `GroupedMoments`. Values of groups without tokens are NaN."""

    mean: Float[Tensor, "layer row group"]
    """Over all tokens of the group."""
    sequence_mean: Float[Tensor, "layer row group"]
    """Mean within each sequence, averaged over the sequences that contain the group."""
    deviation: Float[Tensor, "layer row group"]
    """Population standard deviation over all tokens."""
    maximum: Float[Tensor, "layer row group"]
    minimum: Float[Tensor, "layer row group"]
    count: Int[Tensor, "layer group"]
    """Number of tokens."""


class GroupedMoments(TensorAccumulator):
    """Accumulates values of tokens by layer, row (such as a method) and group (such as a category). Groups may overlap.

    Sums are kept in float64 and counts as integers, so the order of the stream does not matter beyond rounding at 1e-16.

    Args:
        rows: Number of values per token.
        groups: Number of groups.
    """

    _reductions: ClassVar = dict.fromkeys(("total", "squares", "sequence_total", "count", "sequences"), torch.add) | {
        "maximum": torch.maximum,
        "minimum": torch.minimum,
    }

    def __init__(self, layers: int, rows: int, groups: int) -> None:
        self._shape = (layers, rows, groups)
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        layers, _, groups = shape = self._shape
        self._total = torch.zeros(shape, dtype=torch.float64)
        # Plain squares cost a factor of (mean/deviation)² in float64's sixteen digits, but merge exactly.
        self._squares = torch.zeros(shape, dtype=torch.float64)
        self._sequence_total = torch.zeros(shape, dtype=torch.float64)
        self._maximum = torch.full(shape, -torch.inf, dtype=torch.float64)
        self._minimum = torch.full(shape, torch.inf, dtype=torch.float64)
        self._count = torch.zeros(layers, groups, dtype=torch.int64)
        self._sequences = torch.zeros(layers, groups, dtype=torch.int64)

    def update(
        self,
        layer: int,
        values: Float[Tensor, "row batch token"],
        members: Bool[Tensor, "group batch token"],
    ) -> None:
        """Add the values of one batch in one layer.

        Args:
            layer: Index of the layer, from 0.
            values: One value per row and token. Values of tokens in no group are ignored, even NaN.
            members: Which tokens are in which group.
        """
        device = self._follow(values)
        values, members = values.to(device), members.to(device)
        member = members.unsqueeze(0)  # 1 group batch token
        each = values.unsqueeze(1)  # row 1 batch token
        counts = members.sum(dim=-1)
        numbers = values.double().masked_fill(~members.any(dim=0), 0.0)
        weights = members.double()
        totals = torch.einsum("rbt,gbt->rgb", numbers, weights)
        self._total[layer] += totals.sum(dim=-1)
        self._squares[layer] += torch.einsum("rbt,gbt->rg", numbers.square(), weights)
        self._sequence_total[layer] += (totals / counts.clamp(min=1)).sum(dim=-1)
        self._maximum[layer] = torch.maximum(
            self._maximum[layer], torch.where(member, each, -torch.inf).amax(dim=(-2, -1)).double()
        )
        self._minimum[layer] = torch.minimum(
            self._minimum[layer], torch.where(member, each, torch.inf).amin(dim=(-2, -1)).double()
        )
        self._count[layer] += counts.sum(dim=-1)
        self._sequences[layer] += (counts > 0).sum(dim=-1)

    def compute(self) -> GroupedSummary:
        """Means, deviations, extremes and counts so far.

        Raises:
            EmptyAccumulatorError: If no token has been added.
        """
        state = self.state_dict()
        count, sequences = state["count"], state["sequences"]
        if not count.any():
            raise EmptyAccumulatorError("no token has been added up")
        absent = (count == 0).unsqueeze(1)
        mean = state["total"] / count.unsqueeze(1)
        return GroupedSummary(
            mean=mean,
            deviation=(state["squares"] / count.unsqueeze(1) - mean.square()).clamp(min=0).sqrt(),
            sequence_mean=state["sequence_total"] / sequences.unsqueeze(1),
            maximum=state["maximum"].masked_fill(absent, torch.nan),
            minimum=state["minimum"].masked_fill(absent, torch.nan),
            count=count,
        )
