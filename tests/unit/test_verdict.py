"""The verdict of a comparison, written out by hand for each kind of comparison."""

from types import SimpleNamespace

import pandas as pd
import pytest

from normscope.reporting.comparison.along import standstill, stories
from normscope.reporting.comparison.effects import effect
from normscope.reporting.comparison.verdict import in_a_line, named_first, significant, verdict
from normscope.results.measures import leading, metric_title

COLUMNS = ["group", "metric", "difference", "low", "high", "adjusted"]
OF_SEQUENCES = [*COLUMNS, "paired"]
MEAN, SHARE, LEAST = "mixing/attnresln_n/mean", "mixing/attnresln_n/share", "mixing/attnresln_n/min"
TITLE = "mixing ratio (attention block, AttnResLn-N)"
NORM, SMALL = "norms/f/cls", "mixing/attn_n/share"


CELLS = ["depth", "figure", "panel", "row_title", "row", "column_title", "value_title", "column", "group", "value"]
PLACE = (2, "norms/by_head", "α", "layer", "1", "head", "α")


SEEDS = ["group", "metric", "runs", "mean", "low", "high"]


def comparison(values, tests=(), sequence_tests=(), cells=(), seeds=(), labels=None):
    """Values are (group, metric, value), or (group, metric, layer, value); tests over sequences are paired unless they say."""
    rows = [(*row[:2], *(row[2:] if len(row) == 4 else (0, row[2]))) for row in values]
    values = pd.DataFrame(rows, columns=["group", "metric", "layer", "value"])
    tested = [row if len(row) == len(OF_SEQUENCES) else (*row, True) for row in sequence_tests]
    return SimpleNamespace(
        heatmaps=pd.DataFrame([cell if len(cell) == 10 else (*PLACE, *cell) for cell in cells], columns=CELLS),
        values=values.assign(label=labels or values["group"], depth=values["layer"] / 2),
        tests=pd.DataFrame(tests, columns=COLUMNS),
        sequence_tests=pd.DataFrame(tested, columns=OF_SEQUENCES),
        repeated={},
        baseline_group="base",
        seeds=pd.DataFrame(seeds, columns=SEEDS),
        swept=[],
    )


VALUES = [
    *(("base", metric, value) for metric, value in ((MEAN, 0.25), (SHARE, 0.125), (LEAST, 0.01))),
    *(("tuned", metric, value) for metric, value in ((MEAN, 0.375), (SHARE, 0.13), (LEAST, 0.02))),
]


def test_the_measure_with_the_largest_difference_is_named():
    tests = [("tuned", MEAN, 0.125, 0.1, 0.15, 0.001), ("tuned", SHARE, 0.005, 0.0, 0.01, 0.04)]
    assert verdict(comparison(VALUES, sequence_tests=tests)) == [
        "From base to tuned, mixing ratio (attention block, AttnResLn-N) changes most: 25% → 38% (difference +10 to +15 "
        "points, 95% interval). 2 of 2 measures tested over sequences differ."
    ]


def test_seeds_come_before_sequences():
    noise = [("tuned", MEAN, 0.125, -0.2, 0.4, 0.3)]
    certain = [("tuned", MEAN, 0.125, 0.1, 0.15, 0.001)]
    found = comparison(VALUES, tests=noise, sequence_tests=certain)
    assert verdict(found) == [
        f"No detectable difference between tuned and base: 1 measure tested over seeds; the largest is in {TITLE}: 25% in base "
        "and 38% in tuned."
    ]


@pytest.mark.parametrize(("adjusted", "differs"), [(0.0499, True), (0.05, False)])
def test_the_bound_of_significance(adjusted, differs):
    found = comparison(VALUES, tests=[("tuned", MEAN, 0.1, 0.0, 0.2, adjusted)])
    assert verdict(found)[0].startswith("From base to tuned") is differs
    assert list(significant(found)) == ([MEAN] if differs else [])


