"""Means per token type."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.statistics.accumulator import EmptyAccumulatorError, TensorAccumulator


class TokenMeans(TensorAccumulator):
    """Accumulates values of token occurrences by the type of the token.

    Args:
        vocabulary: Number of token types.
        columns: Values per occurrence.
    """

    _tensors = ("total", "count")

    def __init__(self, vocabulary: int, columns: int) -> None:
        self._total = torch.zeros(vocabulary, columns, dtype=torch.float64)
        self._count = torch.zeros(vocabulary, dtype=torch.int64)

    def update(self, tokens: Int[Tensor, " occurrence"], values: Float[Tensor, "column occurrence"]) -> None:
        """Add some occurrences."""
        device = self._follow(values)
        tokens = tokens.to(device)
        self._total.index_add_(0, tokens, values.T.to(device).double())
        self._count.index_add_(0, tokens, torch.ones_like(tokens))

    def merge(self, other: "TokenMeans") -> "TokenMeans":
        """A new accumulator that has seen what both have seen."""
        merged = TokenMeans(*self._total.shape)
        mine, theirs = self.state(), other.state()
        merged.load({name: mine[name] + theirs[name] for name in mine})
        return merged

    def compute(self) -> tuple[Float[Tensor, "vocabulary column"], Int[Tensor, " vocabulary"]]:
        """Mean values of every type (NaN where it did not occur), and how often it occurred.

        Raises:
            Nothing: If no occurrence has been added.
        """
        state = self.state()
        if not state["count"].any():
            raise EmptyAccumulatorError("no occurrence has been added up")
        return state["total"] / state["count"].unsqueeze(1), state["count"]
