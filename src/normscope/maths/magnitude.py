"""How large single activations of the residual stream are, and the massive ones among them.

Sources: Sun et al. 2024, section 2 (arXiv:2402.17762); Bondarenko et al. 2023, section 3 (arXiv:2306.12929).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.pieces import cached_rows

MASSIVE = 100.0
"""Massive activations are larger than this in magnitude, and at least `MASSIVE_RATIO` times the median magnitude."""

MASSIVE_RATIO = 1000.0

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
    largest = _precise(_largest(sizes, token_mask))
    return torch.stack([largest, average(fourth), average(beyond)], dim=-1)


class MassiveActivations(NamedTuple):
    """The massive activations of some sequences."""

    places: Int[Tensor, "activation 3"]
    """Sequence, token and dimension of each."""
    medians: Float[Tensor, " batch"]
    """Median of |x| over the tokens and dimensions of each sequence; NaN where no |x| exceeds `MASSIVE`."""


def massive_activations(
    vectors: Float[Tensor, "batch token model"],
    token_mask: Bool[Tensor, "batch token"],
    sizes: TokenSizes | None = None,
) -> MassiveActivations:
    """Activations with |x| > 100 that are at least 1000 times the median |x| of their sequence.

    The median is only computed for sequences in which some |x| exceeds 100.

    Args:
        vectors: Hidden vectors.
        token_mask: True at tokens, False at padding.
        sizes: See `token_sizes`; computed if not given.

    Source: Sun et al. 2024, section 2.1.
    """
    largest = _largest(token_sizes(vectors) if sizes is None else sizes, token_mask)
    medians = torch.full_like(largest, torch.nan)
    places = [torch.zeros(0, 3, dtype=torch.int64, device=vectors.device)]
    for row in (largest > MASSIVE).nonzero().flatten().tolist():
        absolute = vectors[row].abs()
        medians[row] = _median(absolute[token_mask[row]].flatten())
        massive = (absolute > MASSIVE) & (absolute >= MASSIVE_RATIO * medians[row]) & token_mask[row].unsqueeze(-1)
        inside = massive.nonzero()
        places.append(torch.cat([torch.full_like(inside[:, :1], row), inside], dim=1))
    return MassiveActivations(torch.cat(places), medians)


def _largest(sizes: TokenSizes, token_mask: Tensor) -> Float[Tensor, " batch"]:
    return sizes.largest.masked_fill(~token_mask, 0).amax(dim=-1)


def _precise(tensor: Tensor) -> Tensor:
    """The tensor in float64 if its device supports it."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def _median(values: Float[Tensor, " value"]) -> Float[Tensor, ""]:
    """The mean of the two middle values if their number is even."""
    lower = values.kthvalue((len(values) + 1) // 2).values
    return lower if len(values) % 2 else (lower + values.kthvalue(len(values) // 2 + 1).values) / 2
