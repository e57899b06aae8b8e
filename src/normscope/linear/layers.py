"""What a layer makes of parts of its vectors after attention, by the model's own code with everything held fixed.

While the layer runs, two tensors of its residual connection are taken for sums of parts: what enters the block, and what its
attention adds. All that follows is an affine map of the two (see `rules.py`), whatever norms, networks, experts and gates the
layer has. What a network adds is known by having passed weights or activations on its way from the residual connection.
Parts are computed when they are asked for, and any number of times.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from normscope.linear.rules import Factored, Kind, Stack, Way, kind_of, marked, parts_from, stack_of, way_of


class Given(NamedTuple):
    """Parts of the two tensors that a layer's residual connection starts with, (source, *tensor) or `Factored`."""

    inputs: Tensor | Factored
    """Of what enters the block."""
    attention: Tensor | Factored
    """Of what attention adds: the output of W_O."""


class Followed(NamedTuple):
    """A tensor that is an affine map of the two."""

    value: Tensor
    stack: Stack

    @classmethod
    def of(cls, vectors: Tensor) -> "Followed":
        """One that the model has computed."""
        return cls(vectors, stack_of(vectors))


class Added(NamedTuple):
    """What a network adds to the residual connection."""

    added: Followed
    unnormed: Followed
    """The same before a norm of its own, if it has one."""


@dataclasses.dataclass(frozen=True, eq=False)
class FollowedLayer:
    """What a layer has made of its residual connection. It refers to tensors that the model may change later."""

    inputs: Followed
    """What enters the block."""
    attention: Followed
    """What attention adds."""
    residual: Followed
    """What the first network's output is added to."""
    networks: tuple["Added", ...]
    """What each network adds."""
    before_norm: Followed | None
    """What the last norm reads, if one comes after the networks."""
    output: Followed
    """What leaves the layer."""

    def parts(self, of: Sequence[Followed], given: Given, *, bias: bool = False) -> list[Tensor]:
        """What tensors of the layer take from given parts, (source, *tensor).

        Args:
            of: The tensors.
            bias: Whether constants belong to the last source.
        """
        known: Mapping[Stack, Tensor | Factored] = {
            self.inputs.stack: given.inputs,
            self.attention.stack: given.attention,
        }
        return parts_from(known, [each.stack for each in of], bias=bias)

    def reads_attention(self, vectors: Followed) -> bool:
        """Whether a tensor of the layer takes anything from attention."""
        waiting, known = [vectors.stack], set[Stack]()
        while waiting:
            stack = waiting.pop()
            if stack is self.attention.stack:
                return True
            operands, *_ = stack.made_of()
            waiting += [each for each in operands if each not in known]
            known.update(operands)
        return False


class LayerFollower:
    """Follows the vectors of the layers of a model that runs in a mode of `rules.py`, one layer at a time."""

    def __init__(self) -> None:
        self._inputs: Tensor | None = None
        self._attention: Tensor | None = None
        self._residual: Followed | None = None
        self._added: list[Added] = []

    def enter(self, vectors: Tensor) -> None:
        """What the residual connection carries past attention, as the model has it."""
        self.forget()
        self._inputs = _start(vectors)

    def attend(self, vectors: Tensor) -> None:
        """The output of W_O, as the model has it."""
        if self._inputs is not None:
            self._attention = _start(vectors)

    def add(self, vectors: Tensor, residual: Tensor) -> Tensor:
        """What is added to the residual connection."""
        if self._attention is not None:
            self._residual = self._residual or Followed.of(residual)
            added, before = Followed.of(vectors), way_of(vectors).before_norm
            self._added.append(Added(added, added if before is None else Followed.of(before)))
        return vectors

    def leave(self, vectors: Tensor) -> FollowedLayer | None:
        """What leaves the layer; None if that is no affine map of what entered it, or no network has added anything."""
        if kind_of(vectors) is not Kind.LINEAR or self._residual is None:
            return None
        assert self._inputs is not None
        assert self._attention is not None
        before = way_of(vectors).before_norm
        return FollowedLayer(
            Followed.of(self._inputs),
            Followed.of(self._attention),
            self._residual,
            tuple(self._added),
            None if before is None else Followed.of(before),
            Followed.of(vectors),
        )

    def forget(self) -> None:
        """Let go of the layer."""
        self._inputs = self._attention = self._residual = None
        self._added = []


def _start(vectors: Tensor) -> Tensor:
    """Let what is made of a tensor be followed from there."""
    marked(vectors, Kind.LINEAR)
    vectors._stack, vectors._way = Stack(None), Way(residual=True, origin=object())  # type: ignore[attr-defined]
    return vectors
