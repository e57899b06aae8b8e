"""How faithful the scores are: what the model answers without the tokens that score highest, and with these alone."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from normscope.analyses.attribution.erasures import COMPREHENSIVENESS, MEASURES, SUFFICIENCY, trials
from normscope.statistics.intervals import Interval, mean_interval

RANDOM = "random"

_ENDS = ("mean", "low", "high")


class Faithfulness:
    """How far the model's answer falls, by method, measure and share, sequence by sequence.

    Args:
        shares: Percentages of the ordinary tokens.

    Source: DeYoung et al. 2020, ERASER, section 4 (arXiv:1911.03429).
    """

    def __init__(self, methods: Sequence[str], shares: Sequence[float]) -> None:
        self._names, self._shares = [*methods, RANDOM], list(dict.fromkeys(shares))
        self._falls: dict[tuple[str, str, float], list[float]] = {}

    def add(
        self,
        orders: Mapping[str, np.ndarray],
        random: Sequence[np.ndarray],
        falls: Callable[[Sequence[frozenset[int]]], Sequence[float]],
    ) -> None:
        """Test the orders of one sequence.

        Args:
            orders: Positions of the ordinary tokens by method, the most important first.
            random: Random orders of them, whose mean is one observation.
            falls: How far the answer falls without each of some sets of positions.
        """
        every = list(trials([*orders.items(), *((RANDOM, order) for order in random)], self._shares))
        sets = list(dict.fromkeys(trial.erased for trial in every))  # short sequences have few different ones
        fall = dict(zip(sets, falls(sets), strict=True))
        observed: dict[tuple[str, str, float], list[float]] = {}
        for trial in every:
            observed.setdefault((trial.order, trial.measure, trial.share), []).append(fall[trial.erased])
        for key, values in observed.items():
            self._falls.setdefault(key, []).append(float(np.mean(values)))

    def table(self) -> pd.DataFrame:
        """The table `faithfulness`."""
        rows = [
            {"method": method, "measure": measure, "share": share}
            | dict(zip(_ENDS, mean_interval(values), strict=True))
            | {"count": len(values)}
            for method in self._names
            for measure in MEASURES
            for share in self._shares
            if (values := self._falls.get((method, measure, share)))
        ]
        return pd.DataFrame(rows, columns=["method", "measure", "share", *_ENDS, "count"])

    def ranking(self) -> pd.DataFrame:
        """The table `ranking`: AOPC of every method and of random orders, the largest comprehensiveness first."""
        areas = {method: [self._areas(method, measure) for measure in MEASURES] for method in self._names}
        tested = {method: falls for method, falls in areas.items() if len(falls[0])}
        methods = [method for method in tested if method != RANDOM]
        best = max(methods, key=lambda method: float(tested[method][0].mean()), default=None)
        rows = []
        for method, (comprehensiveness, sufficiency) in tested.items():
            above = None if method == RANDOM else comprehensiveness - tested[RANDOM][0]
            below = None if best in (None, method) else tested[best][0] - comprehensiveness
            rows.append(
                {
                    "method": method,
                    **_columns(COMPREHENSIVENESS, mean_interval(comprehensiveness)),
                    **_columns(SUFFICIENCY, mean_interval(sufficiency)),
                    **_columns("above_random", mean_interval(above) if above is not None else _MISSING),
                    **_columns("below_best", mean_interval(below) if below is not None else _MISSING),
                    "count": len(comprehensiveness),
                }
            )
        columns = [_columns(name, _MISSING) for name in (COMPREHENSIVENESS, SUFFICIENCY, "above_random", "below_best")]
        names = ["rank", "method", *(name for group in columns for name in group), "count"]
        table = pd.DataFrame(rows, columns=names)
        table = table.sort_values(COMPREHENSIVENESS, ascending=False, kind="stable", ignore_index=True)
        return table.assign(rank=np.arange(1, len(table) + 1))

    def half_width(self) -> float:
        """How precisely the lead of the best method over random orders is known.

        Half the width of the interval of the difference in comprehensiveness, as a share of the difference; infinite if there
        is no interval, or if the best method is no better than random orders.
        """
        ranking = self.ranking()
        best = ranking[ranking["method"] != RANDOM].head(1)
        if not len(best):
            return float("inf")
        mean, high = (float(best[f"above_random{end}"].iloc[0]) for end in ("", "_high"))
        return (high - mean) / mean if mean > 0 and not np.isnan(high) else float("inf")

    def _areas(self, method: str, measure: str) -> np.ndarray:
        """Each sequence's mean fall over the shares."""
        falls = [self._falls.get((method, measure, share), []) for share in self._shares]
        areas: np.ndarray = np.mean(falls, axis=0)
        return areas


_MISSING = Interval(float("nan"), float("nan"), float("nan"))


def _columns(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
