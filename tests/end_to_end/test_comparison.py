"""A sweep ends with a comparison of its runs, even if jobs fail; so does the command, on any folders."""

import base64
import csv
import dataclasses
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from markupsafe import Markup

from normscope.analyses.registry import analyses
from normscope.reporting.comparison import compare as compare_runs
from normscope.reporting.comparison import significance, swept
from normscope.reporting.comparison.along import by_layer
from normscope.reporting.comparison.map_figures import maps_of_groups, merged_maps
from normscope.reporting.comparison.page import comparison_page
from normscope.reporting.comparison.run_comparison import RunComparison
from normscope.reporting.comparison.runs import cells_of, settings, table_of
from normscope.reporting.comparison.runs import depth as depth_of
from normscope.reporting.comparison.runs import read as runs_in
from normscope.reporting.drawing import laid_out
from normscope.reporting.figures.style import styled
from normscope.reporting.options import PAGE
from normscope.reporting.page.elements import table as html_table
from normscope.results.figures import Heatmaps
from normscope.results.measures import families
from normscope.results.result import Result
from normscope.results.run_tables import COMPARISON
from normscope.statistics.intervals import Sample, mean_test
from tests.end_to_end.browser import needs_browser, opened
from tests.end_to_end.shell import run_here, run_once
from tests.tiny import FAMILY_CONFIGS, tiny_model


