"""Holds slopes, deviations, clamps and norms fixed in what a model does after its last hidden vectors.

A head is PyTorch code of its own, so its functions are intercepted while autograd records them. Where every slope is fixed,
the head is linear in the hidden vectors and its biases, and its output is gradient × input summed over both.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from normscope.maths.activations import activation_of
from normscope.maths.frozen import slope_of_tanh


@contextlib.contextmanager
def frozen_functions(*, attention: bool = False) -> Iterator[None]:
    """While the context is open, freeze the non-linear functions of a model wherever autograd records.

    The activation modules of transformers are frozen as wholes: their functions could not be frozen one by one.

    Args:
        attention: Whether to hold attention weights fixed: every softmax.
    """
    threads: list[int] = []

    def freeze(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        # Models of other threads are none of ours.
        is_ours = type(module).__module__ == "transformers.activations" and threading.get_ident() in threads
        return _freeze_module(module, args, output) if is_ours else None

    # Heads also make such modules as they run (big_bird), so that no walk over a model would find them all.
    hook = RemovableHandle(_global_forward_hooks)
    try:
        _global_forward_hooks[hook.id] = (
            freeze  # not `register_module_forward_hook`, whose handle an interrupt may lose
        )
        threads.append(threading.get_ident())  # only here, so that a hook that an interrupt left behind does nothing
        with _FrozenFunctions(_FROZEN | _FROZEN_ATTENTION if attention else _FROZEN):
            yield
    finally:
        threads.clear()
        hook.remove()


@contextlib.contextmanager
def recorded_biases(model: nn.Module) -> Iterator[list[Tensor]]:
    """Let autograd record the biases of a model, parameters and buffers."""
    named = [*model.named_parameters(), *model.named_buffers()]
    biases = [tensor for name, tensor in named if name.endswith("bias") and tensor.is_floating_point()]
    before = [tensor.requires_grad for tensor in biases]
    try:
        for tensor in biases:
            tensor.requires_grad_()
        yield biases
    finally:
        for tensor, required in zip(biases, before, strict=True):
            tensor.requires_grad_(required)


class _FrozenFunctions(TorchFunctionMode):
    """Replaces functions of tensors that require gradients by the same numbers times a fixed slope.

    Args:
        frozen: How each function is frozen.
    """

    def __init__(self, frozen: Mapping[Any, Callable[..., Tensor]]) -> None:
        super().__init__()
        self._frozen = frozen

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        arguments = dict(kwargs or {})
        freeze = self._frozen.get(function)
        vectors = args[0] if args else arguments.get("input")
        recorded = torch.is_grad_enabled() and isinstance(vectors, Tensor) and vectors.requires_grad
        if freeze is None or not recorded:
            return function(*args, **arguments)
        return freeze(function, *args, **arguments)  # inside a mode, the mode itself is off


def _by_slope(function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """g(u) as u times its slope, for an activation with g(0) = 0."""
    with torch.no_grad():
        activation = activation_of(lambda probe: function(probe, *args, **kwargs), _probe(input))
    if activation is None:
        return function(input, *args, **kwargs)
    return input * activation.slope(input.detach())


def _freeze_module(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    if not (isinstance(output, Tensor) and output.requires_grad):
        return None
    with torch.no_grad():
        activation = activation_of(module, _probe(args[0]))
    return None if activation is None else args[0] * activation.slope(args[0].detach())


def _tanh(_function: Callable[..., Tensor], input: Tensor) -> Tensor:
    return input * slope_of_tanh(input.detach())


def _clamp(function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    fixed = input.detach()
    return input * torch.where(fixed == 0, 1.0, function(fixed, *args, **kwargs) / fixed.masked_fill(fixed == 0, 1))


def _constant(function: Callable[..., Tensor], input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return function(input.detach(), *args, **kwargs)


def _layer_norm(
    function: Callable[..., Tensor],
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if len(normalized_shape) != 1:
        return function(input, normalized_shape, weight, bias, eps)
    centred = input - input.mean(dim=-1, keepdim=True)
    deviation = (centred.detach().square().mean(dim=-1, keepdim=True) + eps).sqrt()
    normed = centred / deviation
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


def _probe(like: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)


_functional = nn.functional
_FROZEN: dict[Any, Callable[..., Tensor]] = {
    torch.rsqrt: _constant,  # of an RMSNorm's mean square
    torch.tanh: _tanh,
    Tensor.tanh: _tanh,
    _functional.tanh: _tanh,
    torch.clamp: _clamp,
    Tensor.clamp: _clamp,
    _functional.layer_norm: _layer_norm,
    **dict.fromkeys(
        (
            torch.relu,
            Tensor.relu,
            _functional.relu,
            _functional.gelu,
            _functional.silu,
            _functional.mish,
            _functional.leaky_relu,
            _functional.relu6,
            _functional.hardswish,
        ),
        _by_slope,
    ),
}
"""How each function is frozen."""

_FROZEN_ATTENTION: dict[Any, Callable[..., Tensor]] = {
    _functional.softmax: _constant,
    torch.softmax: _constant,
    Tensor.softmax: _constant,
}
