"""Where a model has the axes of texts, tokens and dimensions of its vectors."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Axes(NamedTuple):
    """The axes of vectors. Those of texts and tokens may be one axis, and those of tokens several, as in images."""

    dimension: int = -1
    """The axis of dimensions, from the end."""
    tokens_first: bool = False
    """Whether tokens come before texts."""

    @classmethod
    def of(
        cls,
        vectors: Tensor,
        texts: int,
        *,
        dimension: int = -1,
        width: int | None = None,
        tokens_first: Callable[[], bool] = lambda: False,
    ) -> "Axes":
        """The axes of some vectors, as their shape tells.

        Args:
            vectors: The vectors.
            texts: Number of texts in the batch.
            dimension: The axis of dimensions.
            width: Number of dimensions, if they may have moved from that axis to another of this size.
            tokens_first: Finds out whether tokens come first; called if a text has as many tokens as there are texts.
        """
        shape = [*vectors.shape]
        if width in shape and shape[dimension] != width:
            dimension = shape.index(width)
        del shape[dimension]
        is_second = len(shape) > 1 and shape[1] == texts
        is_tokens_first = is_second and (shape[0] != texts or tokens_first())
        return cls(dimension % vectors.ndim - vectors.ndim, is_tokens_first)

    def by_text(
        self, vectors: Float[Tensor, "..."], texts: int, *, stacked: bool = False
    ) -> Float[Tensor, "*source batch token dimension"]:
        """Vectors with their axes in this order; the same tensor if they are.

        Args:
            vectors: The vectors, or with `stacked` the parts of them that come from several sources.
            texts: Number of texts in the batch.
            stacked: Whether the first axis counts sources.
        """
        if self == USUAL and vectors.ndim == 3 + stacked:
            return vectors
        vectors = vectors.movedim(self.dimension, -1)
        sources, width = vectors.shape[:stacked], vectors.shape[-1]
        if self.tokens_first:
            return vectors.reshape(*sources, -1, texts, width).transpose(-3, -2)
        return vectors.reshape(*sources, texts, -1, width)

    def by_model(
        self, vectors: Float[Tensor, "*source batch token dimension"], shape: Sequence[int] | None = None
    ) -> Float[Tensor, "..."]:
        """Vectors with the model's axes.

        Args:
            vectors: The vectors, or parts of them.
            shape: The shape of the model's vectors, if they have not three axes.
        """
        vectors = vectors.transpose(-3, -2) if self.tokens_first else vectors
        if shape is not None and len(shape) != 3:
            rest = [*shape]
            width = rest.pop(self.dimension)
            vectors = vectors.reshape(*vectors.shape[:-3], *rest, width)
        return vectors.movedim(-1, self.dimension)


USUAL = Axes()
"""Texts, tokens, dimensions."""
