"""The table at the end of a sweep: which measures, in which order, and how they are written."""

from types import SimpleNamespace

import pandas as pd

from normscope.reporting.comparison.in_terminal import line, most_different
from normscope.results.result import Result

COLUMNS = ["group", "metric", "difference", "low", "high", "adjusted"]
MEAN, SHARE, LEAST, OTHER = (
    "mixing/attnresln_n/mean",
    "mixing/attnresln_n/share",
    "mixing/attnresln_n/min",
    "own/number",
)
RATIO = "mixing ratio (attention block, AttnResLn-N)"
OF_OTHERS = "signed share of other tokens (attention block, AttnResLn-N)"


def comparison(metrics: dict[str, dict[str, float]], tests=(), seeds=()):
    table = pd.DataFrame(metrics).T.rename_axis("metric").reset_index()
    return SimpleNamespace(
        metrics=table,
        tests=pd.DataFrame(columns=COLUMNS),
        sequence_tests=pd.DataFrame(tests, columns=COLUMNS),
        seeds=pd.DataFrame(seeds, columns=["group", "metric", "runs", "mean", "low", "high"]),
        values=pd.DataFrame({"group": ["base", "tuned"]}),
        swept=[],
    )


METRICS = {
    LEAST: {"base": 0.01, "tuned": 0.5},
    OTHER: {"base": 1.0, "tuned": 1000.0},
    MEAN: {"base": 0.25, "tuned": 0.2625},
    SHARE: {"base": 0.125, "tuned": 0.25},
}


def test_named_measures_come_before_others_and_larger_differences_before_smaller():
    table = most_different(comparison(METRICS))
    assert table.index.tolist() == [OF_OTHERS, RATIO, OTHER]
    assert table.loc[RATIO].tolist() == ["25.0%", "26.3%"]
    assert table.loc[OTHER].tolist() == ["1.00", "1,000"]


def test_what_differs_beyond_noise_comes_first():
    tests = [("tuned", MEAN, 0.0125, 0.01, 0.015, 0.001), ("tuned", SHARE, 0.125, -0.1, 0.35, 0.4)]
    assert most_different(comparison(METRICS, tests)).index.tolist() == [RATIO, OF_OTHERS, OTHER]


def test_the_largest_difference_is_on_top_however_precise_a_smaller_one_is():
    tests = [("tuned", MEAN, 0.0125, 0.0124, 0.0126, 0.001), ("tuned", SHARE, 0.125, 0.025, 0.225, 0.001)]
    assert most_different(comparison(METRICS, tests)).index.tolist() == [OF_OTHERS, RATIO, OTHER]


def test_many_runs_are_rows_beside_three_measures():
    runs = [f"run {number}" for number in range(8)]
    metrics = {
        metric: {run: float(at + 1) for at, run in enumerate(runs)} for metric in (MEAN, SHARE, OTHER, "own/more")
    }
    table = most_different(comparison(metrics))
    assert table.index.tolist() == runs
    assert table.shape == (8, 3)


def test_a_value_that_a_run_does_not_have_is_empty():
    assert most_different(comparison({MEAN: {"base": 0.25, "other": float("nan")}})).loc[RATIO].tolist() == [
        "25.0%",
        "",
    ]


def test_runs_with_long_labels_are_rows_too():
    metrics = {MEAN: {f"a model with a long name {at}": float(at) for at in range(3)}}
    assert most_different(comparison(metrics)).shape == (3, 1)


def test_names_that_do_not_fit_beside_their_columns_are_abbreviated():
    metrics = {metric: {f"layers=[{layer}]": 0.25 for layer in (1, 3, 5)} for metric in (MEAN, SHARE)}
    table = most_different(comparison(metrics))
    assert table.index.tolist() == ["mixing ratio (attention block)", "signed share of other tokens (attention block)"]


def test_seeds_are_one_column():
    metrics = {MEAN: {f"{group} {seed}": 0.25 for group in ("base", "tuned") for seed in range(2)}}
    seeds = [(group, MEAN, 2, mean, mean - 0.01, mean + 0.01) for group, mean in (("base", 0.25), ("tuned", 0.5))]
    table = most_different(comparison(metrics, seeds=seeds))
    assert table.loc[RATIO].to_dict() == {"base": "25.0%", "tuned": "50.0%"}
    alone = comparison(metrics, seeds=seeds[:1])
    alone.values = alone.values[:1]
    assert most_different(alone).loc[RATIO].to_dict() == {"mean": "25.0%", "low (95%)": "24.0%", "high (95%)": "26.0%"}


def test_a_run_of_several_is_a_line_with_one_measure():
    metrics = {LEAST: 0.1, OTHER: 5.0, SHARE: 0.125, MEAN: 0.25}
    assert line(Result(metrics=metrics)) == "mixing ratio (attention block) 25.0%"
    assert line(Result(metrics={OTHER: 5.0, SHARE: 0.125})) == "signed share of other tokens (attention block) 12.5%"
    assert line(Result(metrics={OTHER: 5.0})) == "completed"
