"""Attention blocks, recognised while a model's own code runs: no trace, paths, hooks or modules.

Every tensor that depends on the tokens knows how it was made (`provenance.py`). Three events make a block, and between them its
vectors are followed by the rules of `rules.py`:

1. weights times values: a call of fused attention, or a product with a softmax;
2. the output projection W_O: the first function after that which mixes dimensions;
3. the sum with an ancestor of the queries, token by token: what the residual connection carries. If the values come from it
   too, token by token, the attention is to the same tokens.

What carries on is the sum itself, or a multiple of it, token by token and dimension by dimension: the norm of the block. It is
known once the next sum has read it.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normscope.linear.provenance import Made, begin, keep, made_of, noted
from normscope.linear.rules import (
    BESIDE,
    INTO,
    NEW,
    PRODUCTS,
    RULES,
    SUMS,
    TIMES,
    Call,
    HeldFixed,
    Kind,
    Stack,
    Step,
    kind_of,
    marked,
    names,
    parts_from,
    stack_of,
    tensors_in,
)
from normscope.linear.weighted_values import Attention, NotRecognisedError, WeightedValues
from normscope.maths.mixing import Method, ratio

_PROJECTIONS = PRODUCTS | {"linear", "addmm", "conv1d", "conv2d"}
_MIXES = _PROJECTIONS | names("addmm_ baddbmm _grouped_mm gelu silu relu tanh relu6 softmax sigmoid")
"""Functions that mix or bend dimensions. After the sum, what they make is not the block's any more."""

_LIKE = names("type_as expand_as view_as reshape_as")
"""Functions that take a type or a shape from their second tensor, and nothing else."""


_COMPOSED = frozenset({"multi_head_attention_forward"})
"""Functions of torch that function modes see as one, although they are written in others."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """An attention block: attention, the residual connection and the norm that belongs to it."""

    layer: int
    """Counted from 1; if the model calls no list of layers, in the order of attention."""
    is_self: bool
    """Whether attention is to the same tokens."""
    ratios: Mapping[Method, Float[Tensor, "batch token"]]
    """Mixing ratios by the methods that are defined for the block."""


@dataclasses.dataclass(eq=False)
class _Written:
    """Event 2: what W_O makes of the heads."""

    vectors: Tensor
    step: Step
    operand: Stack
    """What W_O reads."""
    axis: int
    """The axis of the vectors' dimensions, from the end."""


class _Trail:
    """A block while its vectors are followed."""

    def __init__(self, layer: int | None, place: str, attention: Attention) -> None:
        self.layer = layer
        self.place = place
        """The line of the model's code that multiplies weights by values."""
        self.attention = [attention]
        """Several, if each head is a module."""
        self.output, self.sum = Stack(None), Stack(None)
        """What W_O makes of the heads, and the sum with the residual connection."""
        self.written: _Written | None = None
        self.has_constants = False
        """Whether constants were added between attention and W_O."""
        self.beside: list[Made] = []
        """What was added to the output of W_O before the residual connection: a network that runs beside attention."""
        self.is_self = False
        self.ratios: dict[Method, Tensor] = {}
        self.parts: Tensor | None = None
        """What each token of the sum takes from itself, and from the others, (2, *tensor)."""
        self.is_closed = False
        """Whether it is known what carries on."""

    @property
    def is_open(self) -> bool:
        """Whether the residual connection is still to be added."""
        return self.parts is None and not self.is_closed


