"""Comparisons of checkpoints: labels, means over seeds at each step, and the steps at which measures cross thresholds."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import yaml
from markupsafe import escape

import normscope
from normscope.cli.command_line import asked_of
from normscope.config.schema import plain
from normscope.distribution import RUN_SCHEMA
from normscope.errors import InputError
from normscope.reporting import viewing
from normscope.reporting.comparison import compare, runs, swept
from normscope.reporting.comparison.along import crossings, maps_over_steps, over_steps, over_training
from normscope.results.run_tables import CROSSINGS, TRAINING
from normscope.running.options import RunOptions

STEPS = [0, 1, 10, 100]


def viewed(*words: str):
    asked, _ = asked_of(words)
    return viewing.command(asked)


def saved(folder, *, name, step, seed=0, revision=None, value=1.0, curve=(1.0, 2.0)):
    """A run's folder with what a comparison reads."""
    options = plain(RunOptions(seed=seed))
    options["model"] |= {"name": name, "revision": revision, "seed": seed}
    options["dataset"] |= {"kind": "sample", "name": "sample", "seed": seed}
    options["analysis"]["mixing"]["enabled"] = True
    (folder / "tables").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    facts = {"model": name, "training_step": step, "sequences": 2, "tokens": 9, "seconds": 1.0}
    metrics = {"mixing/attn_n/mean": value, "mixing/attn_n/max": value, "mixing/attn_n/min": value}
    (folder / "results.json").write_text(
        json.dumps({"schema": RUN_SCHEMA, "status": "completed", "metrics": metrics, "facts": facts})
    )
    rows = [("mixing/attn_n/mean", layer, layer / len(curve), number) for layer, number in enumerate(curve, 1)]
    table = pd.DataFrame(rows, columns=["curve", "layer", "depth", "value"])
    table.to_parquet(folder / "tables/curves.parquet", index=False)


@pytest.mark.parametrize(
    ("models", "labels", "title"),
    [
        (
            [("/a/run/checkpoint-5", None, 5), ("/a/run/checkpoint-1000", None, 1000)],
            ["step 5", "step 1,000"],
            "2 checkpoints of run on the sample corpus",
        ),
        (
            [("x/pythia", "step0", 0), ("x/pythia", "step512", 512), ("x/pythia", "main", None)],
            ["step 0", "step 512", "model.revision=main"],
            "3 checkpoints of pythia on the sample corpus",
        ),
        (
            [("g/bert-step_0k", None, 0), ("g/bert-step_20k", None, 20_000), ("g/large-step_20k", None, 20_000)],
            ["bert step 0", "bert step 20,000", "large step 20,000"],
            "3 runs over 2 models and 2 checkpoints on the sample corpus",
        ),
        ([("/r/one", None, 3), ("/r/two", None, 4)], ["step 3", "step 4"], "2 checkpoints of r on the sample corpus"),
        (
            [("x/m", "abc", 3), ("x/m", "def", 4)],
            ["step 3", "step 4"],
            "2 checkpoints of m on the sample corpus",
        ),
    ],
)
def test_checkpoints_are_labelled_by_their_steps(models, labels, title, tmp_path):
    for number, (name, revision, step) in enumerate(models):
        saved(tmp_path / str(number), name=name, revision=revision, step=step)
    found, _ = runs.read([tmp_path])
    assert swept.labels(list(map(runs.settings, found.values()))) == labels
    assert swept.title(list(map(runs.settings, found.values()))) == title


def test_the_title_says_that_weights_are_random():
    random, trained = (
        [
            {"model.name": "x/m", "model.random_init": init, "model.seed": seed, "dataset.name": "sample"}
            for seed in "012"
        ]
        for init in (True, False)
    )
    assert swept.title(random) == "3 seeds of m with random weights on the sample corpus"
    assert swept.title(trained) == "3 seeds of m on the sample corpus"


def test_seeds_that_follow_the_seed_are_one_column(tmp_path):
    for seed in range(2):
        saved(tmp_path / str(seed), name="x/m", step=None, seed=seed)
    assert swept.labels(list(map(runs.settings, runs.read([tmp_path])[0].values()))) == ["seed=0", "seed=1"]


@pytest.fixture(scope="module")
def values():
    """Two trainings: one with three seeds, whose measure rises; one with one seed, whose measure falls and has gaps."""
    generator = np.random.default_rng(3)
    rows = [
        {"group": "a", "line": f"a {seed}", "metric": metric, "layer": layer, "step": step, "value": value}
        for seed in range(3)
        for metric in ("x", "x/max")
        for layer in (0, 1)
        for step, value in zip(STEPS, np.sort(generator.normal(size=4)), strict=True)
    ]
    rows += [
        {"group": "b", "line": "b", "metric": "x", "layer": 0, "step": step, "value": value}
        for step, value in zip(reversed(STEPS), [1.0, np.nan, 2.0, 5.0], strict=True)
    ]
    rows += [{"group": "c", "line": "c", "metric": "x", "layer": 0, "step": step, "value": 1.0} for step in (7, None)]
    rows += [{"group": "a", "line": "a 0", "metric": "flat", "layer": 0, "step": step, "value": 2.0} for step in STEPS]
    return pd.DataFrame(rows).astype({"step": "Int64"})


