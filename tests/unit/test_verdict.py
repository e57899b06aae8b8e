"""The verdict of a comparison, written out by hand for each kind of comparison."""

from types import SimpleNamespace

import pandas as pd
import pytest

from normscope.reporting.comparison.verdict import significant, title, verdict

COLUMNS = ["group", "metric", "difference", "low", "high", "adjusted"]
MEAN, SHARE, LEAST = "mixing/attnresln_n/mean", "mixing/attnresln_n/share", "mixing/attnresln_n/min"
TITLE = "mixing ratio (AttnResLn-N: the attention block)"
NORM, SMALL = "norms/f/cls", "mixing/attn_n/share"


CELLS = ["depth", "figure", "panel", "row", "column", "group", "value"]


def comparison(values, tests=(), sequence_tests=(), cells=()):
    """Values are (group, metric, value), or (group, metric, layer, value)."""
    rows = [(*row[:2], *(row[2:] if len(row) == 4 else (0, row[2]))) for row in values]
    return SimpleNamespace(
        heatmaps=pd.DataFrame([(2, "norms/by_head", "α", "1", *cell) for cell in cells], columns=CELLS),
        values=pd.DataFrame(rows, columns=["group", "metric", "layer", "value"]),
        tests=pd.DataFrame(tests, columns=COLUMNS),
        sequence_tests=pd.DataFrame(sequence_tests, columns=COLUMNS),
        baseline_group="base",
    )


VALUES = [
    *(("base", metric, value) for metric, value in ((MEAN, 0.25), (SHARE, 0.125), (LEAST, 0.01))),
    *(("tuned", metric, value) for metric, value in ((MEAN, 0.375), (SHARE, 0.13), (LEAST, 0.02))),
]


def test_the_measure_with_the_clearest_difference_is_named():
    tests = [("tuned", MEAN, 0.125, 0.1, 0.15, 0.001), ("tuned", SHARE, 0.005, 0.0, 0.01, 0.04)]
    assert verdict(comparison(VALUES, sequence_tests=tests)) == [
        "tuned differs from base in 2 of 2 measures tested over sequences, most clearly in mixing ratio (AttnResLn-N: the "
        "attention block): 38% instead of 25% (difference +10 to +15 points, 95% interval)."
    ]


def test_seeds_come_before_sequences():
    noise = [("tuned", MEAN, 0.125, -0.2, 0.4, 0.3)]
    certain = [("tuned", MEAN, 0.125, 0.1, 0.15, 0.001)]
    found = comparison(VALUES, tests=noise, sequence_tests=certain)
    assert verdict(found) == ["No detectable difference between tuned and base: 1 measure tested over seeds."]


@pytest.mark.parametrize(("adjusted", "differs"), [(0.0499, True), (0.05, False)])
def test_the_bound_of_significance(adjusted, differs):
    found = comparison(VALUES, tests=[("tuned", MEAN, 0.1, 0.0, 0.2, adjusted)])
    assert verdict(found)[0].startswith("tuned differs") is differs
    assert list(significant(found)) == ([MEAN] if differs else [])


def test_without_a_test_the_share_that_differs_by_most_points_is_given():
    """12.5 points against 0.5, and 100% against 50% of a tiny norm; minima do not count."""
    values = [*VALUES, ("base", NORM, 1e-4), ("tuned", NORM, 2e-4), ("base", SMALL, 0.001), ("tuned", SMALL, 0.01)]
    (sentence,) = verdict(comparison(values))
    assert sentence.startswith("Whether tuned differs from base cannot be tested")
    assert sentence.endswith(
        "largest difference in percentage points is in mixing ratio (AttnResLn-N: the attention block): 38% instead of 25%."
    )


def test_measures_that_an_analysis_describes_come_before_others():
    values = [("base", NORM, 1.0), ("tuned", NORM, 1.5), ("base", "own/tiny", 1e-6), ("tuned", "own/tiny", 2e-6)]
    assert verdict(comparison(values))[0].endswith(f"relative difference is in {title(NORM)}: 1.5 instead of 1.0.")
    assert verdict(comparison(values[2:]))[0].endswith("difference is in own/tiny: 2.0×10⁻⁶ instead of 1.0×10⁻⁶.")


