"""Which parts of a model's own code are linear in its tokens' vectors, and what is held fixed: one rule for each function.

While the code runs, every tensor has a kind: linear (an affine map of the tokens' vectors), held (computed from them and kept
at its value: α, 1/σ, slopes, gates, routes), or none (weights, masks). A rule splits a function into factors that are held, a
linear function of its linear operands, and constants. A function without a rule gives a held tensor. Held tensors multiply
linear ones and are never added to them. So what ends up linear is an affine map by construction, whatever the model looks like.

Slopes of activations are g(u)/u; a gated product g(u) ⊙ w is split by the mean of g along the path from 0 to u (Kobayashi et
al. 2024, arXiv:2302.00456), as DecompX does with slopes (Modarressi et al. 2023, arXiv:2306.02873).
"""

import collections
import contextlib
import dataclasses
import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn, overrides
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from normscope.errors import InputError
from normscope.linear.held_attention import FusedCalls, HeldAttention, fused_attention, named, side_by_side
from normscope.maths.activations import Activation, Logistic, activation_of, probing
from normscope.maths.attention import AttentionCall
from normscope.maths.normalisation import Normalisation
from normscope.maths.tensors import full_precision


class Kind(Enum):
    """How a tensor depends on the tokens' vectors."""

    LINEAR = "linear"
    HELD = "held"


class NotAffineError(InputError):
    """What a model returns is not an affine map of its tokens' vectors, even with everything nonlinear held fixed."""


def names(text: str) -> frozenset[str]:
    """Names of functions, written with spaces between them."""
    return frozenset(text.split())


MOVES = names(
    "view reshape permute transpose contiguous flatten unflatten unsqueeze squeeze expand chunk split tensor_split ravel flip "
    "t split_with_sizes unbind narrow select __getitem__ clone repeat repeat_interleave roll swapaxes movedim moveaxis pad "
    "gather index_select dropout sum mean cumsum neg __neg__ __get__ take_along_dim as_strided broadcast_to tile swapdims "
    "expand_as view_as reshape_as unfold diagonal view_as_complex view_as_real"
)
_COPIES = names("clone contiguous dropout")
_LIKE = names("expand_as view_as reshape_as")
_IDENTITIES = names("detach requires_grad_ cpu cuda")
BESIDE = names("cat concat concatenate stack hstack vstack")
PRODUCTS = names("matmul __matmul__ __rmatmul__ bmm mm einsum")
TIMES = names("mul __mul__ __rmul__ __imul__ mul_ multiply")
DIVISIONS = names("div __truediv__ __itruediv__ div_ divide true_divide")
SUMS = names("add __add__ __radd__ __iadd__ add_ sub __sub__ __isub__ sub_ __rsub__ rsub subtract")
CASTS = names("to float double type type_as half bfloat16")
INTO = names(
    "index_add_ scatter_add_ __setitem__ index_copy_ copy_ index_put_ index_add scatter_add index_copy index_put"
)
NEW = names(
    "zeros_like empty_like ones_like full_like rand_like randn_like new_zeros new_ones new_empty new_full new_tensor size dim "
    "numel stride is_contiguous data_ptr is_floating_point empty"
)
EMPTY = names("empty new_empty empty_like")
_SLOPED = names("gelu silu relu relu6 mish hardswish leaky_relu tanh relu_ silu_ tanh_")
CLIPPED = names("clamp clip clamp_ clip_ hardtanh")


def name_of(function: Any) -> str:
    """The name of a function. An overload of an operator, `add.Tensor` for example, has that of the operator."""
    name: str = getattr(function, "__name__", "")
    return name.partition(".")[0] if "." in name else name


def kind_of(value: object) -> Kind | None:
    """The kind of a tensor; None for one that does not depend on the tokens' vectors, and for anything else."""
    return getattr(value, "_kind", None) if isinstance(value, Tensor) else None


def marked(values: Any, kind: Kind) -> Any:
    """The same tensor or tensors, with a kind. Ids of tokens or experts have none."""
    for each in tensors_in(values):
        if each.is_floating_point() or each.is_complex():
            each._kind = kind  # type: ignore[attr-defined]
    return values


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors among arguments or results of a function."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, tuple | list):
        return []
    found = []
    for value in values:
        if isinstance(value, Tensor):  # most are, and this is called for every function
            found.append(value)
        elif isinstance(value, tuple | list | dict):
            found += tensors_in(value)
    return found


def with_tensors(values: Any, of: Callable[[Tensor], Any]) -> Any:
    """Arguments or results of a function with every tensor replaced.

    pytree takes longer than most functions themselves.
    """
    if isinstance(values, Tensor):
        return of(values)
    if isinstance(values, tuple | list) and not hasattr(values, "_fields"):
        return type(values)([with_tensors(each, of) for each in values])
    return {key: with_tensors(each, of) for key, each in values.items()} if isinstance(values, dict) else values


def still(value: Any) -> Any:
    """A tensor detached at its value; anything else unchanged."""
    return value.detach() if isinstance(value, Tensor) and kind_of(value) else value


Linear = Callable[..., Any]


@dataclasses.dataclass(eq=False)
class Step:
    """A function as an affine map of its linear operands."""

    apply: Linear
    """The function, called with its linear operands and then its constants; everything else in it is held."""
    operands: Sequence[Tensor]
    constants: Sequence[Tensor] = ()
    """The terms that come from no token."""
    stacked: Linear | None = None
    """The linear part for stacks of operands, (source, *operand). By default, `apply` under vmap, without constants."""
    activation: tuple[Tensor, Activation] | None = None
    """The input of an activation, and the activation: the gate of a gated product."""
    constant_part: Callable[[], Tensor] | None = None
    """Returns what the constants add. By default, `apply` of zeros."""
    makes_new: bool = False
    """Whether `stacked` returns one tensor that shares no memory with its operands."""
    mixes: bool = False
    """Whether dimensions are mixed or bent, as by weights and activations, rather than just moved, scaled or added."""
    attends: bool = False
    """Whether it adds up values, weighted by attention."""
    factored: Callable[..., "Factored | None"] | None = None
    """The linear part for `Factored` parts of the operands; None if the result is not factored."""
    factor: object = None
    """The factor on the only operand."""
    norm: Normalisation | None = None
    """The norm that the step is, if it is a function of its own."""
    weight: Float[Tensor, "input output"] | None = None
    """The matrix by which the step multiplies, if it is a linear layer."""
    over: Linear | None = None
    """`stacked`, written over its first argument: for large stacks, allocating memory takes longer than computing. The operands
    may come in any order."""

    def parts(self, stacks: Sequence[Tensor]) -> Any:
        """The linear part of each source.

        Args:
            stacks: The parts of the operands.
        """
        if self.stacked is not None:
            return self.stacked(*stacks)
        nothing = [torch.zeros_like(each) for each in self.constants]
        return torch.vmap(lambda *parts: self.apply(*parts, *nothing))(*stacks)

    def made_of(self, *parts: "Tensor | Factored", bias: bool) -> Any:
        """The linear part of each source, and the constants.

        Args:
            parts: The parts of the operands.
            bias: Whether the constants belong to the last source.
        """
        adds = bias and bool(self.constants)
        if self.factored is not None and all(isinstance(each, Factored) for each in parts):
            factored = self.factored(*parts)
            if factored is not None and not adds:
                return factored
            if factored is not None and (constant := self.constant()).ndim == 1:
                return factored.with_row(constant)
        if self.over is not None and all(isinstance(each, Factored) for each in parts):
            return self.made_over(*map(dense, parts), bias=bias)
        made = self.parts([dense(each) for each in parts])
        return _with_constant(made, self.constant(), new=self.makes_new) if adds else made

    def made_over(self, *parts: Tensor, bias: bool) -> Any:
        """The same, written over the first argument. The parts of the operands may come in any order."""
        assert self.over is not None
        made = self.over(*parts)
        return _with_constant(made, self.constant(), new=True) if bias and self.constants else made

    def constant(self) -> Any:
        """The constant part."""
        if self.constant_part is not None:
            return self.constant_part()
        return self.apply(*(torch.zeros_like(each) for each in self.operands), *self.constants)


