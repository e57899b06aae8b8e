"""A simulated accelerator: tensors that claim to be on a device of their own, and are computed on the CPU.

It refuses what CUDA refuses: tensors of two devices in one operation, a CPU's generator, NumPy, products of integers. Under
`no_waiting`, it also refuses what CUDA refuses under `torch.cuda.set_sync_debug_mode("error")`: operations whose result the
host has to wait for. So tests of what runs on a GPU run on every machine, with real numbers.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
NAME = "simulated"

_COPIES = {aten._to_copy, aten.to, aten.copy_}  # in inference mode, `to` is not taken apart
_UNTAGGED = {aten.is_nonzero, aten.nonzero_numpy, aten.where.default}
"""Operations that wait because they are made of others that do; torch tags those that are not."""
_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.mv, aten.dot, aten.matmul, aten.linear, aten.einsum}
"""Operations that CUDA has for no integers."""
_INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
"""Operations whose indices may be in CPU memory."""

_waits_are_errors = False


class OnDevice(Tensor):
    """A tensor on the simulated accelerator.

    Args:
        held: Its values, in CPU memory.
    """

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        with torch.inference_mode(mode=False):  # so that a view of an ordinary tensor is one
            made: OnDevice = Tensor._make_wrapper_subclass(
                cls,
                held.size(),
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=torch.device(NAME, 0),
            )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, kind) or kind is torch.nn.Parameter for kind in types):
            return NotImplemented  # another subclass knows what it stands for
        return _run(function, *args, **(kwargs or {}))

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def tolist(self) -> Any:  # torch refuses it to subclasses
        return self.cpu().tolist()

    def numpy(self, *_args: Any, **_keywords: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def __array__(self, *_args: Any, **_keywords: Any) -> Any:
        return self.numpy()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else repr(self)

    def __repr__(self) -> str:
        return f"{self.held!r} on {self.device}"


@functools.cache
def simulated() -> torch.device:
    """The simulated accelerator, which torch knows from the first call on."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("_", "IMPL")
    library.fallback(_run, "PrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for made in (
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
    ):  # which torch resizes once it is there
        factories.impl(made, functools.partial(_run, made), "PrivateUse1")
    simulated.libraries = library, factories  # they are undone when they are collected
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes its result on the CPU and copies it
    return torch.device(NAME, 0)


@contextlib.contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """Context in which whatever waits for a device is an error; nothing ever waits for a CPU."""
    global _waits_are_errors
    if device.type == "cuda":
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return
    _waits_are_errors = device.type == NAME
    try:
        yield
    finally:
        _waits_are_errors = False


def _run(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the values, as CUDA would: on one device, and without waiting if that is asked for."""
    if function.overloadpacket in _COPIES:
        return _copied(function, *args, **kwargs)
    _refuse_other_devices(function, args, kwargs)
    _refuse_products_of_integers(function, args)
    if _waits_are_errors:
        _refuse_waiting(function, args, kwargs)
    if function.overloadpacket is aten._scaled_dot_product_efficient_attention:
        function_of_device = memory_efficient
    else:
        function_of_device = function
    result = function_of_device(*tree_map(_held, args), **tree_map(_held, kwargs))
    return _as_the_schema_says(function, args, kwargs, result)


def _copied(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A copy between devices, or on one."""
    held = function(*tree_map(_held, args), **tree_map(_held, kwargs))
    given = _by_name(function, args) | kwargs
    if function.overloadpacket is aten.copy_:
        result, source = args[:2]
    else:
        (source, *_), other = args, given.get("other")
        asked = given.get("device") if other is None else other.device
        on_device = isinstance(source, OnDevice) if asked is None else torch.device(asked).type == NAME
        result = source if held is _held(source) and on_device is isinstance(source, OnDevice) else held
        result = OnDevice(held) if on_device and result is held else result
    waits = isinstance(result, OnDevice) is not isinstance(source, OnDevice) and not given.get("non_blocking")
    if waits and _waits_are_errors:
        raise RuntimeError(f"called a synchronizing operation: {function}")
    return result


def _by_name(function: Any, args: Any) -> dict[str, Any]:
    return dict(zip((argument.name for argument in function._schema.arguments), args, strict=False))


def _refuse_other_devices(function: Any, args: Any, kwargs: Any) -> None:
    """Raise what CUDA raises for tensors of two devices; numbers and indices may be in CPU memory."""
    if function.overloadpacket in _INDEXING:
        args = (args[0], *args[2:])
    for value in tree_leaves((args, kwargs)):
        if isinstance(value, Tensor) and not isinstance(value, OnDevice) and value.ndim:
            raise RuntimeError(
                f"expected all tensors to be on the same device, got one on {value.device} in {function}"
            )
        if isinstance(value, torch.Generator):
            raise RuntimeError(f"expected a generator of the device, got one of the {value.device} in {function}")


def _refuse_waiting(function: Any, args: Any, kwargs: Any) -> None:
    packet = function.overloadpacket
    waits = not _WAITING.isdisjoint(function.tags) or not _UNTAGGED.isdisjoint({packet, function})
    if packet is aten.repeat_interleave:
        given = _by_name(function, args) | kwargs
        waits = isinstance(given["repeats"], Tensor) and given.get("output_size") is None
    if packet in _INDEXING:
        waits = any(
            index.dtype in (torch.bool, torch.uint8) or (not isinstance(index, OnDevice) and index.ndim > 0)
            for index in args[1]
            if index is not None
        )
    if waits:
        raise RuntimeError(f"called a synchronizing operation: {function}")


def _refuse_products_of_integers(function: Any, args: Any) -> None:
    if function.overloadpacket in _PRODUCTS:
        kinds = {value.dtype for value in tree_leaves(args) if isinstance(value, Tensor)}
        if not all(kind.is_floating_point or kind.is_complex for kind in kinds):
            raise NotImplementedError(f"{function} not implemented for {kinds}")


def _held(value: Any) -> Any:
    if isinstance(value, OnDevice):
        return value.held
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def _as_the_schema_says(function: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The results as tensors on the device; those of operations in place are the arguments themselves."""
    given = _by_name(function, args) | kwargs
    written = [
        given[argument.name]
        for argument in function._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]
    if written and len(function._schema.returns) == len(written):
        return written[0] if len(written) == 1 else tuple(written)
    return tree_map(lambda value: OnDevice(value) if isinstance(value, Tensor) else value, result)


def explicit(query, key, value, mask, causal, scale):
    """Attention and its log-normaliser, pair by pair."""
    scores = query.double() @ key.double().transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return (scores.softmax(-1) @ value.double()).to(query.dtype), scores.logsumexp(-1).to(
        torch.promote_types(query.dtype, torch.float32)
    )


def memory_efficient(query, key, value, bias, with_normaliser, dropout=0.0, causal=False, *, scale):
    """torch's kernel: it wants heads and rows of a mask that begin at multiples of eight numbers, and pads its normaliser."""
    assert with_normaliser is True
    assert dropout == 0
    for tensor in (query, key, value, *([] if bias is None else [bias])):
        assert tensor.stride(-1) == 1
        assert not any(stride % 8 for stride in (tensor.storage_offset(), *tensor.stride()[:-1]))
    assert not any(tensor.shape[-1] % 8 for tensor in (query, key, value))
    assert bias is None or bias.shape == (*query.shape[:3], key.shape[2])
    output, normaliser = explicit(query, key, value, bias, causal, scale)
    return output, torch.nn.functional.pad(normaliser, (0, 5), value=torch.nan), torch.zeros(()), torch.zeros(())