def test_shares_that_are_equal_are_not_named():
    values = [("base", MEAN, 0.25), ("tuned", MEAN, 0.25), ("base", NORM, 1.0), ("tuned", NORM, 1.5)]
    assert title(NORM) in verdict(comparison(values))[0]


def test_equal_groups_are_said_to_agree():
    """Differences that are rounding have no test, and need none."""
    values = [*VALUES[:2], ("same", MEAN, 0.25 * (1 + 1e-8)), ("same", SHARE, 0.125)]
    cells = [("1", "base", 0.5), ("1", "same", 0.5 * (1 + 1e-8))]
    assert verdict(comparison(values, cells=cells)) == [
        "same and base are equal up to rounding in every common measure (2), also layer by layer."
    ]


@pytest.mark.parametrize(
    ("more", "cells", "end"),
    [
        (
            [
                ("base", MEAN, 2, 0.687),
                ("tuned", MEAN, 2, 0.707),
                ("base", MEAN, 1, 0.707),
                ("tuned", MEAN, 1, 0.707),
            ],
            (),
            f"in layer 2 of {TITLE}: 71% instead of 69%.",
        ),
        (
            [("base", LEAST, 0.01), ("tuned", LEAST, 0.02)],
            (),
            "difference is in mixing/attnresln_n/min: 0.020 instead of 0.010.",
        ),
        (
            [],
            [("1", "base", 0.4), ("2", "base", 0.6), ("1", "tuned", 0.6), ("2", "tuned", 0.4)],
            "Their measures are equal up to rounding, but cells of heat maps are not, such as those of norms/by_head.",
        ),
    ],
    ids=["a layer", "a minimum", "heads in another order"],
)
def test_groups_are_equal_only_if_their_layers_extremes_and_heads_are(more, cells, end):
    values = [("base", MEAN, 0.7), ("tuned", MEAN, 0.7), *more]
    (sentence,) = verdict(comparison(values, cells=cells))
    assert sentence.startswith("Whether tuned differs from base cannot be tested")
    assert sentence.endswith(end)


def test_a_difference_that_no_reader_can_see_is_not_named():
    """It is detectable: every sequence has it."""
    values = [("base", MEAN, 0.2501), ("tuned", MEAN, 0.2502), ("base", SHARE, 0.125), ("tuned", SHARE, 0.13)]
    tests = [("tuned", MEAN, 0.0001, 0.00009, 0.00011, 1e-4), ("tuned", SHARE, 0.005, 0.001, 0.009, 0.01)]
    (sentence,) = verdict(comparison(values, sequence_tests=tests))
    assert "in 2 of 2 measures tested over sequences, most clearly in" in sentence
    assert "13.0% instead of 12.5%" in sentence
    assert verdict(comparison(values, sequence_tests=tests[:1])) == [
        "tuned differs from base in 1 of 1 measure tested over sequences, but in each by too little to matter."
    ]


def test_groups_without_a_common_measure():
    values = [("base", MEAN, 0.25), ("other", SHARE, 0.5)]
    assert verdict(comparison(values)) == ["other and base have no measure in common."]


def test_at_most_five_groups_have_a_sentence():
    values = [("base", MEAN, 0.25), *((f"run {number}", MEAN, 0.3) for number in range(8))]
    sentences = verdict(comparison(values))
    assert len(sentences) == 6
    assert sentences[-1] == "3 more groups of runs: see the tables."


def test_one_group_needs_no_verdict():
    assert verdict(comparison([("base", MEAN, 0.25)])) == []


def test_a_metric_that_nobody_describes_has_its_name():
    assert title("own/number") == "own/number"


def test_a_number_of_its_own_is_no_category():
    assert title("norms/share/heads") == "norms/share/heads"
    assert title("norms/share/cls") == "share of the attention output ([CLS])"