def test_without_a_test_the_share_that_differs_by_most_points_is_given():
    """12.5 points against 0.5, and 100% against 50% of a tiny norm; minima do not count."""
    values = [*VALUES, ("base", NORM, 1e-4), ("tuned", NORM, 2e-4), ("base", SMALL, 0.001), ("tuned", SMALL, 0.01)]
    (sentence,) = verdict(comparison(values))
    assert sentence.startswith("Whether tuned differs from base cannot be tested")
    assert sentence.endswith(f"largest difference in percentage points is in {TITLE}: 25% in base and 38% in tuned.")


def test_measures_that_an_analysis_describes_come_before_others():
    values = [("base", NORM, 1.0), ("tuned", NORM, 1.5), ("base", "own/tiny", 1e-6), ("tuned", "own/tiny", 2e-6)]
    assert verdict(comparison(values))[0].endswith(
        f"relative difference is in {metric_title(NORM)}: 1.0 in base and 1.5 in tuned."
    )
    assert verdict(comparison(values[2:]))[0].endswith(
        "difference is in own/tiny: 1.0×10⁻⁶ in base and 2.0×10⁻⁶ in tuned."
    )


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
            f"in layer 2 of {TITLE}: 69% in base and 71% in tuned.",
        ),
        (
            [("base", LEAST, 0.01), ("tuned", LEAST, 0.02)],
            (),
            "points is in smallest mixing ratio (attention block, AttnResLn-N): 1.0% in base and 2.0% in tuned.",
        ),
        (
            [],
            [("1", "base", 0.4), ("2", "base", 0.6), ("1", "tuned", 0.6), ("2", "tuned", 0.4)],
            "Their measures are equal up to rounding, but cells of heat maps differ, most in Vector norms, layer 1, head 1.",
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
    assert f"{metric_title(SHARE)} changes most: 12.5% → 13.0% (difference" in sentence
    assert sentence.endswith("2 of 2 measures tested over sequences differ, each by less than a tenth of its range.")
    (sentence,) = verdict(comparison(values, sequence_tests=tests[:1]))
    assert sentence.endswith("1 of 1 measure tested over sequences differs, each by too little to matter.")


def test_groups_without_a_common_measure():
    values = [("base", MEAN, 0.25), ("other", SHARE, 0.5)]
    assert verdict(comparison(values)) == ["other and base have no measure in common."]


def test_at_most_five_findings_have_a_sentence():
    """Groups whose largest difference is in another measure each."""
    metrics = [f"own/{number}" for number in range(8)]
    values = [("base", metric, 0.25) for metric in metrics]
    for at in range(8):
        values += [(f"run {at}", metric, 0.3 if place == at else 0.25) for place, metric in enumerate(metrics)]
    sentences = verdict(comparison(values))
    assert len(sentences) == 6
    assert sentences[-1] == "3 more groups of runs: see the tables."


def test_sentences_that_differ_in_numbers_are_one():
    values = [*VALUES, ("other", MEAN, 0.5), ("other", SHARE, 0.125)]
    tests = [
        ("tuned", MEAN, 0.125, 0.1, 0.15, 0.001), ("tuned", SHARE, 0.005, 0.0, 0.01, 0.04),
        ("other", MEAN, 0.25, 0.2, 0.3, 0.001), ("other", SHARE, 0.0, -0.01, 0.01, 0.9),
    ]  # fmt: skip
    assert verdict(comparison(values, sequence_tests=tests)) == [
        f"tuned and other differ from base in 2 and 1 of 2 measures tested over sequences, above all in {TITLE}: "
        "25% in base, 38% in tuned and 50% in other (differences +10 to +15 points and +20 to +30 points, 95% intervals)."
    ]
    (untested,) = verdict(comparison(values))
    assert untested.startswith("Whether tuned and other differ from base cannot be tested")
    assert untested.endswith(f"is in {TITLE}: 25% in base, 38% in tuned and 50% in other.")
    noise = [(group, metric, *numbers, 0.9) for group, metric, *numbers, _ in tests]
    assert verdict(comparison(values, sequence_tests=noise)) == [
        f"No detectable difference of tuned and other from base: 2 measures tested over sequences; the largest is in {TITLE}: "
        "25% in base, 38% in tuned and 50% in other."
    ]


def test_many_groups_of_one_finding_are_told_by_the_ends():
    values = [("base", MEAN, 0.25), *((f"run {number}", MEAN, 0.3 + number / 100) for number in range(8))]
    (sentence,) = verdict(comparison(values))
    assert sentence.startswith("Whether 8 groups of runs differ from base")
    assert sentence.endswith(f"{TITLE}: 25% in base, and from 30% (run 0) to 37% (run 7) in the others.")


def test_equal_groups_share_a_sentence_too():
    values = [(group, MEAN, 0.25) for group in ("base", "same", "alike")]
    assert verdict(comparison(values)) == [
        "base, same and alike are equal up to rounding in every common measure (1), also layer by layer."
    ]


def test_one_group_needs_no_verdict():
    assert verdict(comparison([("base", MEAN, 0.25)])) == []


def test_of_seeds_alone_the_block_is_told_and_what_they_change():
    values = [("base", metric, value) for metric, ends in ((MEAN, (0.2, 0.24)), (LEAST, (0, 1))) for value in ends]
    seeds = [("base", SHARE, 2, 0.5, 0.4, 0.6), ("base", MEAN, 2, 0.22, 0.18, 0.26), ("base", LEAST, 2, 0.5, 0, 1)]
    steady = [("base", SHARE, 0.45), ("base", SHARE, 0.52)]
    told = "Mixing ratio (attention block, AttnResLn-N) in base is 22% over 2 seeds (95% interval 18% to 26%)."
    assert verdict(comparison([*values, *steady], seeds=seeds, labels=["seed=0", "seed=1"] * 3)) == [
        told, "No measure varies over seeds by a tenth of its range.",
    ]  # fmt: skip
    layers = [("base", SHARE, layer, value) for layer, ends in ((1, (0.4, 0.5)), (2, (0.7, 0.4))) for value in ends]
    moved = [("base", SHARE, 0.6), ("base", SHARE, 0.4), *layers]
    assert verdict(comparison([*values, *moved], seeds=seeds, labels=["seed=0", "seed=1"] * 5)) == [
        told,
        "Seeds change this measure most: signed share of other tokens (attention block, AttnResLn-N), from 40% (seed=1) to "
        "60% (seed=0), most in layer 2.",
    ]


def test_a_number_of_its_own_is_no_category():
    assert metric_title("norms/share/heads") == "number of heads"
    assert metric_title("norms/share/cls") == "signed share of the attention output ([CLS])"


def test_a_small_and_precise_difference_does_not_win():
    """98 against 97 points in an interval of a tenth of a point, and 40 against 20 points in one of thirty."""
    weights = "mixing/attn_w/mean"
    values = [("base", weights, 0.97), ("tuned", weights, 0.98), ("base", SHARE, 0.2), ("tuned", SHARE, 0.4)]
    tests = [("tuned", weights, 0.01, 0.0095, 0.0105, 1e-4), ("tuned", SHARE, 0.2, 0.05, 0.35, 0.01)]
    (sentence,) = verdict(comparison(values, sequence_tests=tests))
    assert f"{metric_title(SHARE)} changes most: 20% → 40%" in sentence


def test_a_share_differs_by_as_much_as_it_does_in_the_layer_where_it_differs_most():
    """By hand: 2 points over all layers, less than a tenth, but 27% → 61% in layer 6; the other measure by 9 points."""
    values = [("base", MEAN, 0.25), ("tuned", MEAN, 0.27), ("base", SMALL, 0.5), ("tuned", SMALL, 0.59)]
    layers = [("base", MEAN, 5, 0.24), ("tuned", MEAN, 5, 0.24), ("base", MEAN, 6, 0.27), ("tuned", MEAN, 6, 0.61)]
    tests = [("tuned", SMALL, 0.09, 0.08, 0.1, 1e-4), ("tuned", MEAN, 0.02, 0.01, 0.03, 1e-4)]
    assert verdict(comparison([*values, *layers], sequence_tests=tests)) == [
        f"From base to tuned, {TITLE} changes most in layer 6: 27% → 61%; over all layers, 25% → 27% (difference +1.0 to +3.0 "
        "points, 95% interval). 2 of 2 measures tested over sequences differ."
    ]
    norms = [(group, NORM, *rest) for group, *rest in [("base", 1.0), ("tuned", 1.02)]]
    norms += [("base", NORM, 1, 0.01), ("tuned", NORM, 1, 0.02)]
    (sentence,) = verdict(comparison(norms, sequence_tests=[("tuned", NORM, 0.02, 0.01, 0.03, 1e-4)]))
    assert sentence.endswith("each by less than a tenth of its range."), "a value near zero may double"


def test_the_size_of_a_difference_is_a_part_of_the_natural_range():
    assert effect(MEAN, 0.25, 0.35) == pytest.approx(0.1), "shares lie between 0 and 1"
    assert effect("norms/share/cls", 0.004, -0.002) == pytest.approx(0.006), "also where they are no percentages"
    assert effect(NORM, 1.0, 1.5) == pytest.approx(1 / 3), "others are relative to the larger"
    assert effect(NORM, 0.0, 0.0) == 0


def along(key, places, metrics):
    labels = [f"at {place}" for place in places]
    rows = [
        (label, metric, 0, value)
        for metric, values in metrics.items()
        for label, value in zip(labels, values, strict=True)
    ]
    found = comparison([(label, *rest) for label, *rest in rows])
    found.swept, found.runs = [key], pd.DataFrame({"label": labels, key: list(map(str, places))})
    return found


STEPS = [0, 30, 60, 90]
TOP = "36% at step 60, and ends at"


@pytest.mark.parametrize(
    ("key", "places", "values", "sentence"),
    [
        (
            "model.step",
            STEPS,
            [0.21, 0.3, 0.36, 0.14],
            "rises from 21% at step 0 to 36% at step 60, and ends at 14% at step 90.",
        ),
        (
            "model.step",
            STEPS,
            [0.5, 0.3, 0.1, 0.4],
            "falls from 50% at step 0 to 10% at step 60, and ends at 40% at step 90.",
        ),
        ("model.step", STEPS, [0.1, 0.2, 0.3, 0.4], "rises from 10% at step 0 to 40% at step 90."),
        (
            "model.step",
            STEPS,
            [0.1, 0.2, 0.41, 0.4],
            "rises from 10% at step 0 to 40% at step 90, fastest between step 30 (20%) and step 60 (41%).",
        ),
        ("layers", ["[1]", "[2]", "[10]"], [0.4, 0.3, 0.2], "falls from 40% at layer 1 to 20% at layer 10."),
        ("dataset.limit", [1000, 10, 100], [0.4, 0.2, 0.3], "rises from 20% at limit 10 to 40% at limit 1,000."),
    ],
)
def test_an_ordered_variable_is_told_with_its_turning_point(key, places, values, sentence):
    assert verdict(along(key, places, {MEAN: values})) == [f"M{TITLE[1:]} {sentence}"]


def test_the_block_is_told_first_and_what_hardly_moves_is_not_told():
    special, rest = "norms/alpha/cls", "norms/alpha/other"
    metrics = {special: [0.1, 0.4, 0.2], rest: [0.9, 0.1, 0.8]}
    assert [story.sentence for story in stories(along("layers", ["[1]", "[2]", "[3]"], metrics))] == [
        "α, summed ([CLS]) rises from 0.10 at layer 1 to 0.40 at layer 2, and ends at 0.20 at layer 3."
    ], "ordinary tokens get what special ones lose"
    metrics = {SHARE: [0.1, 0.5, 0.9], MEAN: [0.2, 0.3, 0.35], SMALL: [0.5, 0.51, 0.55], LEAST: [0.0, 0.5, 1.0]}
    assert [story.metric for story in stories(along("model.step", [0, 1, 2], metrics))] == [MEAN, SHARE]


def test_that_nothing_moves_along_an_ordered_variable_comes_first():
    found = along("layers", ["[1]", "[3]", "[5]"], {MEAN: [0.25, 0.22, 0.27], SHARE: [0.5, 0.51, 0.55]})
    start = "From layer 1 to layer 5, no measure changes by a tenth of its range"
    first, *others = verdict(found)
    assert first == f"{start}: the {TITLE} stays between 22% and 27%."
    assert len(others) == 1, "what tests say of the groups follows"
    (alone,) = standstill(along("layers", ["[1]", "[3]", "[5]"], {SHARE: [0.5, 0.51, 0.55]}))
    assert alone == f"{start}: the {metric_title(SHARE)} stays between 50% and 55%."
    assert standstill(along("layers", ["[1]", "[3]", "[5]"], {MEAN: [0.25, 0.22, 0.5]})) == []
    assert standstill(along("model.name", ["a", "b", "c"], {MEAN: [0.25, 0.22, 0.27]})) == []


def test_the_layer_that_moves_most_is_told():
    found = along("model.step", [0, 1, 2], {MEAN: [0.2, 0.3, 0.4]})
    layers = [
        (f"at {step}", MEAN, layer, value)
        for layer, ends in ((1, (0.1, 0.2, 0.3)), (2, (0.3, 0.4, 0.6)))
        for step, value in enumerate(ends)
    ]
    found.values = pd.concat([found.values, comparison(layers).values], ignore_index=True)
    assert verdict(found)[0].endswith("rises from 20% at step 0 to 40% at step 2; most in layer 2 (30% → 60%).")


@pytest.mark.parametrize(
    ("models", "first"),
    [
        (["attn_n", "attnres_n", "attnresln_n"], "attention block, AttnResLn-N"),
        (
            ["attn_w", "attn_n", "attnres_w", "attnres_n"],
            "vectors + residual, AttnRes-N",
        ),  # of a model with its norms before attention
    ],
)
def test_the_measure_that_takes_in_the_most_of_the_block_leads_whatever_it_is_called(models, first):
    metrics = {f"mixing/{method}/{kind}": [0.1, 0.4, 0.9] for kind in ("share", "mean") for method in models}
    metrics["mixing/attn_n/share"] = [0.0, 0.5, 1.0]
    sentence = verdict(along("model.step", [0, 1, 2], metrics))[0]
    assert sentence.startswith(f"Mixing ratio ({first}) ")
    layers_of_networks = {f"feedforward/{stage}/mean": [0.1, 0.4, 0.9] for stage in ("atb_n", "atbff_n", "atbffres_n")}
    assert verdict(along("model.step", [0, 1, 2], layers_of_networks))[0].startswith(
        "Mixing ratio (network + residual, AtbFfRes) "
    )
    assert leading(["own/tiny", "norms/f/other", "norms/f/cls"]) == "norms/f/other"
    assert leading(["own/tiny"]) == ""


def test_groups_are_furthest_apart_in_a_cell_or_else_in_a_layer():
    """By hand: 10 against 41 points at [SEP] of layer 3; 25 against 36 in layer 1."""
    at = ("mixing/heatmap", "attention block (AttnResLn-N)", "layer")
    cells = [
        (2, *at, layer, "category", "mixing ratio (%)", token, group, value)
        for layer, token, *ends in (("3", "sep", 10.0, 41.0), ("3", "all", 20.0, 30.0), ("1", "sep", 50.0, 40.0))
        for group, value in zip(("base", "tuned"), ends, strict=True)
    ]
    layers = [("base", MEAN, 1, 0.25), ("tuned", MEAN, 1, 0.36), ("base", MEAN, 2, 0.5), ("tuned", MEAN, 2, 0.45)]
    tests = [("tuned", MEAN, 0.125, 0.1, 0.15, 0.001)]
    (sentence,) = verdict(comparison([*VALUES, *layers], sequence_tests=tests, cells=cells))
    assert f"{TITLE} changes most in layer 3, [SEP]: 10% → 41%; over all layers, 25% → 38% (difference" in sentence
    (sentence,) = verdict(comparison([*VALUES, *layers], sequence_tests=tests))
    assert f"{TITLE} changes most in layer 1: 25% → 36%; over all layers, 25% → 38% (difference" in sentence
    more = [("other", MEAN, 0.375), ("other", MEAN, 1, 0.25), ("other", MEAN, 2, 0.25)]
    several = comparison([*VALUES, *layers, *more], sequence_tests=[*tests, ("other", *tests[0][1:])])
    assert verdict(several)[0].endswith("; furthest apart in layer 1 (25% → 36%) and layer 2 (50% → 25%).")
    other_depth = [(4 if row[-2] == "tuned" else 2, *row[1:]) for row in cells]
    (sentence,) = verdict(comparison(VALUES, sequence_tests=tests, cells=other_depth))
    assert f"{TITLE} changes most: 25% → 38%" in sentence, "layers of models of different depth are not the same"


def test_tests_over_other_texts_say_so():
    tests = [("tuned", MEAN, 0.125, 0.1, 0.15, 0.001, False)]
    (sentence,) = verdict(comparison(VALUES, sequence_tests=tests))
    assert sentence.endswith("1 of 1 measure tested over sequences that are not the same differs.")


def test_runs_that_repeat_another_are_told_first():
    found = comparison(VALUES[:3])
    found.repeated = {"base": 2}
    assert verdict(found) == [
        "2 runs of base measured the same weights, texts and seeds in the same way: they count once."
    ]


@pytest.mark.parametrize(
    ("key", "places"), [("model.name", ["a", "b", "c"]), ("model.step", [0, 1]), ("layers", ["all", "[1]", "[2]"])]
)
def test_what_has_no_order_has_no_story(key, places):
    assert stories(along(key, places, {MEAN: [0.1, 0.5, 0.9][: len(places)]})) == []


def test_the_curve_of_a_story_has_the_numbers_of_its_sentence():
    (story,) = stories(along("model.step", STEPS, {MEAN: [0.21, 0.3, 0.36, 0.14]}))
    figure = story.figure()
    assert figure.table["step"].tolist() == STEPS
    assert figure.table[figure.y].tolist() == pytest.approx([21, 30, 36, 14])
    assert (figure.y_label, figure.steps) == ("mixing ratio (%)", True)


def test_a_line_says_of_each_run_how_large_the_leading_measure_is_and_where_it_differs_most():
    layers = [("base", MEAN, 5, 0.2), ("tuned", MEAN, 5, 0.25), ("base", MEAN, 6, 0.27), ("tuned", MEAN, 6, 0.61)]
    found = comparison([*VALUES, *layers])
    found.metrics = pd.DataFrame({"metric": [SHARE, MEAN], "base": [0.125, 0.25], "tuned": [0.13, 0.375]})
    assert in_a_line(found) == {
        TITLE: {"base": "25.0%", "tuned": "37.5%"},
        "furthest from base": {"tuned": "layer 6: 27% → 61%"},
    }
    found.metrics = found.metrics.assign(metric=["own/a", "own/b"])
    assert in_a_line(found) == {}


def test_the_measure_of_the_first_sentence_has_a_curve_beside_it():
    tests = [("tuned", MEAN, 0.125, 0.1, 0.15, 0.001), ("tuned", SHARE, 0.005, 0.0, 0.01, 0.04)]
    assert named_first(comparison(VALUES, sequence_tests=tests)) == MEAN
    assert named_first(comparison(VALUES[:3])) == ""
