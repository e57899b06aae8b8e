"""How well low values tell apart what people have marked from what they have not."""

from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

_DIGITS = 9
"""Values that agree to so many decimals are equal: only rounding tells them apart."""


class Detection(NamedTuple):
    """Measures of a detector; NaN where one is not defined."""

    precision: float
    """Share of the flagged that are marked; NaN if nothing is flagged."""
    recall: float
    """Share of the marked that are flagged; NaN if nothing is marked."""
    auc: float
    """Probability that a marked one has a lower value than one that is not, ties counting half; NaN without either."""
    average_precision: float
    """Mean over the marked of the precision at their value: the area below the curve of precision and recall, by steps."""
    marked: int
    """Number of marked ones."""
    labelled: int
    """Number of all."""


def detection(values: Float[np.ndarray, " item"], marked: Bool[np.ndarray, " item"], below: float) -> Detection:
    """How well values below a threshold detect what is marked.

    Args:
        values: Low where something should be marked.
        below: What has a lower value is flagged.
    """
    values = values.round(_DIGITS)
    flagged, positives, count = values < below, int(marked.sum()), len(values)
    right = int((flagged & marked).sum())
    nan = float("nan")
    return Detection(
        precision=right / int(flagged.sum()) if flagged.any() else nan,
        recall=right / positives if positives else nan,
        auc=_auc(values, marked) if 0 < positives < count else nan,
        average_precision=_average_precision(values, marked) if positives else nan,
        marked=positives,
        labelled=count,
    )


def _auc(values: np.ndarray, marked: np.ndarray) -> float:
    """By the sum of ranks (Mann & Whitney)."""
    positives, negatives = int(marked.sum()), int((~marked).sum())
    ranks = scipy.stats.rankdata(-values)
    return float((ranks[marked].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _average_precision(values: np.ndarray, marked: np.ndarray) -> float:
    """Equal values are found together."""
    _, place = np.unique(values, return_inverse=True)
    found, right = np.bincount(place), np.bincount(place, marked)
    return float((right * (right.cumsum() / found.cumsum())).sum() / marked.sum())
