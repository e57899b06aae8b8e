"""The contract of all accumulators."""

import abc
import copy
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from normscope.maths.tensors import to_device

A = TypeVar("A", bound="Accumulator")


class EmptyAccumulatorError(ValueError):
    """Raised by `compute()` before the first update."""


class Accumulator(abc.ABC):
    """Running sums over a stream, separate from the frozen result that `compute()` returns.

    Every accumulator defines `update` and meets this contract, which one shared test suite checks: merging with an
    empty accumulator changes nothing; merging is associative and leaves both sides unchanged; a stream in batches
    equals the whole stream; a saved and reloaded state continues exactly; `compute()` on an empty accumulator raises.
    """

    @abc.abstractmethod
    def reset(self) -> None:
        """Return to the empty state."""

    def settle(self) -> None:  # noqa: B027 - most have nothing to do
        """Read what updates have left on the device: while a batch passes, nothing waits for it. Called after every batch."""

    @abc.abstractmethod
    def compute(self) -> Any:
        """The frozen result.

        Raises:
            EmptyAccumulatorError: Before the first update.
        """

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, as copies on the CPU."""

    @abc.abstractmethod
    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of an accumulator with the same arguments."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the state of an accumulator with the same arguments."""
        self.reset()
        self.merge_state_dict(state)

    def merge(self: A, other: A) -> A:
        """A new accumulator with the data of both."""
        merged = copy.copy(self)
        merged.reset()  # binds new tensors, so `self` keeps its own
        for side in (self, other):
            merged.merge_state_dict(side.state_dict())
        return merged


class TensorAccumulator(Accumulator):
    """An accumulator made of a few tensors, which stay on the device of the values added to them.

    `reset` binds each tensor to an attribute, its name with a leading underscore.
    """

    _reductions: ClassVar[Mapping[str, Callable[[Tensor, Tensor], Tensor]]]
    """How to merge each tensor, by its name: `torch.add`, `torch.maximum`, ..."""

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state, as copies on the CPU."""
        return {name: getattr(self, f"_{name}").cpu().clone() for name in self._reductions}

    def merge_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Add the state of an accumulator with the same arguments."""
        for name, reduction in self._reductions.items():
            own = getattr(self, f"_{name}")
            setattr(self, f"_{name}", reduction(own, state[name].to(own.device)))

    def _follow(self, values: Tensor) -> torch.device:
        """Move the state to the device on which to accumulate values, and return that device."""
        device = accumulation_device(values.device)
        for name in self._reductions:
            setattr(self, f"_{name}", to_device(getattr(self, f"_{name}"), device))
        return device


def accumulation_device(device: torch.device) -> torch.device:
    """The device on which to accumulate: the tensors' own, so nothing waits for a copy, or the CPU if it lacks float64."""
    return torch.device("cpu") if device.type == "mps" else device
