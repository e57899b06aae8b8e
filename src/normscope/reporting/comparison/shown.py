"""What a comparison shows under one title: figures, and their values as a table."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from normscope.results.figures import Figure


@dataclasses.dataclass(frozen=True)
class Shown:
    """Figures under one title."""

    title: str
    figures: Sequence[Figure]
    values: pd.DataFrame
    """What the figures draw, in numbers."""


def ends_of_scale(values: pd.DataFrame) -> tuple[float, float]:
    """The ends of a colour scale on which zero is: it begins there unless a value is negative."""
    finite = np.nan_to_num(values.to_numpy(dtype=float))
    low, high = float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
    return low, high if high > low else low + 1
