"""The verdict of a comparison, in sentences: which differences are detectable, and how large they are."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from normscope.reporting.comparison.along import standstill, stories
from normscope.reporting.comparison.effects import COUNTS, effect, is_part
from normscope.reporting.comparison.places import (
    CELL,
    ROUNDING,
    Place,
    cell_in_words,
    common,
    furthest,
    in_words,
    relative,
)
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.significance import FEWEST_PAIRS, FEWEST_UNPAIRED, is_extreme
from normscope.results.declare import is_percentage
from normscope.results.measures import has_curve, leading, metric_title, panel_of, title
from normscope.rounding import begun, counted, differ, enumeration, number, percentage, shares_differ

SIGNIFICANT = 0.05
"""The adjusted p-value below which a difference counts."""

_MOST = 5
"""Sentences, and groups that a sentence names, at most."""


def verdict(comparison: RunComparison) -> list[str]:
    """What distinguishes the groups of runs from the baseline, in five sentences at most.

    Without a second group, it is how much seeds matter, or nothing if there is but one.

    Differences are tested over seeds where there are several, otherwise over sequences; p-values are adjusted for the number of
    tests. Of the measures that differ detectably, the leading one is named if its difference counts, or else the one that
    differs most, with the layer, head or category in which the groups are furthest apart: a share differs by as much as it does
    there. Groups of which the same is found, apart from numbers, share a sentence. Runs along an ordered variable have a
    sentence for each of a few measures instead, or one first that says that no measure moves.
    """
    repeated = _of_repeated(comparison)
    if told := stories(comparison):
        return repeated + [story.sentence for story in told]
    groups = [name for name in comparison.values["group"].unique() if name != comparison.baseline_group]
    if not groups:
        return repeated + _of_seeds(comparison)
    alike: dict[tuple[object, ...], list[_Found]] = {}
    for found in (_of_group(comparison, group) for group in groups):
        alike.setdefault(found.shared, []).append(found)
    sentences = repeated + standstill(comparison)
    most = _MOST - len(sentences)
    shown, rest = [*alike.values()][:most], [*alike.values()][most:]
    sentences += [found[0].sentence(found, comparison.baseline_group) for found in shown]
    if rest:
        sentences.append(f"{counted(sum(map(len, rest)), 'more group')} of runs: see the tables.")
    return sentences


def named_first(comparison: RunComparison) -> str:
    """The measure that the verdict names first of groups of runs; empty if it names none."""
    groups = [name for name in comparison.values["group"].unique() if name != comparison.baseline_group]
    found = (_of_group(comparison, group).difference for group in groups)
    return next((difference.metric for difference in found if difference is not None), "")


def _of_repeated(comparison: RunComparison) -> list[str]:
    """Which runs are one run several times."""
    return [
        f"{counted(number, 'run')} of {name} measured the same weights, texts and seeds in the same way: they count once."
        for name, number in [*comparison.repeated.items()][:1]
    ]


def _of_seeds(comparison: RunComparison) -> list[str]:
    """The leading measure over seeds, and the measure that seeds change most, with the runs and the layer."""
    means = comparison.seeds[comparison.seeds["metric"].map(_is_told).astype(bool)].set_index("metric")
    if means.empty:
        return []
    metric = leading(map(str, means.index))
    numbers = [float(means[name][metric]) for name in ("mean", "low", "high")]
    mean, low, high = (in_words(metric, value, *numbers) for value in numbers)
    whole = comparison.values[comparison.values["layer"] == 0].set_index("label")
    values = {str(name): rows["value"] for name, rows in whole.groupby("metric") if name in means.index}
    sizes = {name: effect(name, each.max(), each.min()) for name, each in values.items()}
    name = max(map(str, means.index), key=lambda name: sizes[name])
    own = values[name].to_numpy()
    ends = {str(values[name].index[place]): float(own[place]) for place in (int(own.argmin()), int(own.argmax()))}
    written = [f"{in_words(name, value, *ends.values())} ({label})" for label, value in ends.items()]
    curve = comparison.values[(comparison.values["metric"] == name) & (comparison.values["layer"] > 0)]
    spread = curve.groupby("layer")["value"].agg(np.ptp)
    layer = f", most in layer {spread.idxmax()}" if len(spread) > 1 else ""
    change = (
        f"Seeds change this measure most: {metric_title(name)}, from {' to '.join(written)}{layer}."
        if sizes[name] >= COUNTS
        else "No measure varies over seeds by a tenth of its range."
    )
    over = f"over {means['runs'][metric]} seeds (95% interval {low} to {high})"
    return [f"{begun(metric_title(metric))} in {comparison.baseline_group} is {mean} {over}.", change]


def _is_told(metric: str) -> bool:
    """Whether verdicts mention a measure: it has a curve, and is not a minimum or maximum."""
    return has_curve(metric) and not is_extreme(metric)


@dataclasses.dataclass(frozen=True)
class _Found:
    """What is found of a group of runs."""

    group: str
    sentence: Callable[[Sequence["_Found"], str], str]
    """Writes what is found of groups and a baseline, if it is the same for all groups, apart from numbers."""
    measures: int = 0
    """How many are equal, or tested."""
    difference: "_Difference | None" = None
    """The one that is named."""
    basis: str = ""
    """What is the sample of tests: seeds or sequences, and whether the latter are of the same texts."""
    detected: int = 0
    """How many tests detect a difference."""
    figure: str = ""
    """The analysis whose heat maps differ most, if measures do not."""
    cell: str = ""
    """The cell in which these are furthest apart."""

    @property
    def shared(self) -> tuple[object, ...]:
        """What groups have in common that share a sentence."""
        named = (*self.difference.place, self.difference.size) if self.difference else ()
        return (self.sentence, self.measures, self.basis, self.detected > 0, self.figure, *named)


def _incomparable(alike: Sequence[_Found], baseline: str) -> str:
    return f"{_names(alike)} and {baseline} have no measure in common."


def _equal(alike: Sequence[_Found], baseline: str) -> str:
    names = f"{_names(alike)} and {baseline}" if len(alike) == 1 else f"{baseline}, {_names(alike)}"
    return f"{names} are equal up to rounding in every common measure ({alike[0].measures:,}), also layer by layer."


def _untestable(alike: Sequence[_Found], baseline: str) -> str:
    differ = "differs" if len(alike) == 1 else "differ"
    start = (
        f"Whether {_names(alike)} {differ} from {baseline} cannot be tested: a test needs several seeds of each, or "
        f"trained models and at least {FEWEST_PAIRS} sequences that both read ({FEWEST_UNPAIRED} each if not the same)."
    )
    first = alike[0].difference
    if first is None:
        return (
            f"{start} Their measures are equal up to rounding, but cells of heat maps differ, most in "
            f"{title(alike[0].figure)}, {enumeration([found.cell for found in alike])}."
        )
    return f"{start} The largest {first.how} is in {first.where}: {_values(alike, baseline)}{_furthest(alike)}."


def _tested(alike: Sequence[_Found], baseline: str) -> str:
    first, names = alike[0], _names(alike)
    differences = _differences(alike)
    tested = f"{counted(first.measures, 'measure')} tested over {first.basis}"
    if first.detected and len(alike) == 1:
        return _changed(first, baseline)
    values = _values(alike, baseline)
    named, furthest = f"{differences[0].where}{values and f': {values}'}", _furthest(alike)
    if not first.detected:
        names = f"between {names} and {baseline}" if len(alike) == 1 else f"of {names} from {baseline}"
        return f"No detectable difference {names}: {tested}; the largest is in {named}{furthest}."
    intervals = enumeration([difference.interval for difference in differences])
    return (
        f"{names} differ from {baseline} in {_counts(alike)} of {tested}, {_LEADING[differences[0].size]} "
        f"{named} (differences {intervals}, 95% intervals){furthest}."
    )


def _changed(found: _Found, baseline: str) -> str:
    """What changes most from the baseline to a group, where, and how much of all that was tested differs."""
    (difference,) = _differences([found])
    metric, place = difference.metric, difference.furthest
    interval = f"difference {difference.interval}, 95% interval"
    whole = f"{_arrow(metric, *reversed(difference.values))} ({interval})" if difference.values else interval
    change = f": {whole}"
    if place is not None:
        change = f" in {place.where}: {_arrow(metric, place.other, place.own)}; over all layers, {whole}"
    differ = "differs" if found.detected == 1 else "differ"
    return (
        f"From {baseline} to {found.group}, {metric_title(metric)} changes most{change}. {found.detected:,} of "
        f"{counted(found.measures, 'measure')} tested over {found.basis} {differ}{_BY[difference.size]}."
    )


def _arrow(metric: str, before: float, after: float) -> str:
    """How a measure changes: `27% → 61%`."""
    return " → ".join(in_words(metric, value, before, after) for value in (before, after))


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
    size: str = "counts"
    """A key of `_LEADING`."""
    furthest: Place | None = None
    """Where the groups are furthest apart in this measure; see `places.furthest`."""

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
        low, high = (in_words(self.metric, end, *self.ends, signed=True) for end in self.ends)
        points = " points" if low.endswith("%") else ""
        low, high = low.removesuffix("%"), high.removesuffix("%")
        return f"{low}{points}" if low == high else f"{low} to {high}{points}"


_LEADING = {
    "counts": "above all in",
    "small": "in each by less than a tenth of its range, most in",
    "unseen": "in each by too little to matter, most in",
}
"""What leads to the measure that is named, by how much it differs."""
_BY = {"counts": "", "small": ", each by less than a tenth of its range", "unseen": ", each by too little to matter"}
"""The same of a single group, after how many measures differ."""


def _differences(alike: Sequence[_Found]) -> list[_Difference]:
    return [found.difference for found in alike if found.difference]


def _values(alike: Sequence[_Found], baseline: str) -> str:
    """The values of groups and of the baseline: `0.3 in a, 0.4 in b and 0.5 in c`."""
    first = _differences(alike)[0]
    if not first.values:
        return ""
    numbers = {found.group: found.difference.values[0] for found in alike if found.difference}
    every = {baseline: first.values[1], **numbers}
    written = {group: in_words(first.metric, value, *every.values()) for group, value in every.items()}
    if len(numbers) > _MOST:
        ends = [pick(numbers, key=lambda group: numbers[group]) for pick in (min, max)]
        low, high = (f"{written[group]} ({group})" for group in ends)
        return f"{written[baseline]} in {baseline}, and from {low} to {high} in the others"
    return enumeration([f"{value} in {group}" for group, value in written.items()])


def _furthest(alike: Sequence[_Found]) -> str:
    """Where groups are furthest from the baseline, at the end of a sentence; of many, the first."""
    places = [
        f"{place.where} ({_arrow(difference.metric, place.other, place.own)})"
        for difference in _differences(alike)
        if (place := difference.furthest) is not None
    ]
    return f"; furthest apart in {enumeration(places[:_MOST])}" if places else ""


def _names(alike: Sequence[_Found]) -> str:
    """The groups; only how many if there are many."""
    return enumeration([found.group for found in alike]) if len(alike) <= _MOST else f"{len(alike)} groups of runs"


def _counts(alike: Sequence[_Found]) -> str:
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
    pairs = common(comparison.values, ["metric", "layer"], group, baseline)
    by_basis = {"seeds": comparison.tests, "sequences": comparison.sequence_tests}
    for basis, tests in by_basis.items():
        own = tests[tests["group"] == group]
        if len(own):
            return _of_tests(comparison, own.reset_index(drop=True), basis, group, pairs)
    return _untested(comparison, group, baseline, pairs)


def _both(pairs: pd.DataFrame, metric: str, layer: int = 0) -> tuple[float, ...]:
    """The values of both groups (layer 0: of the whole run); empty if they are not known."""
    if (metric, layer) not in pairs.index:
        return ()
    return tuple(float(pairs[side][metric, layer]) for side in ("own", "other"))


def _of_tests(comparison: RunComparison, tests: pd.DataFrame, basis: str, group: str, pairs: pd.DataFrame) -> _Found:
    """The result of the tests of a group against the baseline."""
    detected = tests[tests["adjusted"] < SIGNIFICANT]
    visible = detected[[_visible(str(metric), pairs) for metric in detected["metric"]]]
    chosen = next(table for table in (visible, detected, tests) if len(table))
    places = {
        str(metric): furthest(comparison, group, comparison.baseline_group, str(metric)) for metric in chosen["metric"]
    }
    most = chosen.iloc[_named(chosen, pairs, places)]
    metric = str(most["metric"])
    counts = _size(metric, float(most["difference"]), pairs, places[metric]) >= COUNTS
    difference = _Difference(
        metric,
        0,
        _both(pairs, metric),
        (float(most["low"]), float(most["high"])),
        size="unseen" if visible.empty else "counts" if counts else "small",
        furthest=places[metric],
    )
    if basis == "sequences" and not tests["paired"].all():
        basis = "sequences that are not the same"
    return _Found(group, _tested, len(tests), difference, basis, len(detected))


def _size(metric: str, difference: float, pairs: pd.DataFrame, place: Place | None) -> float:
    """A difference as a part of the measure's natural range: of shares, where it is largest.

    Other measures have no range but that of their values, in which a cell near zero would count for much.
    """
    own, other = _both(pairs, metric) or (difference, 0.0)
    whole = effect(metric, own, other)
    return max(whole, effect(metric, place.own, place.other)) if place is not None and is_part(metric) else whole


def _named(tests: pd.DataFrame, pairs: pd.DataFrame, places: Mapping[str, Place | None]) -> int:
    """The place of the measure that is named: the leading one if it differs by enough, or else the largest difference."""
    metrics = [str(metric) for metric in tests["metric"]]
    sizes = [
        _size(metric, float(difference), pairs, places[metric])
        for metric, difference in zip(metrics, tests["difference"], strict=True)
    ]
    lead = leading(metrics)
    if lead and sizes[metrics.index(lead)] >= COUNTS:
        return metrics.index(lead)
    return int(np.argmax(sizes))


def _visible(metric: str, pairs: pd.DataFrame) -> bool:
    """Whether the means of both groups differ for a reader; true if they are not known."""
    values = _both(pairs, metric)
    return not values or (shares_differ if is_percentage(panel_of(metric).label) else differ)(*values)


def _untested(comparison: RunComparison, group: str, baseline: str, pairs: pd.DataFrame) -> _Found:
    """What is found if no test is valid."""
    if pairs.empty:
        return _Found(group, _incomparable)
    cells = common(comparison.heatmaps, CELL, group, baseline)
    different = pairs[relative(pairs) > ROUNDING]
    if different.empty and not (relative(cells) > ROUNDING).any():
        return _Found(group, _equal, pairs.index.get_level_values("metric").nunique())
    if different.empty:
        cell = cells.reset_index().iloc[int(relative(cells).to_numpy().argmax())]
        figure = str(cell["figure"]).partition("/")[0]
        return _Found(group, _untestable, figure=figure, cell=cell_in_words(cell))
    metric, layer, how = _largest(different)
    place = None if layer else furthest(comparison, group, baseline, metric)
    difference = _Difference(metric, layer, _both(pairs, metric, layer), how=how, furthest=place)
    return _Found(group, _untestable, difference=difference)


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
    parts = relative(different[drawn] if drawn.any() else different)
    metric, layer = parts.index[int(parts.to_numpy().argmax())]
    return str(metric), int(layer), "relative difference"


def as_written(metric: str, value: float) -> str:
    """A value as readers of tables see it: in per cent if its measure is."""
    return (percentage if is_percentage(panel_of(metric).label) else number)(value)


def significant(comparison: RunComparison) -> Sequence[str]:
    """The metrics in which a group differs detectably from the baseline."""
    tests = pd.concat([comparison.tests, comparison.sequence_tests])
    return [str(metric) for metric in tests[tests["adjusted"] < SIGNIFICANT]["metric"].unique()]


def in_a_line(comparison: RunComparison) -> dict[str, dict[str, str]]:
    """What a line says of each run: its leading measure, and where that is furthest from the baseline.

    Returns:
        By title of a column, the entries of runs by their labels.
    """
    whole = comparison.metrics.set_index("metric")
    metric = leading(map(str, whole.index))
    if not metric:
        return {}
    columns = {metric_title(metric): {str(run): as_written(metric, whole[run][metric]) for run in whole.columns}}
    baseline = comparison.baseline_group
    group_of = dict(zip(comparison.values["label"], comparison.values["group"], strict=True))
    found = {
        group: furthest(comparison, str(group), baseline, metric) for group in {*group_of.values()} if group != baseline
    }
    places = {
        str(label): f"{place.where}: {_arrow(metric, place.other, place.own)}"
        for label, group in group_of.items()
        if (place := found.get(group)) is not None
    }
    return columns | ({f"furthest from {baseline}": places} if places else {})
