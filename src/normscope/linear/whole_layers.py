"""What layers make of their blocks, followed while blocks are recognised."""

import collections
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from normscope.linear.layers import Followed, FollowedLayer, LayerFollower, NotFollowedError
from normscope.linear.rules import Kind, kind_of, way_of

VisitLayer = Callable[[int | None, FollowedLayer], None]
"""Called with a layer, and its number if a module runs it, when the model leaves it."""


class WholeLayers:
    """Follows layers from the two tensors with which a block begins to what leaves the layer.

    Args:
        visit: Called with every layer when the model leaves it.
        wanted: Numbers of the layers to follow; None for all.
    """

    def __init__(self, visit: VisitLayer, wanted: Collection[int] | None = None) -> None:
        self._visit, self._wanted = visit, wanted
        self.number: int | None = None
        """The number of the layer that is open; None if no module runs it."""
        self._open: LayerFollower | None = None
        """The layer whose last block has ended."""
        self._begun: LayerFollower | None = None
        """The layer whose W_O has run, until its block has ended."""
        self.keeps_texts = False
        """Whether as many texts leave the layer as enter it even if W_O returns more: if the layer adds to its vectors in
        place, or if the tokens of all texts share an axis."""
        self._called: collections.Counter[str] = collections.Counter()
        self.since_output = 0
        """Number of functions that have been called since W_O."""
        self.output = "", 0, 0
        """The function that W_O is a call of; which of the layer's calls of it that is, from 1; and how many calls later, if
        any, its vectors have the axes of the residual connection."""
        self._shape: torch.Size | None = None
        """That of the vectors of the layer that is open."""
        self._last: dict[bool, Tensor] = {}

    def wants(self, number: int | None) -> bool:
        """Whether a layer is followed."""
        return self._wanted is None or number is None or number in self._wanted

    @property
    def is_open(self) -> bool:
        """Whether a block has ended in a layer that the model has not left."""
        return self._open is not None

    def begin(self) -> None:
        """A module begins that may be a layer."""
        self.keeps_texts = False
        self._called.clear()

    def count(self, function: str) -> None:
        """A function is called."""
        self._called[function] += 1
        self.since_output += 1

    def write(self, vectors: Followed, function: str) -> None:
        """Take the output of W_O."""
        self._begun, self.output, self.since_output = LayerFollower(vectors), (function, self._called[function], 0), 0

    def carry(self, number: int | None, inputs: Tensor, attention: Followed) -> None:
        """Take what the residual connection carries past the block, and the vectors of W_O with the same axes."""
        assert self._begun is not None
        self._begun.carry(inputs, attention)
        self.output = *self.output[:2], getattr(attention.value, "_since_output", 0)
        self.keeps_texts = self.keeps_texts or attention.value.ndim != 3
        self.number, self._open, self._begun = number, self._begun, None
        self._shape, self._last = inputs.shape, {}

    def add(self, vectors: Tensor, residual: Tensor) -> Tensor:
        """Take what is added to the residual connection."""
        layer = self._begun or self._open
        return vectors if layer is None else layer.add(vectors, residual)

    def lose(self, vectors: Tensor) -> None:
        """What runs beside attention adds vectors that are not followed."""
        if self._begun is not None:
            self._begun.lost = getattr(vectors, "_because", "what runs beside attention")

    def note(self, vectors: Tensor, *, is_sum: bool) -> None:
        """Take a tensor that may be the last one of a layer."""
        if vectors.shape == self._shape and kind_of(vectors) is Kind.LINEAR and way_of(vectors).residual:
            self._last[False] = vectors
            if is_sum:
                self._last[True] = vectors

    def last(self, *, is_sum: bool) -> Tensor | None:
        """The last tensor of the residual connection, or the last that is a sum."""
        return self._last.get(is_sum)

    def end(self, vectors: Tensor) -> None:
        """The model leaves the layer that is open.

        Raises:
            NotFollowedError: If what leaves it is not an affine map of what its attention block gives.
        """
        assert self._open is not None
        followed, lost = self._open.leave(vectors), self._open.lost
        self._open, self._shape, self._last = None, None, {}
        if followed is None or lost is not None:
            raise NotFollowedError(self.number, lost or getattr(vectors, "_because", None))
        self._visit(self.number, followed)