def _with_constant(made: Tensor, constant: Tensor, *, new: bool) -> Tensor:
    """The parts of sources, with a constant added to the last source."""
    if not new or torch.promote_types(made.dtype, constant.dtype) is not made.dtype:
        return torch.cat([made[:-1], (made[-1] + constant).unsqueeze(0)])
    made[-1].add_(constant)
    return made


class Factored(NamedTuple):
    """Parts of sources that are sums of few vectors, each with a factor for every token. They are as cheap to map as biases."""

    factors: Float[Tensor, "source text token rank"]
    vectors: Float[Tensor, "source #text rank size"]

    def dense(self) -> Float[Tensor, "source text token size"]:
        """The parts themselves."""
        return self.factors @ self.vectors

    def mapped(self, linear: Callable[[Tensor], Tensor]) -> "Factored":
        """The parts after a linear map of each token's vector."""
        return Factored(self.factors, linear(self.vectors))

    def plus(self, other: "Factored") -> "Factored":
        """The sum of both parts."""
        vectors = torch.broadcast_tensors(self.vectors[..., :1, :1], other.vectors[..., :1, :1])
        both = [
            each.expand(*like.shape[:-2], -1, -1)
            for each, like in zip((self.vectors, other.vectors), vectors, strict=True)
        ]
        return Factored(torch.cat([self.factors, other.factors], dim=-1), torch.cat(both, dim=-2))

    def times(self, factor: Tensor | float) -> "Factored | None":
        """The parts times a factor for each token or each dimension; None for any other factor."""
        if not isinstance(factor, Tensor) or factor.ndim == 0 or (factor.shape[-1] == 1 and factor.ndim < 4):
            return self._replace(factors=self.factors * factor)
        return self._replace(vectors=self.vectors * factor) if factor.ndim == 1 else None

    def normed(self, scale: Tensor, weight: Tensor | None) -> "Factored":
        """The parts times 1/σ of each token and the weight γ of each dimension."""
        return Factored(self.factors * scale, self.vectors if weight is None else self.vectors * weight)

    def with_row(self, row: Float[Tensor, " size"]) -> "Factored":
        """The parts with one more vector, the same for every token."""
        ones = self.factors.new_ones(*self.factors.shape[:-1], 1)
        rows = row.to(self.vectors).expand(*self.vectors.shape[:2], 1, -1)
        return Factored(torch.cat([self.factors, ones], dim=-1), torch.cat([self.vectors, rows], dim=-2))


def dense(parts: "Tensor | Factored") -> Any:
    """The parts of sources as a tensor, whichever way they are stored."""
    return parts.dense() if isinstance(parts, Factored) else parts


@dataclasses.dataclass(eq=False)
class Stack:
    """How what each source contributes to a linear tensor is computed; for queries and keys, that never happens."""

    function: Linear | None
    """Computes the parts from those of the operands; None for a tensor whose parts are given to `parts_from`."""
    operands: Sequence["Stack"] = ()
    """The stacks that the parts are computed from."""
    over: Linear | None = None
    """The same function of dense parts without constants, written over its first argument."""
    is_new: bool = False
    """Whether the result shares no memory with another stack."""
    step: Step | None = None
    """The step that the function belongs to."""

    def at(self, number: int) -> "Stack":
        """The stack of one of several tensors that a function returns."""
        return Stack(lambda parts, *, bias: parts[number], [self])  # noqa: ARG005


def parts_from(known: Mapping[Stack, "Tensor | Factored"], targets: Sequence[Stack], *, bias: bool) -> list[Any]:
    """The parts of some stacks, given parts of the stacks that they are computed from.

    Args:
        known: Parts, (source, *tensor) or `Factored`, of stacks that have no operands.
        targets: Stacks that are computed from these.
        bias: Whether constants belong to the last source.
    """
    return _Evaluation(known, targets, bias=bias).parts()


class _Evaluation:
    """Computes stacks, and keeps none longer than it is needed."""

    def __init__(self, known: Mapping[Stack, Any], targets: Sequence[Stack], *, bias: bool) -> None:
        self._known, self._targets, self._bias = known, targets, bias
        self._made: dict[Stack, Any] = {}
        self._readers: dict[Stack, int] = collections.Counter(targets)
        waiting = [*self._readers]
        while waiting:
            stack = waiting.pop()
            for each in () if stack in known else stack.operands:
                if each not in self._readers:
                    waiting.append(each)
                self._readers[each] = self._readers.get(each, 0) + 1

    def parts(self) -> list[Any]:
        return [dense(self._of(target)) for target in self._targets]

    def _of(self, stack: Stack) -> Any:
        """The parts of a stack."""
        if stack in self._known:
            return self._known[stack]
        if stack not in self._made:
            self._made[stack] = self._computed(stack)
        return self._made[stack]

    def _computed(self, stack: Stack) -> Any:
        if stack.function is None:
            raise NotAffineError(
                "a layer cannot be followed as a whole: its residual connection carries another tensor than the one that its "
                "first module reads; its attention block can still be measured"
            )
        parts = [self._of(each) for each in stack.operands]
        # All that still need an operand count as its readers, so an only reader may write over it.
        mine = [self._readers[each] == 1 and each.is_new and each not in self._known for each in stack.operands]
        spare = [place for place, is_mine in enumerate(mine) if is_mine]
        if stack.over is not None and spare and not any(isinstance(each, Factored) for each in parts):
            parts.insert(0, parts.pop(spare[0]))
            made = stack.over(*parts, bias=self._bias)
        else:
            made = stack.function(*parts, bias=self._bias)
        for each in stack.operands:
            self._readers[each] -= 1
            if not self._readers[each]:
                self._made.pop(each, None)
        return made


class _Transposed(torch.autograd.Function):
    """The value of a function that is not linear, whose gradient goes back by the transpose of its linear part."""

    @staticmethod
    def forward(ctx: Any, value: Callable[[], Tensor], back: Callable[[Tensor], Any], *_operands: Tensor) -> Tensor:
        ctx.back = back
        return (
            value().detach()
        )  # not the value itself: with the step that refers to it, that would be a reference cycle

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        back = ctx.back(gradients[0])
        return (None, None, *(back if isinstance(back, tuple) else (back,)))


def _held(value: Callable[[], Tensor], back: Callable[[Tensor], Any], *operands: Tensor) -> Tensor:
    made: Tensor = _Transposed.apply(value, back, *operands)
    return made


_KNOWN: "weakref.WeakKeyDictionary[nn.Module, Activation]" = weakref.WeakKeyDictionary()
_ELEMENTWISE: "weakref.WeakKeyDictionary[nn.Module, bool]" = weakref.WeakKeyDictionary()
"""Whether modules that are not known activations are applied element by element."""
_MULTIPLIES: "weakref.WeakKeyDictionary[nn.Module, bool]" = weakref.WeakKeyDictionary()
"""Whether modules multiply by a number."""
_KNOWN_FUNCTIONS: dict[object, Activation | None] = {}


