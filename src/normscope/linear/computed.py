"""How tensors were computed since the last linear layers, so that it can be run again with other vectors.

Every tensor that depends on the tokens may refer to a `Computed`. It holds no tensor of the tokens but the inputs of linear
layers and of what comes first: those between a linear layer and attention are computed again where they are needed.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.linear.known import wholes
from normscope.linear.provenance import PAIRS, Made, made_of, writes
from normscope.linear.rules import CLIPPED, TIMES, Call, names, tensors_in, with_tensors

_LAYERS = names("linear addmm conv1d conv2d") | PAIRS
"""Functions that are linear layers, if only one of their operands depends on the tokens."""

_BENDS = CLIPPED | names("gelu silu relu tanh relu6 sigmoid softplus elu glu leaky_relu hardswish mish softmax")
"""Functions after which nothing is an affine map of a linear layer."""

_GATES = _BENDS | TIMES


class Computed:
    """A call of a function. In its arguments, tensors of the tokens are the calls that computed them."""

    __slots__ = ("_origin", "args", "function", "kwargs", "made", "name", "shape", "vectors")

    def __init__(
        self,
        call: Call,
        made: Made | None,
        origin: object = None,
        vectors: Tensor | None = None,
    ) -> None:
        self.name, self.function, self.args, self.kwargs = call
        self.made = made
        self._origin = origin
        self.vectors = vectors
        """What a linear layer reads, or what was there first."""
        self.shape: torch.Size | None = None
        """The shape of its result, if that is one tensor."""

    @property
    def origin(self) -> object:
        """The linear layer that it comes from, or what was there first: the same for all tensors that come from just that."""
        return (
            self if self._origin is None else self._origin
        )  # not stored: a reference to itself would keep its tensors

    @property
    def is_layer(self) -> bool:
        """Whether this is a linear layer."""
        return self.name in _LAYERS and self.vectors is not None

    @property
    def operands(self) -> Sequence["Computed"]:
        """The calls that computed its tensors."""
        return [*_computed_in(self.args), *_computed_in([*self.kwargs.values()])]

    def then(self, function: Callable[[Tensor], Tensor]) -> "Computed":
        """One more function of its result."""
        return Computed(Call("", function, (self,), {}), self.made, self.origin)

    def run(self, of: Callable[["Computed"], Any], plain: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Any:
        """Call the function again.

        Args:
            of: Returns the values of its operands.
            plain: Returns what replaces tensors that do not depend on the tokens.
        """

        def value(given: Any) -> Any:
            if isinstance(given, Computed):
                return of(given)
            if isinstance(given, tuple | list) and not hasattr(given, "_fields"):
                return type(given)([value(each) for each in given])
            return plain(given) if isinstance(given, Tensor) else given

        return self.function(*value(self.args), **{name: value(each) for name, each in self.kwargs.items()})


def _computed_in(values: Any) -> Sequence[Computed]:
    if isinstance(values, Computed):
        return [values]
    return [each for value in values for each in _computed_in(value)] if isinstance(values, tuple | list) else []


def computed(tensor: Tensor) -> Computed:
    """How a tensor was computed; if that is not known, it was there first."""
    known: Computed | None = getattr(tensor, "_computed", None)
    return Computed(Call("", None, (), {}), made_of(tensor), made_of(tensor), tensor) if known is None else known


def record(call: Call, given: Sequence[Tensor], made: Made, result: Any) -> None:
    """Note on a function's results how they were computed.

    Args:
        given: Its tensors.
        made: How its results are made.
    """
    whole = None
    if writes(call):
        changed = result = call.args[0]
        whole = getattr(changed, "_computed", None)
        if whole is not None:
            whole = _computed(call._replace(function=functools.partial(_changed_copy, call.function)), given, made)
        for each in (changed, *wholes(changed)):
            vars(each).pop("_computed", None)
    elif not any([result is each for each in given]):  # noqa: C419
        whole = _computed(call, given, made)
    if whole is None:
        return
    if isinstance(result, Tensor):
        whole.shape = result.shape
        result._computed = whole  # type: ignore[attr-defined]
        return
    for number, each in enumerate(tensors_in(result)):
        at = Call("__getitem__", operator.getitem, (whole, number), {})
        each._computed = Computed(at, made, whole.origin)  # type: ignore[attr-defined]


def _computed(call: Call, given: Sequence[Tensor], made: Made) -> Computed | None:
    """A call; None if its result comes from several linear layers, as the sum with a residual connection does."""
    if call.name in _BENDS:
        return None
    origins: list[object] = []
    of_tokens = [each for each in given if made_of(each) is not None]
    for each in of_tokens:
        known = getattr(each, "_computed", None)
        origin = made_of(each) if known is None else known.origin
        if origin not in origins:
            origins.append(origin)
    if call.name in _LAYERS:
        if len(of_tokens) > 1:  # scores
            return None
        (read,) = of_tokens
        known = getattr(read, "_computed", None)
        if known is None and made.parents[0].function in _GATES:  # it ends a network, whose vectors would be kept
            return None
        if known is not None and not isinstance(
            known.origin, Computed
        ):  # what came before would keep the model's stream
            read._computed = Computed(Call("", None, (), {}), known.made, made_of(read))  # type: ignore[attr-defined]
        return Computed(_without_tensors(call), made, None, read)
    if len(origins) > 1:  # angles may be looked up by position, as tokens are by id
        origins = [each for each in origins if not isinstance(each, Made) or each.function != "tokens"]
    return Computed(_without_tensors(call), made, origins[0]) if len(origins) == 1 else None


def _without_tensors(call: Call) -> Call:
    """A call with other calls in place of its tensors of tokens."""
    args = tuple([_as_operand(each) for each in call.args])
    kwargs = {name: _as_operand(each) for name, each in call.kwargs.items()} if call.kwargs else call.kwargs
    return Call(call.name, call.function, args, kwargs)


def _changed_copy(function: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """What a function makes of a tensor into which it writes."""
    copy = tensor.clone()
    function(copy, *args, **kwargs)
    return copy


def _as_operand(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if made_of(value) is None else computed(value)
    return with_tensors(value, _as_operand) if isinstance(value, tuple | list) else value
