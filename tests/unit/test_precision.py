"""Samples that end as soon as they are precise enough."""

import dataclasses
import functools
import re

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from normscope.analyses import feedforward, samples, score, sinks
from normscope.analyses.declarations.attribution import AttributionOptions
from normscope.analyses.declarations.feedforward import FeedForwardOptions
from normscope.analyses.declarations.outliers import OutliersOptions
from normscope.analyses.declarations.score import ScoreOptions
from normscope.analyses.declarations.sinks import SinkInput, SinksOptions
from normscope.analyses.faithfulness import Faithfulness
from normscope.distribution import CHECKOUT
from normscope.statistics.precision import FIRST, ROUND, half_width, in_rounds, until_precise
from tests.oracles import specimens

ANY = 1e6
"""A precision that every first look finds."""


def test_the_half_width_is_that_of_students_interval():
    values = np.random.default_rng(2).normal(size=(7, 3)) * [1, 5, 2]
    low, high = scipy.stats.t.interval(0.95, 6, values[:, 1].mean(), scipy.stats.sem(values[:, 1]))
    assert half_width(values) == pytest.approx((high - low) / 2)
    assert half_width(values[:1]) == np.inf
    assert half_width(np.ones((3, 2))) == 0


@pytest.mark.parametrize(("precision", "expected"), [(None, 48), (0.0, 48), (0.3, 35), (0.35, 30), (10.0, FIRST)])
def test_a_sample_ends_with_the_first_look_that_is_precise_enough(precision, expected):
    observations = list(np.random.default_rng(5).normal(size=48))
    by_hand = next(
        (
            number
            for number in range(FIRST, 48, ROUND)
            if precision is not None
            and scipy.stats.t.ppf(0.975, number - 1) * scipy.stats.sem(observations[:number]) <= precision
        ),
        48,
    )
    measured: list[float] = []

    def width() -> float:
        return half_width(np.array(measured)[:, None])

    for part in until_precise(in_rounds(observations, precision), width, precision):
        measured += part
    assert measured == observations[:by_hand]
    assert len(measured) == expected


_VALUES = {
    "normal": lambda generator, size: generator.normal(size=size),
    "uniform": lambda generator, size: generator.uniform(-0.5, 0.5, size=size) * np.sqrt(12),
    "skewed (log-normal, σ = 1)": lambda generator, size: (
        (generator.lognormal(size=size) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e)
    ),
    "nine of ten are zero": lambda generator, size: ((generator.random(size) < 0.1) - 0.1) / 0.3,
    "5% are 20 larger": lambda generator, size: (
        (generator.normal(size=size) + 20 * (generator.random(size) < 0.05) - 1) / np.sqrt(1 + 19)
    ),
}
"""Values with mean 0 and standard deviation 1."""


def coverage(kind: str, precision: float, simulations: int = 2_000) -> float:
    """How often the interval of a sample that ends early, of at most 100 values, holds the true mean."""
    generator = np.random.default_rng([list(_VALUES).index(kind), int(10 * precision)])
    held = 0
    for _ in range(simulations):
        measured: list[float] = []
        values = _VALUES[kind](generator, 100).tolist()

        def width(measured: list[float] = measured) -> float:
            return half_width(np.array(measured)[:, None])

        for part in until_precise(in_rounds(values, precision), width, precision):
            measured += part
        held += abs(np.mean(measured)) <= width()
    return held / simulations


@pytest.mark.slow
def test_the_documented_coverage_is_that_of_simulations():
    text = (CHECKOUT / "docs/guides/trust.md").read_text()
    block = re.search(r"^\| values \|[^\n]*\n\|[-|: ]+\n((?:\|[^\n]*\n)+)", text, flags=re.M)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    assert [name for name, *_ in rows] == list(_VALUES)
    for name, *cells in rows:
        for cell, precision in zip(cells, (0.5, 0.3), strict=True):
            assert coverage(name, precision) == pytest.approx(float(cell.removesuffix("%")) / 100, abs=0.002), name


