"""The verdict of a comparison, in sentences: which differences are detectable, and how large they are."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from normscope.reporting.comparison.effects import COUNTS, effect
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import FEWEST_PAIRS, FEWEST_UNPAIRED, ROUNDING, is_extreme
from normscope.reporting.comparison.story import BLOCK, standstill, stories
from normscope.results.declare import is_percentage
from normscope.results.measures import has_curve, metric_title, panel_of, title
from normscope.rounding import (
    begun,
    brief,
    brief_share,
    counted,
    differ,
    enumeration,
    number,
    percentage,
    shares_differ,
)

SIGNIFICANT = 0.05
"""The adjusted p-value below which a difference counts."""

_MOST = 5
"""Sentences, and groups that a sentence names, at most."""


def verdict(comparison: RunComparison) -> list[str]:
    """What distinguishes the groups of runs from the baseline, in five sentences at most.

    Without a second group, it is how much seeds matter, or nothing if there is but one.

    Differences are tested over seeds where there are several, otherwise over sequences; p-values are adjusted for the number of
    tests. Of the measures that differ detectably, that of the attention block is named if its difference counts, or else the
    one that differs most. Groups of which the same is found, apart from numbers, share a sentence. Runs along an ordered
    variable have a sentence for each of a few measures instead, or one first that says that no measure moves.
    """
    if told := stories(comparison):
        return [story.sentence for story in told]
    groups = [name for name in comparison.values["group"].unique() if name != comparison.baseline_group]
    if not groups:
        return _of_seeds(comparison)
    alike: dict[tuple[object, ...], list[_Found]] = {}
    for found in (_of_group(comparison, group) for group in groups):
        alike.setdefault((type(found), *found.shared), []).append(found)
    sentences = standstill(comparison)
    most = _MOST - len(sentences)
    shown, rest = [*alike.values()][:most], [*alike.values()][most:]
    sentences += [found[0].sentence(found, comparison.baseline_group) for found in shown]
    if rest:
        sentences.append(f"{counted(sum(map(len, rest)), 'more group')} of runs: see the tables.")
    return sentences


def _of_seeds(comparison: RunComparison) -> list[str]:
    """The attention block's measure over seeds, or the first with a curve, and the measure that seeds change most."""
    means = comparison.seeds[comparison.seeds["metric"].map(_is_told).astype(bool)].set_index("metric")
    if means.empty:
        return []
    metric = BLOCK if BLOCK in means.index else str(means.index[0])
    numbers = [float(means[name][metric]) for name in ("mean", "low", "high")]
    mean, low, high = (_in_words(metric, value, *numbers) for value in numbers)
    whole = comparison.values[comparison.values["layer"] == 0].groupby("metric", sort=False)["value"]
    ends = pd.concat([whole.min(), whole.max()], axis=1, keys=["low", "high"]).loc[means.index]
    sizes = [effect(str(name), ends["high"][name], ends["low"][name]) for name in ends.index]
    name, size = str(ends.index[int(np.argmax(sizes))]), max(sizes)
    both = [float(ends[end][name]) for end in ("low", "high")]
    written = [_in_words(name, value, *both) for value in both]
    change = (
        f"Seeds change this measure most: {metric_title(name)}, from {written[0]} to {written[1]}."
        if size >= COUNTS
        else "No measure varies over seeds by a tenth of its range."
    )
    return [
        f"{begun(metric_title(metric))} is {mean} over {means['runs'][metric]} seeds (95% interval {low} to {high}).",
        change,
    ]


def _is_told(metric: str) -> bool:
    """Whether verdicts mention a measure: it has a curve, and is not a minimum or maximum."""
    return has_curve(metric) and not is_extreme(metric)


@dataclasses.dataclass(frozen=True)
class _Found(abc.ABC):
    """What is found of a group of runs."""

    group: str

    @property
    def shared(self) -> tuple[object, ...]:
        """What groups have in common that share a sentence."""
        return ()

    @staticmethod
    @abc.abstractmethod
    def sentence(alike: Sequence[Any], baseline: str) -> str:
        """The sentence of groups of which the same is found, apart from numbers."""


@dataclasses.dataclass(frozen=True)
class _Incomparable(_Found):
    """There is nothing to compare."""

    @staticmethod
    def sentence(alike: "Sequence[_Incomparable]", baseline: str) -> str:
        return f"{_names(alike)} and {baseline} have no measure in common."


@dataclasses.dataclass(frozen=True)
class _Equal(_Found):
    """There is no difference but rounding."""

    measures: int

    @property
    def shared(self) -> tuple[object, ...]:
        return (self.measures,)

    @staticmethod
    def sentence(alike: "Sequence[_Equal]", baseline: str) -> str:
        names = f"{_names(alike)} and {baseline}" if len(alike) == 1 else f"{baseline}, {_names(alike)}"
        return f"{names} are equal up to rounding in every common measure ({alike[0].measures:,}), also layer by layer."


