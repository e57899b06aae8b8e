"""Confidence intervals of means."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and the ends of its confidence interval."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """The mean of a sample with its 95% interval by Student's t; the ends are NaN for a single value.

    Raises:
        ValueError: If there is no value.
    """
    if not len(values):
        raise ValueError("the mean of no value")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, float("nan"), float("nan"))
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    half = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return Interval(mean, mean - half, mean + half)
