"""The verdict of a comparison, in sentences: which differences are detectable, and how large they are."""

from collections.abc import Sequence

import pandas as pd

from normscope.reporting.comparison.curve_families import Panel, families, is_percentage, unitless
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import FEWEST_PAIRS, FEWEST_UNPAIRED, ROUNDING, is_extreme
from normscope.rounding import brief, brief_share, counted, number, percentage

SIGNIFICANT = 0.05
"""The adjusted p-value below which a difference counts."""

_MOST = 5
"""Number of groups that have a sentence of their own."""


def verdict(comparison: RunComparison) -> list[str]:
    """A sentence for each group of runs other than the baseline, five at most; empty without a second group.

    Differences are tested over seeds where there are several, otherwise over sequences; p-values are adjusted for the number of
    tests. The named measure is the one whose difference is largest relative to its confidence interval.
    """
    whole = comparison.values[comparison.values["layer"] == 0]
    whole = whole[~whole["metric"].map(is_extreme).astype(bool)]
    groups = [name for name in whole["group"].unique() if name != comparison.baseline_group]
    if not groups:
        return []
    means = whole.groupby(["group", "metric"], sort=False)["value"].mean()
    sentences = [_of_group(comparison, group, means) for group in groups[:_MOST]]
    if len(groups) > _MOST:
        sentences.append(f"{counted(len(groups) - _MOST, 'more group')} of runs: see the tables.")
    return sentences


def _of_group(comparison: RunComparison, group: str, means: "pd.Series[float]") -> str:
    baseline = comparison.baseline_group
    by_basis = {"seeds": comparison.tests, "sequences": comparison.sequence_tests}
    for basis, tests in by_basis.items():
        own = tests[tests["group"] == group]
        if len(own):
            return _tested(own.reset_index(drop=True), basis, (group, baseline), means)
    return _untested(group, baseline, means)


def _tested(tests: pd.DataFrame, basis: str, groups: tuple[str, str], means: "pd.Series[float]") -> str:
    """The result of the tests of a group against the baseline."""
    group, baseline = groups
    detected = tests[tests["adjusted"] < SIGNIFICANT]
    if detected.empty:
        return f"No detectable difference between {group} and {baseline}: {counted(len(tests), 'measure')} tested over {basis}."
    most = detected.iloc[int((detected["difference"].abs() / (detected["high"] - detected["low"])).to_numpy().argmax())]
    metric = str(most["metric"])
    values = [float(means[name, metric]) for name in (group, baseline) if (name, metric) in means.index]
    written = (
        ": " + " instead of ".join(_in_words(metric, value, *values) for value in values) if len(values) == 2 else ""
    )
    ends = [float(most[end]) for end in ("low", "high")]
    low, high = (_in_words(metric, end, *ends, signed=True) for end in ends)
    points = " points" if low.endswith("%") else ""
    interval = f"{low.removesuffix('%')} to {high.removesuffix('%')}{points}"
    return (
        f"{group} differs from {baseline} in {len(detected):,} of {counted(len(tests), 'measure')} tested over {basis}, most "
        f"clearly in {title(metric)}{written} (difference {interval}, 95% interval)."
    )


def _untested(group: str, baseline: str, means: "pd.Series[float]") -> str:
    """The sentence if no test is valid."""
    own, other = (means[means.index.get_level_values("group") == name].droplevel("group") for name in (group, baseline))
    pairs = pd.concat([own, other], axis=1, keys=["own", "other"]).dropna()
    if pairs.empty:
        return f"{group} and {baseline} have no measure in common."
    relative = (pairs["own"] - pairs["other"]).abs() / pairs.abs().max(axis=1).clip(lower=1e-12)
    if relative.max() <= ROUNDING:
        return f"{group} and {baseline} are equal up to rounding in every common measure ({len(pairs):,})."
    metric, how = _largest(pairs, relative)
    both = [float(pairs[name][metric]) for name in ("own", "other")]
    values = [_in_words(metric, value, *both) for value in both]
    return (
        f"Whether {group} differs from {baseline} cannot be tested: a test needs several seeds of each, or trained models and "
        f"at least {FEWEST_PAIRS} sequences that both have read ({FEWEST_UNPAIRED} each if they differ). The largest {how} is "
        f"in {title(metric)}: {values[0]} instead of {values[1]}."
    )


def _largest(pairs: pd.DataFrame, relative: "pd.Series[float]") -> tuple[str, str]:
    """The measure that differs most, and in what sense.

    Shares are compared in percentage points, whose size means something; other measures only relative to their values, which
    says little of values near zero. So shares come first, then other measures that an analysis describes, then the rest.
    """
    different = relative.index[relative > ROUNDING]
    panels = {metric: _panel(str(metric)) for metric in different}
    shares = [metric for metric, panel in panels.items() if is_percentage(panel.label)]
    if shares:
        points = (pairs["own"] - pairs["other"]).abs()[shares]
        return str(points.idxmax()), "difference in percentage points"
    described = [metric for metric, panel in panels.items() if panel.label] or list(different)
    return str(relative[described].idxmax()), "relative difference"


def title(metric: str) -> str:
    """A metric in words: `mixing ratio (AttnResLn-N: the attention block)`; its name if no analysis describes it."""
    panel = _panel(metric)
    if not panel.label:
        return metric
    label = unitless(panel.label)
    return f"{label} ({panel.title})" if panel.title else label


def as_written(metric: str, value: float) -> str:
    """A value as readers of tables see it: in per cent if its measure is."""
    return (percentage if is_percentage(_panel(metric).label) else number)(value)


def _in_words(metric: str, value: float, *beside: float, signed: bool = False) -> str:
    """The same in a sentence that compares it with others."""
    return (brief_share if is_percentage(_panel(metric).label) else brief)(value, *beside, signed=signed)


def _panel(metric: str) -> Panel:
    (family,) = families([metric]).values()
    return family.panels[metric]


def significant(comparison: RunComparison) -> Sequence[str]:
    """The metrics in which a group differs detectably from the baseline."""
    tests = pd.concat([comparison.tests, comparison.sequence_tests])
    return [str(metric) for metric in tests[tests["adjusted"] < SIGNIFICANT]["metric"].unique()]