@dataclasses.dataclass(frozen=True)
class _Untested(_Found):
    """No test is valid."""

    difference: "_Difference | None"
    """The largest difference; None if only cells of heat maps differ."""
    figure: str = ""
    """The heat map whose cells differ most."""

    @property
    def shared(self) -> tuple[object, ...]:
        return (self.figure, *(self.difference.place if self.difference else ()))

    @staticmethod
    def sentence(alike: "Sequence[_Untested]", baseline: str) -> str:
        differ = "differs" if len(alike) == 1 else "differ"
        start = (
            f"Whether {_names(alike)} {differ} from {baseline} cannot be tested: a test needs several seeds of each, or "
            f"trained models and at least {FEWEST_PAIRS} sequences that both read ({FEWEST_UNPAIRED} each if not the same)."
        )
        first = alike[0].difference
        if first is None:
            return (
                f"{start} Their measures are equal up to rounding, but cells of heat maps differ, such as those of "
                f"{title(alike[0].figure.partition('/')[0])}."
            )
        values = _values({found.group: found.difference for found in alike if found.difference}, baseline)
        return f"{start} The largest {first.how} is in {first.where}: {values}."


@dataclasses.dataclass(frozen=True)
class _Tested(_Found):
    """What tests say of the group."""

    basis: str
    """What is the sample: seeds, or sequences."""
    tests: int
    detected: int
    difference: "_Difference | None" = None
    """The one that is named; None if there is none that a reader can see."""

    @property
    def shared(self) -> tuple[object, ...]:
        place = (*self.difference.place, self.difference.counts) if self.difference else (self.detected > 0,)
        return (self.basis, self.tests, *place)

    @staticmethod
    def sentence(alike: "Sequence[_Tested]", baseline: str) -> str:
        first, names = alike[0], _names(alike)
        tested = f"{counted(first.tests, 'measure')} tested over {first.basis}"
        if not first.detected:
            names = f"between {names} and {baseline}" if len(alike) == 1 else f"of {names} from {baseline}"
            return f"No detectable difference {names}: {tested}."
        differ = "differs" if len(alike) == 1 else "differ"
        start = f"{names} {differ} from {baseline} in {_counts(alike)} of {tested}"
        if first.difference is None:
            return f"{start}, but in each by too little to matter."
        leading = "above all in" if first.difference.counts else "in each by less than a tenth of its range, most in"
        differences = {found.group: found.difference for found in alike if found.difference}
        values = _values(differences, baseline)
        intervals = enumeration([difference.interval for difference in differences.values()])
        noun = "difference" if len(alike) == 1 else "differences"
        return (
            f"{start}, {leading} {first.difference.where}{values and f': {values}'} "
            f"({noun} {intervals}, 95% {'interval' if len(alike) == 1 else 'intervals'})."
        )


@dataclasses.dataclass(frozen=True)
class _Difference:
    """The difference that is named."""

    metric: str
    layer: int
    values: tuple[float, ...]
    """Of the group and of the baseline; empty if they are not known."""
    ends: tuple[float, ...] = ()
    """Of its interval."""
    how: str = ""
    """In what sense it is the largest."""
    counts: bool = True
    """Whether it is more than a tenth of the measure's natural range."""

    @property
    def place(self) -> tuple[object, ...]:
        """What it is the difference in."""
        return (self.metric, self.layer, self.how, bool(self.values))

    @property
    def where(self) -> str:
        """The measure and its layer, in words."""
        return f"layer {self.layer} of {metric_title(self.metric)}" if self.layer else metric_title(self.metric)

    @property
    def interval(self) -> str:
        """Its interval in words."""
        low, high = (_in_words(self.metric, end, *self.ends, signed=True) for end in self.ends)
        points = " points" if low.endswith("%") else ""
        return f"{low.removesuffix('%')} to {high.removesuffix('%')}{points}"


def _values(differences: Mapping[str, _Difference], baseline: str) -> str:
    """The values of groups and of the baseline: `0.4 instead of 0.3`, or `0.3 in a, 0.4 in b and 0.5 in c`."""
    numbers = {group: difference.values[0] for group, difference in differences.items() if difference.values}
    if not numbers:
        return ""
    first = next(iter(differences.values()))
    every = {baseline: first.values[1], **numbers}
    written = {group: _in_words(first.metric, value, *every.values()) for group, value in every.items()}
    if len(numbers) == 1:
        return " instead of ".join(reversed(written.values()))
    if len(numbers) > _MOST:
        ends = [pick(numbers, key=lambda group: numbers[group]) for pick in (min, max)]
        low, high = (f"{written[group]} ({group})" for group in ends)
        return f"{written[baseline]} in {baseline}, and from {low} to {high} in the others"
    return enumeration([f"{value} in {group}" for group, value in written.items()])


def _names(alike: Sequence[_Found]) -> str:
    """The groups; only how many if there are many."""
    return enumeration([found.group for found in alike]) if len(alike) <= _MOST else f"{len(alike)} groups of runs"


