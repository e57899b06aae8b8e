"""An attention block while its vectors are followed, from attention to what carries on."""

import copy
import dataclasses

from torch import Tensor

from normscope.linear.axes import USUAL
from normscope.linear.provenance import Made
from normscope.linear.refusals import NotRecognisedError, refusal
from normscope.linear.rules import Kind, Stack, Step, Way, kind_of, marked
from normscope.linear.weighted_values import Attended


@dataclasses.dataclass(eq=False)
class Written:
    """What W_O makes of the heads."""

    vectors: Tensor
    step: Step
    operand: Stack
    """What W_O reads."""
    axis: int
    """The axis of the vectors' dimensions, from the end."""

    @property
    def width(self) -> int:
        """Number of the vectors' dimensions."""
        return self.vectors.shape[self.axis]


class Trail:
    """A block while its vectors are followed.

    It begins with weights times values, gets W_O's output (`written`) and the sum (`is_joined`) in turn, and is closed
    (`is_closed`) when it is known what carries on.
    """

    def __init__(self, layer: int | None, place: str, attention: Attended, query: Made) -> None:
        self.layer = layer
        self.query = query
        """How its queries were made."""
        self.place = place
        """The line of the model's code that multiplies weights by values."""
        self.attention = [attention]
        """Several, if each head is a module."""
        self.output, self.sum = Stack(None), Stack(None)
        """What W_O makes of the heads, and the sum with the residual connection."""
        self.made = Made("sum")
        """How the sum was made."""
        self.before_sum, self.after = self.output, self.sum
        """What is added to the residual connection, without what runs beside attention, and what carries on: the sum, or what
        a norm after it makes of it."""
        self.weights: list[Tensor] = []
        """Parameters of the model that are read between attention and what carries on."""
        self.written: Written | None = None
        self.inputs: Tensor | None = None
        """What the residual connection carries and the sum adds, with the model's axes."""
        self.axes = USUAL
        """Its axes, which are those of the sum."""
        self.carried: Tensor | None = None
        """What carries on: the sum or a multiple of it; None until that is known, if nothing has read the sum, and if a norm
        between W_O and the sum has closed the block."""
        self.is_normed = False
        """Whether what carries on is the sum's norm."""
        self.beside: list[Made] = []
        """How networks beside attention were made: what was added to the output of W_O, or after the sum without reading it."""
        self.nothing: dict[Stack, Tensor] = {}
        """What the outputs of these networks take from attention: zeros, by stack. Empty unless whole layers are followed."""
        self.is_self = False
        """Whether attention is to the same tokens."""
        self.value_functions: frozenset[str] = frozenset()
        """The functions that make values from what the residual connection carries, in self-attention."""
        self.in_windows = False
        """Whether tokens attend within windows, into which they are moved."""
        self.in_layer = True
        """Whether a module runs the whole block, and so its layer."""
        self.is_joined = False
        """Whether the residual connection has been added."""
        self.is_closed = False
        """Whether the block has been handed to the visitor, or merged with that of another head."""
        self.is_whole = False
        """Whether the layer is followed on from the sum."""

    def handed_over(self) -> "Trail":
        """What has been followed, for whoever reads the block. This trail forgets it.

        Every tensor of the block refers to its trail. If the trail went on referring to them, these reference cycles would keep
        all of them until Python's garbage collector runs.
        """
        whole = copy.copy(self)
        self.attention, self.weights, self.nothing = [], [], {}
        self.written = self.inputs = self.carried = None
        self.output = self.sum = self.before_sum = self.after = Stack(None)
        return whole

    @property
    def awaits_sum(self) -> bool:
        """Whether the third event is still to come: the sum with the residual connection."""
        return not self.is_joined and not self.is_closed

    def refusal(self, why: str, kind: type[NotRecognisedError] = NotRecognisedError) -> NotRecognisedError:
        """The error for a block that cannot be measured."""
        return refusal(why, self.layer, self.place, kind)

    def lost(self) -> NotRecognisedError:
        """The error for a block whose next event never comes."""
        missing = "a linear layer" if self.written is None else "the residual connection"
        return self.refusal(f"what it gives is not followed to {missing}")


def trail_of(tensor: Tensor) -> Trail | None:
    """The block that a tensor belongs to."""
    return getattr(tensor, "_trail", None)


def kind_in_block(tensor: Tensor) -> Kind | None:
    """The kind of a tensor of a block; None for any other, even if it is followed through the layer."""
    return kind_of(tensor) if hasattr(tensor, "_trail") else None


def is_followed(tensor: Tensor) -> bool:
    """Whether a tensor is followed through its layer."""
    trail = trail_of(tensor)
    return kind_of(tensor) is not None and (trail is None or trail.is_whole)


def start_at(tensor: Tensor, stack: Stack, trail: Trail, made: Made) -> Tensor:
    """The same tensor, from which a block's vectors are followed.

    Args:
        stack: What the tensor is in the block.
        made: How it was made.
    """
    marked(tensor, Kind.LINEAR)
    tensor._stack, tensor._trail, tensor._made = stack, trail, made  # type: ignore[attr-defined]
    tensor._way = Way(residual=True, origin=object())  # type: ignore[attr-defined]
    vars(tensor).pop("_computed", None)
    return tensor


def hold(tensor: Tensor, trail: Trail) -> None:
    """Note that a tensor is an unknown function of a block's vectors, unless it is followed as a part of the layer.

    It still belongs to the block, but is a constant for it: a factor on the vectors, not what carries on.
    """
    if not trail.is_whole or kind_of(tensor) is not Kind.LINEAR:
        marked(tensor, Kind.HELD)
        tensor._trail = trail  # type: ignore[attr-defined]


def release(tensor: Tensor) -> Tensor:
    """The same tensor, which belongs to no block any more."""
    trail: Trail | None = vars(tensor).pop("_trail", None)
    return tensor if trail is None or trail.is_whole else unfollowed(tensor)


def unfollowed(tensor: Tensor) -> Tensor:
    """The same tensor, whose vectors are not followed any more."""
    for name in ("_kind", "_stack", "_way"):
        vars(tensor).pop(name, None)
    return tensor


def is_scaled(stack: Stack, *, since: Stack | None = None, by_tokens: bool = False) -> bool:
    """Whether vectors have been multiplied by a tensor, as by a norm.

    Args:
        since: What they were before; by default, what they have been made from.
        by_tokens: Whether only factors that depend on the tokens count. Others before the residual connection, such as
            LayerScale, belong to attention.
    """
    while stack.operands and stack is not since:
        factor = None if stack.step is None else stack.step.factor
        if isinstance(factor, Tensor) and not (by_tokens and kind_of(factor) is None):
            return True
        stack = stack.operands[0]
    return False
