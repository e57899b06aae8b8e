"""Means over seeds and over sequences: their confidence intervals, and tests of the differences between them."""

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import scipy.stats

CONFIDENCE = 0.95
RESAMPLES = 5_000
"""Bootstrap samples; no p-value is below the reciprocal of one more."""

_AT_ONCE = 2_000_000
"""Numbers drawn at a time."""

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
        The keys, runs, mean, low, high: Student's interval with 95% confidence. Means of one run are left out.
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
        group, metric, difference (of the means), low, high (95% confidence), p, and adjusted: p by Benjamini and
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


def over_sequences(samples: Mapping[str, Sequence[pd.DataFrame]], baseline: str) -> pd.DataFrame:
    """Bootstrap tests of every group's means over tokens against the baseline's: whole sequences are drawn with replacement.

    A sequence's tokens depend on each other, so tokens must not be drawn singly. Where both groups have the same sequences,
    each draw takes them from both (paired), which leaves out what makes sequences differ. Runs of a group are averaged by
    sequence; metrics whose runs differ in their sequences are left out.

    Args:
        samples: Means of single sequences by group, one table per run: metric, sequence, count, value.
        baseline: The group to compare with.

    Returns:
        group, metric, sequences, paired, difference (of the means over the sequences' tokens), low, high (percentiles of the
        bootstrap, 95% confidence), p (two-sided: how often the centred bootstrap is as far from zero), and adjusted: p by
        Benjamini and Hochberg, over all rows.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, sections 13.3 and 16.2.
    """
    averaged = {group: _averaged(tables) for group, tables in samples.items()}
    reference = averaged.get(baseline, {})
    rows: list[dict[str, object]] = []
    for group, own in averaged.items():
        if group != baseline:
            shared = [metric for metric in own if metric in reference]
            rows += [{"group": group, "metric": name, **_bootstrapped(own[name], reference[name])} for name in shared]
    names = ["group", "metric", "sequences", "paired", "difference", "low", "high", "p"]
    table = pd.DataFrame(rows, columns=names)
    return table.assign(adjusted=scipy.stats.false_discovery_control(table["p"]) if len(table) else table["p"])


def _averaged(tables: Sequence[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Count and mean over runs by sequence, for every metric whose runs have the same sequences."""
    by_metric: dict[str, list[pd.DataFrame]] = {}
    for table in tables:
        for metric, rows in table.groupby("metric", sort=False):
            by_metric.setdefault(str(metric), []).append(rows.set_index("sequence")[["count", "value"]].sort_index())
    return {
        metric: sum(runs[1:], runs[0]) / len(runs)
        for metric, runs in by_metric.items()
        if all(run.index.equals(runs[0].index) for run in runs)
    }


def _bootstrapped(own: pd.DataFrame, other: pd.DataFrame) -> dict[str, object]:
    paired = own.index.equals(other.index)
    difference = _weighted_mean(own) - _weighted_mean(other)
    drawn = _resampled(own, seed=0) - _resampled(other, seed=0 if paired else 1)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    # Rounding must not make a difference that no sample changes look like one that some do.
    extreme = np.abs(drawn - difference) >= np.abs(difference) * (1 - 1e-9)
    return {
        "sequences": len(own),
        "paired": paired,
        "difference": difference,
        "low": low,
        "high": high,
        "p": (1 + extreme.sum()) / (1 + RESAMPLES),
    }


def _weighted_mean(table: pd.DataFrame) -> float:
    return float((table["count"] * table["value"]).sum() / table["count"].sum())


def _resampled(table: pd.DataFrame, seed: int) -> np.ndarray:
    """Means over the tokens of RESAMPLES samples of the sequences."""
    counts = table["count"].to_numpy(dtype=np.float64)
    sums = counts * table["value"].to_numpy()
    return np.concatenate([(draws @ sums) / (draws @ counts) for draws in _draws(len(table), seed)])


def _draws(sequences: int, seed: int) -> Iterator[np.ndarray]:
    """How often each sequence is in each sample, in pieces."""
    generator = np.random.default_rng(seed)
    piece = max(1, _AT_ONCE // sequences)
    for start in range(0, RESAMPLES, piece):
        size = min(piece, RESAMPLES - start)
        chosen = generator.integers(sequences, size=(size, sequences)) + sequences * np.arange(size)[:, None]
        yield np.bincount(chosen.ravel(), minlength=size * sequences).reshape(size, sequences).astype(np.float64)
