"""The contract that every accumulator keeps."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

A = TypeVar("A", bound="Accumulator")


class EmptyAccumulatorError(ValueError):
    """Raised by `compute()` when nothing has been added up."""


class Accumulator(abc.ABC):
    """Sums over a stream, apart from the frozen result that they amount to.

    Every accumulator has an `update` of its own and keeps this contract, which one shared test suite holds it to:
    merging with a new accumulator changes nothing; merging is associative and leaves both sides alone; a stream in
    batches equals the stream as a whole; a state that is saved and loaded goes on as if nothing had happened; `compute()`
    of nothing raises.
    """

    @abc.abstractmethod
    def merge(self: A, other: A) -> A:
        """A new accumulator that has seen what both have seen."""

    @abc.abstractmethod
    def compute(self) -> Any:
        """The frozen result.

        Raises:
            Nothing: If nothing has been added up.
        """

    @abc.abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything that has been added up, as tensors on the CPU."""

    @abc.abstractmethod
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that an accumulator of the same shape gave."""


class TensorAccumulator(Accumulator):
    """An accumulator that is a few tensors, kept on the device of what is added to them."""

    _tensors: ClassVar[tuple[str, ...]]
    """Names of the tensors, which are attributes with an underscore before them."""

    def state(self) -> dict[str, Tensor]:
        """Everything that has been added up, as tensors on the CPU."""
        return {name: getattr(self, f"_{name}").cpu().clone() for name in self._tensors}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that an accumulator of the same shape gave."""
        for name in self._tensors:
            setattr(self, f"_{name}", state[name].clone())

    def _follow(self, values: Tensor) -> torch.device:
        """Move to where values are added up, and say where that is."""
        device = accumulation_device(values.device)
        if getattr(self, f"_{self._tensors[0]}").device != device:
            self.load({name: tensor.to(device) for name, tensor in self.state().items()})
        return device


def accumulation_device(device: torch.device) -> torch.device:
    """Where sums of a device's tensors are kept: there, so that nothing waits for a copy, if it knows float64."""
    return torch.device("cpu") if device.type == "mps" else device
