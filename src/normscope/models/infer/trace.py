"""Records one forward pass of a model: every operation, what it reads, and the module in which it runs.

The pass runs on a small batch. It is recorded below autograd, where composite functions are already decomposed into simple
operations. A value is one version of a tensor: an in-place operation makes a new value of the tensor and of every view of it.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from normscope.linear.rules import with_tensors
from normscope.models.stored.model_code import model_code


@dataclasses.dataclass(eq=False, repr=False)
class Value:
    """One version of a tensor: its state after one operation."""

    tensor: Tensor
    """The tensor itself; later operations may have changed it in place."""
    source: "Operation | None"
    """The operation that made it; None for weights, inputs and other tensors that existed before the pass."""
    tokens: bool
    """Whether the value depends on the tokens."""
    name: str | None = None
    """Path of the parameter or buffer, if it is one."""
    shape: tuple[int, ...] = ()

    def __repr__(self) -> str:
        made = self.name or ("given" if self.source is None else f"{self.source.number}:{self.source.name}")
        return f"Value({made}, {'×'.join(map(str, self.shape))})"


@dataclasses.dataclass(eq=False, repr=False)
class Operation:
    """One operation of the recorded pass."""

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    """Positional arguments, with a `Value` for every tensor."""
    kwargs: Mapping[str, Any]
    call: "Call | None"
    """The module in which it runs."""
    reads: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()

    @property
    def name(self) -> str:
        """The operation's name, such as `bmm`; the name of an in-place operation ends in `_`."""
        return str(getattr(self.function, "__name__", self.function)).partition(".")[0]

    def __repr__(self) -> str:
        return f"Operation({self.number}:{self.name} in {self.call.path if self.call else 'model'})"


@dataclasses.dataclass(eq=False, repr=False)
class Call:
    """One call of a module."""

    module: nn.Module
    path: str
    """Path of the module in the model; empty for the model itself."""
    parent: "Call | None"
    first: int
    """The number of the call's first operation."""
    inputs: tuple[Value, ...] = ()
    """The tensors among the arguments, in order."""
    outputs: tuple[Value, ...] = ()
    end: int = 0
    """The number of the first operation after the call."""

    def __repr__(self) -> str:
        return f"Call({self.path or 'model'}, operations {self.first} to {self.end})"

    @property
    def depth(self) -> int:
        """How deeply the module is nested in the model."""
        return len(self.path.split("."))

    def holds(self, other: "Call") -> bool:
        """Whether another call runs inside this one, or is this one."""
        return self.first <= other.first < self.end


@dataclasses.dataclass(eq=False)
class Trace:
    """A recorded forward pass."""

    operations: list[Operation]
    calls: list[Call]
    """Calls in the order in which they began."""
    output: Any
    """What the model returned."""
    texts: int
    """Number of texts in the batch."""
    values: Callable[[Tensor], Value]
    """The value of a tensor at the end of the pass."""


def trace(model: nn.Module, inputs: Mapping[str, Any]) -> Trace:
    """Record one forward pass of a model.

    Args:
        model: The model, in evaluation mode.
        inputs: The keyword arguments of the model.
    """
    tokens = [inputs[name] for name in ("input_ids", "decoder_input_ids") if name in inputs]
    recorder = _Recorder(model, tokens)
    with contextlib.ExitStack() as exit_:
        for handle in recorder.hooks(model):
            exit_.callback(handle.remove)
        exit_.enter_context(torch.inference_mode(False))
        exit_.enter_context(torch.no_grad())
        exit_.enter_context(sdpa_kernel(SDPBackend.MATH))  # the only backend whose softmax is a separate operation
        exit_.enter_context(recorder)
        with model_code(model):
            output = model(**inputs)
    return Trace(recorder.operations, recorder.calls, output, len(tokens[0]), recorder.value)


