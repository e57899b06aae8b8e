"""How large single activations of the residual stream are, and the massive ones among them.

Sources: Sun et al. 2024, section 2 (arXiv:2402.17762); Bondarenko et al. 2023, section 3 (arXiv:2306.12929).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MASSIVE = 100.0
"""Massive activations are larger than this in magnitude, and at least `MASSIVE_RATIO` times the median magnitude."""

MASSIVE_RATIO = 1000.0

SIGMAS = 6
"""Distance from the mean, in standard deviations, beyond which an activation is counted as far out."""


def magnitudes(
    vectors: Float[Tensor, "batch token model"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, "batch 3"]:
    """Largest |x|, kurtosis, and share of the activations beyond six standard deviations, of each sequence.

    All activations of a sequence (tokens × dimensions) form one population. The kurtosis E[(x − μ)⁴] / σ⁴ is 3 for a normal
    distribution, and 0 here if all activations are equal.

    Args:
        vectors: Hidden vectors.
        token_mask: True at tokens, False at padding. Every sequence has a token.

    Source: Bondarenko et al. 2023, section 3.
    """
    weights = _precise(token_mask)
    size = weights.sum(dim=-1) * vectors.shape[-1]
    mean = _total(vectors.sum(dim=-1), weights) / size
    centred = vectors - mean.to(vectors.dtype)[:, None, None]
    squares = centred.square()
    variance = _total(squares.sum(dim=-1), weights) / size
    # Relative to σ, so that fourth powers stay within float32.
    relative = squares.div_(variance.clamp(min=torch.finfo(vectors.dtype).tiny).to(vectors.dtype)[:, None, None])
    # Sums of floats are several times faster than counts of booleans.
    beyond = _total((relative > SIGMAS**2).to(vectors.dtype).sum(dim=-1), weights) / size
    kurtosis = _total(relative.square_().sum(dim=-1), weights) / size
    return torch.stack([_precise(_largest(vectors, token_mask)), kurtosis, beyond], dim=-1)


class MassiveActivations(NamedTuple):
    """The massive activations of some sequences."""

    places: Int[Tensor, "activation 3"]
    """Sequence, token and dimension of each."""
    medians: Float[Tensor, " batch"]
    """Median of |x| over the tokens and dimensions of each sequence; NaN where no |x| exceeds `MASSIVE`."""


def massive_activations(
    vectors: Float[Tensor, "batch token model"], token_mask: Bool[Tensor, "batch token"]
) -> MassiveActivations:
    """Activations with |x| > 100 that are at least 1000 times the median |x| of their sequence.

    The median is only computed for sequences in which some |x| exceeds 100.

    Args:
        vectors: Hidden vectors.
        token_mask: True at tokens, False at padding.

    Source: Sun et al. 2024, section 2.1.
    """
    largest = _largest(vectors, token_mask)
    medians = torch.full_like(largest, torch.nan)
    places = [torch.zeros(0, 3, dtype=torch.int64, device=vectors.device)]
    for row in (largest > MASSIVE).nonzero().flatten().tolist():
        sizes = vectors[row].abs()
        medians[row] = _median(sizes[token_mask[row]].flatten())
        massive = (sizes > MASSIVE) & (sizes >= MASSIVE_RATIO * medians[row]) & token_mask[row].unsqueeze(-1)
        inside = massive.nonzero()
        places.append(torch.cat([torch.full_like(inside[:, :1], row), inside], dim=1))
    return MassiveActivations(torch.cat(places), medians)


def _largest(vectors: Tensor, token_mask: Tensor) -> Float[Tensor, " batch"]:
    sizes = vectors.abs().amax(dim=-1)  # much faster than the ∞-norm
    return sizes.masked_fill(~token_mask, 0).amax(dim=-1)


def _total(values: Float[Tensor, "batch token"] | Int[Tensor, "batch token"], weights: Tensor) -> Tensor:
    return (_precise(values) * weights).sum(dim=-1)


def _precise(tensor: Tensor) -> Tensor:
    """The tensor in float64 if its device supports it."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def _median(values: Float[Tensor, " value"]) -> Float[Tensor, ""]:
    """The mean of the two middle values if their number is even."""
    lower = values.kthvalue((len(values) + 1) // 2).values
    return lower if len(values) % 2 else (lower + values.kthvalue(len(values) // 2 + 1).values) / 2
