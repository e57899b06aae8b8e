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


def rounded(
    values: Float[Tensor, "*rows input"],
    target: NumberFormat,
    kept: Int[Tensor, " kept"],
    largest: Float[Tensor, " input"] | None = None,
) -> Float[Tensor, "*rows input"]:
    """The weights or the inputs of a linear layer as a format holds them.

    Args:
        values: A row for each output dimension, or for each token.
        target: The format.
        kept: Input dimensions that are not rounded, and do not count for the scale.
        largest: Largest |x| of each dimension in other texts, which sets the scale of `int8_per_tensor` (what exceeds it is cut
            off); that of the values themselves by default.
    """
    if target is NumberFormat.bfloat16:
        new = values.to(torch.bfloat16).to(values.dtype)
    else:
        of_rows = target is NumberFormat.int8_per_token
        sizes = (values.abs() if of_rows or largest is None else largest).index_fill(-1, kept, 0)
        most = sizes.amax(dim=-1, keepdim=True) if of_rows else sizes.amax()
        scale = torch.where(most > 0, most / _LARGEST_INTEGER, 1.0)
        new = (values / scale).round_().clamp_(-_LARGEST_INTEGER, _LARGEST_INTEGER).mul_(scale)
    return new.index_copy_(-1, kept, values.index_select(-1, kept)) if len(kept) else new
