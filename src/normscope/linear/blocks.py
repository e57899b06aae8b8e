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

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn, overrides
from torch.overrides import TorchFunctionMode

from normscope.linear.computed import record
from normscope.linear.layers import Followed, start
from normscope.linear.provenance import Made, begin, keep, keep_result, made_of, noted
from normscope.linear.rules import (
    BESIDE,
    COMPOSED,
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
    Way,
    dense,
    kept,
    kind_of,
    leave_modes,
    marked,
    names,
    opened,
    parts_from,
    stack_of,
    sum_of,
    tensors_in,
    way_of,
    with_tensors,
)
from normscope.linear.weighted_values import Attended, NotRecognisedError, WeightedValues
from normscope.linear.whole_layers import WholeLayers
from normscope.maths.attention import AttentionCall
from normscope.maths.composition import NormPosition

_PROJECTIONS = PRODUCTS | {"linear", "addmm", "conv1d", "conv2d"}
_MIXES = _PROJECTIONS | names("addmm_ baddbmm _grouped_mm gelu silu relu tanh relu6 softmax sigmoid")
"""Functions that mix or bend dimensions. After the sum, what they make is not the block's any more."""

_LIKE = names("to type_as expand_as view_as reshape_as")
"""Functions that take a type or a shape from their second tensor, and nothing else."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """An attention block: attention, the residual connection and the norm that belongs to it."""

    layer: int
    """Counted from 1; if the model calls no list of layers, in the order of attention."""
    is_self: bool
    """Whether attention is to the same tokens."""
    trail: "Trail"
    """The tensors and steps from attention to what carries on."""


@dataclasses.dataclass(eq=False)
class Written:
    """Event 2: what W_O makes of the heads."""

    vectors: Tensor
    step: Step
    operand: Stack
    """What W_O reads."""
    axis: int
    """The axis of the vectors' dimensions, from the end."""


