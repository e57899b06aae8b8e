"""Tests of token scores: the model's answer without the highest-scoring tokens and with only these, compared with
random orders of the tokens; and how far the scores of methods agree.

Source: DeYoung et al. 2020, ERASER, section 4 (arXiv:1911.03429).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.statistics.intervals import Interval, mean_interval
from normscope.statistics.rank_correlation import correlation

COMPREHENSIVENESS, SUFFICIENCY = "comprehensiveness", "sufficiency"
MEASURES = (COMPREHENSIVENESS, SUFFICIENCY)


class Trial(NamedTuple):
    """One measure of one order at one share, and the positions that are erased for it."""

    order: str
    measure: str
    share: float
    erased: frozenset[int]


def trials(orders: Sequence[tuple[str, Int[np.ndarray, " ordinary"]]], shares: Sequence[float]) -> Iterator[Trial]:
    """Every measure of every order at every share.

    Args:
        orders: Names of orders, with positions of the ordinary tokens, the most important first.
        shares: Percentages of the ordinary tokens that count as the most important: at least one token, and not all of them.
    """
    for name, order in orders:
        for share in shares:
            # A share such as 0.07 × 100 may be a rounding error above a whole number.
            count = min(max(1, math.ceil(len(order) * share / 100 - 1e-9)), len(order) - 1)
            yield Trial(name, COMPREHENSIVENESS, share, frozenset(order[:count].tolist()))
            yield Trial(name, SUFFICIENCY, share, frozenset(order[count:].tolist()))


def by_score(
    scores: Float[np.ndarray, " token"], ordinary: Int[np.ndarray, " ordinary"]
) -> Int[np.ndarray, " ordinary"]:
    """The ordinary tokens by score, the highest first; of equal ones, the first."""
    return ordinary[np.argsort(-scores[ordinary], kind="stable")]


def random_orders(
    ordinary: Int[np.ndarray, " ordinary"], number: int, seed: int, fingerprint: int
) -> list[Int[np.ndarray, " ordinary"]]:
    """Random orders of the ordinary tokens, which depend on the seed and the sequence alone."""
    return [np.random.default_rng([seed, fingerprint, count]).permutation(ordinary) for count in range(number)]


def without(kinds: Int[Tensor, "kind token"], erased: frozenset[int], mask_token: int | None) -> Int[Tensor, "kind _"]:
    """A sequence with some tokens replaced by the mask token, or taken out.

    Args:
        kinds: The sequence, as `Batch.packed` has it.
        erased: Positions.
        mask_token: The id of the mask token; None takes the tokens out.
    """
    positions = torch.tensor(sorted(erased), dtype=torch.long)
    if mask_token is None:
        kept = torch.ones(kinds.shape[1], dtype=torch.bool)
        kept[positions] = False
        return kinds[:, kept]
    masked = kinds.clone()
    masked[0, positions] = mask_token
    return masked


RANDOM = "random"

_ENDS = ("mean", "low", "high")


class Faithfulness:
    """How far the model's answer falls, by method, measure and share, sequence by sequence.

    Args:
        shares: Percentages of the ordinary tokens.
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


class Agreement:
    """Rank correlations between the scores of pairs of methods, sequence by sequence."""

    def __init__(self, methods: Sequence[str]) -> None:
        self._values: dict[tuple[str, str], list[float]] = {pair: [] for pair in itertools.combinations(methods, 2)}

    def add(self, scores: Mapping[str, Float[np.ndarray, " token"]]) -> None:
        """Add the scores of the ordinary tokens of one sequence."""
        ranks = {method: scipy.stats.rankdata(values) for method, values in scores.items()}
        for (one, other), values in self._values.items():
            spearman = correlation(ranks[one], ranks[other])
            if spearman is not None:
                values.append(spearman)

    def table(self) -> pd.DataFrame:
        """The table `agreement`: pairs of methods in their order."""
        rows = [
            {"method": one, "other": other}
            | dict(zip(("spearman", "low", "high"), mean_interval(values), strict=True))
            | {"count": len(values)}
            for (one, other), values in self._values.items()
            if values
        ]
        return pd.DataFrame(rows, columns=["method", "other", "spearman", "low", "high", "count"])
