"""The massive activations among hidden vectors: few, huge, and in the same dimensions whatever the text.

Source: Sun et al. 2024, section 2 (arXiv:2402.17762).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.tensors import cached_rows

MASSIVE = 100.0
"""Massive activations are larger than this in magnitude, and at least `MASSIVE_RATIO` times the median magnitude."""

MASSIVE_RATIO = 1000.0

_SAMPLE = 4096
"""Values whose order tells between which two values a median lies."""


class MassiveActivations(NamedTuple):
    """The massive activations of some sequences."""

    places: Int[Tensor, "activation 3"]
    """Sequence, token and dimension of each."""
    medians: Float[Tensor, " batch"]
    """Median of |x| over the tokens and dimensions of each sequence; NaN where no |x| exceeds `MASSIVE`."""


def largest_magnitudes(
    vectors: Float[Tensor, "batch token model"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, "batch token"]:
    """Largest |x| of every token; 0 at padding."""
    # Faster than the ∞-norm, and than abs, which writes a tensor of the same size.
    pieces = [torch.maximum(piece.amax(-1), -piece.amin(-1)) for piece in cached_rows(vectors.flatten(0, 1))]
    return torch.cat(pieces).view(token_mask.shape).masked_fill(~token_mask, 0)


def massive_activations(
    vectors: Float[Tensor, "batch token model"],
    token_mask: Bool[Tensor, "batch token"],
    largest: Float[Tensor, "batch token"] | None = None,
) -> MassiveActivations:
    """Activations with |x| > 100 that are at least 1000 times the median |x| of their sequence.

    The median is only computed for sequences in which some |x| exceeds 100, so the host waits for the device.

    Args:
        vectors: Hidden vectors.
        token_mask: True at tokens, False at padding.
        largest: See `largest_magnitudes`; computed if not given.

    Source: Sun et al. 2024, section 2.1.
    """
    largest = largest_magnitudes(vectors, token_mask) if largest is None else largest
    medians = torch.full_like(largest[:, 0], torch.nan)
    places = [torch.zeros(0, 3, dtype=torch.int64, device=vectors.device)]
    for row in (largest.amax(dim=-1) > MASSIVE).nonzero().flatten().tolist():
        medians[row] = _median(vectors[row][token_mask[row]].abs().flatten())
        tokens = (largest[row] > MASSIVE).nonzero()[:, 0]
        inside = is_massive(vectors[row, tokens].abs(), medians[row]).nonzero()
        places.append(torch.stack([torch.full_like(inside[:, 0], row), tokens[inside[:, 0]], inside[:, 1]], dim=1))
    return MassiveActivations(torch.cat(places), medians)


def is_massive(magnitudes: Float[Tensor, "*shape"], medians: Float[Tensor, "..."]) -> Bool[Tensor, "*shape"]:
    """Whether |x| is massive, given the median |x| of its sequence."""
    return (magnitudes > MASSIVE) & (magnitudes >= MASSIVE_RATIO * medians)


def median_magnitudes(
    vectors: Float[Tensor, "batch token model"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    """Median of |x| over the tokens and dimensions of each sequence, without waiting for the device.

    Positive floats are ordered as their bits are. The bits of the lower of the two middle values are found one by one, from the
    highest: each is 1 if fewer values than its rank are smaller with it. That takes as many passes as there are bits.

    Args:
        vectors: Hidden vectors, in float32 or float64.
        token_mask: True at tokens, False at padding. Every sequence has a token.
    """
    magnitudes = vectors.abs().masked_fill_(~token_mask.unsqueeze(-1), torch.inf).flatten(1)
    integers = torch.int64 if vectors.dtype == torch.float64 else torch.int32
    bits = magnitudes.view(integers)
    size = token_mask.sum(dim=-1, keepdim=True) * vectors.shape[-1]
    lower = torch.zeros_like(bits[:, :1])
    for place in reversed(range(torch.iinfo(integers).bits - 1)):
        larger = lower | (1 << place)
        lower = torch.where((bits < larger).sum(dim=-1, keepdim=True) < (size + 1) // 2, larger, lower)
    median = lower.view(vectors.dtype)
    next_larger = magnitudes.masked_fill(magnitudes <= median, torch.inf).amin(dim=-1, keepdim=True)
    upper = torch.where((magnitudes <= median).sum(dim=-1, keepdim=True) > size // 2, median, next_larger)
    return ((median + upper) / 2).squeeze(-1)


def _median(values: Float[Tensor, " value"]) -> Float[Tensor, ""]:
    """The mean of the two middle values, which are one if their number is odd.

    They are looked for among the values close to the median of a sample, which takes a third of the time; if it misleads, among
    all values.
    """
    ranks = (len(values) - 1) // 2, len(values) // 2
    sample = values[:: len(values) // _SAMPLE | 1].sort().values
    middle, margin = len(sample) // 2, 2 * int(len(sample) ** 0.5)  # four standard deviations of a random sample
    low, high = sample[max(0, middle - margin)], sample[min(len(sample) - 1, middle + margin)]
    below, inside = int((values < low).count_nonzero()), values[(values >= low) & (values <= high)]
    if below > ranks[0] or below + len(inside) <= ranks[1]:
        below, inside = 0, values
    lower, upper = (inside.kthvalue(rank - below + 1).values for rank in ranks)
    return (lower + upper) / 2
