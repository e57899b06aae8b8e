"""How well low values distinguish marked items from the others."""

from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

_DIGITS = 9
"""Values that agree to this many decimals count as equal: they differ by rounding only."""


class Detection(NamedTuple):
    """Measures of a detector; NaN where one is not defined."""

    precision: float
    """Share of the flagged items that are marked; NaN if nothing is flagged."""
    recall: float
    """Share of the marked items that are flagged; NaN if nothing is marked."""
    auc: float
    """Probability that a marked item has a lower value than an unmarked one, with ties counting half; NaN without either."""
    average_precision: float
    """Mean over the marked items of the precision at their value: the area under the precision–recall curve, in steps."""
    marked: int
    """Number of marked items."""
    labelled: int
    """Number of all items."""


def detection(values: Float[np.ndarray, " item"], marked: Bool[np.ndarray, " item"], below: float) -> Detection:
    """How well values below a threshold detect marked items.

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