class Way(NamedTuple):
    """How a linear tensor was made from what the residual connection carries."""

    residual: bool
    """Whether the tensor is just that, moved, scaled and summed, without weights or activations in between."""
    origin: object
    """The same for tensors that are each other's multiples, token by token or dimension by dimension."""
    before_norm: Tensor | None = None
    """The input of the last norm, if only multiples have followed."""
    uncentred: Tensor | None = None
    """The tensor whose mean was subtracted, likewise."""
    attended: bool = False
    """Whether it is what attention has added up, which W_O has yet to read."""


def way_of(tensor: Tensor) -> Way:
    """The way of a linear tensor in a mode that follows."""
    way: Way = tensor._way  # type: ignore[attr-defined]
    return way


def active_modes() -> int:
    """How many function modes are active in this thread."""
    return len(overrides._get_current_function_mode_stack())


def leave_modes(down_to: int) -> None:
    """Leave function modes of this thread whose end was interrupted, until so many are active."""
    while active_modes() > down_to:
        overrides._pop_mode()


COMPOSED = frozenset({"multi_head_attention_forward"})
"""Functions of torch that function modes see as one, although they are written in others."""


@functools.cache
def opened(function: FunctionType) -> FunctionType:
    """The same function, which asks no function mode but calls the functions that it consists of."""
    own = {**function.__globals__, "has_torch_function": lambda _tensors: False}
    return FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)


