"""What layers make of their blocks, followed while blocks are recognised."""

import collections
from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor

from normscope.linear.layers import Followed, FollowedLayer, LayerFollower, NotFollowedError, start
from normscope.linear.provenance import made_of, writes
from normscope.linear.residual_sum import Addition
from normscope.linear.rules import (
    SUMS,
    Call,
    Kind,
    Stack,
    Step,
    Way,
    alias,
    kept,
    kind_of,
    stack_after,
    stack_of,
    sum_of,
    way_of,
)
from normscope.linear.trails import Trail, release, trail_of, unfollowed

VisitLayer = Callable[[int | None, FollowedLayer], None]
"""Called with a layer, and its number if a module runs it, when the model leaves it."""


class WholeLayers:
    """Follows layers from the two tensors with which a block begins to what leaves the layer.

    Args:
        visit: Called with every layer when the model leaves it.
        wanted: Numbers of the layers to follow; None for all.

    Raises:
        NotFollowedError: At the end of a layer, if what leaves it is not an affine map of what its attention block gives.
        NotRecognisedError: Likewise, if its network takes from other tokens.
    """

    def __init__(self, visit: VisitLayer, wanted: Collection[int] | None = None) -> None:
        self._visit, self._wanted = visit, wanted
        self._open: LayerFollower | None = None
        """The layer whose last block has ended, until the model leaves it."""
        self._begun: LayerFollower | None = None
        """The layer whose W_O has run, until its block has ended."""
        self._trail: Trail | None = None
        """The block of the open layer, or of the last one."""
        self.keeps_texts = False
        """Whether as many texts leave the layer as enter it even if W_O returns more: if the layer adds to its vectors in
        place, or if the tokens of all texts share an axis."""
        self._function = ""
        """The function that was called last."""
        self._called: collections.Counter[str] = collections.Counter()
        self._since_output = 0
        """Number of functions that have been called since W_O."""
        self.output = "", 0, 0
        """The function that W_O is a call of; which of the layer's calls of it that is, from 1; and how many calls later, if
        any, its vectors have the axes of the residual connection."""
        self._shape: torch.Size | None = None
        """That of the vectors of the open layer."""
        self._last: dict[bool, Tensor] = {}
        """The last tensor of the residual connection, and the last that is a sum."""

    def _wants(self, number: int | None) -> bool:
        return self._wanted is None or number is None or number in self._wanted

    @property
    def _number(self) -> int | None:
        """The number of the open layer; None if no module runs it."""
        return None if self._trail is None or not self._trail.in_layer else self._trail.layer

    # What the model calls.

    def count(self, function: str) -> None:
        """A function is called."""
        self._function = function
        self._called[function] += 1
        self._since_output += 1

    def date(self, tensors: Iterable[Tensor]) -> None:
        """Note when tensors of a block were made."""
        for each in tensors:
            if not hasattr(each, "_since_output"):
                each._since_output = self._since_output  # type: ignore[attr-defined]

    def note(self, call: Call, result: Tensor) -> None:
        """Take a tensor that may be the last one of a layer."""
        is_sum = call.name in SUMS
        if result.shape == self._shape and kind_of(result) is Kind.LINEAR and way_of(result).residual:
            self._last[False] = result
            if is_sum:
                self._last[True] = result
        if is_sum and writes(call) and kind_of(result) is Kind.LINEAR:
            self.keeps_texts = True

    def add(self, vectors: Tensor, residual: Tensor) -> Tensor:
        """Take what a network adds to the residual connection."""
        layer = self._begun or self._open
        return vectors if layer is None else layer.add(vectors, residual)

    # From W_O to the sum.

    def write(self, vectors: Tensor, trail: Trail) -> None:
        """Take the output of W_O."""
        self._begun, self._since_output = LayerFollower(Followed(vectors, trail.output)), 0
        self.output = self._function, self._called[self._function], 0
        self.date([vectors])

    def beside(self, addition: Addition) -> Stack:
        """The sum of attention's vectors and those of a network beside it, which are the layer's, not the block's."""
        call, wrote, x, trail = addition
        self.keeps_texts = self.keeps_texts or writes(call)
        if kind_of(x) is not Kind.LINEAR or "sub" in call.name:
            if self._begun is not None:
                self._begun.lost = getattr(x, "_because", "what runs beside attention")
            return stack_of(wrote)
        if not way_of(x).residual:
            self.add(kept(x) if writes(call) else x, wrote)
        stack = stack_after(_sum_of(call, wrote, x))
        trail.nothing[stack_of(x)] = x.new_zeros(1).view(1, *[1] * x.ndim)
        return Stack(stack.function, stack.operands, step=stack.step)

    def carry(self, addition: Addition) -> None:
        """Follow the layer on from the block's sum: an affine map of what is carried and of what attention adds."""
        call, wrote, x, trail = addition
        if not self._wants(trail.layer):
            return
        if (
            self._open is not None and self._number is None
        ):  # no module runs the layers, and the one before this ends here
            self._end(x)
            _begin_at(x)
        if kind_of(x) is not Kind.LINEAR:
            start(x)
        assert self._begun is not None
        attention = _before_norm(wrote, trail)
        self._begun.carry(x, attention)
        self.output = *self.output[:2], getattr(attention.value, "_since_output", 0)
        self.keeps_texts = self.keeps_texts or attention.value.ndim != 3 or writes(call)
        self._trail, self._open, self._begun = trail, self._begun, None
        self._shape, self._last = x.shape, {}
        whole = stack_after(_sum_of(call, *call.args[:2]))
        trail.sum.function, trail.sum.operands = whole.function, whole.operands
        trail.sum.over, trail.sum.is_new, trail.is_whole = whole.over, whole.is_new, True

    # Where layers begin and end.

    def enter(self, number: int, vectors: Tensor) -> None:
        """A module begins that may be a layer."""
        trail = trail_of(vectors)
        is_within = trail is not None and trail.awaits_sum  # W_O is an entry of a list
        if self._open is None and self._wants(number) and not is_within:
            self.keeps_texts = False
            self._called.clear()
            start(release(vectors) if trail is not None and trail.is_closed else vectors)

    def leave(self, number: int, vectors: Tensor) -> None:
        """A module ends that may be a layer."""
        trail = trail_of(vectors)
        if trail is not None and trail.awaits_sum:
            return
        if self._open is not None and self._number == number:
            self._end(vectors)
        if self._open is None:
            unfollowed(vectors)

    def end_pass(self) -> None:
        """The last layer ends with the pass, if no module runs it: with its norm, if the norm comes after the sum."""
        if self._open is None:
            return
        assert self._trail is not None
        last = self._last.get(not self._trail.is_normed)
        if last is not None:
            self._end(last)

    def _end(self, vectors: Tensor) -> None:
        """The model leaves the open layer."""
        made, trail = made_of(vectors), self._trail
        assert self._open is not None
        assert trail is not None
        if made is not None and made.reads_other_tokens(trail.made, chosen=False):
            raise trail.refusal(
                "what its layer adds to the residual connection after it takes from other tokens as well"
            )
        number, followed, lost = self._number, self._open.leave(vectors), self._open.lost
        self._open, self._shape, self._last = None, None, {}
        if followed is None or lost is not None:
            raise NotFollowedError(number, lost or getattr(vectors, "_because", None))
        self._visit(number, followed)


