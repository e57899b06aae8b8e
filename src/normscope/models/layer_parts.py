"""Finds the parts of a layer, which its site names as paths."""

from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor, nn

from normscope.errors import InputError
from normscope.models.block import full_precision
from normscope.models.linear_layers import SideBySide
from normscope.models.site import BESIDE


class LayerParts(NamedTuple):
    """Finds the parts of one layer.

    All but `get` raise InputError if the model lacks the part, or has something else in its place.
    """

    model: nn.Module
    """The base model, where paths begin."""
    number: int
    """That of the layer."""

    def get(self, path: str) -> Any:
        """Whatever is at a path; None if nothing."""
        try:
            return self._at(path)
        except AttributeError:
            return None

    def _at(self, path: str) -> Any:
        return attrgetter(path)(self.model) if path else self.model

    def part(self, part: str, path: str) -> Any:
        """Whatever is at a path."""
        try:
            return self._at(path)
        except AttributeError as error:
            kind = type(self.model).__name__
            raise InputError(
                f"model: expected the {part} of layer {self.number} at {path} of {kind}, got nothing"
            ) from error

    def scale(self, number: float, path: str | None) -> float | Tensor:
        """A factor on the output of a linear layer: a number, or its product with a vector of factors, if there is one."""
        if path is None:
            return number
        factors = self.part("LayerScale", path)
        if not isinstance(factors, Tensor):
            raise self._wrong("LayerScale", path, "a parameter", factors)
        return full_precision(factors.detach().flatten()) * number

    def module(self, part: str, path: str) -> nn.Module:
        """A module."""
        found = self.part(part, path)
        if not isinstance(found, nn.Module):
            raise self._wrong(part, path, "a module", found)
        return found

    def projection(self, part: str, path: str) -> nn.Module:
        """A linear layer."""
        if BESIDE in path:
            return SideBySide([self.projection(part, each) for each in path.split(BESIDE)])
        found = self.module(part, path)
        if not isinstance(getattr(found, "weight", None), Tensor) or not hasattr(found, "bias"):
            raise self._wrong(part, path, "a linear layer", found)
        return found

    def norm(self, part: str, path: str | None) -> nn.Module | None:
        """A norm, or one for each head; None without a path."""
        if path is None:
            return None
        found = self.module(part, path)
        known = any(hasattr(each, "weight") or hasattr(each, "normalized_shape") for each in found.modules())
        vectors = {parameter.ndim for parameter in found.parameters()} <= {1}  # Llama 4 and NanoChat have none
        if not (known or vectors) or isinstance(found, nn.Identity):
            raise self._wrong(part, path, "a norm", found)
        return found

    def _wrong(self, part: str, path: str, expected: str, found: object) -> InputError:
        return InputError(
            f"model: expected {expected} at {path} of layer {self.number}, its {part}, got {type(found).__name__}"
        )
