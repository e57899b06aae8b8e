"""Captures the products and softmaxes of attention modules that do not call transformers' attention function."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from normscope.models.observe.forward_pass import ForwardPass

_SOFTMAX = frozenset({torch.softmax, Tensor.softmax, nn.functional.softmax})
_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm})
_ADDED_PRODUCTS = frozenset({torch.baddbmm, Tensor.baddbmm})
"""Products that are added to another tensor, the first argument."""


class OwnAttention(TorchFunctionMode):
    """While active, passes every softmax and every matrix product to a forward pass.

    Args:
        forward: The forward pass that receives them.
    """

    def __init__(self, forward: ForwardPass) -> None:
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