def _counts(alike: Sequence[_Tested]) -> str:
    """In how many measures the groups differ."""
    counts = [found.detected for found in alike]
    if len({*counts}) == 1:
        return f"{counts[0]:,}"
    return (
        enumeration([f"{count:,}" for count in counts])
        if len(counts) <= _MOST
        else f"{min(counts):,} to {max(counts):,}"
    )


def _of_group(comparison: RunComparison, group: str) -> _Found:
    baseline = comparison.baseline_group
    pairs = _common(comparison.values, _PLACE, group, baseline)
    by_basis = {"seeds": comparison.tests, "sequences": comparison.sequence_tests}
    for basis, tests in by_basis.items():
        own = tests[tests["group"] == group]
        if len(own):
            return _tested(own.reset_index(drop=True), basis, group, pairs)
    return _untested(comparison, group, baseline, pairs)


_PLACE, _CELL = ["metric", "layer"], ["depth", "figure", "panel", "row", "column"]
"""What a value belongs to (layer 0: the whole run), and a cell of a heat map."""


def _common(values: pd.DataFrame, place: Sequence[str], group: str, baseline: str) -> pd.DataFrame:
    """The means of two groups side by side, wherever both have one: `own` and `other`."""
    sides = [
        values[values["group"] == name].groupby(list(place), sort=False)["value"].mean() for name in (group, baseline)
    ]
    return pd.concat(sides, axis=1, keys=["own", "other"]).dropna()


def _both(pairs: pd.DataFrame, metric: str, layer: int = 0) -> tuple[float, ...]:
    """The values of both groups; empty if they are not known."""
    if (metric, layer) not in pairs.index:
        return ()
    return tuple(float(pairs[side][metric, layer]) for side in ("own", "other"))


def _tested(tests: pd.DataFrame, basis: str, group: str, pairs: pd.DataFrame) -> _Tested:
    """The result of the tests of a group against the baseline."""
    detected = tests[tests["adjusted"] < SIGNIFICANT]
    result = _Tested(group, basis, len(tests), len(detected))
    visible = detected[[_visible(str(metric), pairs) for metric in detected["metric"]]]
    if visible.empty:
        return result
    most = visible.iloc[_named(visible, pairs)]
    metric = str(most["metric"])
    counts = _size(metric, float(most["difference"]), pairs) >= COUNTS
    ends = (float(most["low"]), float(most["high"]))
    return dataclasses.replace(result, difference=_Difference(metric, 0, _both(pairs, metric), ends, counts=counts))


def _size(metric: str, difference: float, pairs: pd.DataFrame) -> float:
    """A difference as a part of the measure's natural range."""
    own, other = _both(pairs, metric) or (difference, 0.0)
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
    values = _both(pairs, metric)
    return not values or (shares_differ if is_percentage(panel_of(metric).label) else differ)(*values)


def _untested(comparison: RunComparison, group: str, baseline: str, pairs: pd.DataFrame) -> _Found:
    """What is found if no test is valid."""
    if pairs.empty:
        return _Incomparable(group)
    cells = comparison.heatmaps
    cells = _common(cells[cells["group"].isin([group, baseline])], _CELL, group, baseline)
    different = pairs[_relative(pairs) > ROUNDING]
    if different.empty and not (_relative(cells) > ROUNDING).any():
        return _Equal(group, pairs.index.get_level_values("metric").nunique())
    if different.empty:
        figure = str(cells.index[int(_relative(cells).to_numpy().argmax())][_CELL.index("figure")])
        return _Untested(group, None, figure)
    metric, layer, how = _largest(different)
    return _Untested(group, _Difference(metric, layer, _both(pairs, metric, layer), how=how))


def _relative(pairs: pd.DataFrame) -> "pd.Series[float]":
    return (pairs["own"] - pairs["other"]).abs() / pairs.abs().max(axis=1).clip(lower=1e-12)


def _largest(different: pd.DataFrame) -> tuple[str, int, str]:
    """The measure that differs most, its layer, and in what sense.

    Measures of the whole run come before those of single layers, and minima and maxima last. Shares are compared in percentage
    points, whose size means something; other measures only relative to their values, which says little of values near zero. So
    shares come first, then other measures that have a curve, then the rest.
    """
    layers, metrics = (different.index.get_level_values(name) for name in ("layer", "metric"))
    extreme = np.array([is_extreme(str(metric)) for metric in metrics])
    for chosen in ((layers == 0) & ~extreme, ~extreme, extreme):
        if chosen.any():
            different = different[chosen]
            break
    names = [str(metric) for metric in different.index.get_level_values("metric")]
    shares = np.array([is_percentage(panel_of(metric).label) for metric in names])
    if shares.any():
        points = (different["own"] - different["other"]).abs()[shares]
        metric, layer = points.index[int(points.to_numpy().argmax())]
        return str(metric), int(layer), "difference in percentage points"
    drawn = np.array(list(map(has_curve, names)))
    relative = _relative(different[drawn] if drawn.any() else different)
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
