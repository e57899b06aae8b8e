"""How large single activations of the residual stream are.

Source: Bondarenko et al. 2023, section 3 (arXiv:2306.12929).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.tensors import cached_rows

SIGMAS = 6
"""Distance from the mean, in standard deviations, beyond which an activation is counted as far out."""


class TokenSizes(NamedTuple):
    """Sums over the dimensions of hidden vectors."""

    total: Float[Tensor, "batch token"]
    """Σ_d x_d."""
    norm: Float[Tensor, "batch token"]
    """‖x‖."""
    largest: Float[Tensor, "batch token"]
    """Largest |x_d|."""


def token_sizes(vectors: Float[Tensor, "batch token model"]) -> TokenSizes:
    """The sum, the norm and the largest magnitude of every vector."""
    parts = [
        # Faster than the ∞-norm, and than abs, which writes a tensor of the same size.
        (piece.sum(dim=-1), torch.linalg.vector_norm(piece, dim=-1), torch.maximum(piece.amax(-1), -piece.amin(-1)))
        for piece in cached_rows(vectors.flatten(0, 1))
    ]
    return TokenSizes(*(torch.cat(each).view(vectors.shape[:2]) for each in zip(*parts, strict=True)))


def magnitudes(
    vectors: Float[Tensor, "batch token model"],
    token_mask: Bool[Tensor, "batch token"],
    sizes: TokenSizes | None = None,
) -> Float[Tensor, "batch 3"]:
    """Largest |x|, kurtosis, and share of the activations beyond six standard deviations, of each sequence.

    All activations of a sequence (tokens × dimensions) form one population. The kurtosis E[(x − μ)⁴] / σ⁴ is 3 for a normal
    distribution, and 0 here if all activations are equal.

    Args:
        vectors: Hidden vectors.
        token_mask: True at tokens, False at padding. Every sequence has a token.
        sizes: See `token_sizes`; computed if not given.

    Source: Bondarenko et al. 2023, section 3.
    """
    sizes = token_sizes(vectors) if sizes is None else sizes
    weights = _precise(token_mask)
    size = weights.sum(dim=-1) * vectors.shape[-1]
    flat = vectors.flatten(0, 1)

    def by_row(of_sequence: Tensor) -> Sequence[Tensor]:
        return cached_rows(
            of_sequence.to(vectors.dtype)[:, None].expand(token_mask.shape).reshape(-1, 1), flat.shape[-1]
        )

    def average(of_rows: Sequence[Tensor]) -> Tensor:
        return (_precise(torch.cat(list(of_rows)).view(token_mask.shape)) * weights).sum(dim=-1) / size

    mean = (_precise(sizes.total) * weights).sum(dim=-1) / size
    means = by_row(mean)
    squares = [(piece - centre).square_().sum(dim=-1) for piece, centre in zip(cached_rows(flat), means, strict=True)]
    inverse = by_row(average(squares).clamp(min=torch.finfo(vectors.dtype).tiny).rsqrt())
    fourth, beyond = [], []
    for piece, centre, factor in zip(cached_rows(flat), means, inverse, strict=True):
        # Relative to σ, so that fourth powers stay within float32.
        relative = (piece - centre).mul_(factor).square_()
        fourth.append(torch.linalg.vecdot(relative, relative))
        beyond.append(relative.gt_(SIGMAS**2).sum(dim=-1))  # in place: several times faster than to booleans
    largest = _precise(sizes.largest.masked_fill(~token_mask, 0).amax(dim=-1))
    return torch.stack([largest, average(fourth), average(beyond)], dim=-1)


def _precise(tensor: Tensor) -> Tensor:
    """The tensor in float64 if its device supports it."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)