def test_means_over_seeds_at_every_step(values):
    table = over_training(values)
    assert list(table) == list(TRAINING.columns)
    assert set(table["group"]) == {"a", "b"}, "one step is no training"
    for row in table.itertuples():
        own = values[
            (values["group"] == row.group)
            & (values["metric"] == row.metric)
            & (values["layer"] == row.layer)
            & (values["step"] == row.step)
        ]["value"].dropna()
        assert row.runs == len(own)
        if len(own) > 1:
            interval = scipy.stats.t.interval(0.95, len(own) - 1, own.mean(), scipy.stats.sem(own))
            assert (row.mean, row.low, row.high) == pytest.approx((own.mean(), *interval))
        else:
            assert np.isnan(row.low)
            assert np.isnan(row.high)
    for _, rows in table.groupby(["group", "metric", "layer"]):
        assert rows["step"].is_monotonic_increasing


def first_beyond(line, threshold):
    """By a loop over the steps."""
    line = line.dropna(subset="value").sort_values("step")
    began = line["value"].iloc[0]
    for step, value in zip(line["step"], line["value"], strict=True):
        if began == threshold or value == threshold or (value > threshold) != (began > threshold):
            return step
    return np.nan


@pytest.mark.parametrize("thresholds", [{}, {"x": 0.3}, {"x": 99.0}, {"x": 5.0}])
def test_the_first_step_beyond_a_threshold(values, thresholds):
    table = crossings(values, thresholds)
    assert list(table) == list(CROSSINGS.columns)
    assert set(table["metric"]) == {"x"}, "neither extremes nor what does not change"
    assert set(table["group"]) == {"a", "b"}
    for row in table.itertuples():
        own = values[(values["group"] == row.group) & (values["metric"] == "x") & (values["layer"] == row.layer)]
        means = own.groupby("step")["value"].mean()
        assert row.threshold == pytest.approx(thresholds.get("x", (means.loc[0] + means.loc[100]) / 2))
        steps = pd.Series([first_beyond(line, row.threshold) for _, line in own.groupby("line")], dtype=float)
        assert (row.runs, row.crossed) == (len(steps), steps.notna().sum())
        assert row.step == pytest.approx(steps.mean(), nan_ok=True)
        if row.crossed > 1:
            half = scipy.stats.t.ppf(0.975, row.crossed - 1) * scipy.stats.sem(steps.dropna())
            assert (row.low, row.high) == pytest.approx((row.step - half, row.step + half))


@pytest.mark.slow
def test_the_page_of_checkpoints(tmp_path):
    for number, (seed, step) in enumerate((seed, step) for seed in range(2) for step in STEPS):
        saved(
            tmp_path / str(number),
            name=f"/t/run/checkpoint-{step}",
            step=step,
            seed=seed,
            value=float(seed + step),
            curve=(float(step), 1.0),
        )
    words = ["compare", str(tmp_path), "--threshold"]
    written = viewed(*words, "mixing/attn_n/mean=40")
    assert written == tmp_path / "comparison.html"
    page = written.read_text()
    assert "<h1>4 checkpoints × 2 seeds of run on the sample corpus</h1>" in page
    assert 'id="training"' in page
    assert 'id="layers"' not in page, "the same curves are not shown twice"
    found = compare.compared(*runs.read([tmp_path]))
    (shown,) = over_steps(found.training)
    (figure,) = shown.figures
    assert (figure.steps, figure.y_label, figure.band) == (True, "mixing ratio (%)", ("low", "high"))
    assert shown.values[["group", "step", "mean"]].to_numpy().tolist() == [
        ["run", step, value] for step, value in zip(STEPS, (50, 150, 1050, 10050), strict=True)
    ], "in per cent"
    (shown,) = maps_over_steps(found.training)
    (figure,) = shown.figures
    assert list(figure.values.values()) == ["weighted vectors (Attn-N)"]
    cells = figure.table.set_index(["layer", "step"])["mixing/attn_n/mean"].to_dict()
    assert cells == {(1, str(step)): 100 * step for step in STEPS} | {(2, str(step)): 100 for step in STEPS}
    assert list(dict.fromkeys(figure.table["step"])) == ["0", "1", "10", "100"]
    table = pd.read_csv(tmp_path / "crossings.csv")
    assert table.query("layer == 0")[["threshold", "crossed", "step"]].to_numpy().tolist() == [[40, 2, 100]]
    assert len(pd.read_parquet(tmp_path / "training.parquet")) == 4 * (3 + 2)
    with pytest.raises(InputError, match="no run has this metric; expected one such as mixing/attn_n/mean"):
        viewed(*words, "mixing/attn/mean=40")


def test_thresholds_of_metrics_that_no_run_has_are_refused(tmp_path):
    saved(tmp_path / "0", name="x/m", step=1)
    with pytest.raises(InputError, match="--threshold nothing"):
        compare.compared(*runs.read([tmp_path]), thresholds={"nothing": 1.0})


@pytest.mark.slow
def test_the_page_of_results_in_memory_is_that_of_their_folders(tmp_path):
    for number in range(2):
        saved(tmp_path / str(number), name="x/m", step=number, value=0.2 + 0.3 * number)
    results = [normscope.read(tmp_path / str(number)) for number in range(2)]
    content = normscope.page(results, tmp_path / "page.html")
    assert content == (tmp_path / "page.html").read_text()
    assert content == viewed("compare", str(tmp_path)).read_text()
    sentences = normscope.compare(results).sentences
    assert sentences
    assert all(escape(sentence) in content for sentence in sentences)
