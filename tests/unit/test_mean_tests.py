"""The test of means over sequences: by brute force, and how often it is wrong, which docs/guides/trust.md promises."""

import itertools
import re

import numpy as np
import pytest
import scipy.stats

from normscope.distribution import CHECKOUT
from normscope.statistics.intervals import RESAMPLES, MeanTest, Sample, mean_test, smallest_p


def _mean(pairs):
    return sum(weight * value for value, weight in pairs) / sum(weight for _, weight in pairs)


def _variance(pairs):
    """Of a weighted mean: the jackknife, with each observation really left out."""
    without = [_mean(pairs[:left] + pairs[left + 1 :]) for left in range(len(pairs))]
    return (len(pairs) - 1) / len(pairs) * sum((mean - _mean(pairs)) ** 2 for mean in without)


def _by_brute_force(samples, resamples):
    """D, its interval and p, observation by observation and resample by resample."""
    signs = (1, -1)[: len(samples)]
    difference = sum(sign * _mean(pairs) for sign, pairs in zip(signs, samples, strict=True))
    error = sum(map(_variance, samples)) ** 0.5
    drawn = []
    for seed, pairs in enumerate(samples):
        size = max(4, min(len(pairs) // 2, 300))
        places = np.random.default_rng(seed).integers(len(pairs), size=(resamples, size))
        drawn.append([[pairs[place] for place in row] for row in places])
    statistics = []
    for groups in zip(*drawn, strict=True):
        off = sum(sign * _mean(pairs) for sign, pairs in zip(signs, groups, strict=True)) - difference
        spread = sum(map(_variance, groups)) ** 0.5
        statistics.append(off / spread if spread > 1e-12 * error else np.copysign(np.inf, off))
    squares = [[(weight / sum(w for _, w in pairs)) ** 2 for _, weight in pairs] for pairs in samples]
    freedom = min(sum(own) ** 2 / sum(x**2 for x in own) - 1 for own in squares)
    # The rank that leaves 2.5% of the resamples beyond it.
    beyond = round(0.025 * (resamples + 1))
    student = scipy.stats.t.ppf(0.975, freedom)
    statistics = [each if np.isinf(each) else max(-6 * student, min(6 * student, each)) for each in statistics]
    low = difference - error * max(student, sorted(statistics)[-beyond])
    high = difference + error * max(student, -sorted(statistics)[beyond - 1])
    reached = min(
        sum(value >= difference / error for value in statistics),
        sum(value <= difference / error for value in statistics),
    )
    p = max(min(1, 2 * (1 + reached) / (resamples + 1)), 2 * scipy.stats.t.sf(abs(difference / error), freedom))
    return difference, low, high, p


def _sample(generator, size, mean=0.0):
    return Sample(generator.lognormal(size=size) + mean, generator.integers(1, 20, size=size).astype(float))


@pytest.mark.parametrize(("size", "other"), [(5, None), (9, None), (40, None), (8, 12), (12, 6)])
def test_means_are_tested_as_by_brute_force(size, other):
    generator = np.random.default_rng(size)
    samples = [_sample(generator, size, -1.0), *([] if other is None else [_sample(generator, other, -0.5)])]
    found = mean_test(*samples, resamples=199)
    expected = _by_brute_force([list(zip(*sample, strict=True)) for sample in samples], 199)
    assert [float(value) for value in found] == pytest.approx(expected, rel=1e-9)


def test_independent_samples_are_tested_together_and_one_by_one():
    generator = np.random.default_rng(0)
    several = _sample(generator, (3, 7))
    together = mean_test(several, resamples=199)
    first = mean_test(Sample(several.values[0], several.weights[0]), resamples=199)
    assert [values.shape for values in together] == [(3,)] * 4
    # Of several, the first has the same draws as if it were alone.
    assert [float(values[0]) for values in together] == pytest.approx([float(value) for value in first])


def test_the_interval_of_many_normal_observations_is_students():
    values = np.random.default_rng(4).normal(0.03, 1.0, size=2_000)
    found = mean_test(Sample(values, np.ones(2_000)))
    student = scipy.stats.ttest_1samp(values, 0.0)
    width = student.confidence_interval().high - student.confidence_interval().low
    assert (found.low, found.high) == pytest.approx(tuple(student.confidence_interval()), abs=0.04 * width)
    assert found.p == pytest.approx(student.pvalue, rel=0.1)
    two = mean_test(Sample(values[:900], np.ones(900)), Sample(values[900:], np.ones(1_100)))
    welch = scipy.stats.ttest_ind(values[:900], values[900:], equal_var=False)
    width = welch.confidence_interval().high - welch.confidence_interval().low
    assert (two.low, two.high) == pytest.approx(tuple(welch.confidence_interval()), abs=0.04 * width)
    assert two.p == pytest.approx(welch.pvalue, rel=0.1)


def test_an_interval_excludes_zero_where_p_is_at_most_five_per_cent():
    generator = np.random.default_rng(2)
    values = generator.normal(size=(400, 12)) + generator.normal(scale=0.8, size=(400, 1))
    found = mean_test(Sample(values, np.ones((400, 12))), resamples=399)
    excluded = (found.low > 0) | (found.high < 0)
    assert 20 < excluded.sum() < 380
    assert (excluded == (found.p <= 0.05)).all()


@pytest.mark.parametrize("seed", range(8))
def test_an_interval_of_few_observations_stays_near_them(seed):
    """Four of the five are nearly equal: resamples of these alone have next to no spread."""
    weights = np.random.default_rng(seed).integers(20, 60, size=5).astype(float)
    found = mean_test(Sample(np.array([28.76, 28.99, 28.995, 29.0, 29.01]), weights))
    assert found.low <= found.mean <= found.high
    assert found.mean - found.low < 8 * (29.01 - 28.76)
    assert found.high - found.mean < 8 * (29.01 - 28.76)


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ([0.3] * 8, [1.0] * 8),
        ([0.0] * 8, [1.0] * 8),
        ([0.0] * 7 + [0.1], [1.0] * 8),  # most resamples have no spread
        (np.linspace(0, 1, 8), [1e-12] * 7 + [1.0]),  # one observation is all that counts
    ],
    ids=["equal", "zero", "nearly all equal", "one counts"],
)
def test_nothing_is_said_where_no_test_is_right(values, weights):
    sample = Sample(np.asarray(values, dtype=float), np.asarray(weights))
    found = mean_test(sample, resamples=199)
    assert found.mean == pytest.approx(np.average(values, weights=weights))
    assert np.isnan([found.low, found.high, found.p]).all()
    varied = Sample(np.random.default_rng(0).normal(size=8), np.ones(8))
    assert np.isnan(mean_test(varied, Sample(np.full(8, 0.3), np.ones(8)), resamples=199).p), "one sample does not vary"


