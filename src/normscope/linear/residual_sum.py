"""The third event of a block: the sum of what attention has written and what the residual connection carries."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.linear.axes import Axes
from normscope.linear.provenance import Made, keep, made_of, writes
from normscope.linear.rules import Call, Kind, Stack, dense, kind_of, parts_from, stack_of
from normscope.linear.trails import Trail, kind_in_block, trail_of

_NEARLY_ZERO = 1e-9
"""Below this share of the largest number, a number is a rounding error."""


class Addition(NamedTuple):
    """A sum of what attention has written and of another tensor of the tokens."""

    call: Call
    wrote: Tensor
    """What attention has written."""
    other: Tensor
    """What the residual connection carries, or what a network beside attention gives."""
    trail: Trail
    """The block that has written."""

    @classmethod
    def of(cls, call: Call) -> "Addition | None":
        """A sum of two tensors, if a block that still awaits its own sum has written one of them, but not the other."""
        one, other = call.args[0], call.args[1]
        for wrote, x in ((one, other), (other, one)):
            trail = trail_of(wrote)
            if trail is None or trail.written is None or not trail.awaits_sum or kind_of(wrote) is not Kind.LINEAR:
                continue
            if made_of(x) is not None and kind_in_block(x) is not Kind.HELD and trail_of(x) is not trail:
                return cls(call, wrote, x, trail)
        return None

    @property
    def other_made(self) -> Made:
        """How the other tensor was made."""
        made = made_of(self.other)
        assert made is not None
        return made

    @property
    def ancestor(self) -> Made | None:
        """What the queries come from that the other tensor, which is then the residual connection's, carries token by token.

        None if the other tensor is that of a network beside attention.
        """
        return self.trail.query.shared_with(self.other_made, moved=self.trail.in_windows)

    def axes(self, texts: int) -> Axes:
        """The axes of what is carried, as its shape tells.

        Args:
            texts: Number of texts in the batch.
        """
        written = self.trail.written
        assert written is not None
        return Axes.of(self.other, texts, dimension=written.axis, width=written.width)

    def inputs(self) -> Tensor:
        """What the residual connection adds."""
        factor, _ = self._factors
        inputs = self.other if factor == 1 and not writes(self.call) else self.other * factor
        keep(self.other_made, [inputs])
        return inputs

    def before(self) -> Stack:
        """What the block adds to the residual connection."""
        _, factor = self._factors
        if factor == 1:
            return stack_of(self.wrote)
        return Stack(lambda parts, *, bias: dense(parts) * factor, [stack_of(self.wrote)])  # noqa: ARG005

    @property
    def _factors(self) -> tuple[float, float]:
        """The numbers that multiply what is carried and what attention has written."""
        alpha = self.call.kwargs.get("alpha", 1)
        factors = (-alpha, 1) if "rsub" in self.call.name else (1, -alpha if "sub" in self.call.name else alpha)
        return factors if self.other is self.call.args[0] else factors[::-1]

    def is_self(self, ancestor: Made) -> bool:
        """Whether attention is to the same tokens: the values come from what is carried too, token by token.

        Args:
            ancestor: What the queries and the residual connection come from.
        """
        moved = self.trail.in_windows
        return all(each.value.comes_from(ancestor, moved=moved) for each in self.trail.attention)

    def value_functions(self, ancestor: Made) -> frozenset[str]:
        """The functions that make values from what is carried, in self-attention.

        Args:
            ancestor: What the queries and the residual connection come from.
        """
        return frozenset().union(*(each.value.functions_since(ancestor) for each in self.trail.attention))

    def require_block(self, ancestor: Made) -> None:
        """Check that what ends here is a block: each value is made of one token's vector, or of another text.

        Args:
            ancestor: What the queries and the residual connection come from.

        Raises:
            NotRecognisedError: If it is not.
        """
        trail = self.trail
        values, moved = [each.value for each in trail.attention], trail.in_windows
        if any(
            each.reads_other_tokens(ancestor, moved=moved) if trail.is_self else each.reads(ancestor) for each in values
        ):
            raise trail.refusal("its values are made of several tokens' vectors each")
        if self.other_made.reads_other_tokens(ancestor):
            raise trail.refusal("what the residual connection carries is made of several tokens' vectors each")
        if trail.is_self and any(each.queries != each.keys for each in trail.attention):
            raise trail.refusal("its queries are only some of its keys")
        if any(each.reads_other_tokens(ancestor) for each in trail.beside):
            raise trail.refusal("what runs beside it takes from other tokens as well")
        if not _is_made_of(stack_of(self.wrote), {trail.output, *trail.nothing}):
            raise trail.refusal("several linear layers read what its heads return")

    def require_network(self) -> None:
        """Check that what is added is not what another attention has written.

        Raises:
            NotRecognisedError: If it is.
        """
        other = trail_of(self.other)
        if other is None or not other.awaits_sum or other.written is None:
            return
        if other.layer != self.trail.layer:
            raise other.lost()
        raise self.trail.refusal("the outputs of two attentions are added up before the residual connection")

    def require_apart(self, texts: int) -> None:
        """Check that what one query takes reaches no other token on its way to the sum: every other query takes nothing.

        Args:
            texts: Number of texts in the batch.

        Raises:
            NotRecognisedError: If it does.
        """
        trail = self.trail
        assert trail.written is not None
        known: dict[Stack, Tensor] = {}
        for each in trail.attention:
            heads = each.zeros(texts)
            place = heads.shape[2] // 2
            row = heads[:, :, place]
            row.copy_(torch.arange(row.numel(), device=row.device).sin().view(row.shape))
            known[each.result] = each.as_returned(heads.unsqueeze(0))
        (before,) = parts_from(known, [trail.written.operand], bias=False)
        written = trail.written.step.parts([before])
        (after,) = parts_from({trail.output: written, **trail.nothing}, [stack_of(self.wrote)], bias=False)
        size = trail.axes.by_text(after[0], texts).abs().amax(dim=-1)
        reached = size.amax(dim=0) > _NEARLY_ZERO * size.max()
        reached[place] = False
        if bool(reached.any()):
            raise trail.refusal("vectors of different tokens are mixed between attention and the residual connection")


def _is_made_of(stack: Stack, known: Collection[Stack]) -> bool:
    """Whether a stack is computed from known ones alone."""
    waiting, seen = [stack], {stack}
    for each in waiting:
        if each in known:
            continue
        if not each.operands:
            return False
        new = [one for one in each.operands if one not in seen]
        seen.update(new)
        waiting += new
    return True