LAYERS, CATEGORIES = [1, 3], ["punctuation", "other", "all"]
VARIANTS = [(inputs, "without_bos") for inputs in SinkInput]
HEADLINES = {"score": score, "sinks": sinks, "feedforward": feedforward}
ENDS = {
    "score": (
        "bert",
        ScoreOptions(seed=3, controls=2, intervention_precision=ANY),
        {"intervention_sequences": 2},
    ),
    "sinks": (
        "massive",
        SinksOptions(length=4, seed=3, controls=1, precision=ANY, ablation_precision=ANY),
        {"sequences": 2, "ablation_sequences": 2},
    ),
    "feedforward": ("bert", FeedForwardOptions(seed=3, precision=ANY), {"sequences": 2}),
    "attribution": ("bert", AttributionOptions(seed=3, orders=1, precision=ANY), {"sequences": 2}),
}


def findings(name, options, monkeypatch, size):
    """What an analysis returns if it looks at its intervals after so many sequences."""
    monkeypatch.setattr(samples, "in_rounds", functools.partial(in_rounds, first=size, size=size))
    others = {"options": [OutliersOptions(dimensions=[2, 7])]} if name == "score" else {}
    return getattr(specimens, ENDS[name][0])().findings(name, options, LAYERS, CATEGORIES, **others)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ENDS)
def test_a_sample_that_ends_early_is_a_smaller_sample(name, monkeypatch):
    _, options, fewer = ENDS[name]
    early = findings(name, options, monkeypatch, 2)
    nulls = {field: None for field in vars(options) if field.endswith("precision")}
    small = findings(name, dataclasses.replace(options, **fewer, **nulls), monkeypatch, 2)
    assert early.metrics.keys() == small.metrics.keys()
    assert {number for metric, number in early.metrics.items() if metric.endswith("/sequences")} == {2}
    for table, expected in small.tables.items():
        pd.testing.assert_frame_equal(early.tables[table], expected, rtol=1e-9)


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", [name for name in ENDS if name != "attribution"])
def test_headlines_are_the_published_means(name, monkeypatch):
    """The intervals are those of means over sequences that the analysis returns."""
    looks: list[tuple[object, np.ndarray]] = []
    for module in (feedforward, score, sinks):

        def look(values: np.ndarray, module: object = module) -> float:
            looks.append((module, values))
            return half_width(values)

        monkeypatch.setattr(module, "half_width", look)
    _, options, _ = ENDS[name]
    options = dataclasses.replace(options, **{field: 1e-9 for field in vars(options) if field.endswith("precision")})
    metrics = findings(name, options, monkeypatch, 2).metrics
    number = 4 if name == "sinks" else 5  # one sequence is too short
    means = [values.mean(axis=0).tolist() for of, values in looks if len(values) == number and of is HEADLINES[name]]
    match name:
        case "feedforward":
            assert means == [pytest.approx([metrics["change/ff"]])]
        case "score":
            changes = [metrics[f"intervention/{category}/change"] for category in ("punctuation", "other")]
            assert means[0] == pytest.approx(changes)
        case "sinks":
            first = [
                [metrics[f"{inputs}/{bos}/{measure}/first"] for measure in ("sink_rate", "mass")]
                for inputs, bos in VARIANTS
            ]
            # Looked at while it measures, and for `sink_rates/half_width`.
            assert means == 2 * [pytest.approx(one) for one in first]


def test_how_well_it_is_known_that_methods_are_faithful():
    """The interval of the best method's lead over random orders, as a share of it."""
    falls = Faithfulness(["one", "other"], [30.0])
    generator = np.random.default_rng(4)
    leads = []
    for _ in range(6):
        assert falls.half_width() == (np.inf if len(leads) < 2 else pytest.approx(by_hand(leads)))
        best, worse, random = generator.normal([3.0, 1.0, 0.5], 0.3).tolist()
        drops = {frozenset({0}): best, frozenset({1}): worse, frozenset({2}): random}
        orders = {"one": np.array([0, 1, 2]), "other": np.array([1, 0, 2])}
        falls.add(orders, [np.array([2, 0, 1])], lambda sets, drops=drops: [drops.get(erased, 0.0) for erased in sets])
        leads.append(best - random)
    ranking = falls.ranking().set_index("method")
    assert ranking.loc["one", "above_random"] == pytest.approx(np.mean(leads))


def by_hand(leads):
    return scipy.stats.t.ppf(0.975, len(leads) - 1) * scipy.stats.sem(leads) / np.mean(leads)
