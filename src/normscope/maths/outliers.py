"""Dimensions of the hidden vectors whose mean over tokens stands far from the other dimensions'.

Sources: Kovaleva et al. 2021 (arXiv:2105.06990), three standard deviations; Puccetti et al. 2022 (arXiv:2205.11380); Maruta &
Matsuzaki 2024, section 2.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Criterion = Literal["sigma", "mad"]
"""What a dimension's distance from the others is measured in: standard deviations of the layer's dimensions, from their mean;
or median absolute deviations, from their median, which the outliers themselves do not widen."""

# What makes the median absolute deviation of a normal distribution its standard deviation: 1 / Φ⁻¹(3/4).
_NORMAL = 1.482602218505602


def deviation_scores(means: Float[Tensor, "layer model"], criterion: Criterion) -> Float[Tensor, "layer model"]:
    """How far each dimension's mean lies from those of the layer's other dimensions, with its sign.

    Args:
        means: Mean over tokens of every dimension.
        criterion: The unit. Where all dimensions agree it is zero and so are the scores.
    """
    match criterion:
        case "sigma":
            centred = means - means.mean(dim=-1, keepdim=True)
            unit = centred.square().mean(dim=-1, keepdim=True).sqrt()
        case "mad":
            centred = means - _median(means)
            unit = _median(centred.abs()) * _NORMAL
    return torch.where(unit > 0, centred / unit, torch.zeros_like(centred))


def outlier_dimensions(is_outlier: Bool[Tensor, "layer model"], share: float) -> list[int]:
    """The dimensions that are outliers in at least a share of the layers, and in one at least."""
    layers = is_outlier.double().mean(dim=0)
    return torch.nonzero((layers >= share) & (layers > 0)).flatten().tolist()


def _median(values: Float[Tensor, "layer model"]) -> Float[Tensor, "layer 1"]:
    """The mean of the middle two of an even number, of which `torch.median` gives the smaller."""
    return values.quantile(0.5, dim=-1, keepdim=True)
