"""Means over seeds and over sequences: their confidence intervals, and tests of the differences between them."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy.stats

from normscope.reporting.comparison.effects import is_bounded
from normscope.reporting.comparison.places import ROUNDING
from normscope.statistics.intervals import CONFIDENCE, FEWEST, Sample, mean_test, within_whole

FEWEST_PAIRS, FEWEST_UNPAIRED = FEWEST, 10
"""Sequences below which nothing is tested. Unpaired groups may be of different spread, which takes more of them to see."""

_EXTREME = re.compile(r"(^|[/_])(min|max)$")


def is_extreme(metric: str) -> bool:
    """Whether a metric is a minimum or maximum: a single value, which says little about what is typical."""
    return _EXTREME.search(metric) is not None


def over_seeds(values: pd.DataFrame, keys: Sequence[str], *, measured: bool = True) -> pd.DataFrame:
    """Means over runs that differ only in their seeds.

    Args:
        values: One row per run and metric (and layer), with the columns `keys` and value.
        keys: The columns that runs with different seeds share.
        measured: Whether the values are those of the metrics, whose shares lie between 0 and 1, and so do their intervals.

    Returns:
        The keys, runs (with a value), mean, low, high: Student's interval with 95% confidence, missing for one run; see
        `within_whole` for shares.
    """
    rows = values.groupby(list(keys), sort=False)["value"].agg(["count", "mean", "std", "min", "max"]).reset_index()
    half = scipy.stats.t.ppf((1 + CONFIDENCE) / 2, rows["count"] - 1) * rows["std"] / np.sqrt(rows["count"])
    shares = rows["metric"].map(is_bounded).astype(bool) & (rows["min"] >= 0) & (rows["max"] <= 1) & measured
    ends = within_whole(rows["mean"].where(shares, 0.5).to_numpy(), half.to_numpy())
    low, high = (
        plain.where(~shares, end) for plain, end in zip((rows["mean"] - half, rows["mean"] + half), ends, strict=True)
    )
    return rows[list(keys)].assign(runs=rows["count"], mean=rows["mean"], low=low, high=high)


def _possible(table: pd.DataFrame) -> pd.DataFrame:
    """Differences whose intervals hold nothing impossible: two shares differ by no more than 1."""
    shares = table["metric"].map(is_bounded).astype(bool) & (table["difference"].abs() <= 1)
    return table.assign(**{end: table[end].where(~shares, table[end].clip(-1, 1)) for end in ("low", "high")})


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
    chosen = values[~values["metric"].map(is_extreme).astype(bool)]
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
    table = pd.DataFrame(
        {
            "group": pairs["group"],
            "metric": pairs["metric"],
            "difference": difference,
            "low": difference - half,
            "high": difference + half,
            "p": p,
            "adjusted": scipy.stats.false_discovery_control(p) if len(p) else p,
        }
    )
    return _possible(table.reset_index(drop=True))


def over_sequences(samples: Mapping[str, Sequence[pd.DataFrame]], baseline: str) -> pd.DataFrame:
    """Tests of every group's means over tokens against the baseline's, with whole sequences as the sample.

    A sequence's tokens depend on each other, so they must not be counted as independent. Where both groups have the same
    sequences, their differences are tested (paired), which leaves out what makes sequences differ.

    Rows are left out where no such test is valid: with fewer than FEWEST_PAIRS sequences (FEWEST_UNPAIRED in each group, if not
    paired), and where all differences are equal, or nearly all. Groups of several runs are left out as well: these differ in
    seeds, so that `tests` compares them.

    Args:
        samples: Means of single sequences by group, one table per run: metric, sequence, count, value.
        baseline: The group to compare with.

    Returns:
        group, metric, sequences (of the group), paired, difference (of the means over the sequences' tokens), low, high (95%
        confidence), p, and adjusted: p by Benjamini and Hochberg, over all rows. See `mean_test`; both are upper bounds where p
        is `smallest_p()`.
    """
    single = {group: _by_metric(tables[0]) for group, tables in samples.items() if len(tables) == 1}
    reference = single.pop(baseline, {})
    rows = [
        {"group": group, "metric": metric, **test}
        for group, own in single.items()
        for metric in own
        if metric in reference and (test := _tested(own[metric], reference[metric])) is not None
    ]
    names = ["group", "metric", "sequences", "paired", "difference", "low", "high", "p"]
    table = _possible(pd.DataFrame(rows, columns=names))
    return table.assign(adjusted=scipy.stats.false_discovery_control(table["p"]) if len(table) else table["p"])


def _by_metric(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Count and value by sequence."""
    return {
        str(metric): rows.set_index("sequence")[["count", "value"]].sort_index().astype(float)
        for metric, rows in table.groupby("metric", sort=False)
    }


def _tested(own: pd.DataFrame, other: pd.DataFrame) -> dict[str, object] | None:
    """The row of a metric; None where no test is valid."""
    paired = own.index.equals(other.index) and own["count"].equals(other["count"])
    if min(len(own), len(other)) < (FEWEST_PAIRS if paired else FEWEST_UNPAIRED):
        return None
    if paired:
        differences = own.assign(value=own["value"] - other["value"])
        # Float rounding is no difference.
        if (differences["value"].abs() <= ROUNDING * own["value"].abs()).all():
            return None
        test = mean_test(_sample(differences))
    else:
        test = mean_test(_sample(own), _sample(other))
    if np.isnan(test.p):
        return None
    ends = {"difference": test.mean, "low": test.low, "high": test.high, "p": test.p}
    return {"sequences": len(own), "paired": paired} | {name: float(end) for name, end in ends.items()}


def _sample(table: pd.DataFrame) -> Sample:
    return Sample(table["value"].to_numpy(), table["count"].to_numpy())