class BlockRecogniser(HeldFixed):
    """Runs a model's code and calls a visitor with each of its attention blocks, as soon as it is known what carries on.

    Use it as a context manager around a forward pass. For an encoder–decoder, let the encoder run before.

    Args:
        model: The model, in evaluation mode.
        texts: Number of texts in the batch, for attention whose texts and heads share an axis.
        visit: Called with each block.
        layer: Returns the number of the layer that is running.
        proves: Whether one token's vectors are followed from attention to the sum on their own, to show that they reach no
            other token.

    Raises:
        NotRecognisedError: On exit or before, if the model has attention that is not part of a block, or no attention.
    """

    def __init__(
        self,
        model: nn.Module,
        texts: int,
        visit: Callable[[Block], None],
        layer: Callable[[], int | None] = lambda: None,
        *,
        proves: bool = False,
    ) -> None:
        super().__init__(model, carries=True, wide=True)
        self._visit, self._layer, self._proves = visit, layer, proves
        self._texts = texts
        self._trails: list[_Trail] = []
        """Those of which it is not known what carries on."""
        self._attention = WeightedValues(self._under, self._refusal)
        self._closed = {True: 0, False: 0}
        """Number of blocks so far, of self-attention and of cross-attention."""

    def __enter__(self) -> "BlockRecogniser":
        TorchFunctionMode.__enter__(self)
        return self

    def __exit__(self, *exception: object) -> None:
        TorchFunctionMode.__exit__(self, *exception)
        if exception == (None, None, None):
            self._finish()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = Call(getattr(function, "__name__", ""), function, args, kwargs or {})
        if call.name in NEW:
            return function(*args, **call.kwargs)
        if call.name == "__get__" and not isinstance(attribute := function(*args), Tensor):
            return attribute
        if _looks_up(call):
            return begin(function(*args, **call.kwargs))
        if call.name in _COMPOSED:
            with self.again():
                return _opened(function)(*args, **call.kwargs)
        given = [*tensors_in(args), *tensors_in(call.kwargs)]
        made = noted(call, given[:1] if call.name in _LIKE else given)
        if made is None:
            return function(*args, **call.kwargs)
        if call.name == "dropout" and _drops(call):
            raise self._refusal("dropout is active; call model.eval() first")
        trail = self._trail_of(given)
        if trail is not None:
            return self._followed(call, given, made, trail)
        attended = self._attended(call, given, made)
        return self._plain(call, given, made) if attended is None else attended

    # Functions of tensors that belong to no block.

    def _plain(self, call: Call, given: Sequence[Tensor], made: Made) -> Any:
        """The result of a function, with a note of how it was made."""
        result = call.function(*call.args, **call.kwargs)
        keep(made, tensors_in(result))
        if _changes(call):
            changed = call.args[0]
            keep(made, [changed] if changed._base is None else [changed, changed._base])
        if isinstance(result, Tensor):
            self._attention.note(call, given, made, result, _place)
        return result

    # 1: weights times values.

    def _attended(self, call: Call, given: Sequence[Tensor], made: Made) -> Tensor | None:
        """What attention returns, if a function multiplies weights by values."""
        recognised = self._attention.of(call, given, made)
        if recognised is None:
            return None
        attention, result = recognised
        return result if attention is None else self._begin(attention, result)

    def _under(self, function: Callable[..., Tensor], *args: Any) -> Tensor:
        """Call a function under this mode."""
        with self.again():
            return function(*args)

    def _begin(self, attention: Attention, result: Tensor) -> Tensor:
        trail = _Trail(self._layer(), _place(), attention)
        self._trails.append(trail)
        made = Made("attention", [attention.query, attention.value], by_token=False)
        return _on(trail, result, attention.result, made)

    # Between the events.

    def _trail_of(self, given: Sequence[Tensor]) -> _Trail | None:
        """The latest block that tensors belong to, if it is not known yet what carries on."""
        live = []
        for each in given:
            trail: _Trail | None = getattr(each, "_trail", None)
            if trail is not None and trail.is_closed:
                _off(each)
            elif trail is not None:
                live.append(trail)
        return max(live, key=self._trails.index) if live else None

    def _merge(self, given: Sequence[Tensor], into: _Trail) -> None:
        """Make one block of heads that are modules of their own, which a function puts beside each other."""
        for each in given:
            trail: _Trail = getattr(each, "_trail", into)
            if trail is not into and trail.is_open and trail.written is None and into.written is None:
                into.attention = [*trail.attention, *into.attention]
                into.has_constants = into.has_constants or trail.has_constants
                trail.is_closed = True
                self._trails.remove(trail)
            each._trail = into  # type: ignore[attr-defined]

    def _followed(self, call: Call, given: Sequence[Tensor], made: Made, trail: _Trail) -> Any:
        """A function of a block's vectors, by its rule. What has no rule is held; what mixes dimensions ends the block."""
        if call.name in SUMS and len(given) == 2 and (summed := self._sum(call, given, made)) is not None:
            return summed
        if call.name == "dropout":  # it is not active
            return call.args[0]
        if call.name in BESIDE:
            self._merge(given, trail)
        if trail.written is not None and _changes(call):
            trail.written.vectors = trail.written.vectors.clone()
        ends = self._ends(call, given, trail)
        step = None if ends else self._step(call, given)
        if step is None:
            begun = self._attended(call, given, made)
            if begun is not None:
                return begun
            result = self._plain(call, given, made)
            for each in tensors_in(result) if not ends else ():
                marked(each, Kind.HELD)
                each._trail = trail  # type: ignore[attr-defined]
            return result
        if isinstance(step, Step) and trail.written is None and step.mixes and len(step.operands) == 1:
            return self._projected(call, step, made, trail)
        result = self.done(step) if isinstance(step, Step) else step[0]
        if isinstance(step, Step) and trail.written is None:
            trail.has_constants = trail.has_constants or bool(step.constants)
            of_factor = made_of(step.factor)
            if isinstance(step.factor, Tensor) and of_factor is not None and of_factor.is_of_scores:
                trail.attention[-1].scaled(step.factor)
        keep(made, tensors_in(result))
        for each in tensors_in(result):
            each._trail = trail  # type: ignore[attr-defined]
        return result

    def _ends(self, call: Call, given: Sequence[Tensor], trail: _Trail) -> bool:
        """Whether what a function makes is not the block's any more."""
        if call.name not in _MIXES:
            return False
        linear = any(kind_of(each) is Kind.LINEAR for each in given)
        return not linear or trail.parts is not None or call.name not in _PROJECTIONS

    def _step(self, call: Call, given: Sequence[Tensor]) -> Any:
        """What the rule of a function says; None without a rule."""
        if not any(kind_of(each) is Kind.LINEAR for each in given):
            return None
        others = any(made_of(each) is not None and kind_of(each) is None for each in given)
        if others and call.name not in TIMES and call.name != "where":
            return None
        rule = RULES.get(call.name)
        return None if rule is None else rule(self, call)

    # 2: the output projection.

    def _projected(self, call: Call, step: Step, made: Made, trail: _Trail) -> Tensor:
        """What W_O makes of the heads."""
        operand = stack_of(step.operands[0])
        result = step.apply(*step.operands, *step.constants)
        axis = -2 if call.name == "conv1d" else -3 if call.name == "conv2d" else -1
        trail.written = _Written(result, step, operand, axis)
        return _on(trail, result, trail.output, Made(call.name, made.parents, by_token=False))

    # 3: the sum with what the residual connection carries.

    def _sum(self, call: Call, given: Sequence[Tensor], made: Made) -> Tensor | None:
        """A sum that ends a part of a block; None if it is one of its functions."""
        one, other = call.args[0], call.args[1]
        for wrote, x in ((one, other), (other, one)):
            trail, carried = getattr(wrote, "_trail", None), made_of(x)
            if trail is None or trail.written is None or not trail.is_open or kind_of(wrote) is not Kind.LINEAR:
                continue
            if carried is None or kind_of(x) is Kind.HELD or getattr(x, "_trail", None) is trail:
                continue
            reached = trail.attention[0].query.shared_with(carried)
            if reached is not None:
                return self._joined(call, wrote, x, reached, trail)
            if (beside := getattr(x, "_trail", None)) is not None and beside.is_open and beside.written is not None:
                if beside.layer != trail.layer:
                    raise self._lost(beside)
                raise self._refusal("the outputs of two attentions are added up before the residual connection", trail)
            trail.beside.append(carried)
            result = call.function(*call.args, **call.kwargs)
            return _on(trail, result, stack_of(wrote), Made("beside", made.parents, by_token=False))
        return self._read(call, given, made)

    def _joined(self, call: Call, wrote: Tensor, x: Tensor, reached: Made, trail: _Trail) -> Tensor:
        """The sum of what attention has written and what the residual connection carries."""
        for each in self._trails:
            if each.is_open and each is not trail:
                raise self._lost(each)
        self._require_own_values(trail, reached)
        if self._proves and trail.is_self:
            self._require_apart(trail, stack_of(wrote))
        if self._layer() != trail.layer:  # what is called is a part of a layer
            trail.layer = None
        self._settle(x)
        assert trail.written is not None
        axis, stack = trail.written.axis, stack_of(wrote)
        written = self._written_parts(trail)
        (before_sum,) = parts_from({trail.output: written}, [stack], bias=False)
        is_normed = _is_scaled(stack, by_tokens=True)
        if trail.is_self:
            trail.ratios[Method.ATTN_N] = self._ratio(written if is_normed else before_sum, axis)
        own, others = before_sum
        own = (x - own if "sub" in call.name and wrote is call.args[1] else x + own).to(others.dtype)
        trail.parts = torch.stack([own, others])
        method = Method.ATTNRESLN_N if is_normed else Method.ATTNRES_N
        trail.ratios[method] = self._ratio(trail.parts, axis)
        result = call.function(*call.args, **call.kwargs)
        _on(trail, result, trail.sum, Made("sum"))
        if result is call.args[0] and result._base is not None:
            keep(made_of(result), [result._base])
        if is_normed:  # there is one norm in a block
            self._close(trail)
        return result

    def _require_own_values(self, trail: _Trail, reached: Made) -> None:
        """Check that values are made of the carried vectors token by token, or have nothing to do with them."""
        values = [each.value for each in trail.attention]
        trail.is_self = all(each.comes_from(reached) for each in values)
        if any(each.reads_other_tokens(reached) if trail.is_self else each.reads(reached) for each in values):
            raise self._refusal("its values are made of several tokens' vectors each", trail)
        if trail.is_self and any(each.own is None for each in trail.attention):
            raise self._refusal("its queries are only some of its keys", trail)
        if any(each.reads_other_tokens(reached) for each in trail.beside):
            raise self._refusal("what runs beside it takes from other tokens as well", trail)

    def _require_apart(self, trail: _Trail, stack: Stack) -> None:
        """Check that what one query takes reaches no other token on its way to the sum: every other query takes nothing."""
        assert trail.written is not None
        known: dict[Stack, Tensor] = {}
        for each in trail.attention:
            own = self._own(each)[1]
            one, axis = torch.zeros_like(own), own.ndim + each.axis
            place = own.shape[axis] // 2
            one.select(axis, place).copy_(own.select(axis, place))
            known[each.result] = one.unsqueeze(0)
        (before,) = parts_from(known, [trail.written.operand], bias=False)
        (after,) = parts_from({trail.output: trail.written.step.parts([before])}, [stack], bias=False)
        size = _by_text(after[0].abs().amax(dim=trail.written.axis), self._texts)
        reached = size.amax(dim=0) > _NEARLY_ZERO * size.max()
        reached[place] = False
        if bool(reached.any()):
            raise self._refusal(
                "vectors of different tokens are mixed between attention and the residual connection", trail
            )

    def _written_parts(self, trail: _Trail) -> Float[Tensor, "2 *axes"]:
        """What W_O writes from each token itself, and from the others."""
        assert trail.written is not None
        step, has_constants = trail.written.step, trail.has_constants
        known, weights = {}, []
        for each in trail.attention:
            own = each.nothing()
            if trail.is_self:
                of_each, own = self._own(each)
                weights.append(of_each)
            known[each.result] = torch.stack([own, torch.zeros_like(own)]) if has_constants else own.unsqueeze(0)
        if weights:
            self._by_weights(trail, weights)
        (before,) = parts_from(known, [trail.written.operand], bias=has_constants)
        written, *constants = step.parts([before])
        others = trail.written.vectors - written
        for constant in [*constants, *([step.constant()] if step.constants else [])]:
            others = others - constant
        return torch.stack([written, others])

    @staticmethod
    def _own(attention: Attention) -> tuple[Tensor, Tensor]:
        """α_ii and α_ii v_i."""
        assert attention.own is not None
        return attention.own()

    def _by_weights(self, trail: _Trail, weights: Sequence[Tensor]) -> None:
        """The ratios of weights, averaged over heads."""
        own = self._over_heads(weights)
        if all(each.to_nowhere is None for each in trail.attention):
            trail.ratios |= {Method.ATTN_W: 1 - own, Method.ATTNRES_W: (1 - own) / 2}
            return
        to_nowhere = [
            torch.zeros_like(of_each) if each.to_nowhere is None else each.to_nowhere()
            for each, of_each in zip(trail.attention, weights, strict=True)
        ]
        others = (1 - own - self._over_heads(to_nowhere)).clamp(min=0)
        trail.ratios |= {Method.ATTN_W: ratio(others, own), Method.ATTNRES_W: ratio(others, own + 1)}

    def _over_heads(self, weights: Sequence[Tensor]) -> Float[Tensor, "batch token"]:
        """The mean over heads, which may share an axis with the texts, or be modules of their own."""
        return torch.cat([each.reshape(self._texts, -1, each.shape[-1]) for each in weights], dim=1).mean(dim=1)

    def _ratio(self, parts: Float[Tensor, "2 *axes"], axis: int) -> Float[Tensor, "batch token"]:
        own, others = torch.linalg.vector_norm(parts, dim=axis)
        return _by_text(ratio(others, own), self._texts)

    # What carries on.

    def _read(self, call: Call, given: Sequence[Tensor], made: Made) -> Tensor | None:
        """A sum that reads what a block hands over; None if it is a step of the block's norm."""
        carriers = [
            each
            for each in given
            if hasattr(each, "_trail") and each._trail.parts is not None and kind_of(each) is Kind.LINEAR
        ]
        of_one = len({id(each._trail) for each in carriers}) == 1 and len(carriers) == len(given)
        if not carriers or of_one or any(made_of(each) is None for each in given):
            return None
        for each in carriers:
            self._settle(each)
        result = self._plain(call, given, Made("added", made.parents))
        assert isinstance(result, Tensor)
        return _off(result)

    def _settle(self, carried: Tensor) -> None:
        """Measure a block, now that it is known what carries on: the sum itself, or a multiple of it."""
        trail: _Trail | None = getattr(carried, "_trail", None)
        if trail is None or trail.parts is None or trail.is_closed:
            return
        stack = stack_of(carried)
        if stack is not trail.sum and _is_scaled(stack):
            assert trail.written is not None
            (parts,) = parts_from({trail.sum: trail.parts}, [stack], bias=False)
            trail.ratios[Method.ATTNRESLN_N] = self._ratio(parts, trail.written.axis)
        self._close(trail)

    def _close(self, trail: _Trail) -> None:
        trail.is_closed = True
        self._trails.remove(trail)
        self._closed[trail.is_self] += 1
        layer = self._closed[trail.is_self] if trail.layer is None else trail.layer
        self._visit(Block(layer, trail.is_self, trail.ratios))

    def _finish(self) -> None:
        """Check that nothing is left over."""
        for each in [*self._trails]:
            if each.is_open:
                raise self._lost(each)
            self._close(each)
        for place in self._attention.unused:
            raise NotRecognisedError(
                f"attention weights multiply no values, so their block cannot be measured ({place})"
            )
        if not any(self._closed.values()):
            raise NotRecognisedError(f"no softmax attention was found in {type(self._model).__name__}")

    def _lost(self, trail: _Trail) -> NotRecognisedError:
        missing = "a linear layer" if trail.written is None else "the residual connection"
        return self._refusal(f"what it gives is not followed to {missing}", trail)

    def _refusal(self, why: str, trail: _Trail | None = None) -> NotRecognisedError:
        layer, place = (self._layer(), _place()) if trail is None else (trail.layer, trail.place)
        where = "attention" if layer is None else f"the attention of layer {layer}"
        return NotRecognisedError(f"{where} cannot be measured: {why} ({place})")


