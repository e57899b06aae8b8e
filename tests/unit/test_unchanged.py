"""Which curves and maps a comparison leaves out, by hand: those in which nothing changes, and what is said of them."""

import pandas as pd
import pytest

from normscope.reporting.comparison.changes import (
    changed_maps,
    in_one_line,
    maps_in_one_line,
    unchanged_curves,
    unchanged_over_steps,
)

WEIGHTS, BLOCK, NORM = "mixing/attn_w/mean", "mixing/attnresln_n/mean", "norms/f/cls"


def curves(rows, depth=2):
    values = pd.DataFrame(rows, columns=["group", "metric", "layer", "value"])
    return values.assign(depth=values["layer"] / depth)


@pytest.mark.parametrize(
    ("metric", "base", "tuned", "still"),
    [
        (WEIGHTS, (0.96, 0.95), (0.96, 0.968), True),  # 1.8 points
        (WEIGHTS, (0.96, 0.95), (0.96, 0.972), False),  # 2.2 points
        (NORM, (10.0, 0.1), (10.0, 0.25), True),  # more than twice as much, but a hundredth of the axis
        (NORM, (10.0, 0.1), (10.3, 0.1), False),
    ],
)
def test_curves_differ_if_a_reader_can_see_it_in_a_layer(metric, base, tuned, still):
    values = curves(
        (group, metric, layer, value)
        for group, own in (("base", base), ("tuned", tuned))
        for layer, value in enumerate(own, 1)
    )
    assert unchanged_curves(values) == [metric] * still


def test_curves_differ_if_their_intervals_over_seeds_have_nothing_in_common():
    """Two seeds each: half an interval is 12.7 times half their distance, so 2.5 around 1.2 and 1.8, and 0.06 around 1.005."""
    wide = curves([*(("base", NORM, 1, value) for value in (1.0, 1.4)), *(("tuned", NORM, 1, v) for v in (1.6, 2.0))])
    assert unchanged_curves(wide) == [NORM]
    narrow = curves([*(("base", NORM, 1, v) for v in (1.0, 1.01)), *(("tuned", NORM, 1, v) for v in (1.6, 1.61))])
    assert unchanged_curves(narrow) == []


def test_one_group_and_models_of_different_depth_keep_their_curves():
    assert unchanged_curves(curves([("base", BLOCK, 1, 0.2), ("base", BLOCK, 2, 0.2)])) == []
    different = pd.concat([curves([("base", BLOCK, 1, 0.2)], 1), curves([("tuned", BLOCK, 1, 0.2)], 2)])
    assert unchanged_curves(different) == []
    alone = [("base", BLOCK, 1, 0.2), ("base", NORM, 1, 1.0), ("tuned", BLOCK, 1, 0.2)]
    assert unchanged_curves(curves(alone)) == [BLOCK], "only one group has the other"


def test_over_training_a_measure_moves_in_the_whole_model_or_in_a_layer():
    rows = [
        (metric, "train", layer, step, value)
        for metric, layer, values in (
            (WEIGHTS, 0, (0.9, 0.91)),
            (WEIGHTS, 1, (0.9, 0.91)),
            (BLOCK, 0, (0.3, 0.31)),
            (BLOCK, 1, (0.3, 0.5)),
        )
        for step, value in enumerate(values)
    ]
    training = pd.DataFrame(rows, columns=["metric", "group", "layer", "step", "mean"])
    assert unchanged_over_steps(training) == [WEIGHTS]


def test_what_is_not_drawn_is_named_in_one_line():
    every = [WEIGHTS, "mixing/attn_n/mean", BLOCK, "norms/f/cls", "norms/f/sep"]
    assert in_one_line([], every=every) == []
    assert in_one_line([WEIGHTS, "norms/f/cls", "norms/f/sep"], every=every) == [
        "Not drawn, since nothing changes: Mixing ratios (attention weights, Attn-W); Vector norms: ‖f(x)‖."
    ]


CELLS = ["group", "depth", "figure", "value_title", "panel", "row", "column", "value"]


def test_maps_that_look_alike_are_left_out_and_named():
    def cells(panel, figure, label, base, tuned):
        places = [("1", "1"), ("1", "2")]
        return [
            (group, 2, figure, label, panel, *place, value)
            for group, values in (("base", base), ("tuned", tuned))
            for place, value in zip(places, values, strict=True)
        ]

    percent = ("mixing/heatmap", "mixing ratio (%)")
    every = pd.DataFrame(
        [
            *cells("attention weights (Attn-W)", *percent, (96.0, 5.0), (95.0, 6.5)),
            *cells("attention block (AttnResLn-N)", *percent, (27.0, 20.0), (61.0, 20.0)),
            *cells("‖αf(x)‖, cls", "norms/by_head", "‖αf(x)‖", (1.0, 0.01), (1.0, 0.02)),
            *cells("‖αf(x)‖, sep", "norms/by_head", "‖αf(x)‖", (1.0, 0.01), (1.0, 0.2)),
        ],
        columns=CELLS,
    )
    drawn = changed_maps(every)
    assert list(drawn["panel"].unique()) == ["attention block (AttnResLn-N)", "‖αf(x)‖, sep"]
    assert maps_in_one_line(every, drawn) == [
        "Not drawn, since nothing changes: Mixing ratios (attention weights, Attn-W); Vector norms: ‖αf(x)‖ (‖αf(x)‖, [CLS])."
    ]
    assert changed_maps(every[every["group"] == "base"])["panel"].nunique() == 4, "nothing to compare with"
    one = every[(every["group"] == "base") | (every["panel"] == "attention weights (Attn-W)")]
    assert list(changed_maps(one)["panel"].unique()) == [*every["panel"].unique()][1:]
    zero = pd.DataFrame(cells("‖αf(x)‖, cls", "norms/by_head", "‖αf(x)‖", (0.0, 0.0), (0.0, 0.0)), columns=CELLS)
    assert changed_maps(zero).empty
    assert maps_in_one_line(every, every) == []
