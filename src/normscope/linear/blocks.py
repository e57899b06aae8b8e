"""Attention blocks, recognised while a model's own code runs: no trace, paths, hooks or modules.

Every tensor that depends on the tokens knows how it was made (`provenance.py`). A block begins with the first of three events
and ends with what carries on from it. In between, its vectors are followed by the rules of `rules.py`, along a `Trail`:

1. weights times values: a call of fused attention, or a product with a softmax (`weighted_values.py`);
2. the output projection W_O: the first function after that which mixes dimensions;
3. the sum with an ancestor of the queries, token by token: what the residual connection carries. If the values come from it
   too, token by token, the attention is to the same tokens (`residual_sum.py`).

What carries on is what the next sum adds to, or what leaves the layer: the sum itself, or what a norm after it makes of it,
which is a multiple of the sum by token and dimension. A block has one norm. Where it lies is read off the closed trail
(`norm_position` in `block_output.py`); by default it is before attention, where nothing looks for it.

A function of a block's vectors without a rule runs as it is, and its result is held: a constant that may multiply the
vectors, as 1/σ does, but cannot be what carries on.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn, overrides
from torch.overrides import TorchFunctionMode

from normscope.linear.axes import Axes
from normscope.linear.computed import record
from normscope.linear.known import KnownTensors, wholes
from normscope.linear.provenance import Made, begin, keep, keep_result, made_of, noted, writes
from normscope.linear.refusals import (
    OTHER_TOKENS,
    PADDED,
    POOLED,
    WINDOWS,
    LeftOut,
    NotRecognisedError,
    StageError,
    none_measured,
    refusal,
    running_line,
)
from normscope.linear.residual_sum import Addition
from normscope.linear.rules import (
    BESIDE,
    COMPOSED,
    NEW,
    PRODUCTS,
    RULES,
    SUMS,
    TIMES,
    Call,
    HeldFixed,
    Kind,
    Step,
    kind_of,
    leave_modes,
    name_of,
    names,
    opened,
    stack_of,
    tensors_in,
    with_tensors,
)
from normscope.linear.trails import (
    Trail,
    Written,
    hold,
    is_followed,
    is_scaled,
    kind_in_block,
    release,
    start_at,
    trail_of,
)
from normscope.linear.weighted_values import Attended, WeightedValues
from normscope.linear.whole_layers import WholeLayers
from normscope.linear.windows import leave_windows
from normscope.maths.attention import AttentionCall
from normscope.maths.composition import NormPosition

_PROJECTIONS = PRODUCTS | {"linear", "addmm", "conv1d", "conv2d"}
_MIXES = _PROJECTIONS | names("addmm_ baddbmm _grouped_mm gelu silu relu tanh relu6 softmax sigmoid")
"""Functions that mix or bend dimensions. After the sum, what they make is no longer the block's."""

_LIKE = names("to type_as expand_as view_as reshape_as")
"""Functions that take a type or a shape from their second tensor, and nothing else."""

