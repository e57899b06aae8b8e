"""Dimensions of the hidden vectors whose mean over tokens lies far from those of the other dimensions.

Sources: Kovaleva et al. 2021 (arXiv:2105.06990), three standard deviations; Puccetti et al. 2022 (arXiv:2205.11380); Maruta &
Matsuzaki 2024, section 2.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Criterion = Literal["sigma", "mad"]
"""Unit of a dimension's distance from the others: the standard deviation of the layer's dimensions, for distances from
their mean; or the median absolute deviation, for distances from their median, which the outliers themselves do not
inflate."""

# Scales the median absolute deviation of a normal distribution to its standard deviation: 1 / Φ⁻¹(3/4).
_NORMAL = 1.482602218505602


def deviation_scores(means: Float[Tensor, "layer model"], criterion: Criterion) -> Float[Tensor, "layer model"]:
    """Signed distance of each dimension's mean from those of the layer's other dimensions.

    Args:
        means: Mean over tokens of every dimension.
        criterion: The unit. If all dimensions agree, the unit is zero and so are the scores.
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
    """The dimensions that are outliers in at least the given share of the layers, and in at least one."""
    layers = is_outlier.double().mean(dim=0)
    return torch.nonzero((layers >= share) & (layers > 0)).flatten().tolist()


def _median(values: Float[Tensor, "layer model"]) -> Float[Tensor, "layer 1"]:
    """The median. Of an even number it is the mean of the middle two; `torch.median` returns the smaller."""
    return values.quantile(0.5, dim=-1, keepdim=True)
