"""Means per token type."""

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.statistics.accumulator import EmptyAccumulatorError, TensorAccumulator


class TokenMeans(TensorAccumulator):
    """Accumulates values of token occurrences by token type.

    Args:
        vocabulary: Number of token types.
        columns: Number of values per occurrence.
    """

    _reductions: ClassVar = {"total": torch.add, "count": torch.add}

    def __init__(self, vocabulary: int, columns: int) -> None:
        self._shape = (vocabulary, columns)
        self.reset()

    def reset(self) -> None:
        """Return to the empty state."""
        self._total = torch.zeros(self._shape, dtype=torch.float64)
        self._count = torch.zeros(self._shape[0], dtype=torch.int64)

    def update(self, tokens: Int[Tensor, " occurrence"], values: Float[Tensor, "column occurrence"]) -> None:
        """Add some occurrences."""
        device = self._follow(values)
        tokens = tokens.to(device)
        self._total.index_add_(0, tokens, values.T.to(device).double())
        self._count.index_add_(0, tokens, torch.ones_like(tokens))

    def compute(self) -> tuple[Float[Tensor, "vocabulary column"], Int[Tensor, " vocabulary"]]:
        """Mean values of every type (NaN if it did not occur), and its number of occurrences.

        Raises:
            EmptyAccumulatorError: If no occurrence has been added.
        """
        state = self.state_dict()
        if not state["count"].any():
            raise EmptyAccumulatorError("no occurrence has been added up")
        return state["total"] / state["count"].unsqueeze(1), state["count"]
