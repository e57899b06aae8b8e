"""Captures the products and softmaxes of attention modules that do not call transformers' attention function."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SOFTMAX = frozenset({torch.softmax, Tensor.softmax, nn.functional.softmax})
_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm})
_ADDED_PRODUCTS = frozenset({torch.baddbmm, Tensor.baddbmm})
"""Products that are added to another tensor, the first argument."""


class Takes(Protocol):
    """A forward pass that receives what was computed."""

    def take_softmax(self, weights: Tensor) -> None:
        """Receive the output of a softmax."""

    def take_product(self, second: Tensor, product: Tensor) -> None:
        """Receive the second factor of a matrix product, and the product."""


class OwnAttention(TorchFunctionMode):
    """While active, passes every softmax and every matrix product to a forward pass.

    Args:
        forward: The forward pass that receives them.
    """

    def __init__(self, forward: Takes) -> None:
        super().__init__()
        self._forward = forward

    def __torch_function__(
        self, function: Callable[..., Any], _types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in _SOFTMAX:
            self._forward.take_softmax(result)
        elif function in _PRODUCTS and len(args) == 2:
            self._forward.take_product(args[1], result)
        elif function in _ADDED_PRODUCTS and len(args) == 3:
            self._forward.take_product(args[2], result)
        return result


def returns_weights(model: nn.Module) -> bool:
    """Whether a model can be asked for its attention weights."""
    return "output_attentions" in inspect.signature(model.forward).parameters
