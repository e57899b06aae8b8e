"""Tensors moved between devices, cut into pieces, and widened."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor


def host_waits(device: torch.device) -> bool:
    """Whether the host has to wait for a device before it can read a number from it."""
    return device.type != "cpu"


def full_precision(tensor: Tensor) -> Tensor:
    """A tensor in float32 or better: models may run in half precision, measurements may not."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def version_of(tensor: Tensor) -> int:
    """How often a tensor has been written to; 0 if it was made in inference mode, where nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on another device. The host does not wait if the tensor is in CPU memory: CUDA copies it from pinned memory."""
    if tensor.device.type != "cpu":
        return tensor.to(device)
    if device.type == "cuda":
        tensor = tensor.contiguous().pin_memory()  # an expanded tensor cannot be pinned
    return tensor.to(device, non_blocking=True)


def lengthened(tensor: Tensor, size: int, axis: int, fill: float = 0.0) -> Tensor:
    """A tensor with more elements at the end of an axis, so that it has this size."""
    missing = size - tensor.shape[axis]
    if not missing:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = missing
    return torch.cat([tensor, tensor.new_full(shape, fill)], dim=axis)


_ENTRIES_AT_ONCE = 2**17
"""Numbers per piece on a CPU, 512 KiB in float32: few enough to stay in its cache from one operation to the next."""

_MOST_LANES = 4
"""An upper limit, because histograms keep counts for each lane: up to 5 MB per layer and category."""


def pieces(whole: slice, size: int) -> Iterator[slice]:
    """A range in pieces of a given size, at least 1."""
    for start in range(whole.start, whole.stop, size := max(1, size)):
        yield slice(start, min(whole.stop, start + size))


def cached_rows(rows: Float[Tensor, "row *size"], width: int | None = None) -> Sequence[Tensor]:
    """The rows in pieces that fit into a CPU's cache; all at once on other devices, which need large pieces of work.

    Args:
        rows: Vectors or matrices, or one number for each of them.
        width: Size of a row; that of `rows` if not given.
    """
    if rows.device.type != "cpu":
        return [rows]
    return rows.split(max(1, _ENTRIES_AT_ONCE // (math.prod(rows.shape[1:]) if width is None else width)))


def elementwise(function: Callable[..., Tensor], *given: Float[Tensor, "*size"]) -> Float[Tensor, "*size"]:
    """A function that is applied element by element, to pieces that stay in a CPU's cache.

    Args:
        given: Tensors of one shape.
    """
    shape = given[0].shape
    if len(shape) < 2:
        return function(*given)
    rows = [each.flatten(0, -2) for each in given]
    pieces = zip(*map(cached_rows, rows), strict=True)
    first = function(*next(pieces))
    if len(first) == len(rows[0]):
        return first.view(shape)
    made = first.new_empty(rows[0].shape)
    into = iter(cached_rows(made))
    next(into).copy_(first)
    for to, parts in zip(into, pieces, strict=True):
        to.copy_(function(*parts))
    return made.view(shape)


def lanes(device: torch.device) -> int:
    """The number of lanes for work on a device, so that each thread of a CPU continues with numbers that it has computed.

    Where the caches of two processors are far apart, passing numbers from one to the other takes longer than adding them up.
    """
    return min(_MOST_LANES, torch.get_num_threads()) if device.type == "cpu" else 1


T = TypeVar("T")


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device has no float64."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def as_double(value: T) -> T:
    """A float64 copy on the CPU of a tensor, or of a record and everything in it; any other value as it is.

    Deviations that a record computes keep the values computed in the model's precision.
    """
    if isinstance(value, Tensor):
        return cast(T, value.cpu().double())
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return cast(T, value._make(map(as_double, value)))
    if not dataclasses.is_dataclass(value):
        return value
    fields = {field.name: as_double(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    copied: Any = dataclasses.replace(cast(Any, value), **fields)
    for name in ("last_deviation", "input_deviation"):
        if isinstance(computed := getattr(value, name, None), Tensor):
            vars(copied)[name] = as_double(computed)  # where `cached_property` stores it
    return cast(T, copied)


def widened(values: Float[Tensor, "*batch some"], width: int) -> Float[Tensor, "*batch width"]:
    """Values with zeros behind them, up to a width along the last axis."""
    return torch.nn.functional.pad(values, (0, width - values.shape[-1]))