def _sum_of(call: Call, one: Tensor, other: Tensor) -> Step:
    """A sum, which may be written into one of its tensors."""
    changed = call.args[0] if writes(call) else None
    return sum_of(call, *(alias(each) if each is changed else each for each in (one, other)))


def _begin_at(tensor: Tensor) -> None:
    """Let all that is made of a tensor be followed from there."""
    stack = stack_of(tensor)
    stack.function, stack.operands, stack.over, stack.step = None, (), None, None
    tensor._way = Way(residual=True, origin=object())  # type: ignore[attr-defined]


def _before_norm(wrote: Tensor, trail: Trail) -> Followed:
    """The output of W_O on its way to the sum: moved and scaled, but before a norm or a network beside attention."""
    found, stack, of_norm = Followed.of(wrote), stack_of(wrote), None
    while stack is not trail.output:
        is_found = stack is found.stack
        step, (stack, *others) = stack.step, stack.operands
        if step is None:
            continue
        of_factor = made_of(step.factor)
        made = made_of(found.value) if is_found else None
        # A norm may multiply by γ before it divides by the deviation of what it reads.
        is_within = of_norm is not None and made is not None and not of_norm.reads(made)
        if others or is_within or kind_of(step.factor) is not None or of_factor is not None:
            found, of_norm = Followed(step.operands[0], stack), of_norm if of_factor is None else of_factor
    return found
