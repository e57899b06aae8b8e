"""The verdict of a comparison, in sentences: which differences are detectable, and how large they are."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from normscope.reporting.comparison.curve_families import is_percentage
from normscope.reporting.comparison.effects import COUNTS, effect, panel_of, title
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import FEWEST_PAIRS, FEWEST_UNPAIRED, ROUNDING, is_extreme
from normscope.reporting.comparison.story import BLOCK, stories
from normscope.rounding import brief, brief_share, counted, differ, number, percentage, shares_differ

SIGNIFICANT = 0.05
"""The adjusted p-value below which a difference counts."""

_MOST = 5
"""Number of groups that have a sentence of their own."""


def verdict(comparison: RunComparison) -> list[str]:
    """A sentence for each group of runs other than the baseline, five at most; empty without a second group.

    Differences are tested over seeds where there are several, otherwise over sequences; p-values are adjusted for the number of
    tests. Of the measures that differ detectably, that of the attention block is named if its difference counts, or else the
    one that differs most. Runs along an ordered variable have a sentence for each of a few measures instead.
    """
    if told := stories(comparison):
        return [story.sentence for story in told]
    groups = [name for name in comparison.values["group"].unique() if name != comparison.baseline_group]
    sentences = [_of_group(comparison, group) for group in groups[:_MOST]]
    if len(groups) > _MOST:
        sentences.append(f"{counted(len(groups) - _MOST, 'more group')} of runs: see the tables.")
    return sentences


def _of_group(comparison: RunComparison, group: str) -> str:
    baseline = comparison.baseline_group
    pairs = _common(comparison.values, _PLACE, group, baseline)
    by_basis = {"seeds": comparison.tests, "sequences": comparison.sequence_tests}
    for basis, tests in by_basis.items():
        own = tests[tests["group"] == group]
        if len(own):
            return _tested(own.reset_index(drop=True), basis, (group, baseline), pairs)
    return _untested(comparison, group, baseline, pairs)


_PLACE, _CELL = ["metric", "layer"], ["depth", "figure", "panel", "row", "column"]
"""What a value belongs to (layer 0: the whole run), and a cell of a heat map."""


def _common(values: pd.DataFrame, place: Sequence[str], group: str, baseline: str) -> pd.DataFrame:
    """The means of two groups side by side, wherever both have one: `own` and `other`."""
    sides = [
        values[values["group"] == name].groupby(list(place), sort=False)["value"].mean() for name in (group, baseline)
    ]
    return pd.concat(sides, axis=1, keys=["own", "other"]).dropna()


def _both(pairs: pd.DataFrame, metric: str, layer: int) -> list[float]:
    """The values of both groups."""
    return [float(pairs[side][metric, layer]) for side in ("own", "other")]


def _tested(tests: pd.DataFrame, basis: str, groups: tuple[str, str], pairs: pd.DataFrame) -> str:
    """The result of the tests of a group against the baseline."""
    group, baseline = groups
    tested = f"{counted(len(tests), 'measure')} tested over {basis}"
    detected = tests[tests["adjusted"] < SIGNIFICANT]
    if detected.empty:
        return f"No detectable difference between {group} and {baseline}: {tested}."
    start = f"{group} differs from {baseline} in {len(detected):,} of {tested}"
    visible = detected[[_visible(str(metric), pairs) for metric in detected["metric"]]]
    if visible.empty:
        return f"{start}, but in each by too little to matter."
    most = visible.iloc[_named(visible, pairs)]
    metric = str(most["metric"])
    values = _both(pairs, metric, 0) if (metric, 0) in pairs.index else []
    written = ": " + " instead of ".join(_in_words(metric, value, *values) for value in values) if values else ""
    ends = [float(most[end]) for end in ("low", "high")]
    low, high = (_in_words(metric, end, *ends, signed=True) for end in ends)
    points = " points" if low.endswith("%") else ""
    counts = _size(metric, float(most["difference"]), pairs) >= COUNTS
    leading = "above all in" if counts else "in each by less than a tenth of its range, most in"
    interval = f"{low.removesuffix('%')} to {high.removesuffix('%')}{points}"
    return f"{start}, {leading} {title(metric)}{written} (difference {interval}, 95% interval)."


def _size(metric: str, difference: float, pairs: pd.DataFrame) -> float:
    """A difference as a part of the measure's natural range."""
    own, other = _both(pairs, metric, 0) if (metric, 0) in pairs.index else (difference, 0.0)
    return effect(metric, own, other)


