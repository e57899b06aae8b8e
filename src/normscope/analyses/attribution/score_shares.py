"""Which kinds of tokens get the scores: a method that explains most answers with [CLS] or the first token explains little."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from normscope.statistics.intervals import mean_interval


class ScoreShares:
    """Shares of Σ|score| by category of token, sequence by sequence.

    Args:
        names: All token categories.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._shares: dict[str, list[np.ndarray]] = {}

    def add(self, scores: Mapping[str, Float[np.ndarray, " token"]], categories: Int[np.ndarray, " token"]) -> None:
        """Add the scores of one sequence.

        Args:
            scores: By method. Scores that are all 0 have no shares.
            categories: The category of each token, an index into the names.
        """
        for method, values in scores.items():
            sums = np.bincount(categories, np.abs(values), len(self._names))
            if sums.sum() > 0:
                self._shares.setdefault(method, []).append(sums / sums.sum())

    def table(self) -> pd.DataFrame:
        """The table `scores`. Categories that occur nowhere have no rows."""
        occurs = np.sum([np.sum(shares, axis=0) for shares in self._shares.values()], axis=0) > 0
        rows = []
        for method, shares in self._shares.items():
            for name, occurring, values in zip(self._names, occurs, np.transpose(shares), strict=True):
                if occurring:
                    interval = mean_interval(values)
                    row = {"method": method, "source": name, "share": interval.mean}
                    rows.append(row | {"low": interval.low, "high": interval.high, "count": len(values)})
        return pd.DataFrame(rows, columns=["method", "source", "share", "low", "high", "count"])