Positions = Callable[[int | None, bool], NormPosition | None]
"""Returns the position of a layer's norm, given its number and whether attention is to the same tokens; None if unknown."""


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """An attention block: attention, the residual connection and the norm that belongs to it."""

    layer: int
    """Counted from 1; if the model calls no list of layers, in the order of attention."""
    is_self: bool
    """Whether attention is to the same tokens."""
    trail: Trail
    """The tensors and steps from attention to what carries on."""


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
        axes: The axes of what the residual connection carries; None if each tensor's shape has to tell.
        masks_on_host: Token masks of the pass that can be read without waiting for a device, as far as they are known.
        untouched: Whether fused attention is computed by torch's own kernel, as without this mode.
        positions: The positions of norms, as far as they are known from an earlier pass. Blocks are then handed out as soon as
            they are complete, without waiting for the next sum.
        projects: Whether it is noted how queries, keys and values are computed, for `projections`.
        tokens: Number of tokens of a text, in a model of vectors with nothing but self-attention. Its layers with other tokens
            are then left out; see `left_out`.

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
        axes: Axes | None = None,
        masks_on_host: Sequence[Tensor] = (),
        untouched: bool = False,
        positions: Positions = lambda _layer, _is_self: None,
        projects: bool = True,
        tokens: int | None = None,
    ) -> None:
        super().__init__(model, carries=True, wide=True, added=None if layers is None else layers.add)
        self._texts, self._axes, self._layer, self._layers = texts, axes, layer, layers
        self._proves, self._projects, self.masks_on_host, self._tokens = proves, projects, masks_on_host, tokens
        self._blocks = OpenBlocks(visit, positions)
        self._attention = WeightedValues(self._split, self._refusal, untouched=untouched)
        self._known = KnownTensors(model, self._refusal, proves=proves)
        self._is_split = self._rests = self._has_begun = False
        self._pooled = ""
        """The line of the model's code that pools tokens, as a head after the last block may."""
        self.is_routed = False
        """Whether the model has chosen the largest of some numbers, as routers of experts do."""
        self.left_out: dict[int, LeftOut] = {}
        """Layers whose attention is not measured."""
        self._entered: Tensor | None = None
        """What has entered the layer that is running."""
        self.last: Tensor | None = None
        """The last sum with what the residual connection carries."""

    def __enter__(self) -> "BlockRecogniser":
        # Only whole layers are followed through activations, for which modules have to be recognised.
        (TorchFunctionMode if self._layers is None else HeldFixed).__enter__(self)
        return self

    def __exit__(self, *exception: object) -> None:
        (TorchFunctionMode if self._layers is None else HeldFixed).__exit__(self, *exception)
        if exception != (None, None, None) or self._rests:
            return
        self._blocks.end_pass()
        if self._layers is not None:
            self._layers.end_pass()
        self._attention.end_pass()
        if not self._blocks.count:
            raise none_measured(self.left_out)

    @property
    def unused(self) -> list[str]:
        """The lines of softmaxes of scores that have multiplied nothing."""
        return self._attention.unused

    def rest(self) -> None:
        """Let the model run on by itself: nothing more is needed of it."""
        self._rests = True

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._rests:
            return function(*args, **(kwargs or {}))
        call = Call(name_of(function), function, args, kwargs or {})
        if self._layers is not None and not self._is_split and call.name not in COMPOSED:
            self._layers.count(call.name)
        if call.name in NEW:
            return self._known.note_new(call, super().__torch_function__(function, types, args, kwargs))
        if call.name == "__get__" and not isinstance(attribute := function(*args), Tensor):
            return attribute
        if _looks_up(call):
            self._has_begun = True
            return begin(function(*args, **call.kwargs))
        if call.name in COMPOSED:
            with self.again():
                return opened(function)(*args, **call.kwargs)
        given = tensors_in(args) + tensors_in(call.kwargs)
        read = given[:1] if call.name in _LIKE else given
        made = noted(call, read)
        if made is None:
            return self._known.note_plain(call, read, function(*args, **call.kwargs))
        self._require(call, read, made)
        try:
            return self._noted(call, given, made)
        except (RuntimeError, TypeError, ValueError, IndexError):
            function(*args, **call.kwargs)  # a model's own mistake is raised as the model's
            raise

    def _require(self, call: Call, read: Sequence[Tensor], made: Made) -> None:
        """Check that a function of the tokens' vectors can be followed."""
        if call.name == "dropout" and _drops(call):
            raise self._refusal("dropout is active; call model.eval() first")
        if "attention" in call.name and call.name != "scaled_dot_product_attention":
            raise self._refusal(f"{call.name} computes it in a way that is not known")
        self._known.require(call, read, made)
        self._attention.read(call, read)

    def _noted(self, call: Call, given: Sequence[Tensor], made: Made) -> Any:
        """The result of a function of tensors that depend on the tokens: in a block, where one begins, or outside."""
        trail = self._blocks.latest(given)
        if trail is not None:
            return self._followed(call, given, made, trail)
        attended = self._attended(self._attention.of(call, given, made))
        return self._plain(call, given, made) if attended is None else attended

    def _plain(self, call: Call, given: Sequence[Tensor], made: Made) -> Any:
        """The result of a function of tensors that belong to no block, with a note of how it was made."""
        self.is_routed = self.is_routed or call.name in ("topk", "sort", "argmax")
        follows = self._layers is not None and any(map(is_followed, given))
        result = self.by_rule(call, given) if follows else call.function(*call.args, **call.kwargs)
        if call.name in SUMS and isinstance(result, Tensor) and _continues(made, made_of(self.last)):
            self.last = result
        keep_result(call, made, result)
        if writes(call) and (result is None or not follows or result is call.args[0]):
            changed = call.args[0]
            keep(made, [changed, *wholes(changed)])
        if self._projects:
            record(call, given, made, result)
        if isinstance(result, Tensor):
            if follows and self._layers is not None:
                self._layers.note(call, result)
            self._attention.note(call, given, made, result, running_line)
            self._known.note(call, result)
        return result

    # 1: weights times values.

    def attend(self, _module: nn.Module, call: AttentionCall) -> Float[Tensor, "batch query head head_dim"] | None:
        """Attention that the model calls by name, through a registry of functions, and what that returns; None at rest."""
        if self._rests:
            return None
        with torch._C.DisableTorchFunction():
            return self._attended(self._attention.computed(call, -3))

    def _attended(self, recognised: tuple[Attended | None, Tensor] | None) -> Tensor | None:
        """What attention returns, where a block begins; None if a function does not multiply weights by values."""
        if recognised is None:
            return None
        (attention, result), place = recognised, running_line()
        if attention is None:
            return result
        if attention.query is None:
            self._pooled = self._pooled or place
            keep(Made("attention", [attention.value], by_token=False), [result])
            return result
        if self._pooled:
            raise self._refusal(
                f"tokens are pooled before it ({self._pooled}), by attention whose queries do not come from tokens"
            )
        trail = Trail(self._layer(), place, attention, attention.query)
        self._blocks.begin(trail)
        made = Made("attention", [attention.query, attention.value], by_token=False)
        return start_at(result, attention.result, trail, made)

    def _split(self, function: Callable[..., Tensor], *args: Any) -> Tensor:
        """A function of the model in parts, each of which is seen by this mode."""
        self._is_split = True
        try:
            with self.again():
                return function(*args)
        finally:
            self._is_split = False

    # Between the events.

    def _followed(self, call: Call, given: Sequence[Tensor], made: Made, trail: Trail) -> Any:
        """The result of a function of a block's vectors: by its rule, held if it has none, or no longer the block's."""
        if trail.written is not None and writes(call):  # what W_O has written is read when the block is closed
            trail.written.vectors = trail.written.vectors.clone()
        if call.name in SUMS and len(given) == 2 and (summed := self._sum(call, given, made)) is not None:
            return summed
        if call.name == "dropout":  # it is not active
            return call.args[0]
        if call.name in BESIDE:
            self._blocks.merge(given, trail)
        leaves = _leaves_block(call, given, trail)
        if leaves:
            self._blocks.close_at_norm(given, trail)
        else:
            trail.weights += _parameters(given)
        step = None if leaves else _step(self, call, given)
        if step is None:
            attended = self._attended(self._attention.of(call, given, made))
            if attended is not None:
                return attended
            result = self._plain(call, given, made)
            return result if leaves else _held(result, call, given, trail)
        if isinstance(step, Step) and trail.written is None:
            if step.mixes and len(step.operands) == 1:
                return self._projected(call, step, given, made, trail)
            of_factor = made_of(step.factor)
            # A factor that comes from the scores, such as a sink's, changes the weights: it is no gate.
            if isinstance(step.factor, Tensor) and of_factor is not None and of_factor.is_of_scores:
                trail.attention[-1].scaled(step.factor)
        return self._mapped(call, given, made, step, trail)

    def _mapped(self, call: Call, given: Sequence[Tensor], made: Made, step: Any, trail: Trail) -> Any:
        """The result of a function by its rule."""
        result = self.done(step) if isinstance(step, Step) else step[0]
        results = [*tensors_in(result)]
        keep_result(call, made, results)
        self._known.note(call, result)
        if self._projects:
            record(call, given, made, result)
        for each in results:
            each._trail = trail  # type: ignore[attr-defined]
        if self._layers is not None:
            self._layers.date(results)
        return result

    # 2: the output projection.

    def _projected(self, call: Call, step: Step, given: Sequence[Tensor], made: Made, trail: Trail) -> Any:
        """What W_O makes of the heads."""
        operand = stack_of(step.operands[0])
        result = step.apply(*step.operands, *step.constants)
        axis = -2 if call.name == "conv1d" else -3 if call.name == "conv2d" else -1
        has = self._has_instead(trail, result.numel() // result.shape[axis] // self._texts, result.shape[axis])
        if has and trail.layer is not None:
            return self._left_out(trail, has, call, given, made)
        trail.written = Written(result, step, operand, axis)
        if self._layers is not None:
            self._layers.write(result, trail)
        return start_at(result, trail.output, trail, Made(call.name, made.parents, by_token=False))

    def _has_instead(self, trail: Trail, written: int, width: int) -> str:
        """What a layer has instead of attention that is measured; empty if its attention may be.

        Args:
            written: Number of vectors of each text that W_O writes.
            width: Number of their dimensions.
        """
        if self._tokens is None:
            return ""
        entered = 0 if self._entered is None else self._entered.numel()
        if written < self._tokens or (written > self._tokens and entered != self._texts * self._tokens * width):
            return OTHER_TOKENS
        if any(each.queries != each.keys for each in trail.attention):
            return POOLED
        trail.in_windows = trail.layer is not None and any(each.queries < written for each in trail.attention)
        return "" if written == self._tokens else PADDED

    def _left_out(self, trail: Trail, has: str, call: Call, given: Sequence[Tensor], made: Made) -> Any:
        """The result of a function with which it turns out that a block cannot be measured, though others can."""
        assert trail.layer is not None
        if trail.layer in self.left_out:
            raise trail.refusal(f"its layer has {self.left_out[trail.layer].has}", StageError)
        self.left_out[trail.layer] = LeftOut(has, trail.place)
        self._blocks.leave_out(trail)
        return self._plain(call, [release(each) for each in given], made)

    # 3: the sum with what the residual connection carries.

    def _sum(self, call: Call, given: Sequence[Tensor], made: Made) -> Tensor | None:
        """The third event, a sum with a network beside attention, or the sum after a block; None for a sum within a block."""
        addition = Addition.of(call)
        if addition is not None:
            ancestor = addition.ancestor
            if addition.trail.in_windows and not (ancestor and leave_windows(addition, self._entered, self._texts)):
                return self._left_out(addition.trail, WINDOWS, call, given, made)
            return self._network_beside(addition, made) if ancestor is None else self._joined(addition, ancestor)
        if not self._blocks.close_at_next_sum(given):
            return None
        result = self._plain(call, given, Made("added", made.parents))
        assert isinstance(result, Tensor)
        self.last = release(result)
        return self.last

    def _network_beside(self, addition: Addition, made: Made) -> Tensor:
        """The sum of what attention has written and what a network beside it gives."""
        addition.require_network()
        call, wrote, _, trail = addition
        trail.beside.append(addition.other_made)
        stack = stack_of(wrote) if self._layers is None else self._layers.beside(addition)
        result = call.function(*call.args, **call.kwargs)
        return start_at(result, stack, trail, Made("beside", made.parents, by_token=False))

    def _joined(self, addition: Addition, ancestor: Made) -> Tensor:
        """The sum of what attention has written and what the residual connection carries."""
        call, trail = addition.call, addition.trail
        self._blocks.require_no_other(trail)
        trail.is_self = addition.is_self(ancestor)
        if trail.is_self:
            trail.value_functions = addition.value_functions(ancestor)
        addition.require_block(ancestor)
        trail.axes = self._axes or addition.axes(self._texts)
        if self._proves and trail.is_self:
            addition.require_apart(self._texts)
        if self._layer() != trail.layer:  # the entry of the list that ran attention was only a part of a layer
            trail.layer = None
        trail.in_layer = trail.layer is not None
        self.settle(addition.other)
        trail.inputs, trail.before_sum, trail.is_joined = addition.inputs(), addition.before(), True
        if self._layers is not None:
            self._layers.carry(addition)
        result = call.function(*call.args, **call.kwargs)
        start_at(result, trail.sum, trail, trail.made)
        if result is call.args[0]:
            keep(made_of(result), wholes(result))
        self._blocks.close_at_sum(result, trail)
        self.last = result
        return self.last

    # What carries on.

    def settle(self, carried: Tensor) -> None:
        """Take what carries on from a block, if a tensor is that; see `OpenBlocks.settle`."""
        self._blocks.settle(carried)

    def begin_layer(self, number: int, vectors: Tensor) -> None:
        """A module begins that may be a layer; see `LayerCalls.begin`."""
        if made_of(vectors) is None and not self._rests:  # of an image or a recording, no table has been looked up
            if self._has_begun and not self._known.has(vectors):
                raise self._refusal("what enters its layer was made where no function mode sees it")
            self._has_begun = True
            begin(vectors)
        self._entered = vectors
        if self._layers is not None:
            self._layers.enter(number, vectors)

    def end_layer(self, number: int, vectors: Tensor) -> None:
        """A module ends that may be a layer; see `LayerCalls.end`. If its vectors are a block's, they are what carries on."""
        trail = trail_of(vectors)
        if trail is not None and trail.layer == number:
            self.settle(vectors)
        if self._layers is not None:
            self._layers.leave(number, vectors)

    # What the mode does with modules and reasons.

    def _activation(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """A module that may be an activation, whose result is noted like that of a function."""
        if any(hasattr(each, "_trail") for each in tensors_in(args)):
            return type(module).forward(module, *args, **kwargs)
        result = super()._activation(module, *args, **kwargs)
        parents = [made for each in tensors_in(args) if (made := made_of(each)) is not None]
        # What has no kind does not depend on the tokens: angles do not.
        unnoted = [each for each in tensors_in(result) if made_of(each) is None and kind_of(each) is not None]
        keep(Made(type(module).__name__, parents), unnoted)
        return result

    def _reason(self, name: str, given: Sequence[Tensor]) -> str:
        return next((str(each._because) for each in given if hasattr(each, "_because")), f"{name} ({running_line()})")

    def _refusal(self, why: str) -> NotRecognisedError:
        return refusal(why, self._layer(), running_line())


class OpenBlocks:
    """Blocks that have begun and of which it is not known yet what carries on.

    A block is closed, and handed to the visitor, at the first of these:

    - its own sum, if the norm lies between W_O and the sum, or is known to come before attention;
    - the network that reads its norm, if the norm is known to come after the sum;
    - the next sum that adds to what carries on;
    - the end of its layer;
    - the end of the pass.

    Args:
        visit: Called with each block that is closed.
        positions: The positions of norms, as far as they are known.
    """

    def __init__(self, visit: Callable[[Block], None], positions: Positions) -> None:
        self._visit, self._positions = visit, positions
        self._trails: list[Trail] = []
        self._closed = {True: 0, False: 0}
        """Number of blocks that have been visited, of self-attention and of cross-attention."""

    @property
    def count(self) -> int:
        """Number of blocks that have been visited."""
        return sum(self._closed.values())

    def begin(self, trail: Trail) -> None:
        """Take a block that has begun."""
        self._trails.append(trail)

    def leave_out(self, trail: Trail) -> None:
        """Stop following a block, which is not visited."""
        trail.is_closed = True
        self._trails.remove(trail)
        trail.handed_over()

    def latest(self, given: Sequence[Tensor]) -> Trail | None:
        """The latest open block that tensors belong to."""
        live = []
        for each in given:
            trail: Trail | None = getattr(each, "_trail", None)
            if trail is not None and trail.is_closed:
                release(each)
            elif trail is not None:
                live.append(trail)
        return max(live, key=self._trails.index) if live else None

    def merge(self, given: Sequence[Tensor], into: Trail) -> None:
        """Make one block of heads that are modules of their own, which a function puts beside each other."""
        given = [each for each in given if hasattr(each, "_trail")]
        trails: list[Trail] = [each._trail for each in given]  # type: ignore[attr-defined]
        if into.written is None:
            of_heads = (one for each in trails if each.written is None for one in each.attention)
            into.attention = [*dict.fromkeys(of_heads)]
        for each, trail in zip(given, trails, strict=True):
            if trail is not into and trail.awaits_sum and trail.written is None and into.written is None:
                trail.is_closed = True
                self._trails.remove(trail)
            each._trail = into  # type: ignore[attr-defined]

    def require_no_other(self, trail: Trail) -> None:
        """Check that no other block awaits its sum.

        Raises:
            NotRecognisedError: If one does.
        """
        for each in self._trails:
            if each.awaits_sum and each is not trail:
                raise each.lost()

    def close_at_next_sum(self, given: Sequence[Tensor]) -> bool:
        """Close the blocks whose vectors a sum reads; False if it is a step of a block's norm, or reads none.

        Args:
            given: The tensors that are added.
        """
        carriers = [each for each in given if _is_carrier(each)]
        of_one = len({id(trail_of(each)) for each in carriers}) == 1 and len(carriers) == len(given)
        if not carriers or of_one or any(made_of(each) is None for each in given):
            return False
        for each in carriers:
            trail: Trail = each._trail  # type: ignore[attr-defined]
            if trail.is_closed:
                continue
            before = made_of(trail.inputs)
            others = [other for one in given if one is not each and (other := made_of(one)) is not None]
            # A network that does not read the block's sum runs beside attention, even if it is added after it.
            trail.beside += [other for other in others if not other.reads(trail.made, before)]
            self.settle(each)
        return True

    def close_at_sum(self, total: Tensor, trail: Trail) -> None:
        """Close a block at its own sum, if nothing that follows can be its norm.

        Args:
            total: The sum.
        """
        if is_scaled(trail.before_sum, by_tokens=True):  # the one norm of a block is in its branch
            self._close(trail)
        elif self._positions(trail.layer, trail.is_self) == "pre":
            self.settle(total)

    def close_at_norm(self, given: Sequence[Tensor], trail: Trail) -> None:
        """Close a block whose norm a network reads, if the norm is known to come after the sum."""
        if self._positions(trail.layer, trail.is_self) == "post":
            for each in given:
                if trail_of(each) is trail and is_scaled(stack_of(each), since=trail.sum):
                    self.settle(each)

    def settle(self, carried: Tensor) -> None:
        """Close the block of a tensor that carries on, if it has had its sum and is still open.

        Args:
            carried: The sum itself or a multiple of it; a tensor of no open block is passed over.

        Raises:
            NotRecognisedError: If it is neither.
        """
        trail = trail_of(carried)
        if trail is None or not trail.is_joined or trail.is_closed:
            return
        if kind_of(carried) is not Kind.LINEAR:
            raise trail.refusal("what carries on is neither the sum with the residual connection nor a multiple of it")
        trail.carried, trail.after = carried, stack_of(carried)
        trail.is_normed = is_scaled(trail.after, since=trail.sum)
        self._close(trail)

    def end_pass(self) -> None:
        """Close the last blocks, whose sums nothing has read.

        Raises:
            NotRecognisedError: If a block still awaits its sum.
        """
        for each in [*self._trails]:
            if each.awaits_sum:
                raise each.lost()
            self._close(each)

    def _close(self, trail: Trail) -> None:
        """Hand a block to the visitor; what functions make of its vectors from here on is not followed for it."""
        trail.is_closed = True
        self._trails.remove(trail)
        self._closed[trail.is_self] += 1
        layer = trail.layer = self._closed[trail.is_self] if trail.layer is None else trail.layer
        self._visit(Block(layer, trail.is_self, trail.handed_over()))


def _is_carrier(tensor: Tensor) -> bool:
    """Whether a tensor may be what carries on from a block."""
    trail = trail_of(tensor)
    return trail is not None and trail.is_joined and kind_of(tensor) is Kind.LINEAR


def _leaves_block(call: Call, given: Sequence[Tensor], trail: Trail) -> bool:
    """Whether what a function makes is no longer the block's. The block itself may stay open."""
    if call.name not in _MIXES:
        return False
    linear = any(kind_in_block(each) is Kind.LINEAR for each in given)
    # Before the sum, a projection of the vectors is W_O, or a further map of what W_O has written.
    return not linear or trail.is_joined or call.name not in _PROJECTIONS


def _step(mode: HeldFixed, call: Call, given: Sequence[Tensor]) -> Any:
    """What the rule of a function of a block's vectors says; None without a rule."""
    if not any(kind_in_block(each) is Kind.LINEAR for each in given):
        return None
    others = any(made_of(each) is not None and kind_in_block(each) is None for each in given)
    if others and call.name not in TIMES and call.name != "where":
        return None
    if others:
        call = call._replace(args=with_tensors(call.args, _factor), kwargs=with_tensors(dict(call.kwargs), _factor))
    rule = RULES.get(call.name)
    return None if rule is None else rule(mode, call)


def _factor(tensor: Tensor) -> Tensor:
    """A tensor as it is for a block: fixed, unless it is the block's."""
    if hasattr(tensor, "_trail") or kind_of(tensor) is None:
        return tensor
    fixed = tensor.detach()
    keep(made_of(tensor), [fixed])
    return fixed


def _held(result: Any, call: Call, given: Sequence[Tensor], trail: Trail) -> Any:
    """The result of a function of a block's vectors that has no rule: a constant from here on, and still the block's."""
    for each in tensors_in(result):
        each._numbers = _numbers_in(call, given)  # type: ignore[attr-defined]
        hold(each, trail)
    return result


def _numbers_in(call: Call, given: Sequence[Tensor]) -> list[float | Tensor]:
    """Numbers that a function is called with, and those from which its tensors were computed: one may be the ε of a norm."""
    own = [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, float | Tensor)]
    own = [each for each in own if made_of(each) is None]
    return own + [number for each in given for number in getattr(each, "_numbers", ())]


def _parameters(given: Sequence[Tensor]) -> list[Tensor]:
    """The parameters among tensors, or of which these are views."""
    own = (each if each._base is None else each._base for each in given if made_of(each) is None)
    return [each for each in own if issubclass(type(each), nn.Parameter)]


def _continues(made: Made, last: Made | None) -> bool:
    """Whether a sum adds something else to the last one; a norm subtracts a mean of it."""
    before = {each.unscaled() for each in made.parents}
    return last is not None and len(before) == 2 and last.unscaled() in before


def _looks_up(call: Call) -> bool:
    """Whether a function takes the tokens' vectors from a table."""
    if call.name == "embedding":
        return True
    if call.name != "__getitem__" or made_of(call.args[0]) is not None or not call.args[0].is_floating_point():
        return False
    return any(each.dtype in (torch.int64, torch.int32) and each.ndim > 1 for each in tensors_in(call.args[1]))


def _drops(call: Call) -> bool:
    """Whether a call of dropout drops anything."""
    given = dict(zip(("input", "p", "training"), call.args, strict=False)) | dict(call.kwargs)
    return bool(given.get("training", True)) and given.get("p", 0.5) > 0


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