_NEARLY_ZERO = 1e-9
"""Below this share of the largest number, a number is a rounding error."""


def _on(trail: _Trail, tensor: Tensor, stack: Stack, made: Made) -> Tensor:
    """A tensor from which a block's vectors are followed."""
    marked(tensor, Kind.LINEAR)
    tensor._stack, tensor._trail, tensor._made = stack, trail, made  # type: ignore[attr-defined]
    return tensor


def _off(tensor: Tensor) -> Tensor:
    """A tensor whose vectors are not followed any more."""
    for name in ("_kind", "_stack", "_trail"):
        vars(tensor).pop(name, None)
    return tensor


def _is_scaled(stack: Stack, *, by_tokens: bool = False) -> bool:
    """Whether vectors have been multiplied by a tensor, as by a norm.

    Args:
        by_tokens: Whether only factors that depend on the tokens count. Others before the residual connection, such as
            LayerScale, belong to attention.
    """
    while stack.operands:
        factor = None if stack.step is None else stack.step.factor
        if isinstance(factor, Tensor) and not (by_tokens and kind_of(factor) is None):
            return True
        stack = stack.operands[0]
    return False


def _by_text(values: Tensor, texts: int) -> Float[Tensor, "batch token"]:
    """Numbers by text and token, whichever axis comes first in the model, and whether texts have an axis of their own."""
    values = values.reshape(texts, -1) if values.ndim == 1 else values.flatten(1) if values.ndim > 2 else values
    return values if len(values) == texts else values.T


