"""The precision in which parts are added up and compared."""

import dataclasses
from typing import Any, TypeVar, cast

from torch import Tensor

T = TypeVar("T")


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device has no float64."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def as_double(value: T) -> T:
    """A copy in float64 on the CPU of a tensor, or of a record and everything in it; of other values the value itself.

    Deviations that a record computes keep the values of the model's precision.
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
            vars(copied)[name] = as_double(computed)  # where `cached_property` keeps it
    return cast(T, copied)
