"""Modules that turn pooled vectors into embeddings: those of a SentenceTransformer in memory, or equivalents from files."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn


class OfFeatures(nn.Module):
    """A module of sentence-transformers, which reads one of a text's features and overwrites it.

    Args:
        module: The module.
        feature: The feature's name.
    """

    def __init__(self, module: nn.Module, feature: str) -> None:
        super().__init__()
        self.module, self._feature = module, feature

    def forward(self, vectors: Float[Tensor, "*batch given"]) -> Float[Tensor, "*batch made"]:
        """What the module makes of the vectors."""
        made: Tensor = self.module({self._feature: vectors})[self._feature]
        return made


class Dense(nn.Module):
    """g(x W + b), plus x or x R if there is a residual connection.

    Args:
        linear: W and b.
        activation: g.
        residual: The residual connection; None without one.
    """

    def __init__(
        self, linear: nn.Linear, activation: Callable[[Tensor], Tensor], residual: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, vectors: Float[Tensor, "*batch given"]) -> Float[Tensor, "*batch made"]:
        """The projection."""
        made = self.activation(self.linear(vectors))
        return made if self.residual is None else made + self.residual(vectors)


class UnitLength(nn.Module):
    """x/‖x‖; a vector of zeros stays as it is."""

    def forward(self, vectors: Float[Tensor, "*batch given"]) -> Float[Tensor, "*batch given"]:
        """The normalised vectors."""
        return torch.nn.functional.normalize(vectors, dim=-1)


class Truncation(nn.Module):
    """The first entries of a vector (Matryoshka embeddings).

    Args:
        size: How many entries to keep.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, vectors: Float[Tensor, "*batch given"]) -> Float[Tensor, "*batch made"]:
        """The first entries."""
        return vectors[..., : self.size]