class HeldFixed(TorchFunctionMode):
    """Runs a model's code with everything nonlinear held fixed, and tracks the kinds of its tensors.

    Args:
        model: The model, whose activations are recognised by what they compute.
        ones: A number, 1, that multiplies all constants, through which autograd reads what they add up to.
        carries: Whether linear tensors have a `Stack`.
        absorbed: A number, 1, if attention weights are followed as well. What a product of two linear tensors (q·k and α v)
            gives then belongs half to each, and a softmax is linearised where it is; its constant part is a multiple of this
            number.
        shifted: Whether a module that is applied element by element counts as an activation even if it is not 0 at 0.
            Inside a model, such a module (a sigmoid, for example) may be a gate, and is held.
        added: Called with what is added to the vectors of a residual connection after weights or activations, a network's
            output, and with these vectors; returns what replaces it.
        wide: Whether stacks are wider than the model's type.

    Source of `absorbed`: Achtibat et al. 2024, AttnLRP (arXiv:2402.05602).
    """

    def __init__(
        self,
        model: nn.Module,
        ones: Tensor | None = None,
        *,
        carries: bool = False,
        absorbed: Tensor | None = None,
        shifted: bool = False,
        added: Callable[[Tensor, Tensor], Tensor] | None = None,
        wide: bool = False,
    ) -> None:
        super().__init__()
        self.absorbed, self._shifted, self.added, self.wide = absorbed, shifted, added, wide
        self.softmaxes = 0
        """Number of softmaxes that have been linearised."""
        self.fused = FusedCalls()
        self.masks_on_host: Sequence[Tensor] = ()
        """Token masks of the pass that can be read without waiting for a device, as far as they are known."""
        self._model, self.ones, self.carries = model, ones, carries
        self.explains = False
        """Whether held tensors record which function, in which module, made them from linear tensors."""

    def __enter__(self) -> "HeldFixed":
        try:
            for module in filter(_may_be_an_activation, self._model.modules()):
                module.forward = functools.partial(self._activation, module)
            super().__enter__()
        except BaseException:  # even an interrupt leaves the model as it was
            self.give_back(self._model)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self.give_back(self._model)

    @classmethod
    def give_back(cls, model: nn.Module) -> None:
        """Give modules their own `forward` back, after a pass or after an interrupt of one, even of its end."""
        for module in model.modules():
            forward = vars(module).get("forward")
            if isinstance(forward, functools.partial) and isinstance(getattr(forward.func, "__self__", None), cls):
                del module.forward

    def _activation(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        own = functools.partial(type(module).forward, module)
        if len(args) == 1 and not kwargs and kind_of(args[0]) is Kind.LINEAR:
            with torch._C.DisableTorchFunction():
                if module not in _MULTIPLIES:
                    _MULTIPLIES[module] = _is_multiple(own, args[0])
            if _MULTIPLIES[module]:  # a factor, which is no activation
                return own(*args)
            with torch._C.DisableTorchFunction():
                if module not in _KNOWN and (found := _recognised(own, args[0])) is not None:
                    _KNOWN[module] = found
                if module in _KNOWN:
                    return self.done(_sloped(own, args[0], _KNOWN[module]))
                if module not in _ELEMENTWISE:
                    _ELEMENTWISE[module] = _is_elementwise(own, args[0])
                if _ELEMENTWISE[module] and (step := _of_numbers(own, args[0], shifted=self._shifted)) is not None:
                    return self.done(step)
        return own(*args, **kwargs)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), name_of(function)
        if name in NEW:
            made = function(*args, **kwargs)
            # What is never written must not be infinite.
            return made.zero_() if name in EMPTY else made
        if name in COMPOSED:
            with self.again():
                return opened(function)(*args, **kwargs)
        given = tensors_in((args, kwargs))
        kinds = {kind_of(each) for each in given}
        if None in kinds and any(kind_of(each) is None and each.requires_grad and not each.is_leaf for each in given):
            raise NotAffineError(
                f"{type(self._model).__name__} cannot be attributed: {self._reason(name, [])} reads a tensor that may or may "
                "not be linear in the tokens' vectors; its attention blocks can still be measured"
            )
        if kinds <= {None}:
            return function(*args, **kwargs)
        if not self.wide and any(kind_of(each) is Kind.LINEAR and each.dtype is torch.float64 for each in given):
            # Families that round to float32 inside a float64 model would not be linear to its precision.
            if name in CASTS and kind_of(args[0]) is Kind.LINEAR:
                target = function(*args, **kwargs)
                return args[0] if target.is_floating_point() else target
            args, kwargs = with_tensors(args, _doubled), with_tensors(kwargs, _doubled)
        return self.by_rule(Call(name, function, args, kwargs), given)

    def by_rule(self, call: "Call", given: Sequence[Tensor]) -> Any:
        """What a function of linear or held tensors gives: by its rule, or else held."""
        args, kwargs = call.args, call.kwargs
        rule = RULES.get(call.name) if any(kind_of(each) is Kind.LINEAR for each in given) else None
        step = None if rule is None else rule(self, call)
        if step is not None:
            return self.done(step) if isinstance(step, Step) else step[0]
        if call.name in INTO:
            marked([args[0], *([] if args[0]._base is None else [args[0]._base])], Kind.HELD)
        made = marked(call.function(*with_tensors(args, still), **with_tensors(kwargs, still)), Kind.HELD)
        if self.explains:
            for each in tensors_in(made):
                each._because = self._reason(call.name, given)  # type: ignore[attr-defined]
        if self.added is not None:
            origins = {id(origin): origin for each in given if (origin := _origin(each)) is not None}
            for each in tensors_in(made) if len(origins) == 1 else ():
                (each._origin,) = origins.values()  # type: ignore[attr-defined]
        return made

    def attend(self, _module: nn.Module, call: AttentionCall) -> Float[Tensor, "batch query head head_dim"] | None:
        """Attention that the model calls by name, through a registry of functions, and what that returns."""
        made: Tensor = overrides.handle_torch_function(fused_attention, call[:3], *call)
        return made.transpose(1, 2).contiguous()

    def attention(self, call: AttentionCall) -> Any:
        """Fused attention of linear values: a step, or what functions with rules return if attention weights are followed.

        Args:
            call: What it is computed from, with keys and values for each head of queries.
        """
        if self.absorbed is not None:
            return (_step_by_step(self, call),)
        held = HeldAttention(call._replace(query=still(call.query), key=still(call.key), value=call.value.detach()))
        return Step(
            lambda v: _held(lambda: held.output, held.transposed, v),
            [call.value],
            stacked=held.stacked,
            mixes=True,
            attends=True,
        )

    def done(self, step: Step) -> Any:
        """The result of a step, marked as linear."""
        # What the step may change in place lies before it.
        whole = stack_after(step) if self.carries else None
        constants = step.constants
        if self.ones is not None:
            constants = [self._constant(each) for each in constants]
        way = None if self.added is None else self.way(step)
        made = step.apply(*step.operands, *constants)
        if len(step.operands) == 1 and made is step.operands[0]:  # `contiguous` of what already is
            return made
        marked(made, Kind.LINEAR)
        for each in tensors_in(made) if way is not None else ():
            each._way = way  # type: ignore[attr-defined]
        if step.activation is not None:
            made._activation = step.activation
        if whole is not None:
            for number, each in enumerate(made if isinstance(made, tuple | list) else (made,)):
                each._stack = whole if isinstance(made, Tensor) else whole.at(number)
        return made

    def way(self, step: Step) -> Way:
        """The way of a step's result."""
        ways = [way_of(each) for each in step.operands]
        attended = any(way.attended for way in ways)
        if step.mixes:  # what W_O makes of what attention has added up is no network's
            return Way(residual=attended, origin=object(), attended=step.attends)
        residual = all(way.residual for way in ways)
        if len({id(way.origin) for way in ways}) > 1 or not ways:
            return Way(residual, object(), attended=attended)
        first, way = step.operands[0], ways[0]
        if len(ways) > 1:
            return Way(residual, way.origin, uncentred=first, attended=attended)
        if isinstance(step.factor, Tensor) and _origin(step.factor) is way.origin:
            return Way(residual, way.origin, first if way.uncentred is None else way.uncentred, attended=attended)
        return way._replace(residual=residual)

    def joined(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Two linear tensors about to be added. What a network adds to a residual connection may be replaced."""
        if self.added is None or way_of(one).residual is way_of(other).residual:
            return one, other
        if way_of(one).residual:
            return one, self._added(other, one)
        return self._added(one, other), other

    def _added(self, vectors: Tensor, residual: Tensor) -> Tensor:
        assert self.added is not None
        new = self.added(vectors, residual)
        new._way = way_of(vectors)._replace(residual=True)  # type: ignore[attr-defined]
        return new

    def _constant(self, constant: Tensor) -> Tensor:
        """A constant as a multiple of `ones`."""
        assert self.ones is not None
        if self.absorbed is not None:
            # A masked score adds nothing, but 0 times infinity would give NaN.
            masked = constant <= _lowest(constant)
            return torch.where(masked, constant, constant.masked_fill(masked, 0) * self.ones.to(constant.dtype))
        return constant * self.ones.to(constant.dtype)

    def wrote(self, tensor: Tensor, stack: Stack | None, way: Way | None = None) -> None:
        """Note that linear vectors have been written into a tensor, and so into the tensor that this is a part of.

        Args:
            stack: What each source contributes to the tensor, if the mode carries.
            way: How the tensor came from the residual connection, if the mode follows.

        Raises:
            NotAffineError: If the mode carries, and the part cannot be found in the whole.
        """
        whole = tensor._base
        if whole is not None and kind_of(whole) is not Kind.HELD:
            if stack is not None:
                whole._stack = self._with_part(whole, tensor, stack)  # type: ignore[attr-defined]
            if way is not None:
                whole._way = way  # type: ignore[attr-defined]
            marked(whole, Kind.LINEAR)
        marked(tensor, Kind.LINEAR)
        if way is not None:
            tensor._way = way  # type: ignore[attr-defined]
        if stack is not None:
            if stack.step is not None:
                stack.step.operands = [alias(each) if each is tensor else each for each in stack.step.operands]
            tensor._stack = stack  # type: ignore[attr-defined]

    def _with_part(self, whole: Tensor, part: Tensor, stack: Stack) -> Stack:
        """The stack of a tensor after one of its parts has been written."""
        if not whole.is_contiguous():
            raise NotAffineError(
                f"{type(self._model).__name__} cannot be attributed: it writes vectors into part of a tensor whose elements "
                "are not contiguous; its attention blocks can still be measured"
            )
        before = [stack_of(whole)] if kind_of(whole) is Kind.LINEAR else []
        offset, place = part.storage_offset() - whole.storage_offset(), (part.shape, part.stride())

        def made(written: "Tensor | Factored", *parts: "Tensor | Factored", bias: bool) -> Tensor:  # noqa: ARG001
            new = dense(written)
            start = dense(parts[0]).clone() if parts else new.new_zeros(len(new), *whole.shape)
            shape, stride = place
            start.as_strided((len(new), *shape), (whole.numel(), *stride), offset).copy_(new)
            return start

        return Stack(made, [stack, *before])

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Context in which rules also apply to the functions that a rule calls."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    def _reason(self, name: str, given: Sequence[Tensor]) -> str:
        """Why a tensor is held: the function that made it, or a held tensor it was made from, out of linear ones."""
        earlier = [each._because for each in given if hasattr(each, "_because")]
        if earlier:
            return str(earlier[0])
        frame: FrameType | None = sys._getframe()
        paths = {module: path for path, module in self._model.named_modules()}
        while frame is not None and frame.f_locals.get("self") not in paths:
            frame = frame.f_back
        if frame is None:
            return name
        module = frame.f_locals["self"]
        return f"{name} in {paths[module] or 'the model'} ({type(module).__name__})"


def _may_be_an_activation(module: nn.Module) -> bool:
    return (
        next(module.children(), None) is None
        and (isinstance(module, nn.PReLU) or all(parameter.numel() <= 1 for parameter in module.parameters()))
        and not isinstance(module, nn.Identity | nn.Dropout | nn.Embedding)
        and "forward" not in vars(module)
    )


def _origin(tensor: Tensor) -> object:
    """The tensor that a linear or held tensor is a multiple or a function of; None if there are several."""
    way: Way | None = getattr(tensor, "_way", None)
    return getattr(tensor, "_origin", None) if way is None else way.origin


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype is torch.float32 else tensor


def stack_of(tensor: Tensor) -> Stack:
    """The stack of a linear tensor in a mode that carries."""
    stack: Stack = tensor._stack  # type: ignore[attr-defined]
    return stack


def stack_after(step: Step) -> Stack:
    """The stack of a step's result."""
    stacks = [stack_of(each) for each in step.operands]
    over = None if step.over is None else step.made_over
    return Stack(step.made_of, stacks, over, step.makes_new, step)


class Call(NamedTuple):
    """One call of a torch function."""

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def in_place(self) -> bool:
        """Whether it changes its first operand."""
        named = self.name.endswith("_") and not self.name.startswith("__")
        return named or self.kwargs.get("inplace") is True

    def run(self, *args: Any) -> Any:
        """Call the function with other arguments, and its own keywords."""
        return self.function(*args, **self.kwargs)


_Rule = Callable[[HeldFixed, Call], Any]
RULES: dict[str, _Rule] = {}


def _rule(*names: str | frozenset[str]) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        for each in names:
            RULES.update(dict.fromkeys([each] if isinstance(each, str) else each, rule))
        return rule

    return register


def _are(kind: Kind, *values: Any) -> bool:
    return any(kind_of(each) is kind for each in tensors_in(values))


@_rule(MOVES)
def _moved(_mode: HeldFixed, call: Call) -> Any:
    """Elements that change places, or are added up."""
    one, *rest = call.args
    if call.name in _LIKE and kind_of(one) is None:
        return (call.run(one, *rest),)
    if _are(Kind.HELD, one):
        return None
    if call.name == "__get__":  # of an attribute
        made = call.run(one, *rest)
        if not isinstance(made, Tensor):
            return (made,)
    stays = call.name in _COPIES

    def apply(vectors: Tensor) -> Any:  # what a source contributes may lie in memory in another order
        is_part = call.name == "view" and vectors is not one
        return vectors.reshape(*rest) if is_part else call.run(vectors, *rest)

    return Step(apply, [one], factored=_unchanged if stays else None)


def _unchanged(parts: "Factored") -> "Factored":
    return parts


@_rule(_IDENTITIES)
def _same(_mode: HeldFixed, call: Call) -> Any:
    return (call.args[0],)


@_rule(CASTS)
def _cast(mode: HeldFixed, call: Call) -> Any:
    one, *rest = call.args
    if kind_of(one) is not Kind.LINEAR:
        return None
    made = call.run(one, *rest)
    if made is one or not made.is_floating_point():
        return (made,)
    if mode.wide:  # stacks are as wide as any of the types
        return Step(lambda vectors: call.run(vectors, *rest), [one], stacked=lambda v: v, factored=_unchanged)
    return Step(lambda vectors: call.run(vectors, *rest), [one])


@_rule(BESIDE)
def _beside(_mode: HeldFixed, call: Call) -> Any:
    """Tensors beside each other: those that are not linear are constants."""
    tensors, *rest = call.args
    if _are(Kind.HELD, tensors):
        return None
    places = [place for place, each in enumerate(tensors) if kind_of(each)]
    others = [place for place, each in enumerate(tensors) if not kind_of(each)]

    def put(*given: Tensor) -> Any:
        of_place = dict(zip([*places, *others], given, strict=True))
        return call.run([of_place[place] for place in range(len(tensors))], *rest)

    return Step(put, [tensors[place] for place in places], [tensors[place] for place in others])


@_rule(PRODUCTS)
def _product(mode: HeldFixed, call: Call) -> Any:
    """A product with something held or plain. That of two linear tensors, such as q·k, is held."""
    places = [place for place, each in enumerate(call.args) if kind_of(each) is Kind.LINEAR]
    if len(places) == 2 and mode.absorbed is not None and not call.kwargs:
        return _shared(call, places)
    if len(places) != 1 or call.kwargs:
        return None
    (place,) = places
    before, after = [*map(still, call.args[:place])], [*map(still, call.args[place + 1 :])]
    value = call.args[place]
    stacked = None
    if len(call.args) == 2 and place == 1 and call.name != "einsum" and before[0].ndim == value.ndim:
        stacked = functools.partial(side_by_side, before[0])

    def product(vectors: Tensor) -> Any:
        return call.run(*_in_type(before, vectors), vectors, *_in_type(after, vectors))

    attends = any(kind_of(each) is Kind.HELD for each in call.args)
    return Step(product, [value], stacked=stacked, mixes=True, attends=attends)


def _in_type(values: Sequence[Any], like: Tensor) -> list[Any]:
    """Floating-point tensors in the type of another tensor; anything else as it is."""
    return [each.to(like.dtype) if isinstance(each, Tensor) and each.is_floating_point() else each for each in values]


def _shared(call: Call, places: Sequence[int]) -> Step:
    """A product of two linear tensors, half of which belongs to each."""
    args = [*map(still, call.args)]

    def product(one: Tensor, other: Tensor) -> Tensor:
        given = list(args)
        given[places[0]], given[places[1]] = one, other
        made: Tensor = call.run(*given)
        return made

    def back(gradient: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            both = [args[place].detach().requires_grad_() for place in places]
            found = torch.autograd.grad(product(*both), both, gradient)
        return tuple(each / 2 for each in found)

    operands = [call.args[place] for place in places]
    return Step(
        lambda *both: _held(lambda: product(*(args[place] for place in places)), back, *both),
        operands,
        mixes=True,
        attends=True,
    )


@_rule("softmax")
def _softmax(mode: HeldFixed, call: Call) -> Any:
    """Attention weights: held, or linearised where they are."""
    if mode.absorbed is None:
        return None
    scores, dim = _arguments(call, "input", "dim")
    fixed = scores.detach()
    # Padding that sees nothing has no weights.
    blind = fixed.amax(dim=dim, keepdim=True) == -torch.inf
    weights: Tensor = call.function(fixed, *call.args[1:], **call.kwargs).to(fixed.dtype).masked_fill(blind, 0.0)
    mode.softmaxes += 1

    def jacobian(vectors: Tensor) -> Tensor:
        scaled = weights * vectors
        return scaled - weights * scaled.sum(dim=dim, keepdim=True)

    constant = weights - jacobian(fixed.masked_fill(fixed <= _lowest(fixed), 0))
    absorbed = mode.absorbed
    return Step(
        lambda v: _held(lambda: weights, lambda g: (jacobian(g), (g * constant).sum()), v, absorbed),
        [scores],
        mixes=True,
    )


@_rule("max", "amax")
def _largest(mode: HeldFixed, call: Call) -> Any:
    """A maximum. Subtracted from scores, it changes no weight."""
    if mode.absorbed is None or kind_of(call.args[0]) is not Kind.LINEAR:
        return None
    made = marked(call.run(call.args[0].detach(), *call.args[1:]), Kind.HELD)
    for each in tensors_in(made):
        each._shifts = True  # type: ignore[attr-defined]
    return (made,)


@_rule("baddbmm", "baddbmm_")
def _added_product(mode: HeldFixed, call: Call) -> Any:
    """Scores with a term of positions."""
    if mode.absorbed is None or kind_of(call.args[0]):
        return None
    term, one, other = _arguments(call, "input", "batch1", "batch2")
    with mode.again():
        product = torch.bmm(one, other) * call.kwargs.get("alpha", 1)
        return (product + term * call.kwargs.get("beta", 1),)


def _lowest(like: Tensor) -> float:
    """What a score is below if a mask hides it."""
    return torch.finfo(like.dtype).min / 2


@_rule(TIMES)
def _times(mode: HeldFixed, call: Call) -> Any:
    one, other = call.args
    if kind_of(one) is kind_of(other) is Kind.LINEAR:
        return _gated(one, other) or _gated(other, one)
    linear, factor = (one, other) if kind_of(one) is Kind.LINEAR else (other, one)
    gate = _logistic(linear, factor)
    if gate is not None:
        return _sloped(lambda inner: inner * still(factor), linear, gate)
    return _scaled(mode, call, linear, factor)


def _logistic(linear: Tensor, factor: object) -> Activation | None:
    """The activation u σ(β u), if that is what a product computes."""
    inner = getattr(factor, "_logistic_of", None)
    if inner is None:
        return None
    base, times = getattr(inner, "_multiple_of", (inner, 1.0))
    return Logistic(times) if base is linear else None


@_rule("sigmoid")
def _sigmoid(_mode: HeldFixed, call: Call) -> Any:
    """A gate, which is held; with what it is a function of, it may be an activation."""
    if kind_of(call.args[0]) is not Kind.LINEAR:
        return None
    made = marked(call.run(call.args[0].detach()), Kind.HELD)
    made._logistic_of = call.args[0]
    return (made,)


def _gated(gate: Tensor, factor: Tensor) -> Step | None:
    """g(u) ⊙ w as u ⊙ A + w ⊙ B, if the gate is g(u). Otherwise it is a square, as in a norm's variance, and held."""
    known: tuple[Tensor, Activation] | None = getattr(gate, "_activation", None)
    if known is None or getattr(factor, "_activation", None) is not None:
        return None
    inner, activation = known
    fixed, g, w = inner.detach(), gate.detach(), factor.detach()
    mean = activation.path_slope(fixed)
    of_inner = w * activation.quotient(g, fixed).sub_(mean)
    value, of_factor = g * w, mean.mul_(fixed)

    def apply(u: Tensor, w: Tensor) -> Tensor:
        return _held(lambda: value, lambda g: (_shaped(g * of_inner, u), _shaped(g * of_factor, w)), u, w)

    return Step(apply, [inner, factor], stacked=lambda u, w: u * of_inner + w * of_factor, mixes=True)


def _shaped(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient if gradient.shape == like.shape else gradient.sum_to_size(like.shape)


@_rule(DIVISIONS)
def _divided(mode: HeldFixed, call: Call) -> Any:
    return None if kind_of(call.args[0]) is not Kind.LINEAR or call.kwargs else _scaled(mode, call, *call.args)


def _scaled(mode: HeldFixed, call: Call, one: Tensor, by: Any) -> Any:
    """A linear tensor times, or divided by, what is not."""
    factor = still(by)
    divides = call.name in DIVISIONS

    def scaled(vectors: Tensor) -> Tensor:
        return vectors / factor if divides else vectors * factor

    # A factor with more axes than the vectors would be taken for one with sources.
    stacked = scaled if not isinstance(factor, Tensor) or factor.ndim <= one.ndim else None
    step = Step(
        scaled,
        [one],
        stacked=stacked,
        factored=lambda parts: parts.times(1 / factor if divides else factor),
        factor=by,
    )
    if isinstance(factor, float | int) and not divides and not call.in_place:
        made = mode.done(step)
        made._multiple_of = one, float(factor)
        return (made,)
    return (_changed(mode, step, call.args[0]),) if call.in_place else step


def _changed(mode: HeldFixed, step: Step, one: Tensor) -> Tensor:
    """A tensor that the model changes in place into what a step gives."""
    made = mode.done(step)
    one.copy_(made)
    mode.wrote(one, stack_of(made) if mode.carries else None, None if mode.added is None else way_of(made))
    return one


@_rule(SUMS)
def _sum(mode: HeldFixed, call: Call) -> Any:
    one, other = call.args
    if kind_of(one) is Kind.LINEAR and hasattr(other, "_shifts"):
        return Step(lambda vectors: call.run(vectors, still(other)), [one])
    if Kind.HELD in (kind_of(one), kind_of(other)):
        return None
    function = _OUT_OF_PLACE.get(call.name, call.function)
    kwargs = call.kwargs
    if kind_of(one) is kind_of(other) is Kind.LINEAR:
        step = sum_of(call, *mode.joined(kept(one) if call.in_place and mode.added is not None else one, other))
    else:
        linear, plain = (one, other) if kind_of(one) else (other, one)
        constant = torch.as_tensor(plain, dtype=linear.dtype, device=linear.device)
        first = kind_of(one) is not None
        alike = torch.broadcast_shapes(linear.shape, constant.shape) == linear.shape
        only_adds = alike and "add" in call.name and not kwargs
        step = Step(
            lambda a, b: function(*((a, b) if first else (b, a)), **kwargs),
            [linear],
            [constant],
            stacked=(lambda parts: parts) if only_adds else None,
            constant_part=(lambda: constant) if only_adds else None,
            factored=_unchanged if only_adds else None,
        )
    return (_changed(mode, step, call.args[0]),) if call.in_place else step


def sum_of(call: Call, one: Tensor, other: Tensor) -> Step:
    """A sum of two linear tensors."""
    function, kwargs = _OUT_OF_PLACE.get(call.name, call.function), call.kwargs

    def total(a: Tensor, b: Tensor) -> Tensor:
        made: Tensor = function(a, b, **kwargs)
        return made

    only_adds = one.shape == other.shape and one.dtype is other.dtype and "add" in call.name and not kwargs
    return Step(
        total,
        [one, other],
        stacked=total if one.ndim == other.ndim else None,
        makes_new=one.ndim == other.ndim,
        over=Tensor.add_ if only_adds else None,
        factored=Factored.plus if only_adds else None,
    )


def alias(tensor: Tensor) -> Tensor:
    """The memory of a tensor that the model changes in place, and what is known of the tensor before.

    The changed tensor refers to its step. If the step referred to it in turn, this would be a reference cycle, which keeps both
    until Python's garbage collector runs.
    """
    other = tensor.detach()
    vars(other).update(vars(tensor))
    return other


def kept(tensor: Tensor) -> Tensor:
    """A copy of a linear tensor that the model is about to change."""
    copy = tensor.clone()
    vars(copy).update(vars(tensor))
    return copy


_OUT_OF_PLACE = {
    "add_": Tensor.add,
    "sub_": Tensor.sub,
    "__iadd__": Tensor.add,
    "__isub__": Tensor.sub,
}


@_rule(INTO)
def _into(mode: HeldFixed, call: Call) -> Any:
    """Linear vectors that are written, or added, into a part of a tensor."""
    base, *rest = call.args
    kwargs = dict(call.kwargs)
    in_place = call.in_place or call.name == "__setitem__"
    written = [each for each in tensors_in((rest, kwargs)) if kind_of(each)]
    if kind_of(base) is Kind.HELD or len(written) > 1 or _are(Kind.HELD, written):
        return None

    def put(to: Tensor, *vectors: Tensor) -> Tensor:
        def replaced(each: Tensor) -> Tensor:
            return vectors[0] if vectors and each is written[0] else each

        new = to.clone() if in_place else to
        made: Tensor = call.function(new, *with_tensors(rest, replaced), **with_tensors(kwargs, replaced))
        return new if in_place else made

    plain = kind_of(base) is None
    if plain and base.requires_grad:
        raise NotAffineError(f"{call.name} writes into a parameter")
    before = base.clone() if in_place else base
    # A plain tensor that is written into is a constant; most are zeros.
    if plain:

        def stacked(vectors: Tensor) -> Tensor:
            return torch.vmap(put)(before.new_zeros(len(vectors), *before.shape, dtype=vectors.dtype), vectors)

        step = Step(lambda vectors, to: put(to, vectors), written, [before], stacked=stacked)
    elif call.name == "copy_" and written[0].shape == base.shape and written[0].dtype is base.dtype:
        step = Step(Tensor.clone, written)
    else:
        step = Step(put, [base, *written])
    if not in_place:
        return step
    stack = stack_after(step) if mode.carries else None
    way = None if mode.added is None else mode.way(step)
    if plain and mode.ones is not None and call.name != "copy_":
        base.copy_(before * mode.ones.to(base.dtype))
    call.function(base, *rest, **kwargs)
    mode.wrote(base, stack, way)
    return (None if call.name == "__setitem__" else base,)


@_rule(_SLOPED)
def _activated(mode: HeldFixed, call: Call) -> Any:
    one, *rest = call.args
    if kind_of(one) is not Kind.LINEAR:
        return None
    kwargs = {name: value for name, value in call.kwargs.items() if name != "inplace"}
    name = call.name.rstrip("_")
    function = getattr(F, name, None) or getattr(torch, name)
    key = (name, *rest, *kwargs.items(), one.dtype, one.device)
    if key not in _KNOWN_FUNCTIONS:
        _KNOWN_FUNCTIONS[key] = _recognised(lambda probe: function(probe, *rest, **kwargs), one)
    known = _KNOWN_FUNCTIONS[key]
    if known is None:
        return None
    step = _sloped(lambda inner: function(inner, *rest, **kwargs), one, known)
    return (_changed(mode, step, one),) if call.in_place else step


@_rule("square", "pow", "__pow__")
def _powered(_mode: HeldFixed, call: Call) -> Any:
    """A power of an activation may be one itself, such as ReLU². Any other is held, as in a norm's variance."""
    known: tuple[Tensor, Activation] | None = getattr(call.args[0], "_activation", None)
    if known is None:
        return None
    inner, first = known
    found = _recognised(lambda probe: call.function(first.value(probe), *call.args[1:]), inner)
    value = call.args[0].detach()
    return None if found is None else _sloped(lambda _inner: call.function(value, *call.args[1:]), inner, found)


def _recognised(function: Callable[[Tensor], Tensor], like: Tensor) -> Activation | None:
    one = torch.zeros((), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    try:
        return activation_of(function, one.expand(like.shape))
    except Exception:  # a foreign function, which takes something else
        return None


def _sloped(function: Callable[[Tensor], Tensor], inner: Tensor, known: Activation) -> Step:
    """g(u) as u times its slope."""
    fixed = inner.detach()
    value = function(fixed)
    slope = known.quotient(value, fixed)
    return Step(
        lambda u: _held(lambda: value, lambda gradient: gradient * slope, u),
        [inner],
        stacked=lambda u: u * slope,
        activation=(inner, known),
        makes_new=True,
        over=lambda u: u.mul_(slope),
        mixes=True,
    )


def _is_elementwise(function: Callable[[Tensor], Tensor], like: Tensor) -> bool:
    """Whether a function is applied element by element: changing some changes no others.

    Which ones are changed follows no pattern, so that a function that moves tokens or dimensions is noticed. There are several
    texts and tokens, because a single one could not be moved.
    """
    shape = (*(5,) * (like.ndim - 1), like.shape[-1])
    given = torch.linspace(-2, 2, math.prod(shape)).to(like.detach()).view(shape)
    changed = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(like.device) < 0.5
    try:
        made, other = function(given.clone()), function(given + changed)
        return made.shape == shape and torch.allclose(made[~changed], other[~changed], rtol=1e-5, atol=1e-7)
    except Exception:  # a foreign function, which takes something else
        return False


def _is_multiple(function: Callable[[Tensor], Tensor], like: Tensor) -> bool:
    """Whether a function multiplies its argument by a number."""
    given = probing(torch.linspace(-2, 3, 7), like.detach())
    first = (0,) * given.ndim
    try:
        made = function(given.clone())
        return made.shape == given.shape and torch.allclose(made * given[first], given * made[first], rtol=1e-6, atol=0)
    except Exception:  # somebody else's function, which takes something else
        return False


def _of_numbers(function: Callable[[Tensor], Tensor], inner: Tensor, *, shifted: bool) -> Step | None:
    """A function that is applied element by element, as u times (g(u) − g(0))/u, plus g(0).

    Args:
        shifted: Whether g(0) may be anything; otherwise, it must be nearly 0, as XIELU's is.
    """
    fixed = inner.detach()
    value, zero = function(fixed.clone()), function(torch.zeros_like(fixed))
    if not shifted and float(zero.abs().max()) > _NEARLY_ZERO:
        return None
    # Where u is 0, g(u) − g(0) is 0 as well, whatever the slope.
    slope = torch.where(fixed == 0, 1.0, (value - zero) / fixed)
    return Step(
        lambda u, at_zero: _held(lambda: value - zero, lambda gradient: gradient * slope, u) + at_zero,
        [inner],
        [zero],
        stacked=lambda u: u * slope,
        constant_part=lambda: zero,
        mixes=True,
    )


_NEARLY_ZERO = 1e-5


@_rule(CLIPPED)
def _clipped(mode: HeldFixed, call: Call) -> Any:
    """A value within limits, as a multiple of what it was."""
    one, *rest = call.args
    if _are(Kind.HELD, rest, dict(call.kwargs)) or _are(Kind.LINEAR, rest, dict(call.kwargs)):
        return None
    fixed = one.detach().clone()
    value = call.run(one.detach().clone(), *rest)
    slope = torch.where(fixed == 0, 1.0, value / fixed)
    step = Step(
        lambda u: _held(lambda: value, lambda gradient: gradient * slope, u), [one], stacked=lambda u: u * slope
    )
    return (_changed(mode, step, one),) if call.in_place else step


@_rule("masked_fill", "masked_fill_")
def _masked(mode: HeldFixed, call: Call) -> Any:
    one, mask, value = call.args
    if kind_of(one) is not Kind.LINEAR or kind_of(value):
        return None
    constant = torch.as_tensor(value, dtype=one.dtype, device=one.device)
    step = Step(
        lambda vectors, to: torch.where(mask, to, vectors), [one], [constant], stacked=lambda v: v.masked_fill(mask, 0)
    )
    return (_changed(mode, step, one),) if call.in_place else step


@_rule("where")
def _chosen(_mode: HeldFixed, call: Call) -> Any:
    condition, one, other = call.args
    if Kind.HELD in (kind_of(one), kind_of(other)) or kind_of(condition):
        return None
    if kind_of(one) is kind_of(other):
        return Step(functools.partial(torch.where, condition), [one, other])
    first = kind_of(one) is Kind.LINEAR
    linear, plain = (one, other) if first else (other, one)
    constant = torch.as_tensor(plain, dtype=linear.dtype, device=linear.device)
    return Step(lambda v, c: torch.where(condition, *((v, c) if first else (c, v))), [linear], [constant])


@_rule("linear")
def _linear(_mode: HeldFixed, call: Call) -> Any:
    vectors, weight, bias = _arguments(call, "input", "weight", "bias")
    if kind_of(weight) or kind_of(bias) or kind_of(vectors) is not Kind.LINEAR:
        return None
    return _projection(lambda v, *b: F.linear(v, weight, *b), vectors, weight, bias)


@_rule("addmm")
def _addmm(_mode: HeldFixed, call: Call) -> Any:
    bias, vectors, weight = _arguments(call, "input", "mat1", "mat2")
    if kind_of(vectors) is not Kind.LINEAR or kind_of(weight) or kind_of(bias) or len(call.kwargs):
        return None
    return _projection(lambda v, b: torch.addmm(b, v, weight), vectors, weight.T, bias)


def _projection(apply: Linear, vectors: Tensor, weight: Tensor, bias: Any) -> Step:
    """A linear layer, whose weight has the shape (output, input)."""

    def mapped(v: Tensor) -> Tensor:
        return F.linear(v, weight.to(v.dtype))

    return Step(
        apply,
        [vectors],
        [] if bias is None else [bias],
        stacked=mapped,
        factored=lambda parts: parts.mapped(mapped),
        constant_part=lambda: bias,
        makes_new=True,
        mixes=True,
        weight=weight.T,
    )


@_rule("conv1d", "conv2d")
def _convolved(_mode: HeldFixed, call: Call) -> Any:
    given: list[Any] = [*call.args, *[None] * (3 - len(call.args))]
    vectors, weight, bias, *rest = given
    kwargs = dict(call.kwargs)
    weight, bias = kwargs.pop("weight", weight), kwargs.pop("bias", bias)
    if kind_of(vectors) is not Kind.LINEAR or kind_of(weight):
        return None
    function = call.function
    return Step(
        lambda v, *b: function(v, weight.to(v.dtype), b[0].to(v.dtype) if b else None, *rest, **kwargs),
        [vectors],
        [] if bias is None else [bias],
        mixes=True,
    )


def _arguments(call: Call, *names: str) -> list[Any]:
    """The arguments of a function by their names; None for those that are left out."""
    given = dict(zip(names, call.args, strict=False)) | {
        name: call.kwargs.get(name) for name in names[len(call.args) :]
    }
    return [given[name] for name in names]


@_rule("layer_norm")
def _layer_norm(_mode: HeldFixed, call: Call) -> Any:
    x, shape, weight, bias, eps = _arguments(call, "input", "normalized_shape", "weight", "bias", "eps")
    eps = 1e-5 if eps is None else eps
    if len(shape) != 1 or kind_of(weight) or kind_of(bias):
        return None
    value, _, scale = torch.native_layer_norm(x.detach(), shape, weight, bias, eps)
    scale = scale.to(value.dtype)

    def scaled(vectors: Tensor) -> Tensor:
        return vectors * scale if weight is None else vectors * weight * scale

    def normed(vectors: Tensor, *, over: bool = False) -> Tensor:
        centred = torch.sub(vectors, vectors.mean(dim=-1, keepdim=True), out=vectors if over else None)
        return centred.mul_(scale if weight is None else weight * scale)

    def factored(parts: Factored) -> Factored:
        centred = parts.vectors - parts.vectors.mean(dim=-1, keepdim=True)
        return parts._replace(vectors=centred).normed(scale, weight)

    def back(gradient: Tensor) -> Any:
        centred = scaled(gradient)
        centred = centred - centred.mean(dim=-1, keepdim=True)
        return (centred, gradient.flatten(0, -2).sum(dim=0)) if bias is not None else centred

    def apply(vectors: Tensor, *constant: Tensor) -> Tensor:
        return _held(lambda: value, back, vectors, *constant)

    return Step(
        apply,
        [x],
        [] if bias is None else [bias],
        stacked=normed,
        constant_part=None if bias is None else lambda: bias,
        makes_new=True,
        over=functools.partial(normed, over=True),
        factored=factored,
        factor=x,
        norm=_norm(x, weight, bias, eps, centred=True),
    )


@_rule("native_layer_norm")
def _native_layer_norm(mode: HeldFixed, call: Call) -> Any:
    """The same norm, which returns the mean and 1/σ as well."""
    step = _layer_norm(mode, call)
    if step is None:
        return None
    _, mean, scale = call.function(*with_tensors(call.args, still), **with_tensors(call.kwargs, still))
    return [(mode.done(step), *marked([mean, scale], Kind.HELD))]


@_rule("rms_norm")
def _rms_norm(_mode: HeldFixed, call: Call) -> Any:
    x, shape, weight, eps = _arguments(call, "input", "normalized_shape", "weight", "eps")
    if len(shape) != 1 or kind_of(weight):
        return None
    fixed = x.detach()
    wide = fixed.to(torch.promote_types(fixed.dtype, torch.float32))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scale = (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt().to(fixed.dtype)

    def scaled(vectors: Tensor) -> Tensor:
        return vectors * scale if weight is None else vectors * weight * scale

    value = call.function(fixed, shape, weight, eps)

    return Step(
        lambda v: _held(lambda: value, scaled, v),
        [x],
        stacked=scaled,
        factored=lambda parts: parts.normed(scale, weight),
        factor=x,
        norm=_norm(x, weight, None, eps, centred=False),
    )


def _norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, centred: bool) -> Normalisation:
    """The norm that a function is, in float32 or better."""
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    return Normalisation(full_precision(weight), None if bias is None else full_precision(bias), eps, centred)


@_rule("normalize")
def _unit_length(_mode: HeldFixed, call: Call) -> Any:
    """A vector divided by its length."""
    x, p, dim, eps = _arguments(call, "input", "p", "dim", "eps")
    fixed = x.detach()
    dim, eps = 1 if dim is None else dim, 1e-12 if eps is None else eps
    length = torch.linalg.vector_norm(fixed, 2.0 if p is None else p, dim, keepdim=True).clamp(min=eps)
    return Step(
        lambda v: _held(lambda: call.function(fixed, *call.args[1:], **call.kwargs), lambda g: g / length, v),
        [x],
        stacked=lambda v: v / length,
        factor=x,
    )


@_rule("_grouped_mm")
def _of_experts(_mode: HeldFixed, call: Call) -> Any:
    """Products of groups of vectors with a matrix each."""
    _, weight, *rest = map(still, call.args)
    if kind_of(call.args[0]) is not Kind.LINEAR or kind_of(call.args[1]):
        return None
    kwargs = {name: still(value) for name, value in call.kwargs.items()}

    def product(v: Tensor) -> Tensor:
        ends = kwargs.get("offs", rest[0] if rest else None)
        if v.dtype is weight.dtype or ends is None:
            made: Tensor = call.function(v, weight, *rest, **kwargs)
            return made
        sizes = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()  # the function takes few types
        sizes.append(len(v) - sum(sizes))
        groups = [group @ matrix.to(v.dtype) for group, matrix in zip(v.split(sizes), weight, strict=False)]
        return torch.cat([*groups, v.new_zeros(sizes[-1], weight.shape[-1])])

    return Step(
        product, [call.args[0]], stacked=lambda stack: torch.stack([product(each) for each in stack]), mixes=True
    )


@_rule("scaled_dot_product_attention")
def _fused(mode: HeldFixed, call: Call) -> Any:
    given = named(call.args, call.kwargs)
    if kind_of(given["value"]) is not Kind.LINEAR or kind_of(given.get("attn_mask")) is Kind.LINEAR:
        return None
    read = None if given.get("dropout_p") else mode.fused.read(given)
    return None if read is None else _attention(mode, read)


@_rule("fused_attention")
def _by_name(mode: HeldFixed, call: Call) -> Any:
    read = AttentionCall(*call.args)
    return _attention(mode, read) if kind_of(read.value) is Kind.LINEAR else None


def _attention(mode: HeldFixed, call: AttentionCall) -> Any:
    with mode.again():
        call = call.repeated()
    return mode.attention(call)


def _step_by_step(mode: HeldFixed, call: AttentionCall) -> Tensor:
    """Fused attention in functions that have rules."""
    query, key, value, mask, scale, cap, sinks = call
    lengths = len(query), query.shape[2], key.shape[2]
    every = slice(0, lengths[1]), slice(0, lengths[2])
    term = None if mask is None else mask.term(*every, lengths, query.detach())
    with mode.again():
        scores = torch.matmul(query, key.transpose(-1, -2)) * scale
        scores = scores if cap is None else torch.tanh(scores / cap) * cap
        scores = scores if term is None else scores + term
        if sinks is not None:
            sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sink], dim=-1)
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights if sinks is None else weights[..., : lengths[2]], value)