def _named(tests: pd.DataFrame, pairs: pd.DataFrame) -> int:
    """The place of the measure that is named: the attention block's if it differs by enough, or else the largest difference."""
    metrics = [str(metric) for metric in tests["metric"]]
    sizes = [
        _size(metric, float(difference), pairs) for metric, difference in zip(metrics, tests["difference"], strict=True)
    ]
    if BLOCK in metrics and sizes[metrics.index(BLOCK)] >= COUNTS:
        return metrics.index(BLOCK)
    return int(np.argmax(sizes))


def _visible(metric: str, pairs: pd.DataFrame) -> bool:
    """Whether the means of both groups differ for a reader; true if they are not known."""
    if (metric, 0) not in pairs.index:
        return True
    own, other = _both(pairs, metric, 0)
    return (shares_differ if is_percentage(panel_of(metric).label) else differ)(own, other)


def _untested(comparison: RunComparison, group: str, baseline: str, pairs: pd.DataFrame) -> str:
    """The sentence if no test is valid."""
    if pairs.empty:
        return f"{group} and {baseline} have no measure in common."
    cells = comparison.heatmaps
    cells = _common(cells[cells["group"].isin([group, baseline])], _CELL, group, baseline)
    different = pairs[_relative(pairs) > ROUNDING]
    if different.empty and not (_relative(cells) > ROUNDING).any():
        metrics = pairs.index.get_level_values("metric").nunique()
        return f"{group} and {baseline} are equal up to rounding in every common measure ({metrics:,}), also layer by layer."
    start = (
        f"Whether {group} differs from {baseline} cannot be tested: a test needs several seeds of each, or trained models and "
        f"at least {FEWEST_PAIRS} sequences that both have read ({FEWEST_UNPAIRED} each if they differ)."
    )
    if different.empty:
        figure = str(cells.index[int(_relative(cells).to_numpy().argmax())][_CELL.index("figure")])
        return f"{start} Their measures are equal up to rounding, but cells of heat maps are not, such as those of {figure}."
    metric, layer, how = _largest(different)
    both = _both(pairs, metric, layer)
    values = [_in_words(metric, value, *both) for value in both]
    where = f"layer {layer} of {title(metric)}" if layer else title(metric)
    return f"{start} The largest {how} is in {where}: {values[0]} instead of {values[1]}."


def _relative(pairs: pd.DataFrame) -> "pd.Series[float]":
    return (pairs["own"] - pairs["other"]).abs() / pairs.abs().max(axis=1).clip(lower=1e-12)


def _largest(different: pd.DataFrame) -> tuple[str, int, str]:
    """The measure that differs most, its layer, and in what sense.

    Measures of the whole run come before those of single layers, and minima and maxima last. Shares are compared in percentage
    points, whose size means something; other measures only relative to their values, which says little of values near zero. So
    shares come first, then other measures that an analysis describes, then the rest.
    """
    layers, metrics = (different.index.get_level_values(name) for name in ("layer", "metric"))
    extreme = np.array([is_extreme(str(metric)) for metric in metrics])
    for chosen in ((layers == 0) & ~extreme, ~extreme, extreme):
        if chosen.any():
            different = different[chosen]
            break
    labels = [panel_of(str(metric)).label for metric in different.index.get_level_values("metric")]
    shares = np.array([is_percentage(label) for label in labels])
    if shares.any():
        points = (different["own"] - different["other"]).abs()[shares]
        metric, layer = points.index[int(points.to_numpy().argmax())]
        return str(metric), int(layer), "difference in percentage points"
    described = np.array([bool(label) for label in labels])
    relative = _relative(different[described] if described.any() else different)
    metric, layer = relative.index[int(relative.to_numpy().argmax())]
    return str(metric), int(layer), "relative difference"


def as_written(metric: str, value: float) -> str:
    """A value as readers of tables see it: in per cent if its measure is."""
    return (percentage if is_percentage(panel_of(metric).label) else number)(value)


def _in_words(metric: str, value: float, *beside: float, signed: bool = False) -> str:
    """The same in a sentence that compares it with others."""
    return (brief_share if is_percentage(panel_of(metric).label) else brief)(value, *beside, signed=signed)


def significant(comparison: RunComparison) -> Sequence[str]:
    """The metrics in which a group differs detectably from the baseline."""
    tests = pd.concat([comparison.tests, comparison.sequence_tests])
    return [str(metric) for metric in tests[tests["adjusted"] < SIGNIFICANT]["metric"].unique()]
