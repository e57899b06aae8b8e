"""What a layer makes of parts of its vectors after attention, by the model's own code with everything nonlinear held fixed.

While the layer runs, two tensors of its residual connection are treated as sums of parts: what enters the block, and what its
attention adds. Everything after them is an affine map of the two (see `rules.py`), whatever norms, networks, experts and gates
the layer has. What a network adds is recognised by having passed through weights or activations on its way from the residual
connection. Parts are computed on request, as often as needed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from normscope.errors import InputError
from normscope.linear.rules import Factored, Kind, Stack, Way, kind_of, marked, parts_from, stack_of, way_of


class Given(NamedTuple):
    """Parts of the two tensors that a layer's residual connection starts with, (source, *tensor) or `Factored`."""

    inputs: Tensor | Factored
    """Parts of what enters the block."""
    attention: Tensor | Factored
    """Parts of what attention adds, the output of W_O."""


class Followed(NamedTuple):
    """A tensor that is an affine map of these two."""

    value: Tensor
    stack: Stack

    @classmethod
    def of(cls, vectors: Tensor) -> "Followed":
        """A tensor that the model has computed."""
        return cls(vectors, stack_of(vectors))


class Added(NamedTuple):
    """What a network adds to the residual connection."""

    added: Followed
    unnormed: Followed
    """The same before the network's own norm, if it has one."""


@dataclasses.dataclass(frozen=True, eq=False)
class FollowedLayer:
    """What a layer has made of its residual connection. It refers to tensors that the model may change later."""

    inputs: Followed
    """What enters the block."""
    attention: Followed
    """What attention adds."""
    residual: Followed
    """The vectors to which the first network's output is added."""
    networks: tuple["Added", ...]
    """What each network adds."""
    before_norm: Followed | None
    """What the last norm reads, if one comes after the networks."""
    output: Followed
    """What leaves the layer."""

    def parts(self, of: Sequence[Followed], given: Given, *, bias: bool = False) -> list[Tensor]:
        """What tensors of the layer take from the given parts, (source, *tensor).

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
            waiting += [each for each in stack.operands if each not in known]
            known.update(stack.operands)
        return False


class NotFollowedError(InputError):
    """What leaves a layer is not an affine map of what its attention block gives.

    Args:
        layer: Its number; None if no module runs it.
        because: The function that is not linear, and its module or line; None if that is not known.
    """

    def __init__(self, layer: int | None, because: str | None) -> None:
        self.because = because
        super().__init__(
            f"the feed-forward network of {'a layer' if layer is None else f'layer {layer}'} cannot be observed: even with "
            f"slopes, deviations and gates held fixed, {because or 'what leaves the layer'} is not linear in what its "
            "attention block gives; the attention blocks can still be measured"
        )


class LayerFollower:
    """Follows vectors through a layer of a model that runs in a mode of `rules.py`.

    Args:
        attention: The output of W_O.
    """

    def __init__(self, attention: Followed) -> None:
        self._inputs: Followed | None = None
        self._attention = attention
        self.lost: str | None = None
        """Why the layer cannot be followed, if that is known before it ends."""
        self._residual: Followed | None = None
        self._added: list[Added] = []

    def carry(self, vectors: Tensor, attention: Followed) -> None:
        """Take what the residual connection carries past attention, and the output of W_O with the same axes."""
        self._inputs, self._attention = Followed.of(vectors), attention

    def add(self, vectors: Tensor, residual: Tensor) -> Tensor:
        """Take what is added to the residual connection."""
        self._residual = self._residual or Followed.of(residual)
        added, before = Followed.of(vectors), way_of(vectors).before_norm
        self._added.append(Added(added, added if before is None else Followed.of(before)))
        return vectors

    def leave(self, vectors: Tensor) -> FollowedLayer | None:
        """The layer, given what leaves it; None if that is not an affine map of what entered, or no network added anything."""
        if kind_of(vectors) is not Kind.LINEAR or self._residual is None:
            return None
        assert self._inputs is not None
        before = way_of(vectors).before_norm
        return FollowedLayer(
            self._inputs,
            self._attention,
            self._residual,
            tuple(self._added),
            None if before is None else Followed.of(before),
            Followed.of(vectors),
        )


def start(vectors: Tensor) -> Followed:
    """Let what is made of a tensor be followed from there. The model may change the tensor later."""
    marked(vectors, Kind.LINEAR)
    vectors._stack, vectors._way = Stack(None), Way(residual=True, origin=object())  # type: ignore[attr-defined]
    return Followed.of(vectors)
