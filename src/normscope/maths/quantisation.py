"""Fake quantisation: numbers rounded to what a narrower format holds, and kept in the type that they had.

Source: LLM.int8() (Dettmers et al. 2022, arXiv:2208.07339), whose columns of outlier dimensions stay as they are.
"""

import enum

import torch
from jaxtyping import Float, Int
from torch import Tensor

_LARGEST_INTEGER = 127
"""Of a signed byte, symmetric about 0."""


class NumberFormat(enum.StrEnum):
    """What the weights and inputs of linear layers are rounded to."""

    bfloat16 = "bfloat16"
    int8_per_tensor = "int8_per_tensor"
    """One scale for all weights of a layer and one, fixed beforehand, for all of its inputs."""
    int8_per_token = "int8_per_token"
    """A scale for each row of the weights, which makes one dimension of the output, and for each token of the inputs."""


def rounded_weights(
    weights: Float[Tensor, "output input"], target: NumberFormat, kept: Int[Tensor, " kept"]
) -> Float[Tensor, "output input"]:
    """Weights as a format holds them.

    Args:
        weights: Those of a linear layer.
        target: The format.
        kept: Input dimensions whose weights are not rounded, and do not count for the scale.
    """
    if target is NumberFormat.int8_per_token:
        return _rounded(weights, target, kept, _largest_of_rows(weights, kept))
    return _rounded(weights, target, kept, without(weights.abs(), kept).amax())


def rounded_inputs(
    inputs: Float[Tensor, "*tokens input"],
    target: NumberFormat,
    kept: Int[Tensor, " kept"],
    largest: Float[Tensor, " input"],
) -> Float[Tensor, "*tokens input"]:
    """Inputs of a linear layer as a format holds them.

    Args:
        inputs: A vector for each token.
        target: The format.
        kept: Dimensions that are not rounded, and do not count for the scale.
        largest: Largest |x| of each dimension in other texts, which sets the scale of `int8_per_tensor`; what exceeds it is
            cut off.
    """
    if target is NumberFormat.int8_per_token:
        return _rounded(inputs, target, kept, _largest_of_rows(inputs, kept))
    return _rounded(inputs, target, kept, without(largest, kept).amax())


def without(values: Float[Tensor, "*rows input"], kept: Int[Tensor, " kept"]) -> Float[Tensor, "*rows input"]:
    """A copy in which the dimensions that are kept apart are 0."""
    return values.index_fill(-1, kept, 0)


def _largest_of_rows(values: Tensor, kept: Tensor) -> Tensor:
    return without(values.abs(), kept).amax(dim=-1, keepdim=True)


def _rounded(values: Tensor, target: NumberFormat, kept: Tensor, largest: Tensor) -> Tensor:
    if target is NumberFormat.bfloat16:
        new = values.to(torch.bfloat16).to(values.dtype)
    else:
        scale = torch.where(largest > 0, largest / _LARGEST_INTEGER, 1.0)
        new = (values / scale).round_().clamp_(-_LARGEST_INTEGER, _LARGEST_INTEGER).mul_(scale)
    return new.index_copy_(-1, kept, values.index_select(-1, kept)) if len(kept) else new
