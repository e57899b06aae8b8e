"""The weights of a norm, whatever its module calls them."""

import math
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normscope.maths.normalisation import Normalisation
from normscope.models.blocks.block import full_precision
from normscope.models.stored.stored_weights import weights_present


def normalisation(norm: Any, of: tuple[int, torch.device], *, unit_offset: bool = False) -> Normalisation:
    """The weights of a norm, in float32 or better. Whether it centres, and divides, is what it does to probes.

    Args:
        norm: The module. γ is 1 if it has no weight.
        of: The number of dimensions of what it reads, and where, if it has no weights.
        unit_offset: Whether it stores γ − 1.
    """
    with weights_present(norm):
        vectors = [each for each in norm.parameters() if each.ndim == 1]
        if vectors and is_measured(norm):
            return _measured(norm, max(vectors, key=len))
        weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    stored = next((tensor.dtype for tensor in norm.parameters()), torch.float32)
    if weight is None:
        # A norm without parameters may be a function that a module applies.
        norm = next((each for each in norm.modules() if hasattr(each, "normalized_shape")), norm)
        size, device = of
        size = math.prod(getattr(norm, "normalized_shape", (size,)))
        weight = torch.full((size,), 0.0 if unit_offset else 1.0, device=device)
    weight, bias = full_precision(weight), None if bias is None else full_precision(bias)
    epsilon = next((getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name)), _EPSILON)
    if epsilon is None:  # torch's RMSNorm
        epsilon = torch.finfo(stored).eps
    centres, divides = _does(norm, weight, stored)
    return Normalisation(weight + 1 if unit_offset else weight, bias, epsilon, centres, divides=divides)


_EPSILON = 1e-5
"""ε of norms that do not store it (OLMo's); verification proves it where feed-forward networks are compared."""


_LIBRARIES = ("torch.", "transformers.", "normscope.")
"""Packages whose norms keep their weights under known names."""


def is_measured(norm: nn.Module) -> bool:
    """Whether the weights of a norm are found by measuring its outputs."""
    return not type(norm).__module__.startswith(_LIBRARIES)


def _measured(norm: nn.Module, like: Tensor) -> Normalisation:
    """The weights of a norm, measured on a few vectors, whatever its parameters are called and however it computes σ.

    Args:
        like: One of its parameters, of shape (model).
    """
    signs = torch.ones_like(like)
    signs[1::2] = -1
    if len(signs) % 2:
        signs[-3:] = signs.new_tensor([1.0, 1.0, -2.0])  # the mean is zero

    def applied(scale: float) -> Tensor:
        return norm((scale * signs)[None, None])[0, 0].double()

    centres, divides = _does(norm, like, like.dtype)
    with torch.no_grad():
        # A zero input gives β; large inputs with mean zero then give γ.
        bias = applied(0.0)
        if not divides:
            weight = (applied(1.0) - bias) / signs.double()
            return Normalisation(weight.to(like.dtype), bias.to(like.dtype), 0.0, centres, divides=False)
        unit = signs.double().square().mean().sqrt()
        weight = (applied(1e6) - bias) * unit / signs.double()
        # Small inputs show ε, and whether it is added under the root.
        small = [scale * float(unit) for scale in _SMALL]
        deviations = [
            float((weight * scale * signs.double()).norm() / (applied(scale) - bias).norm()) for scale in _SMALL
        ]
    inside = [deviation**2 - size**2 for deviation, size in zip(deviations, small, strict=True)]
    outside = [deviation - size for deviation, size in zip(deviations, small, strict=True)]
    is_outside = _spread(outside) < _spread(inside)
    epsilon = (outside if is_outside else inside)[0]
    if epsilon < 1e-6 * small[0] ** (1 if is_outside else 2):  # rounding: it adds nothing, but makes zeros of zeros
        epsilon, is_outside = torch.finfo(torch.float32).tiny, False
    weight, shift = full_precision(weight.to(like.dtype)), bias.to(like.dtype)
    return Normalisation(
        weight,
        full_precision(shift) if bool(shift.any()) else None,
        float(f"{epsilon:.5e}"),
        centres,
        adds_outside=is_outside,
    )


def _spread(pair: list[float]) -> float:
    """How much two measurements of one number differ, relative to the first."""
    return abs(pair[0] - pair[1]) / max(pair[0], 1e-12)


_SMALL = (1e-4, 1e-3)
"""Scales of the vectors that show ε."""


_done: WeakKeyDictionary[nn.Module, tuple[bool, bool]] = WeakKeyDictionary()
"""Results of `_does`, which waits for the device: weights that are not kept are read again in every pass."""


def _does(norm: nn.Module, weight: Tensor, dtype: torch.dtype) -> tuple[bool, bool]:
    """Whether a norm subtracts the mean, and whether it divides by the deviation.

    If it centres, a vector and the same with a number added to every dimension have one norm; if it divides, a vector and its
    double have.
    """
    if norm not in _done:
        probe = torch.arange(weight.shape[-1], device=weight.device, dtype=torch.float32).cos()
        with torch.inference_mode():
            one, shifted, double, zero = (
                norm(vector[None, None].to(dtype)).float() for vector in (probe, probe + 2, 2 * probe, 0 * probe)
            )
        bias = zero.nan_to_num()  # without ε, the norm of zero is not defined
        # Otherwise the two differ by far more than any rounding.
        size = (one - bias).norm()
        _done[norm] = bool((one - shifted).norm() < 0.1 * size), not bool((double - one).norm() > 0.5 * size)
    return _done[norm]