class Trail:
    """A block while its vectors are followed."""

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
        """What is added to the residual connection, without what runs beside attention, and what carries on."""
        self.weights: list[Tensor] = []
        """Parameters of the model that are read between attention and what carries on."""
        self.written: Written | None = None
        self.inputs: Tensor | None = None
        """What the residual connection adds, with the model's axes."""
        self.carried: Tensor | None = None
        """What carries on: the sum or a multiple of it; None until that is known, and if nothing has read the sum."""
        self.beside: list[Made] = []
        """What was added to the output of W_O before the residual connection: a network that runs beside attention."""
        self.nothing: dict[Stack, Tensor] = {}
        """What that takes from attention, if whole layers are followed."""
        self.is_self = False
        self.in_layer = True
        """Whether a module runs the whole block, and so its layer."""
        self.is_joined = False
        """Whether the residual connection has been added."""
        self.is_closed = False
        """Whether it is known what carries on."""
        self.is_whole = False
        """Whether the layer is followed on from the sum."""

    @property
    def is_open(self) -> bool:
        """Whether the residual connection is still to be added."""
        return not self.is_joined and not self.is_closed


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
        layers: Receives whole layers; None to follow blocks alone.
        masks_on_host: Token masks of the pass that can be read without waiting for a device, as far as they are known.
        untouched: Whether fused attention is computed by torch's own kernel, as without this mode.
        positions: Returns the position of a layer's norm, given its number and whether attention is to the same tokens, as far
            as it is known. Blocks are then handed out as soon as they are complete, without waiting for the next sum.
        projects: Whether it is noted how queries, keys and values are computed, for `projections`.

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
        layers: WholeLayers | None = None,
        masks_on_host: Sequence[Tensor] = (),
        untouched: bool = False,
        positions: Callable[[int | None, bool], NormPosition | None] = lambda _layer, _is_self: None,
        projects: bool = True,
    ) -> None:
        super().__init__(model, carries=True, wide=True, added=None if layers is None else layers.add)
        self._layers, self._is_split, self._called = layers, False, ""
        self._visit, self._layer, self._proves = visit, layer, proves
        self._texts, self.masks_on_host = texts, masks_on_host
        self._trails: list[Trail] = []
        """Those of which it is not known what carries on."""
        self._attention = WeightedValues(self._under, self._refusal, untouched=untouched)
        self._positions, self._projects = positions, projects
        self.is_routed = False
        """Whether the model has chosen the largest of some numbers, as routers of experts do."""
        self._pooled = ""
        """The line of the model's code that pools tokens, as a head after the last block may."""
        self._rests = False
        self.last: Tensor | None = None
        """The last sum with what the residual connection carries."""
        self._closed = {True: 0, False: 0}
        """Number of blocks so far, of self-attention and of cross-attention."""

    def __enter__(self) -> "BlockRecogniser":
        # Modules that are activations are recognised as a whole only where something follows them.
        (TorchFunctionMode if self._layers is None else HeldFixed).__enter__(self)
        return self

    def __exit__(self, *exception: object) -> None:
        (TorchFunctionMode if self._layers is None else HeldFixed).__exit__(self, *exception)
        if exception == (None, None, None):
            self._finish()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._rests:
            return function(*args, **(kwargs or {}))
        call = Call(getattr(function, "__name__", ""), function, args, kwargs or {})
        if self._layers is not None and not self._is_split and call.name not in COMPOSED:
            self._called = call.name
            self._layers.count(call.name)
        if call.name in NEW:
            return super().__torch_function__(function, types, args, kwargs)
        if call.name == "__get__" and not isinstance(attribute := function(*args), Tensor):
            return attribute
        if _looks_up(call):
            return begin(function(*args, **call.kwargs))
        if call.name in COMPOSED:
            with self.again():
                return opened(function)(*args, **call.kwargs)
        given = tensors_in(args) + tensors_in(call.kwargs)
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

    def rest(self) -> None:
        """Let the model run on by itself: nothing more is needed of it."""
        self._rests = True

    # Functions of tensors that belong to no block.

    def _plain(self, call: Call, given: Sequence[Tensor], made: Made) -> Any:
        """The result of a function, with a note of how it was made."""
        self.is_routed = self.is_routed or call.name in ("topk", "sort", "argmax")
        is_followed = self._layers is not None and any(map(_is_followed, given))
        result = self.by_rule(call, given) if is_followed else call.function(*call.args, **call.kwargs)
        if call.name in SUMS and isinstance(result, Tensor) and self._continues(made):
            self.last = result
        keep_result(call, made, result)
        if _changes(call) and (result is None or not is_followed or result is call.args[0]):
            changed = call.args[0]
            keep(made, [changed] if changed._base is None else [changed, changed._base])
        if self._projects:
            record(call, given, made, result, changes=_changes(call))
        if isinstance(result, Tensor):
            if is_followed and self._layers is not None:
                self._layers.note(result, is_sum=call.name in SUMS)
                if call.name in SUMS and _changes(call) and kind_of(result) is Kind.LINEAR:
                    self._layers.keeps_texts = True
            self._attention.note(call, given, made, result, _place)
        return result

    def _continues(self, made: Made) -> bool:
        """Whether a sum adds something else to the last one; a norm subtracts a mean of it."""
        last, before = made_of(self.last), {each.unscaled() for each in made.parents}
        return last is not None and len(before) == 2 and last.unscaled() in before

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
        self._is_split = True
        try:
            with self.again():
                return function(*args)
        finally:
            self._is_split = False

    def attend(self, _module: nn.Module, call: AttentionCall) -> Float[Tensor, "batch query head head_dim"] | None:
        """Attention that the model calls by name, through a registry of functions, and what that returns; None at rest."""
        if self._rests:
            return None
        with torch._C.DisableTorchFunction():
            return self._begin(*self._attention.computed(call, -3))

    def _begin(self, attention: Attended, result: Tensor) -> Tensor:
        place = _place()
        if attention.query is None:
            self._pooled = self._pooled or place
            keep(Made("attention", [attention.value], by_token=False), [result])
            return result
        if self._pooled:
            raise self._refusal(
                f"tokens are pooled before it by attention whose queries are no tokens' ({self._pooled})"
            )
        trail = Trail(self._layer(), place, attention, attention.query)
        self._trails.append(trail)
        made = Made("attention", [attention.query, attention.value], by_token=False)
        return _on(trail, result, attention.result, made)

    # Between the events.

    def _trail_of(self, given: Sequence[Tensor]) -> Trail | None:
        """The latest block that tensors belong to, if it is not known yet what carries on."""
        live = []
        for each in given:
            trail: Trail | None = getattr(each, "_trail", None)
            if trail is not None and trail.is_closed:
                _off(each)
            elif trail is not None:
                live.append(trail)
        return max(live, key=self._trails.index) if live else None

    def _merge(self, given: Sequence[Tensor], into: Trail) -> None:
        """Make one block of heads that are modules of their own, which a function puts beside each other."""
        given = [each for each in given if hasattr(each, "_trail")]
        trails: list[Trail] = [each._trail for each in given]  # type: ignore[attr-defined]
        if into.written is None:
            of_heads = (one for each in trails if each.written is None for one in each.attention)
            into.attention = [*dict.fromkeys(of_heads)]
        for each, trail in zip(given, trails, strict=True):
            if trail is not into and trail.is_open and trail.written is None and into.written is None:
                trail.is_closed = True
                self._trails.remove(trail)
            each._trail = into  # type: ignore[attr-defined]

    def _followed(self, call: Call, given: Sequence[Tensor], made: Made, trail: Trail) -> Any:
        """A function of a block's vectors, by its rule. What has no rule is held; what mixes dimensions ends the block."""
        if trail.written is not None and _changes(call):
            trail.written.vectors = trail.written.vectors.clone()
        if call.name in SUMS and len(given) == 2 and (summed := self._sum(call, given, made)) is not None:
            return summed
        if call.name == "dropout":  # it is not active
            return call.args[0]
        if call.name in BESIDE:
            self._merge(given, trail)
        ends = self._ends(call, given, trail)
        if ends:
            self._settle_normed(given, trail)
        else:
            trail.weights += _parameters(given)
        step = None if ends else self._step(call, given)
        if step is None:
            begun = self._attended(call, given, made)
            return self._held(call, given, made, None if ends else trail) if begun is None else begun
        if isinstance(step, Step) and trail.written is None and step.mixes and len(step.operands) == 1:
            return self._projected(call, step, made, trail)
        result = self.done(step) if isinstance(step, Step) else step[0]
        if isinstance(step, Step) and trail.written is None:
            of_factor = made_of(step.factor)
            if isinstance(step.factor, Tensor) and of_factor is not None and of_factor.is_of_scores:
                trail.attention[-1].scaled(step.factor)
        keep_result(call, made, result)
        if self._projects:
            record(call, given, made, result, changes=_changes(call))
        self._note_block(result, trail)
        return result

    def _note_block(self, result: Any, trail: Trail) -> None:
        """Note which block tensors belong to, and when they were made."""
        for each in tensors_in(result):
            each._trail = trail  # type: ignore[attr-defined]
            if self._layers is not None and not hasattr(each, "_since_output"):
                each._since_output = self._layers.since_output  # type: ignore[attr-defined]

    def _held(self, call: Call, given: Sequence[Tensor], made: Made, trail: Trail | None) -> Any:
        """The result of a function without a rule, which belongs to a block, or to none."""
        result = self._plain(call, given, made)
        if trail is not None:
            for each in tensors_in(result):
                each._numbers = _numbers_in(call, given)  # type: ignore[attr-defined]
                _hold(each, trail)
        return result

    def _ends(self, call: Call, given: Sequence[Tensor], trail: Trail) -> bool:
        """Whether what a function makes is not the block's any more."""
        if call.name not in _MIXES:
            return False
        linear = any(_kind(each) is Kind.LINEAR for each in given)
        return not linear or trail.is_joined or call.name not in _PROJECTIONS

    def _step(self, call: Call, given: Sequence[Tensor]) -> Any:
        """What the rule of a function says; None without a rule."""
        if not any(_kind(each) is Kind.LINEAR for each in given):
            return None
        others = any(made_of(each) is not None and _kind(each) is None for each in given)
        if others and call.name not in TIMES and call.name != "where":
            return None
        if others:
            call = call._replace(args=with_tensors(call.args, _factor), kwargs=with_tensors(dict(call.kwargs), _factor))
        rule = RULES.get(call.name)
        return None if rule is None else rule(self, call)

    # 2: the output projection.

    def _projected(self, call: Call, step: Step, made: Made, trail: Trail) -> Tensor:
        """What W_O makes of the heads."""
        operand = stack_of(step.operands[0])
        result = step.apply(*step.operands, *step.constants)
        axis = -2 if call.name == "conv1d" else -3 if call.name == "conv2d" else -1
        trail.written = Written(result, step, operand, axis)
        if self._layers is not None:
            self._layers.write(Followed(result, trail.output), self._called)
            result._since_output = 0
        return _on(trail, result, trail.output, Made(call.name, made.parents, by_token=False))

    # 3: the sum with what the residual connection carries.

    def _sum(self, call: Call, given: Sequence[Tensor], made: Made) -> Tensor | None:
        """A sum that ends a part of a block; None if it is one of its functions."""
        one, other = call.args[0], call.args[1]
        for wrote, x in ((one, other), (other, one)):
            trail, carried = getattr(wrote, "_trail", None), made_of(x)
            if trail is None or trail.written is None or not trail.is_open or kind_of(wrote) is not Kind.LINEAR:
                continue
            if carried is None or _kind(x) is Kind.HELD or getattr(x, "_trail", None) is trail:
                continue
            reached = trail.query.shared_with(carried)
            if reached is not None:
                return self._joined(call, wrote, x, reached, trail)
            if (beside := getattr(x, "_trail", None)) is not None and beside.is_open and beside.written is not None:
                if beside.layer != trail.layer:
                    raise self._lost(beside)
                raise self._refusal("the outputs of two attentions are added up before the residual connection", trail)
            trail.beside.append(carried)
            stack = self._with_network(call, wrote, x, trail)
            if self._layers is not None and _changes(call):
                self._layers.keeps_texts = True
            result = call.function(*call.args, **call.kwargs)
            return _on(trail, result, stack, Made("beside", made.parents, by_token=False))
        return self._read(call, given, made)

    def _joined(self, call: Call, wrote: Tensor, x: Tensor, reached: Made, trail: Trail) -> Tensor:
        """The sum of what attention has written and what the residual connection carries."""
        for each in self._trails:
            if each.is_open and each is not trail:
                raise self._lost(each)
        carried = made_of(x)
        assert carried is not None
        self._require_own_values(trail, carried, reached)
        if not _is_made_of(stack_of(wrote), {trail.output, *trail.nothing}):
            raise self._refusal("several linear layers read what its heads return", trail)
        if self._proves and trail.is_self:
            self._require_apart(trail, stack_of(wrote))
        if self._layer() != trail.layer:  # what is called is a part of a layer
            trail.layer = None
        trail.in_layer = trail.layer is not None
        self.settle(x)
        assert trail.written is not None
        stack = stack_of(wrote)
        of_x, of_wrote = _factors(call)[:: 1 if x is call.args[0] else -1]
        trail.inputs = x if of_x == 1 and not _changes(call) else x * of_x
        keep(made_of(x), [trail.inputs])
        if of_wrote != 1:
            stack = Stack(lambda parts, *, bias: dense(parts) * of_wrote, [stack])  # noqa: ARG005
        trail.before_sum = stack
        trail.is_joined = True
        self._follow_on(call, wrote, x, trail)
        result = call.function(*call.args, **call.kwargs)
        _on(trail, result, trail.sum, trail.made)
        if result is call.args[0] and result._base is not None:
            keep(made_of(result), [result._base])
        if is_scaled(stack, by_tokens=True):  # there is one norm in a block
            self._close(trail)
        elif self._positions(trail.layer, trail.is_self) == "pre":
            self.settle(result)
        self.last = result
        return result

    def _require_own_values(self, trail: Trail, carried: Made, reached: Made) -> None:
        """Check that values are made of the carried vectors token by token, or have nothing to do with them."""
        values = [each.value for each in trail.attention]
        trail.is_self = all(each.comes_from(reached) for each in values)
        if any(each.reads_other_tokens(reached) if trail.is_self else each.reads(reached) for each in values):
            raise self._refusal("its values are made of several tokens' vectors each", trail)
        if carried.reads_other_tokens(reached):
            raise self._refusal("what the residual connection carries is made of several tokens' vectors each", trail)
        if trail.is_self and not all(each.is_square for each in trail.attention):
            raise self._refusal("its queries are only some of its keys", trail)
        if any(each.reads_other_tokens(reached) for each in trail.beside):
            raise self._refusal("what runs beside it takes from other tokens as well", trail)

    def _require_apart(self, trail: Trail, stack: Stack) -> None:
        """Check that what one query takes reaches no other token on its way to the sum: every other query takes nothing."""
        assert trail.written is not None
        known: dict[Stack, Tensor] = {}
        for each in trail.attention:
            one = each.nothing()
            axis = one.ndim + each.axis
            place, row = one.shape[axis] // 2, one.select(axis, one.shape[axis] // 2)
            row.copy_(torch.arange(row.numel(), device=row.device).sin().view(row.shape))
            known[each.result] = one.unsqueeze(0)
        (before,) = parts_from(known, [trail.written.operand], bias=False)
        written = trail.written.step.parts([before])
        (after,) = parts_from({trail.output: written, **trail.nothing}, [stack], bias=False)
        size = _by_text(after[0].abs().amax(dim=trail.written.axis), self._texts)
        reached = size.amax(dim=0) > _NEARLY_ZERO * size.max()
        reached[place] = False
        if bool(reached.any()):
            raise self._refusal(
                "vectors of different tokens are mixed between attention and the residual connection", trail
            )

    # What carries on.

    def _read(self, call: Call, given: Sequence[Tensor], made: Made) -> Tensor | None:
        """A sum that reads what a block hands over; None if it is a step of the block's norm."""
        carriers = [
            each for each in given if hasattr(each, "_trail") and each._trail.is_joined and kind_of(each) is Kind.LINEAR
        ]
        of_one = len({id(each._trail) for each in carriers}) == 1 and len(carriers) == len(given)
        if not carriers or of_one or any(made_of(each) is None for each in given):
            return None
        for each in carriers:
            trail, before = each._trail, made_of(each._trail.inputs)
            others = [other for one in given if one is not each and (other := made_of(one)) is not None]
            # What does not read the sum runs beside attention.
            trail.beside += [other for other in others if not other.reads(trail.made, before)]
            self.settle(each)
        result = self._plain(call, given, Made("added", made.parents))
        assert isinstance(result, Tensor)
        self.last = _off(result)
        return self.last

    def settle(self, carried: Tensor) -> None:
        """Measure a block, now that it is known what carries on: the sum itself, or a multiple of it."""
        trail: Trail | None = getattr(carried, "_trail", None)
        if trail is None or not trail.is_joined or trail.is_closed:
            return
        if kind_of(carried) is not Kind.LINEAR:
            raise self._refusal(
                "what carries on is neither the sum with the residual connection nor a multiple of it", trail
            )
        trail.carried, trail.after = carried, stack_of(carried)
        self._close(trail)

    def _settle_normed(self, given: Sequence[Tensor], trail: Trail) -> None:
        """What a network reads is what carries on, if the norm is known to come after the sum."""
        if self._positions(trail.layer, trail.is_self) == "post":
            for each in given:
                if getattr(each, "_trail", None) is trail and is_scaled(stack_of(each), since=trail.sum):
                    self.settle(each)

    # Whole layers.

    def begin_layer(self, number: int, vectors: Tensor) -> None:
        """A module begins that may be a layer; see `LayerCalls.begin`."""
        if made_of(vectors) is None:  # of an image or a recording, no table has been looked up
            begin(vectors)
        trail = getattr(vectors, "_trail", None)
        is_within = trail is not None and trail.is_open  # W_O is an entry of a list
        if self._layers is not None and not self._layers.is_open and self._layers.wants(number) and not is_within:
            self._layers.begin()
            start(vectors)

    def end_layer(self, number: int, vectors: Tensor) -> None:
        """A module ends that may be a layer; see `LayerCalls.end`. If its vectors are a block's, they are what carries on."""
        layers, trail = self._layers, getattr(vectors, "_trail", None)
        if trail is not None and trail.layer == number:
            self.settle(vectors)
        if layers is None or (trail is not None and trail.is_open):
            return
        if layers.is_open and layers.number == number:
            self._end(vectors)
        if not layers.is_open:
            _unfollowed(vectors)

    def _end(self, vectors: Tensor) -> None:
        assert self._layers is not None
        made, trail = made_of(vectors), self._last_whole
        if made is not None and made.reads_other_tokens(trail.made, chosen=False):
            raise self._refusal(
                "what its layer adds to the residual connection after it takes from other tokens as well", trail
            )
        with without(self):
            self._layers.end(vectors)

    def _end_last(self) -> None:
        """The last layer ends with the pass, if no module runs it: with its norm, if the norm comes after the sum."""
        layers = self._layers
        if layers is not None and layers.is_open:
            carried = self._last_whole.carried
            is_normed = carried is not None and is_scaled(stack_of(carried), since=self._last_whole.sum)
            last = layers.last(is_sum=not is_normed)
            if last is not None:
                self._end(last)

    def _activation(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """A module that may be an activation, whose result is noted like that of a function."""
        if any(hasattr(each, "_trail") for each in tensors_in(args)):
            return type(module).forward(module, *args, **kwargs)
        result = super()._activation(module, *args, **kwargs)
        parents = [made for each in tensors_in(args) if (made := made_of(each)) is not None]
        unnoted = [each for each in tensors_in(result) if made_of(each) is None and kind_of(each) is not None]
        keep(
            Made(type(module).__name__, parents), unnoted
        )  # what has no kind does not depend on the tokens: angles do not
        return result

    def _reason(self, name: str, given: Sequence[Tensor]) -> str:
        return next((str(each._because) for each in given if hasattr(each, "_because")), f"{name} ({_place()})")

    def _with_network(self, call: Call, wrote: Tensor, x: Tensor, trail: Trail) -> Stack:
        """The stack of attention's vectors and those of a network beside it, which are the layer's, not the block's."""
        if self._layers is None:
            return stack_of(wrote)
        if kind_of(x) is not Kind.LINEAR or "sub" in call.name:
            self._layers.lose(x)
            return stack_of(wrote)
        if not way_of(x).residual:
            self._layers.add(kept(x) if _changes(call) else x, wrote)
        stack = self.stack(sum_of(call, wrote, x))
        trail.nothing[stack_of(x)] = x.new_zeros(1).view(1, *[1] * x.ndim)
        return Stack(stack.function, stack.operands, step=stack.step)

    def _follow_on(self, call: Call, wrote: Tensor, x: Tensor, trail: Trail) -> None:
        """Follow the layer on from its sum, which is an affine map of what is carried and of what attention adds."""
        layers = self._layers
        if layers is None or not layers.wants(trail.layer):
            return
        if layers.is_open and layers.number is None:  # no module runs the layers, and the one before this ends here
            self._end(x)
            _begin_at(x)
        if kind_of(x) is not Kind.LINEAR:
            start(x)
        layers.carry(trail.layer, x, _before_norm(wrote, trail))
        layers.keeps_texts = layers.keeps_texts or _changes(call)
        self._last_whole = trail
        whole = self.stack(sum_of(call, *call.args[:2]))
        trail.sum.function, trail.sum.operands = whole.function, whole.operands
        trail.sum.over, trail.sum.is_new, trail.is_whole = whole.over, whole.is_new, True

    def _close(self, trail: Trail) -> None:
        trail.is_closed = True
        self._trails.remove(trail)
        self._closed[trail.is_self] += 1
        layer = trail.layer = self._closed[trail.is_self] if trail.layer is None else trail.layer
        self._visit(Block(layer, trail.is_self, trail))

    def _finish(self) -> None:
        """Check that nothing is left over."""
        if self._rests:
            return
        for each in [*self._trails]:
            if each.is_open:
                raise self._lost(each)
            self._close(each)
        self._end_last()
        for place in self._attention.unused:
            raise NotRecognisedError(
                f"attention weights multiply no values as the softmax gave them, so their block cannot be measured ({place})"
            )
        if not any(self._closed.values()):
            raise NotRecognisedError("no softmax attention was found")

    def _lost(self, trail: Trail) -> NotRecognisedError:
        missing = "a linear layer" if trail.written is None else "the residual connection"
        return self._refusal(f"what it gives is not followed to {missing}", trail)

    def _refusal(self, why: str, trail: Trail | None = None) -> NotRecognisedError:
        return refusal(why, *((self._layer(), _place()) if trail is None else (trail.layer, trail.place)))


def refusal(why: str, layer: int | None, place: str) -> NotRecognisedError:
    """The error for attention whose block cannot be measured, with its layer and the line of the model's code."""
    where = "attention" if layer is None else f"the attention of layer {layer}"
    return NotRecognisedError(f"{where} cannot be measured: {why} ({place})")


_NEARLY_ZERO = 1e-9
"""Below this share of the largest number, a number is a rounding error."""


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


def _on(trail: Trail, tensor: Tensor, stack: Stack, made: Made) -> Tensor:
    """A tensor from which a block's vectors are followed."""
    marked(tensor, Kind.LINEAR)
    tensor._stack, tensor._trail, tensor._made = stack, trail, made  # type: ignore[attr-defined]
    tensor._way = Way(residual=True, origin=object())  # type: ignore[attr-defined]
    vars(tensor).pop("_computed", None)
    return tensor


def _hold(tensor: Tensor, trail: Trail) -> None:
    """Note that a tensor is a function of a block's vectors, unless it is followed as a part of the layer."""
    if not trail.is_whole or kind_of(tensor) is not Kind.LINEAR:
        marked(tensor, Kind.HELD)
        tensor._trail = trail  # type: ignore[attr-defined]


def _off(tensor: Tensor) -> Tensor:
    """A tensor that belongs to no block any more."""
    trail: Trail | None = vars(tensor).pop("_trail", None)
    return tensor if trail is None or trail.is_whole else _unfollowed(tensor)


def _unfollowed(tensor: Tensor) -> Tensor:
    """A tensor whose vectors are not followed any more."""
    for name in ("_kind", "_stack", "_way"):
        vars(tensor).pop(name, None)
    return tensor


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


def _kind(tensor: Tensor) -> Kind | None:
    """The kind of a tensor of a block; None for any other, even if it is followed through the layer."""
    return kind_of(tensor) if hasattr(tensor, "_trail") else None


def _is_followed(tensor: Tensor) -> bool:
    """Whether a tensor is followed through its layer."""
    trail: Trail | None = getattr(tensor, "_trail", None)
    return kind_of(tensor) is not None and (trail is None or trail.is_whole)


def _factor(tensor: Tensor) -> Tensor:
    """A tensor as it is for a block: fixed, unless it is the block's."""
    if hasattr(tensor, "_trail") or kind_of(tensor) is None:
        return tensor
    fixed = tensor.detach()
    keep(made_of(tensor), [fixed])
    return fixed


@contextlib.contextmanager
def without(mode: TorchFunctionMode) -> Iterator[None]:
    """Context in which neither a function mode nor those inside it see what runs, but those that are entered do."""
    modes = overrides._get_current_function_mode_stack()
    above = [*itertools.dropwhile(lambda each: each is not mode, modes)]
    leave_modes(len(modes) - len(above))
    try:
        yield
    finally:
        for each in above:
            overrides._push_mode(each)


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


def _factors(call: Call) -> tuple[float, float]:
    """The numbers by which a sum multiplies its two tensors."""
    alpha = call.kwargs.get("alpha", 1)
    if "rsub" in call.name:
        return -alpha, 1
    return 1, -alpha if "sub" in call.name else alpha


def _numbers_in(call: Call, given: Sequence[Tensor]) -> list[float | Tensor]:
    """Numbers that a function is called with, and those from which its tensors were computed: one may be the ε of a norm."""
    own = [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, float | Tensor)]
    own = [each for each in own if made_of(each) is None]
    return own + [number for each in given for number in getattr(each, "_numbers", ())]


def _parameters(given: Sequence[Tensor]) -> list[Tensor]:
    """The parameters among tensors, or of which these are views."""
    own = (each if each._base is None else each._base for each in given if made_of(each) is None)
    return [each for each in own if issubclass(type(each), nn.Parameter)]


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


_AROUND = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
"""Folders whose functions stand between a model's code and its operations."""