def _looks_up(call: Call) -> bool:
    """Whether a function takes the tokens' vectors from a table."""
    if call.name == "embedding":
        return True
    if call.name != "__getitem__" or made_of(call.args[0]) is not None or not call.args[0].is_floating_point():
        return False
    return any(each.dtype in (torch.int64, torch.int32) and each.ndim > 1 for each in tensors_in(call.args[1]))


def _changes(call: Call) -> bool:
    """Whether a function writes into its first argument."""
    return call.name in INTO or call.in_place or call.name in ("__iadd__", "__imul__", "__isub__", "__itruediv__")


@functools.cache
def _opened(function: FunctionType) -> FunctionType:
    """The same function, which asks no function mode but calls the functions that it consists of."""
    own = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    return FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)


def _drops(call: Call) -> bool:
    """Whether a call of dropout drops anything."""
    given = dict(zip(("input", "p", "training"), call.args, strict=False)) | dict(call.kwargs)
    return bool(given.get("training", True)) and given.get("p", 0.5) > 0


def _place() -> str:
    """The line of the model's own code that is running: file, number and function."""
    frame: FrameType | None = sys._getframe()
    places = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_AROUND):
            place = f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}, in {frame.f_code.co_name}"
            if isinstance(frame.f_locals.get("self"), nn.Module):
                return place
            places.append(place)
        frame = frame.f_back
    return places[0] if places else "an unknown line"


_AROUND = tuple(str(Path(each).parent) for each in (torch.__file__, __file__))
"""Folders whose functions stand between a model's code and its operations."""