@pytest.fixture(scope="module")
def deeper_model(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("models") / "deeper"
    config = FAMILY_CONFIGS["bert"] | {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": 5,
        "max_position_embeddings": 160,
    }
    tiny_model(config, torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sweep(saved_model, deeper_model, tmp_path_factory):
    """Two analyses of two models; there is no third one, so that a job fails."""
    folder = tmp_path_factory.mktemp("sweep") / "sweep"
    outcome = run_once(
        "-m",
        f"model.name={saved_model},{deeper_model},{folder}/missing",
        "analysis=[mixing,norms]",
        "dataset.limit=6",
        "dataset.max_length=16",
        "tracking=disabled",
        "device=cpu",
        f"output_dir={folder}",
    )
    return outcome, folder


@pytest.mark.slow
def test_a_sweep_compares_what_completed_and_names_what_failed(sweep, deeper_model):
    outcome, folder = sweep
    assert outcome.status == 1
    assert "1 of 3 jobs failed" in outcome.err
    assert "comparison.html" in outcome.err
    values = pd.read_parquet(folder / "comparison.parquet")
    assert list(values) == list(COMPARISON.columns)
    runs = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("*/results.json")}
    completed = {name for name, result in runs.items() if result["status"] == "completed"}
    assert set(values["run"]) == completed
    assert len(completed) == 2
    assert not (folder / "2").exists(), "a job that failed before it began leaves no folder"
    for row in values[values["layer"] == 0].itertuples():
        assert row.value == runs[row.run]["metrics"][row.metric]
    deepest = values[(values["layer"] > 0) & (values["depth"] == 1)]
    assert set(deepest["layer"]) == {FAMILY_CONFIGS["bert"]["num_hidden_layers"], 5}
    page = (folder / "comparison.html").read_text()
    assert "missing: expected an existing folder" in page, "a failed job is named with its reason"
    assert f'<td class="word">{deeper_model.name}</td>' in page


def test_exports_hold_the_tables_numbers(sweep):
    _, folder = sweep
    values = pd.read_parquet(folder / "comparison.parquet")
    whole = values[values["layer"] == 0].set_index(["metric", "label"])["value"]
    with (folder / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["metric"] for row in rows} == set(whole.index.get_level_values(0))
    for row in rows:
        for label, cell in row.items():
            if label != "metric" and cell:
                assert float(cell) == whole[row["metric"], label]


@pytest.fixture(scope="module")
def compared(sweep):
    """The comparison of the sweep."""
    _, folder = sweep
    return compare_runs.compared(*runs_in([folder]))


@pytest.mark.slow
@needs_browser
@pytest.mark.draws
def test_the_page_in_a_browser(compared, tmp_path):
    page = compare_runs.write(compared, tmp_path)
    shown, console = opened(page, "#values_layers_0")
    assert console == []
    layers = compared.values[compared.values["layer"] > 0]
    figures = by_layer(compared.values)
    assert shown.count('role="img"') > len(figures)
    assert shown.count("<caption>") == 2, "runs, and the opened values of a figure"
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", shown)
    assert {"mixing ratio (%)", "‖f(x)‖", "expansion rate"} <= set(texts), "axes are titled in words"
    assert {"relative depth", *layers["label"].unique()} <= set(texts), "the models differ in depth"
    assert "attn_n" not in re.sub(r"<script.*?</script>|<table.*?</table>", "", shown, flags=re.S)


@pytest.mark.slow
def test_every_run_is_a_line_in_every_panel(compared):
    """Of the same numbers as in the tables, in the units of the axis; the table below the figure has them too."""
    layers = compared.values[compared.values["layer"] > 0].set_index(["metric", "group", "layer"])["value"]
    seen = 0
    for shown in by_layer(compared.values):
        (figure,) = shown.figures
        with styled():
            canvas = laid_out(figure, PAGE)
        metrics = list(figure.panel_titles or [figure.table["metric"].iloc[0]])
        for axes, metric in zip(canvas.axes, metrics, strict=False):
            factor = 100 if figure.y_label.endswith("(%)") else 1
            for line, group in zip(axes.get_lines(), figure.series_titles, strict=False):
                own = layers[metric][group].sort_index()
                np.testing.assert_allclose(line.get_ydata(), factor * own)
                np.testing.assert_allclose(line.get_xdata(), own.index / own.index.max())
                seen += len(own)
        assert len(shown.values) == len(figure.table)
        assert shown.values["mean"].tolist() == figure.table["mean"].tolist()
    assert seen == len(layers)


def test_differences_and_seeds(tmp_path):
    metric = "mixing/attn_n/mean"
    numbers = [0.31, 0.34, 0.29]
    runs = [_run(seed=seed, metrics={metric: value}) for seed, value in enumerate(numbers, 1)]
    found = _compared(tmp_path, *runs, baseline=tmp_path / "model2")
    assert list(found.runs["label"]) == ["model.seed=1", "model.seed=2", "model.seed=3"]
    assert found.baseline == "model.seed=2"
    assert found.values.set_index("label")["difference"].to_dict() == pytest.approx(
        {"model.seed=1": -0.03, "model.seed=2": 0, "model.seed=3": -0.05}
    )
    row = found.seeds.iloc[0]
    assert row["runs"] == 3
    assert row["mean"] == pytest.approx(sum(numbers) / 3)
    # Student's t with two degrees of freedom is 4.303 at 97.5 %.
    mean, error = np.mean(numbers), pd.Series(numbers).std() / 3**0.5
    end = np.log(mean / (1 - mean)) + 4.30265 * error / (mean * (1 - mean))  # a share: on the scale of log-odds
    assert row["high"] == pytest.approx(1 / (1 + np.exp(-end)), rel=1e-4)


@pytest.mark.parametrize(
    ("folders", "labels"),
    [
        (["base", "tuned"], ["base", "tuned"]),
        (["0", "1"], ["weights=aaaaaaaa (1st run)", "weights=bbbbbbbb (2nd run)"]),
        (["one/final", "two/final"], ["weights=aaaaaaaa (1st run)", "weights=bbbbbbbb (2nd run)"]),
    ],
)
def test_runs_that_only_digests_tell_apart_are_called_by_their_folders(tmp_path, folders, labels):
    """A model that was trained in place: the same name, other weights."""
    runs = {tmp_path / folder: _run() for folder in folders}
    for result, digest in zip(runs.values(), "ab", strict=True):
        result.facts.update(weights_from="files", model_sha256=digest * 64, training=None)
    assert list(compare_runs.compared(runs, []).runs["label"]) == labels


def test_different_analyses_of_one_model_share_a_label(tmp_path):
    runs = [
        _run(name=name, metrics={metric: 1.0}, analysis=metric.partition("/")[0])
        for name in "ab"
        for metric in ("mixing/attn_n/mean", "norms/f/mean")
    ]
    found = _compared(tmp_path, *runs)
    assert list(found.runs["label"]) == ["a", "a", "b", "b"]
    assert list(found.metrics) == ["metric", "a", "b"]
    assert found.metrics.notna().all(axis=None)


@pytest.mark.slow
def test_the_command_on_any_folders(sweep, capsys, monkeypatch, tmp_path):
    _, folder = sweep
    chosen = [str(folder / name) for name in sorted(path.parent.name for path in folder.glob("*/results.json"))[:2]]
    outcome = run_here(
        capsys, monkeypatch, "compare", *chosen, f"--output={tmp_path / 'both'}", "--baseline", chosen[1]
    )
    assert (outcome.status, outcome.err) == (0, "")
    assert "2 models on the sample corpus: " in outcome.out
    assert outcome.out.splitlines()[-1] == str(tmp_path / "both/comparison.html")
    assert (tmp_path / "both/comparison.html").exists()
    refused = run_here(capsys, monkeypatch, "compare", *chosen, "--baseline", "nothing")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "expected one of" in refused.err


def _run(*, seed=0, name="model", metrics=None, curves=(), analysis="norms", **config) -> Result:
    nested = {"model": {"name": name, "seed": seed}, "dataset": {"name": "wikitext"}, "layers": "all"}
    nested["analysis"] = {analysis: {"enabled": True}}
    for key, value in config.items():
        section, _, last = key.partition("__")
        if last:
            nested[section][last] = value
        else:
            nested[section] = value
    return Result(
        tables={"curves": pd.DataFrame(curves, columns=["curve", "layer", "depth", "value"])},
        metrics=metrics or {"norms/f/mean": 1.0},
        facts={"model": name, "sequences": 2, "tokens": 3, "seconds": 74.0, **_read(nested)},
        config=nested,
    )


def _read(config):
    """The facts of runs whose keys tell all weights and texts apart, and whose models were trained from several seeds."""
    model, dataset = config["model"], config["dataset"]
    drawn = bool(model.get("random_init"))
    own = {"weights_from": "seed" if drawn else "files", "weights_seed": model["seed"], "config_sha256": model["name"]}
    own |= {} if drawn else {"training": model["name"], "training_step": model.get("step")}
    return own | {"model_sha256": str(model), "texts_digest": str(dataset)}


def _in(folder, *runs: Result) -> dict[Path, Result]:
    """Runs by folders, which are named after their models and seeds."""
    named = {}
    for run in runs:
        name = f"{run.config['model']['name']}{run.config['model']['seed']}".replace("/", "-")
        named[folder / (f"{name}-{len(named)}" if folder / name in named else name)] = run
    return named


def _compared(folder, *runs: Result, **chosen) -> RunComparison:
    return compare_runs.compared(_in(folder, *runs), [], **chosen)


def _configs(runs) -> list[dict[str, object]]:
    return [settings(run) for run in runs]


@pytest.mark.parametrize(
    ("configs", "labels", "title"),
    [
        (
            [{"model__revision": "a" * 40}, {"model__revision": "b" * 40}],
            ["model.revision=aaaaaaaa", "model.revision=bbbbbbbb"],
            "2 checkpoints of model on wikitext",
        ),
        (
            [{"model__revision": f"{'a' * 39}1"}, {"model__revision": f"{'a' * 39}2"}],
            [f"model.revision={'a' * 39}1", f"model.revision={'a' * 39}2"],
            "2 checkpoints of model on wikitext",
        ),
        (
            [{"dataset__limit": None, "model__random_init": True}, {"dataset__limit": 5, "model__random_init": False}],
            ["dataset.limit=null model.random_init=true", "dataset.limit=5 model.random_init=false"],
            "2 runs over 2 values of dataset.limit and 2 values of model.random_init of model on wikitext",
        ),
        (
            [{"name": "one/step-10/model"}, {"name": "two/step-10/model"}, {"name": "two/step-20/model"}],
            ["one/step-10/model", "two/step-10/model", "step-20/model"],
            "3 models on wikitext",
        ),
        (
            [{"name": "a", "model__revision": "x"}, {"name": "b", "model__revision": "y"}],
            ["a", "b"],
            "2 models on wikitext",
        ),
        (
            [{"layers": "all"}, {"layers": [3]}],
            ["layers=all", "layers=[3]"],
            "2 choices of layers of model on wikitext",
        ),
        (
            [
                {"dataset__name": "squad", "dataset__kind": "hub"},
                {"dataset__name": "sample", "dataset__kind": "sample"},
            ],
            ["dataset.name=squad", "dataset.name=sample"],
            "2 datasets of model",
        ),
        (
            [{"dataset__path": "old/text.txt"}, {"dataset__path": "new/text.txt"}],
            ["dataset.path=old/text.txt", "dataset.path=new/text.txt"],
            "2 datasets of model",
        ),
        (
            [{"name": name, "seed": seed} for name in "ab" for seed in range(3)],
            [f"{name} model.seed={seed}" for name in "ab" for seed in range(3)],
            "2 models × 3 seeds on wikitext",
        ),
        (
            [{"name": "a"}, *({"name": "b", "seed": seed} for seed in range(3))],
            ["a model.seed=0", *(f"b model.seed={seed}" for seed in range(3))],
            "4 runs over 2 models and 3 seeds on wikitext",
        ),
        ([{"dataset__limit": 1}, {"dataset__limit": 2}], ["dataset.limit=1", "dataset.limit=2"], None),
    ],
)
def test_labels_and_title_tell_what_was_swept(configs, labels, title):
    runs = [_run(**config) for config in configs]
    assert swept.labels(_configs(runs)) == labels
    assert swept.title(_configs(runs)) == (title or "2 values of dataset.limit of model on wikitext")


def test_a_checkpoint_that_both_names_and_revisions_distinguish_is_labelled():
    runs = [_run(name=name, model__revision=revision) for name, revision in [("a", "x"), ("a", "y"), ("b", "x")]]
    assert swept.labels(_configs(runs)) == ["a model.revision=x", "a model.revision=y", "b model.revision=x"]


def test_the_page_links_to_reports_and_lists_what_was_swept(tmp_path):
    runs = _in(tmp_path / "a run's #1", *(_run(seed=seed) for seed in range(2)))
    first = next(iter(runs))
    first.mkdir(parents=True)
    (first / "report.html").write_text("report")
    page = compare_runs.write(compare_runs.compared(runs, []), tmp_path / "compared").read_text()
    assert "<h1>2 seeds of model on wikitext</h1>" in page
    assert '<a href="../a%20run%27s%20%231/model0/report.html">model.seed=0</a>' in page
    assert "model.seed=1</a>" not in page, "a run without a report is not linked"
    table = page[page.index("<table>") : page.index("</table>")]
    assert re.findall(r"<th [^>]*>(.*?)</th>", table) == ["run", "seed", "sequences", "tokens", "time"]
    assert "1 min 14 s" in table


@pytest.fixture(scope="module")
def two_groups():
    """Two models with three and four seeds, unequal variances, and one metric that no seed changes."""
    numbers = {"a": [1.0, 1.2, 1.1], "b": [2.0, 3.0, 1.5, 2.5]}
    return pd.DataFrame(
        [
            {"group": group, "metric": metric, "value": value}
            for group, values in numbers.items()
            for number in values
            for metric, value in [
                ("x", number),
                ("y", number % 0.7),
                ("constant", 5.0),
                ("x/max", number),
                ("cv_min", number),
            ]
        ]
    )


def test_differences_between_seeds_are_those_of_scipy(two_groups):
    table = significance.tests(two_groups, "a").set_index("metric")
    assert list(table.index) == ["x", "y"], "neither extremes nor what no seed changes are tested"
    expected = {}
    for metric, row in table.iterrows():
        of_metric = two_groups[two_groups["metric"] == metric]
        a, b = (of_metric.loc[of_metric["group"] == group, "value"] for group in "ab")
        welch = scipy.stats.ttest_ind(b, a, equal_var=False)
        expected[metric] = welch.pvalue
        assert row["difference"] == pytest.approx(b.mean() - a.mean())
        assert row["p"] == pytest.approx(welch.pvalue)
        assert (row["low"], row["high"]) == pytest.approx(tuple(welch.confidence_interval(0.95)))
    # By hand: the smaller of two p-values doubles, unless the larger is below that.
    small, large = sorted(expected.values())
    assert sorted(table["adjusted"]) == pytest.approx([min(2 * small, large), large])


def test_groups_of_one_run_are_not_tested(two_groups):
    single = two_groups.groupby(["group", "metric"]).head(1)
    assert significance.tests(single, "a").empty
    means = significance.over_seeds(single, ["group", "metric"])
    assert means["mean"].tolist() == single["value"].tolist()
    assert means[["low", "high"]].isna().all(axis=None), "nor have they intervals"


def test_minima_and_maxima_are_folded_away(tmp_path):
    metrics = {"norms/f/mean": 1.0, "norms/f/cv_max": 2.0, "mixing/min": 3.0, "norms/minute": 4.0}
    runs = [_run(seed=seed, metrics=metrics) for seed in range(2)]
    page = compare_runs.write(_compared(tmp_path, *runs), tmp_path).read_text()
    rows = {
        name: next(column["values"] for column in table["columns"] if column["name"] == "measure")
        for name, table in _tables_of(page).items()
    }
    assert rows["table_metrics"] == ["mean ‖f(x)‖", "norms/minute"]
    assert rows["table_metrics_extremes"] == ["largest coefficient of variation of ‖f(x)‖", "mixing/min"]
    assert '<details id="table_metrics_extremes" data-table="table_metrics_extremes">' in page


def _tables_of(page):
    """The data of the folded tables of a page."""
    packed = re.search(r'id="tables-data">(.*?)</script>', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_curves_over_seeds_have_intervals(tmp_path):
    values = {0: [1.0, 2.0], 1: [3.0, 8.0]}
    runs = [
        _run(
            seed=seed,
            curves=[("norms/f/cls", layer, layer / 2, value) for layer, value in enumerate(line, 1)],
        )
        for seed, line in values.items()
    ]
    (shown,) = by_layer(_compared(tmp_path, *runs).values)
    table = shown.values
    assert table["layer"].tolist() == [1, 2]
    assert table["mean"].tolist() == [2.0, 5.0]
    # Student's t with one degree of freedom is 12.706; the standard error of 2 values is half of their difference.
    assert (table["high"] - table["mean"]).tolist() == pytest.approx([12.7062, 12.7062 * 3], rel=1e-5)


def test_curves_have_titles_and_axes_in_words():
    names = ["mixing/attn_w/mean", "mixing/attn_n/mean", "norms/f/cls", "norms/f/mine", "norms/expansion"]
    names += ["outliers/mean/308", "score/share_of_key_bias", "elsewhere/some/curve", "norms/unheard/of"]
    found = {
        family.name: (family.title, {name: (panel.title, panel.label) for name, panel in family.panels.items()})
        for family in families(names, together=True)
    }
    assert found == {
        "mixing/mean": (
            "Mixing ratios",
            {
                "mixing/attn_w/mean": ("attention weights (Attn-W)", "mixing ratio (%)"),
                "mixing/attn_n/mean": ("weighted vectors (Attn-N)", "mixing ratio (%)"),
            },
        ),
        "norms/f": (
            f"{analyses()['norms'].title}: ‖f(x)‖",
            {"norms/f/cls": ("[CLS]", "‖f(x)‖"), "norms/f/mine": ("mine", "‖f(x)‖")},
        ),
        "norms": (
            analyses()["norms"].title,
            {"norms/expansion": ("", "expansion rate"), "norms/unheard/of": ("unheard of", "")},
        ),
        "outliers/mean": (
            f"{analyses()['outliers'].title}: mean value",
            {"outliers/mean/308": ("dimension 308", "mean value")},
        ),
        "score": (analyses()["score"].title, {"score/share_of_key_bias": ("", "share of b_K")}),
        "elsewhere": ("elsewhere", {"elsewhere/some/curve": ("some curve", "")}),
    }


@pytest.mark.parametrize("name", analyses())
def test_every_curve_has_the_title_of_its_axis(name):
    declared = analyses()[name].declared
    for curve in declared.curves:
        table, _, column = curve.of.partition(".")
        assert curve.label or declared.tables[table].label(column), curve.name


def _sample(values, counts, names=None, metric="mixing/attn_n/mean"):
    sequences = range(len(values)) if names is None else names
    return pd.DataFrame({"metric": metric, "sequence": sequences, "count": counts, "value": values})


@pytest.fixture(scope="module")
def sequences():
    """Two models on sixty sequences of unequal length, whose values share most of their variance."""
    generator = np.random.default_rng(7)
    counts = generator.integers(5, 50, size=60)
    common = generator.normal(0.3, 0.1, size=60)
    return counts, common, common + generator.normal(0.01, 0.02, size=60)


def _tested(*samples):
    """Interval and p."""
    return tuple(float(value) for value in mean_test(*samples)[1:])


def test_differences_over_sequences_are_those_of_their_test(sequences):
    counts, a, b = sequences
    order = np.random.default_rng(1).permutation(60)
    samples = {"a": [_sample(a, counts)], "b": [_sample(b[order], counts[order], order)]}
    (row,) = significance.over_sequences(samples, "a").itertuples()
    assert (row.group, row.metric, row.sequences, row.paired) == ("b", "mixing/attn_n/mean", 60, True)
    assert row.difference == pytest.approx((counts * b).sum() / counts.sum() - (counts * a).sum() / counts.sum())
    expected = _tested(Sample(b - a, counts.astype(float)))
    assert (row.low, row.high, row.p) == pytest.approx(expected)
    assert row.adjusted == row.p


def test_sequences_that_only_one_run_has_are_not_paired(sequences):
    counts, a, b = sequences
    paired = significance.over_sequences({"a": [_sample(a, counts)], "b": [_sample(b, counts)]}, "a").iloc[0]
    apart = significance.over_sequences(
        {"a": [_sample(a, counts)], "b": [_sample(b, counts, range(100, 160))]}, "a"
    ).iloc[0]
    assert not apart["paired"]
    assert apart["difference"] == pytest.approx(paired["difference"])
    expected = _tested(Sample(b, counts.astype(float)), Sample(a, counts.astype(float)))
    assert (apart["low"], apart["high"], apart["p"]) == pytest.approx(expected)
    # What sequences have in common is most of their variance.
    assert apart["high"] - apart["low"] > 3 * (paired["high"] - paired["low"])
    assert paired["p"] < apart["p"]
    # Sequences with the same names but other lengths are not the same.
    longer = significance.over_sequences({"a": [_sample(a, counts)], "b": [_sample(b, counts + 1)]}, "a").iloc[0]
    assert not longer["paired"]


@pytest.mark.parametrize(("names", "fewest"), [(range(60), 5), (range(100, 160), 10)], ids=["paired", "unpaired"])
def test_few_sequences_are_not_tested(sequences, names, fewest):
    counts, a, b = sequences
    for size in (1, 2, fewest - 1, fewest):
        samples = {"a": [_sample(a[:size], counts[:size])], "b": [_sample(b[:size], counts[:size], names[:size])]}
        assert len(significance.over_sequences(samples, "a")) == (size == fewest)


def test_groups_of_several_seeds_are_left_to_the_test_over_seeds(sequences):
    counts, a, b = sequences
    one, several = [_sample(a, counts)], [_sample(b, counts), _sample(b + 0.01, counts)]
    assert significance.over_sequences({"a": one, "b": several}, "a").empty
    assert significance.over_sequences({"b": several, "a": one}, "b").empty
    assert significance.over_sequences({"b": one}, "a").empty


def test_differences_that_no_sequence_shows_are_left_out(sequences):
    counts, a, _ = sequences
    for same in (a, a * (1 + 1e-8), a + 0.125):
        assert significance.over_sequences({"a": [_sample(a, counts)], "b": [_sample(same, counts)]}, "a").empty


def test_p_is_adjusted_for_the_rows_of_the_table(sequences):
    counts, a, b = sequences
    ends = [pd.concat([_sample(a, counts), _sample(a, counts, metric="other")])]
    other = [pd.concat([_sample(b, counts), _sample(a + 0.3 * (b - a - 0.01), counts, metric="other")])]
    table = significance.over_sequences({"a": ends, "b": other}, "a")
    small, large = sorted(table["p"])
    assert small < large
    assert sorted(table["adjusted"]) == pytest.approx([min(2 * small, large), large])


def _with_sequences(run, values):
    return dataclasses.replace(run, tables={**run.tables, "sequences": _sample(values, 7)})


@pytest.mark.slow
def test_runs_are_tested_over_sequences_unless_seeds_decide(tmp_path, sequences):
    _, a, b = sequences
    first, second = _run(name="a"), _run(name="b")
    found = _compared(tmp_path, _with_sequences(first, a), _with_sequences(second, b))
    (row,) = found.sequence_tests.itertuples()
    assert row.difference == pytest.approx((b - a).mean())
    # An analysis that was run on its own is a part of the same group.
    parts = [second, _with_sequences(_run(name="b", analysis="mixing"), b)]
    assert len(_compared(tmp_path, _with_sequences(first, a), *parts).sequence_tests) == 1
    seeds = [_with_sequences(_run(name="b", seed=seed), b + seed) for seed in range(3)]
    assert _compared(tmp_path, _with_sequences(first, a), *seeds).sequence_tests.empty
    drawn = _with_sequences(_run(name="b", model__random_init=True), b)
    assert _compared(tmp_path, _with_sequences(first, a), drawn).sequence_tests.empty
    assert _compared(tmp_path, drawn, _with_sequences(first, a)).sequence_tests.empty
    called_zero = _with_sequences(_run(name="b", model__step=0), b)
    assert len(_compared(tmp_path, _with_sequences(first, a), called_zero).sequence_tests) == 1, "a name proves nothing"


def test_p_values_at_their_floor_are_upper_bounds(tmp_path, sequences):
    _, a, b = sequences
    runs = [_with_sequences(_run(name=name), values) for name, values in {"a": a, "b": b + 1}.items()]
    page = compare_runs.write(_compared(tmp_path, *runs), tmp_path / "compared").read_text()
    table = _tables_of(page)["table_sequences"]
    columns = {column["name"]: column for column in table["columns"]}
    assert columns["p"]["values"] == columns["adjusted"]["values"] == [0.0004]
    assert columns["p"]["bounds"] == columns["adjusted"]["bounds"] == [True]
    assert "bounds" not in columns["low"]


def _cells(group, shift=0.0, figure="mixing/heatmap", layers=(1, 2, 10), depth=10, names=("cls", "all")):
    rows = [
        {"group": group, "figure": figure, "panel": panel, "row": str(layer), "column": name, "value": layer + shift}
        for panel in ("attention weights (Attn-W)", "weighted vectors (Attn-N)")
        for layer in layers
        for name in names
    ]
    titles = {"row_title": "layer", "column_title": "category", "value_title": "mixing ratio (%)"}
    return pd.DataFrame(rows).assign(depth=depth, **titles)


def _maps(grid, panel):
    """The maps of one panel by title: what is drawn, by row and column."""
    rows = grid.table if grid.panel is None else grid.table[grid.table[grid.panel] == panel]
    rows = rows.set_index([grid.row, grid.column])
    return {title: rows[name].to_dict() for name, title in grid.values.items()}


def _same(found, expected):
    assert found == pytest.approx(expected, nan_ok=True)


def test_maps_of_groups_are_beside_those_of_the_baseline():
    cells = pd.concat([_cells("a"), _cells("b", 0.5, layers=(1, 2)), _cells("b", figure="mixing/alone")])
    found = maps_of_groups(cells, "a")
    (part,) = found
    assert part.title == "Mixing ratios", "a figure that the baseline does not have is left out"
    maps, differences = part.figures
    assert (maps.row, maps.column, maps.value_label) == ("layer", "category", "mixing ratio (%)")
    assert [title for title, _ in maps.panels()] == ["attention weights (Attn-W)", "weighted vectors (Attn-N)"]
    assert (maps.diverging, maps.limits) == (False, (0, 10))
    shown = _maps(maps, "weighted vectors (Attn-N)")
    assert list(shown) == ["a", "b"]
    places = [(layer, name) for layer in (1, 2, 10) for name in ("[CLS]", "all")]
    _same(shown["b"], {(row, name): row + 0.5 if row < 10 else np.nan for row, name in places})
    assert (differences.diverging, differences.value_label) == (True, "difference (percentage points)")
    changes = _maps(differences, "weighted vectors (Attn-N)")
    assert list(changes) == ["b − a"]
    _same(changes["b − a"], {(row, name): 0.5 if row < 10 else np.nan for row, name in places})
    table = part.values.set_index(["panel", "layer", "category"]).loc["weighted vectors (Attn-N)"]
    for title, values in (shown | changes).items():
        _same(table[title].to_dict(), values)


def test_panels_of_maps_name_special_tokens_as_papers_do():
    cells = pd.concat([_cells(group) for group in ("a", "b")]).replace(
        {"panel": {"attention weights (Attn-W)": "α, summed, cls"}}
    )
    (part,) = maps_of_groups(cells, "a")
    assert part.values["panel"].unique().tolist() == ["α, summed, [CLS]", "weighted vectors (Attn-N)"]


def test_quantities_of_a_figure_have_scales_of_their_own():
    one, other = _cells("a"), _cells("b", -3.0)
    both = pd.concat([one, other])
    single = both[both["panel"] == "weighted vectors (Attn-N)"].assign(value_title="α", panel="α, cls", value=0.25)
    mixed = pd.concat([both, single])
    first, second = maps_of_groups(mixed, "a")
    assert (first.title, second.title) == ("Mixing ratios", "Mixing ratios: α")
    assert first.figures[0].diverging, "of both signs"
    assert (second.figures[0].limits, second.figures[0].panel) == ((0, 0.25), None)
    assert second.values["panel"].unique().tolist() == ["[CLS]"], "its quantity is the title"
    assert second.figures[1].value_label == "difference in α"


def test_of_many_groups_some_have_maps():
    cells = pd.concat([_cells(f"step {number}") for number in range(20)])
    (part,) = maps_of_groups(cells, "step 0")
    assert list(part.figures[0].values.values()) == ["step 0", "step 1", "step 7", "step 13", "step 19"]


@pytest.mark.parametrize("name", ["layer", "category", "panel", "map 0"])
def test_a_group_may_have_the_name_of_an_axis(name):
    cells = pd.concat([_cells("a"), _cells(name, 0.5)])
    (part,) = maps_of_groups(cells, "a")
    assert list(_maps(part.figures[0], "weighted vectors (Attn-N)")) == ["a", name]


@pytest.mark.parametrize(("deep", "shallow"), [(12, 6), (3, 2), (5, 4), (2, 1)])
def test_maps_of_models_of_different_depth_are_compared_by_relative_depth(deep, shallow):
    """Half-way through each layer of the deepest model, the maps are those of the layers that are there."""
    cells = pd.concat(
        [
            _cells("a", layers=range(1, shallow + 1), depth=shallow, names=("cls",)),
            _cells("b", 100.0, layers=range(1, deep + 1), depth=deep, names=("cls",)),
        ]
    )
    (part,) = maps_of_groups(cells, "a")
    maps, differences = (_maps(figure, "weighted vectors (Attn-N)") for figure in part.figures)
    for layer in range(1, deep + 1):
        other = int((layer - 0.5) / deep * shallow) + 1
        assert maps["a"][layer, "[CLS]"] == other
        assert maps["b"][layer, "[CLS]"] == 100 + layer
        assert differences["b − a"][layer, "[CLS]"] == 100 + layer - other
    assert len(maps["a"]) == deep


def test_layers_that_a_run_left_out_have_no_difference():
    cells = pd.concat([_cells("a", layers=(1, 2), depth=2), _cells("b", layers=(1, 4), depth=4)])
    (part,) = maps_of_groups(cells, "a")
    found = {row: value for (row, _), value in _maps(part.figures[1], "weighted vectors (Attn-N)")["b − a"].items()}
    _same(found, {1: 0, 2: np.nan, 3: np.nan, 4: 2})


def test_layers_that_several_runs_have_measured_are_one_map():
    """No run is subtracted from another: each has other layers of the same model."""
    cells = pd.concat([_cells("layers=[1]", layers=(1,)), _cells("layers=[3]", layers=(3,))])
    other = _cells("layers=[1]", figure="mixing/by_category").assign(row_title="category")
    (part,) = merged_maps(pd.concat([cells, other]))
    assert part.title == "Mixing ratios", "a figure without layers is left out"
    (grid,) = part.figures
    assert (grid.row, grid.column, grid.limits) == ("layer", "category", (0, 3))
    assert [title for title, _ in grid.panels()] == ["attention weights (Attn-W)", "weighted vectors (Attn-N)"]
    places = {(layer, name): layer for layer in (1, 3) for name in ("[CLS]", "all")}
    assert _maps(grid, "weighted vectors (Attn-N)") == {"": places}


def test_runs_of_single_layers_are_one_line(tmp_path):
    metric = "mixing/attn_w/mean"
    runs = [_run(name="a", layers=f"[{layer}]", curves=[(metric, layer, layer / 6, layer / 10)]) for layer in (1, 2, 5)]
    runs.append(_run(name="a", layers="[1,1]", curves=[(metric, 1, 1 / 6, 1 / 10)]))
    runs = [dataclasses.replace(run, facts={**run.facts, "model": "owner/a"}) for run in runs]
    found = _compared(tmp_path, *runs)
    assert found.sweeps_layers
    assert not _compared(tmp_path / "other", *runs, _run(name="b", layers="[1]")).sweeps_layers
    table = next(rows for name, rows in _tables_of(comparison_page(found)).items() if name.startswith("values_layers"))
    columns = {column["name"]: column["values"] for column in table["columns"]}
    assert columns["group"] == ["a"] * 3
    assert columns["layer"] == [1, 2, 5]
    assert "low" not in columns, "a layer that two runs have measured is not two seeds"


def _with_a_map(run):
    rows = pd.DataFrame({"layer": [1, 2, 10], "category": "cls", "mean": [0.1, 0.2, 0.3]})
    return dataclasses.replace(
        run, figures={"norms_heatmap": Heatmaps(rows, {"mean": "‖f(x)‖"}, "layer", "category", "")}
    )


def test_runs_know_the_depth_of_their_model(tmp_path):
    assert depth_of(_run(curves=[("a", 2, 2 / 7, 1.0), ("a", 5, 5 / 7, 2.0)])) == 7
    assert depth_of(_run()) is None
    runs = [_with_a_map(_run(name=f"of {depth}", curves=[("a", 1, 1 / depth, 1.0)])) for depth in (10, 20)]
    depths = _compared(tmp_path, *runs).heatmaps.groupby("group")["depth"].unique()
    assert depths.map(list).to_dict() == {"of 10": [10], "of 20": [20]}
    cells = _compared(tmp_path, *(_with_a_map(_run(name=f"of {depth}")) for depth in (10, 20))).heatmaps
    (part,) = maps_of_groups(cells, "of 10")
    assert part.values["layer"].unique().tolist() == [1, 2, 10], "of unknown depth: layer by layer"


@pytest.mark.slow
def test_maps_are_called_means_over_seeds_only_if_there_are_several(sweep):
    _, folder = sweep
    runs, _ = runs_in([folder])
    found = compare_runs.compared(runs, [])
    mean = {"group": "a", "metric": "mixing/attn_w/mean", "runs": 2, "mean": 0.5, "low": 0.4, "high": 0.6}
    for seeds in (0, 1):
        means = pd.DataFrame([mean] * seeds, columns=list(mean))
        page = comparison_page(dataclasses.replace(found, seeds=means))
        assert ("Groups are means over seeds." in page) == bool(seeds)


@pytest.mark.slow
def test_a_sweep_keeps_what_comparisons_need(sweep):
    """Means of single sequences give the metric, and heat maps have the numbers of their tables."""
    _, folder = sweep
    runs, _ = runs_in([folder])
    seen = 0
    for path, run in runs.items():
        for metric, rows in table_of(run, "sequences").groupby("metric"):
            assert len(rows) == run.facts["sequences"]
            assert np.average(rows["value"], weights=rows["count"]) == pytest.approx(run.metrics[metric])
        cells = cells_of(run).query("figure == 'mixing/heatmap'")
        if len(cells):
            seen += 1
            table = pd.read_parquet(path / "tables" / "mixing_by_layer.parquet")
            assert sorted(cells["value"]) == pytest.approx(sorted(100 * table["mean"]))
    assert seen
    found = compare_runs.compared(runs, [])
    by_group = found.sequence_tests.set_index(["group", "metric"])["difference"]
    assert len(by_group)
    means = found.values[found.values["layer"] == 0].groupby(["group", "metric"])["value"].mean()
    for (group, metric), difference in by_group.items():
        assert difference == pytest.approx(means[group, metric] - means[found.baseline_group, metric])
    assert set(found.heatmaps["group"]) == {found.baseline_group, *by_group.index.get_level_values("group")}


def test_the_page_ends_with_a_line_for_each_run_and_draws_only_what_changes(tmp_path):
    """By hand: layer 2 goes from 27 to 61%; weights stay, and are named."""
    block, weights = "mixing/attnresln_n/mean", "mixing/attn_w/mean"
    runs = [
        _run(
            name=f"models/{name}",
            analysis="mixing",
            metrics={weights: 0.96, block: (0.25 + last) / 2},
            curves=[(weights, 1, 0.5, 0.96), (weights, 2, 1.0, 0.96), (block, 1, 0.5, 0.25), (block, 2, 1.0, last)],
        )
        for name, last in (("base", 0.27), ("tuned", 0.61))
    ]
    page = comparison_page(_compared(tmp_path, *runs))
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert titles == ["Verdict", "By layer", "Tables", "Runs"]
    assert "Not drawn, since nothing changes: Mixing ratios (attention weights, Attn-W)." in page
    table = page[page.index("<table>") : page.index("</table>")]
    assert re.findall(r"<th [^>]*>(.*?)</th>", table)[:3] == [
        "run",
        "mixing ratio (attention block, AttnResLn-N)",
        "furthest from base",
    ]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row)[:3] for row in table.split("<tr>")[2:]]
    assert rows == [["base", "26.0%", ""], ["tuned", "43.0%", "layer 2: 27% → 61%"]]
    told = page[page.index('id="verdict"') : page.index('id="layers"')]
    assert told.count("<figure") == 1, "the curve of the measure that is named"


def test_the_title_of_a_long_cell_is_its_text_also_if_it_is_a_link():
    link = Markup('<a href="{}">{}</a>').format("x" * 80, "step <1>")
    shown = html_table(pd.DataFrame({"run": pd.Series([link, "y" * 200], dtype=object)}), "Runs")
    assert 'title="step' not in shown
    assert f'title="{"y" * 200}"' in shown
    assert str(link) in shown
