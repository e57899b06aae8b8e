"""Means over seeds with their confidence intervals, and tests of the differences between them."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy.stats

CONFIDENCE = 0.95

_EXTREME = re.compile(r"(^|[/_])(min|max)$")


def is_extreme(metric: str) -> bool:
    """Whether a metric is a minimum or maximum: a single value, which says little about what is typical."""
    return _EXTREME.search(metric) is not None


def over_seeds(values: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Means over runs that differ only in their seeds.

    Args:
        values: One row per run and metric (and layer), with the columns `keys` and value.
        keys: The columns that runs with different seeds share.

    Returns:
        The keys, runs, mean, low, high: Student's interval with 95 % confidence. Means of one run are left out.
    """
    rows = values.groupby(list(keys), sort=False)["value"].agg(["count", "mean", "std"])
    rows = rows[rows["count"] > 1]
    half = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, rows["count"] - 1) * rows["std"] / np.sqrt(rows["count"])
    table = pd.DataFrame(
        {"runs": rows["count"], "mean": rows["mean"], "low": rows["mean"] - half, "high": rows["mean"] + half}
    )
    return table.reset_index()


def tests(values: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Welch's t-test of every group's mean against the baseline's, metric by metric.

    Groups with fewer than two runs, minima and maxima, and metrics that no seed changes are left out.

    Args:
        values: One row per run and metric: group, metric, value.
        baseline: The group to compare with.

    Returns:
        group, metric, difference (of the means), low, high (95 % confidence), p, and adjusted: p by Benjamini and
        Hochberg (1995, https://doi.org/10.1111/j.2517-6161.1995.tb02031.x), over all rows of the table.
    """
    chosen = values[~values["metric"].map(is_extreme)]
    moments = chosen.groupby(["group", "metric"], sort=False)["value"].agg(["count", "mean", "var"]).reset_index()
    moments = moments[moments["count"] > 1]
    pairs = moments[moments["group"] != baseline].merge(
        moments[moments["group"] == baseline], on="metric", suffixes=("", "_baseline")
    )
    # 0 for a metric that no seed changes; infinite where numbers are too large to be squared.
    scatter = pairs["var"] / pairs["count"] + pairs["var_baseline"] / pairs["count_baseline"]
    pairs = pairs[(scatter > 0) & np.isfinite(scatter)]
    # The squared standard errors of both means.
    own, other = pairs["var"] / pairs["count"], pairs["var_baseline"] / pairs["count_baseline"]
    error = np.sqrt(own + other)
    # Shares of the variance rather than its square, which could underflow.
    freedom = 1 / (
        (own / (own + other)) ** 2 / (pairs["count"] - 1) + (other / (own + other)) ** 2 / (pairs["count_baseline"] - 1)
    )
    difference = pairs["mean"] - pairs["mean_baseline"]
    half = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * error
    p = 2 * scipy.stats.t.sf(np.abs(difference / error), freedom)
    return pd.DataFrame(
        {
            "group": pairs["group"],
            "metric": pairs["metric"],
            "difference": difference,
            "low": difference - half,
            "high": difference + half,
            "p": p,
            "adjusted": scipy.stats.false_discovery_control(p) if len(p) else p,
        }
    ).reset_index(drop=True)