def test_p_has_a_floor():
    found = mean_test(Sample(np.random.default_rng(0).normal(10.0, 1.0, size=50), np.ones(50)))
    assert found.p == smallest_p() == 2 / (RESAMPLES + 1)


# How often a difference is found, in simulations: mean zero, so that all that is found is false.

_DIFFERENCES = {
    "normal": lambda generator, shape: generator.normal(size=shape),
    "skewed (log-normal, σ = 1)": lambda generator, shape: generator.lognormal(size=shape) - np.exp(0.5),
    "heavy tails (Student’s t, 2 degrees of freedom)": lambda generator, shape: generator.standard_t(2, size=shape),
    "60% zeros, the rest normal": lambda generator, shape: (
        generator.normal(size=shape) * (generator.random(shape) < 0.4)
    ),
    "−1, 0 or 1": lambda generator, shape: generator.integers(-1, 2, size=shape).astype(float),
}
_WORSE = {
    "log-normal, σ = 2": lambda generator, shape: generator.lognormal(sigma=2.0, size=shape) - np.exp(2.0),
    "5% are 20 larger": lambda generator, shape: (
        generator.normal(size=shape) + 20.0 * (generator.random(shape) < 0.05) - 1.0
    ),
}
"""Distributions that few differences do not show."""
_PAIRED = (5, 6, 8, 10, 15, 20, 40)
_UNPAIRED = ((10, 10), (20, 20), (40, 40), (10, 40))
_EFFECTS = (0.5, 1.0, 2.0)
"""Means of normal differences, in standard deviations."""
_SIMULATIONS = 2_000
_RESAMPLES = 399


def _found(simulations, kind, sizes, shift=0.0):
    """The share of simulations in which p ≤ 0.05. Sequences have 5 to 50 tokens."""
    kinds = _DIFFERENCES | _WORSE
    generator = np.random.default_rng([len(sizes), *sizes, list(kinds).index(kind), int(10 * shift)])
    found = 0
    for start in range(0, simulations, 100):
        shapes = [(min(100, simulations - start), size) for size in sizes]
        values = [kinds[kind](generator, shape) for shape in shapes]
        samples = [
            Sample(own + (shift if at == 0 else 0.0), generator.integers(5, 51, size=shape).astype(float))
            for at, (own, shape) in enumerate(zip(values, shapes, strict=True))
        ]
        result: MeanTest = mean_test(*samples, resamples=_RESAMPLES)
        found += int((result.p <= 0.05).sum())
    return found / simulations


def _cells():
    """Table of the docs, row, column, and the arguments of `_found`."""
    for kind in _DIFFERENCES:
        for size in _PAIRED:
            yield "pairs", kind, f"{size}", (kind, (size,))
        for sizes in _UNPAIRED:
            yield "unpaired", kind, f"{sizes[0]} and {sizes[1]}", (kind, sizes)
    for kind, size in itertools.product(_WORSE, _PAIRED):
        yield "worse", kind, f"{size}", (kind, (size,))
    for effect, size in itertools.product(_EFFECTS, _PAIRED):
        yield "power", f"{effect:g} σ", f"{size}", ("normal", (size,), effect)


def _documented():
    """The tables of docs/guides/trust.md that have these columns: row, column, share."""
    text = (CHECKOUT / "docs/guides/trust.md").read_text()
    tables = {}
    for heading, title in (
        ("pairs", "pairs"),
        ("unpaired", "sequences"),
        ("worse", "pairs, rare and large"),
        ("power", "mean difference"),
    ):
        block = re.search(rf"^\| {title} \|[^\n]*\n\|[-|: ]+\n(?:\|[^\n]*\n)+", text, flags=re.M)[0]
        header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        for name, *cells in rows:
            tables |= {
                (heading, name, column): float(cell.removesuffix("%")) / 100
                for column, cell in zip(header[1:], cells, strict=True)
            }
    return tables


@pytest.mark.slow
def test_the_documented_rates_are_those_of_the_simulations():
    documented, cells = _documented(), list(_cells())
    assert documented.keys() == {tuple(cell[:3]) for cell in cells}
    assert all(rate < 0.07 for (table, *_), rate in documented.items() if table not in ("power", "worse"))
    for *name, arguments in cells:
        assert _found(_SIMULATIONS, *arguments) == pytest.approx(documented[tuple(name)], abs=0.0015), name
