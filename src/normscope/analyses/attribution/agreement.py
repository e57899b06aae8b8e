"""How far methods agree: rank correlations of their scores and of their maps."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy.stats
from jaxtyping import Bool, Float

from normscope.statistics.intervals import mean_interval

SCORES, MAP = "scores", "map"


class Agreement:
    """Rank correlations between pairs of methods, sequence by sequence."""

    def __init__(self, methods: Sequence[str]) -> None:
        self._methods = methods
        self._values: dict[tuple[str, str, str], list[float]] = {}

    def add_scores(self, scores: Mapping[str, Float[np.ndarray, " token"]]) -> None:
        """Add the scores of the ordinary tokens of one sequence."""
        self._add(SCORES, {method: values[None] for method, values in scores.items()}, None)

    def add_maps(self, maps: Mapping[str, Float[np.ndarray, "query key"]], seen: Bool[np.ndarray, "query key"]) -> None:
        """Add the maps of one sequence through all layers; only keys that a query can see are ranked."""
        self._add(MAP, maps, seen)

    def table(self) -> pd.DataFrame:
        """The table `agreement`: pairs of methods in their order."""
        rows = []
        for scope, (one, other) in itertools.product((SCORES, MAP), itertools.combinations(self._methods, 2)):
            values = self._values.get((scope, one, other))
            if values:
                interval = mean_interval(values)
                rows.append(
                    {
                        "method": one,
                        "other": other,
                        "scope": scope,
                        "spearman": interval.mean,
                        "low": interval.low,
                        "high": interval.high,
                        "count": len(values),
                    }
                )
        return pd.DataFrame(rows, columns=["method", "other", "scope", "spearman", "low", "high", "count"])

    def _add(self, scope: str, rows: Mapping[str, np.ndarray], seen: np.ndarray | None) -> None:
        if not rows:
            return
        methods = list(rows)
        ranks = np.stack([_standardised_ranks(values, seen) for values in rows.values()])
        correlations = np.einsum("aik,bik->abi", ranks, ranks)
        ranked = (ranks != 0).any(axis=2)  # rows that are constant, or have one key, have no order
        for one, other in itertools.combinations(range(len(methods)), 2):
            both = ranked[one] & ranked[other]
            if both.any():
                values = self._values.setdefault((scope, methods[one], methods[other]), [])
                values.append(float(correlations[one, other, both].mean()))


def _standardised_ranks(values: np.ndarray, seen: np.ndarray | None) -> np.ndarray:
    """The ranks of each row with mean 0 and length 1, so that products are Spearman's ρ; 0 where there is nothing to rank."""
    seen = np.ones(values.shape, dtype=bool) if seen is None else seen
    ranks = scipy.stats.rankdata(np.where(seen, values, np.nan), axis=1, nan_policy="omit")
    ranks = np.where(seen, ranks, 0.0)
    ranks = np.where(seen, ranks - ranks.sum(axis=1, keepdims=True) / seen.sum(axis=1, keepdims=True), 0.0)
    length = np.sqrt((ranks**2).sum(axis=1, keepdims=True))
    standardised: np.ndarray = ranks / np.where(length > 0, length, 1.0)
    return standardised