class _Recorder(TorchDispatchMode):
    """Records every operation below autograd while it is active."""

    def __init__(self, model: nn.Module, tokens: Sequence[Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.calls: list[Call] = []
        self._open: list[Call] = []
        self._values: dict[int, Value] = {}
        self._written: dict[int, tuple[int, Value]] = {}
        """The last in-place operation on each storage: its number, and the value that it made."""
        self._seen: dict[int, int] = {}
        """For each tensor, the number of operations recorded before its current value was made."""
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._note(tensor, None, tokens=False, name=name)
        for tensor in tokens:
            self._note(tensor, None, tokens=True)

    def _note(self, tensor: Tensor, source: Operation | None, *, tokens: bool, name: str | None = None) -> Value:
        value = Value(tensor, source, tokens, name, tuple(tensor.shape))
        self._values[id(tensor)] = value
        self._seen[id(tensor)] = len(self.operations)
        return value

    def value(self, tensor: Tensor) -> Value:
        """The current value of a tensor."""
        value = self._values.get(id(tensor))
        if value is None:
            value = self._note(tensor, None, tokens=False)
        storage = _storage(tensor)
        number, written = self._written.get(storage, (-1, None))
        if written is not None and number >= self._seen[id(tensor)] and written.tensor is not tensor:
            # Another view of the same storage has been changed in place.
            operation = Operation(
                len(self.operations), changed_in_place, (value, written), {}, self._open[-1] if self._open else None
            )
            operation.reads = (value, written)
            self.operations.append(operation)
            value = self._note(tensor, operation, tokens=value.tokens or written.tokens)
            operation.outputs = (value,)
        return value

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        reads: list[Value] = []

        def read(tensor: Tensor) -> Value:
            reads.append(self.value(tensor))
            return reads[-1]

        given, named = with_tensors(args, read), with_tensors(dict(kwargs), read)
        operation = Operation(
            len(self.operations), function, given, named, self._open[-1] if self._open else None, tuple(reads)
        )
        self.operations.append(operation)
        result = self._result(function, args, kwargs)
        tokens = any(value.tokens for value in reads)
        changed = [
            args[place] if place < len(args) else kwargs.get(argument.name)
            for place, argument in enumerate(function._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for tensor in changed:
            if isinstance(tensor, Tensor):
                value = self._note(tensor, operation, tokens=tokens)
                self._written[_storage(tensor)] = (operation.number, value)
                operation.outputs += (value,)

        def made(tensor: Tensor) -> None:
            if not any(tensor is each for each in changed):
                operation.outputs += (self._note(tensor, operation, tokens=tokens),)

        with_tensors(result, made)
        return result

    def _result(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            return function(*args, **kwargs)
        except DataDependentOutputException:
            # Fake tensors hold no data. The batch has no padding, so any condition on the mask that the model checks is true.
            kind: type = {torch.bool: bool}.get(args[0].dtype, float if args[0].is_floating_point() else int)
            return kind(1)

    def hooks(self, model: nn.Module) -> Iterator[Any]:
        """Register the hooks that record calls of modules."""
        for path, module in model.named_modules():
            yield module.register_forward_pre_hook(self._enter(path), with_kwargs=True, prepend=True)
            yield module.register_forward_hook(self._leave, with_kwargs=True)

    def _enter(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            inputs = self._values_in((args, kwargs))
            parent = self._open[-1] if self._open else None
            call = Call(module, path, parent, len(self.operations), inputs)
            self.calls.append(call)
            self._open.append(call)

        return enter

    def _leave(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        call = self._open.pop()
        call.outputs, call.end = self._values_in(output), len(self.operations)

    def _values_in(self, arguments: Any) -> tuple[Value, ...]:
        return tuple(self.value(each) for each in tree_iter(arguments) if isinstance(each, Tensor))


def changed_in_place(value: Tensor, _written: Tensor) -> Tensor:
    """Stands for the effect of an in-place operation on another view of the same memory."""
    return value


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
