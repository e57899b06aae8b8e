"""Charts hold the numbers of their figures. Whether they are drawn is a question for a browser (end_to_end/test_report.py)."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.findings import (
    Dots,
    Findings,
    HeatmapGrid,
    HeatmapPanels,
    Lines,
    Profiles,
    Scatter,
    WordMaps,
)
from normscope.reporting.drawing import laid_out
from normscope.reporting.figure_text import caption_of
from normscope.reporting.page import charts
from normscope.reporting.page.charts import chart, is_wide, series_style
from normscope.reporting.page.elements import table_data
from normscope.reporting.page.report import repeated
from normscope.running.conclusions import tidy_heatmaps

GRID = pd.DataFrame(
    [
        (layer, head, category, 0.1 * layer - head)
        for layer in (1, 2)
        for head in (1, 2, 3)
        for category in ("cls", "sep")
    ],
    columns=["layer", "head", "category", "value"],
)


def rows(spec):
    assert json.loads(json.dumps(spec)) == spec
    return pd.DataFrame(spec["data"]["columns"])


def lines(table=GRID[GRID["head"] == 1], **options):
    return Lines(table, "layer", "value", "category", "caption", "values", **options)


def test_lines_hold_their_table_under_their_titles():
    spec = chart(lines(series_titles={"sep": "separators", "cls": "classes", "mask": "masks"}))
    found = rows(spec).set_index(["layer", "category"])["value"].to_dict()
    expected = {(layer, title): 0.1 * layer - 1 for layer in (1, 2) for title in ("classes", "separators")}
    assert found == pytest.approx(expected)
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert scale == {"domain": ["separators", "classes"], "range": ["#E69F00", "#0072B2"]}


def test_panels_of_lines_are_in_order():
    spec = chart(lines(GRID, panel="head", panel_titles={3: "third", 1: "first"}))
    assert spec["facet"]["sort"] == ["third", "first"]
    assert rows(spec)["panel"].value_counts().to_dict() == {"third": 4, "first": 4}


def test_axes_of_lines_are_those_of_the_figure():
    panels = {"panel": "head", "series_titles": {"cls": "classes"}}
    assert chart(lines(GRID, **panels))["resolve"]["scale"] == {"y": "independent"}
    assert chart(lines(GRID, **panels, sharey=True))["resolve"]["scale"] == {"y": "shared"}
    spec = chart(lines(GRID.assign(value=GRID["value"].abs()), log_y=True))
    assert spec["encoding"]["y"]["scale"] == {"type": "log", "nice": False, "padding": 8}
    assert spec["encoding"]["x"]["axis"]["format"] == "d"
    logarithmic = chart(lines(GRID.assign(value=(GRID["layer"] - 1) * 0.1), log_y=True))
    assert set(rows(logarithmic)["value"].dropna()) == {0.1}, "zeros have no place on a logarithmic axis"
    halves = chart(lines(GRID.assign(layer=GRID["layer"] / 2)))
    assert halves["encoding"]["x"]["axis"] == {"grid": False}, "as integers, 0.6 and 1.4 would both be 1"


def test_axes_of_scatter_plots_leave_out_what_the_figure_trims():
    table = pd.DataFrame({"x": np.arange(1001.0), "y": np.arange(1001.0) ** 2, "panel": "one"})
    figure = Scatter(table, "x", "y", "panel", {"one": "One"}, "x", "y", "caption")
    whole = chart(figure)["spec"]["encoding"]
    assert whole["x"]["scale"] == {"zero": False, "padding": 0, "nice": False, "domain": [-50, 1050]}
    logarithmic = chart(dataclasses.replace(figure, log_x=True))["spec"]["encoding"]["x"]["scale"]
    assert "zero" not in logarithmic, "Vega warns of zero on a logarithmic axis"
    assert logarithmic["type"] == "log"
    assert logarithmic["domain"] == pytest.approx([1000**-0.05, 1000**1.05])
    trimmed = chart(dataclasses.replace(figure, trim=0.1))["spec"]
    # From 100 to 900, and a twentieth of that on either side.
    assert trimmed["encoding"]["x"]["scale"]["domain"] == pytest.approx([60, 940])
    assert trimmed["encoding"]["y"]["scale"]["domain"] == pytest.approx([1e4 - 4e4, 81e4 + 4e4])
    assert trimmed["layer"][0]["mark"]["clip"]
    apart = chart(dataclasses.replace(figure, trim=0.1, sharey=False))["spec"]["encoding"]
    assert "domain" not in apart["y"]["scale"], "every panel has a range of its own"


@pytest.mark.draws
@pytest.mark.parametrize("sharey", [True, False])
def test_axes_of_scatter_plots_are_the_same_on_a_page_and_in_print(sharey):
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"x": generator.uniform(1, 99, 200), "y": generator.uniform(46, 97, 200), "panel": "one"})
    other = pd.DataFrame({"x": [3.0, 4.0, 5.0], "y": [-1.0, -1.0, -1.0], "panel": "two"})
    none = pd.DataFrame({"x": [np.nan], "y": [np.nan], "panel": "three"})
    titles = {"one": "One", "two": "Two", "three": "Three"}
    figure = Scatter(pd.concat([table, other, none]), "x", "y", "panel", titles, "x", "y", "caption", sharey=sharey)
    canvas, spec = laid_out(figure), chart(figure)
    encoding = spec["spec"]["encoding"]
    assert canvas.axes[0].get_xlim() == pytest.approx(encoding["x"]["scale"]["domain"])
    found = rows(spec)
    for axes, title in zip(canvas.axes, titles.values(), strict=True):
        own = found[found["panel"].str.startswith(title) & (found["kind"] == "range")]
        domain = encoding["y"]["scale"]["domain"] if sharey else own["y"].tolist()
        assert axes.get_ylim() == pytest.approx(domain, rel=1e-3)
    assert canvas.axes[0].get_ylim()[0] == pytest.approx(-5.9 if sharey else 43.5, abs=0.3)
    assert spec["resolve"]["scale"]["y"] == ("shared" if sharey else "independent")
    if not sharey:
        (ends,) = (
            layer for layer in spec["spec"]["layer"] if layer["transform"] == [{"filter": "datum.kind == 'range'"}]
        )
        assert ends["mark"]["size"] == 0, "not drawn"


def test_captions_say_which_scales_differ():
    two = {"panel": "head", "series_titles": {"cls": "classes"}}
    scatter = Scatter(GRID, "layer", "value", "category", {"cls": "C", "sep": "S"}, "x", "y", "caption")
    maps = HeatmapGrid(GRID, {"value": "a value", "layer": "another"}, "layer", "head", "caption", "category")
    words = WordMaps(GRID, "category", {"cls": "C", "sep": "S"}, "caption")
    own_range = "caption Each panel has its own range."
    for figure, caption in [
        (lines(GRID, **two), own_range),
        (lines(GRID, **two, sharey=True), "caption"),
        (lines(GRID, **two, limits=(0, 1)), "caption"),
        (lines(GRID[GRID["head"] == 1], **two), "caption"),
        (lines(GRID[GRID["head"] == 1]), "caption"),
        (profiles := Profiles(GRID, "category", "layer", "value", [], "y", "caption"), "caption"),
        (dataclasses.replace(profiles, table=GRID[GRID["category"] == "cls"]), "caption"),
        (
            dataclasses.replace(profiles, table=GRID.assign(value=GRID["value"] ** (5 * (GRID["category"] == "cls")))),
            own_range,
        ),
        (dataclasses.replace(scatter, sharey=False), own_range),
        (scatter, "caption"),
        (maps, "caption Each column of maps has its own scale."),
        (dataclasses.replace(maps, values={"value": "a value"}), "caption"),
        (dataclasses.replace(maps, limits=(0, 1)), "caption"),
        (dataclasses.replace(maps, diverging=True), "caption"),
        (words, "caption Each map has its own scale."),
        (dataclasses.replace(words, largest=1.0), "caption"),
    ]:
        assert caption_of(figure) == caption
    assert chart(lines(GRID, **two))["description"] == own_range


def test_a_category_has_one_colour_everywhere():
    colours, shapes = series_style(["sep", "all", "first"])
    assert colours[:2] == ["#E69F00", "@text"]
    assert colours[2] not in charts.CATEGORY_COLOURS.values()
    assert shapes[0] == series_style(["cls", "sep"])[1][1]
    assert series_style(["rate", "other rate"])[0] == ["#0072B2", "#E69F00"]


def test_heat_maps_hold_every_cell():
    panels = HeatmapPanels(
        GRID[GRID["head"] == 1],
        "category",
        "layer",
        "head",
        "value",
        "caption",
        {"sep": "S", "cls": "C"},
        "%",
        (0.0, 1.0),
    )
    assert len(rows(chart(panels))) == 4
    grid = HeatmapGrid(GRID, {"value": "a value"}, "layer", "head", "caption", "category", diverging=True)
    (part,) = chart(grid)["concat"]
    cells = ["category", "layer", "head"]
    named = GRID.assign(category=GRID["category"].map({"cls": "[CLS]", "sep": "[SEP]"}))
    found = rows(part).set_index(cells)["value"].to_dict()
    assert found == pytest.approx(named.set_index(cells)["value"].to_dict(), rel=1e-3)
    assert part["spec"]["layer"][0]["encoding"]["color"]["scale"]["domain"] == pytest.approx([-2.9, 2.9])
    for values, limits, domain in (
        (1.0, None, [0, 1]),
        (0.3, None, [0, 0.3]),
        (0.0, None, [0, 1]),
        (0.3, (0, 1), [0, 1]),
    ):
        grid = HeatmapGrid(GRID.assign(value=values), {"value": "a value"}, "layer", "head", "caption", "category")
        (part,) = chart(dataclasses.replace(grid, limits=limits))["concat"]
        assert part["spec"]["layer"][0]["encoding"]["color"]["scale"]["domain"] == domain


def test_a_single_heat_map_needs_no_column_for_rows_of_panels():
    table = GRID[GRID["category"] == "cls"].drop(columns="category")
    figure = HeatmapGrid(table, {"value": "a value"}, "layer", "head", "caption")
    spec = chart(figure)
    (part,) = spec["concat"]
    assert "facet" not in part
    assert spec["usermeta"]["letters"] == 0, "no room for titles of rows"
    found = rows(part).set_index(["layer", "head"])["value"].to_dict()
    assert found == pytest.approx(table.set_index(["layer", "head"])["value"].to_dict(), rel=1e-3)
    assert [field["field"] for field in part["encoding"]["tooltip"]] == ["layer", "head", "value"]
    cells = tidy_heatmaps({"own": Findings({}, figures={"map": figure})})
    assert set(cells["figure"]) == {"own/map"}
    assert set(cells["panel"]) == {"a value"}
    assert cells["value"].tolist() == table["value"].tolist()


def test_cells_without_a_value_are_no_zeros():
    """Cells that are NaN and cells that the table does not have are drawn alike, apart from the scale."""
    one = GRID[(GRID["head"] == 1)].assign(value=lambda table: table["value"].abs())
    missing = one.assign(value=one["value"].where(one.index != one.index[0])).iloc[:-1]
    panels = HeatmapPanels(
        missing, "category", "layer", "head", "value", "caption", {"sep": "S", "cls": "C"}, "%", (0.0, 1.0)
    )
    grid = HeatmapGrid(missing, {"value": "a value"}, "layer", "head", "caption", "category")
    for spec in (chart(panels), chart(grid)["concat"][0]):
        assert len(rows(spec)) == 4
        assert rows(spec)["value"].isna().sum() == 2
        grey, coloured = spec["spec"]["layer"][:2]
        assert grey["mark"]["color"] == "@missing"
        assert grey["transform"] == [{"filter": "!isValid(datum.value)"}]
        assert coloured["transform"] == [{"filter": "isValid(datum.value)"}]
        assert "color" in coloured["encoding"]


def test_profiles_hold_the_furthest_series():
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        [(1, head, dimension, generator.normal()) for head in (1, 2, 3) for dimension in range(20)],
        columns=["layer", "head", "dimension", "mean"],
    )
    found = rows(chart(Profiles(table, "layer", "dimension", "mean", [7], "mean C_j", "caption", series="head")))
    for dimension, own in table.groupby("dimension"):
        furthest = max(own["mean"], key=abs)
        row = found[found["dimension"] == dimension].iloc[0]
        assert row["value"] == pytest.approx(furthest, rel=1e-3)
        assert row["base"] == pytest.approx(min(0, own["mean"].min()), rel=1e-3)
        assert row["top"] == pytest.approx(max(0, own["mean"].max()), rel=1e-3)
    assert found["label"].tolist() == ["7" if dimension == 7 else "" for dimension in range(20)]


def test_labels_of_neighbouring_dimensions_do_not_touch():
    values = np.zeros(200)
    values[[50, 52, 55, 57, 150]] = 10.0, 9.8, 9.9, 9.7, -10.0
    table = pd.DataFrame({"layer": 1, "dimension": range(200), "mean": values})
    found = rows(chart(Profiles(table, "layer", "dimension", "mean", [50, 52, 55, 57, 150], "mean", "caption")))
    labelled = found[found["label"] != ""]
    # Of the four neighbours, three fit above each other; the smallest value keeps its tooltip.
    assert set(labelled["label"]) == {"50", "52", "55", "150"}
    pixels = labelled["value"] * charts._SMALLEST_PROFILE[1] / 20 + np.sign(labelled["value"]) * labelled["lift"]
    near = sorted(pixels[labelled["value"] > 0])
    assert min(np.diff(near)) >= charts._LABEL[1]
    assert labelled.set_index("label")["lift"]["150"] == 0


def test_scatter_plots_are_thinned_and_say_how_many_points_there_are(monkeypatch):
    monkeypatch.setattr(charts, "_POINTS", 50)
    table = pd.DataFrame({"x": np.arange(1.0, 201), "y": np.arange(200.0) % 7, "kind_of": ["a"] * 150 + ["b"] * 50})
    figure = Scatter(table, "x", "y", "kind_of", {"a": "A", "b": "B", "c": "C"}, "x", "y", "caption", medians=True)
    found = rows(spec := chart(figure))
    assert spec["facet"]["sort"] == ["A (n\u00a0=\u00a0150)", "B (n\u00a0=\u00a050)"]
    points = found[found["kind"] == "point"]
    assert len(points) <= 51
    assert set(points["x"]) <= set(table["x"])
    assert (found["kind"] == "median").sum() == 32


def test_panels_share_a_range_unless_it_would_hide_their_values():
    values = {0: [1.0, -2.0], 1: [3.0, 0.5], 2: [0.61, -0.1], 3: [0.5, 0.0], 4: [-90.0, 1.0]}
    table = pd.DataFrame(
        [(layer, dimension, value) for layer, pair in values.items() for dimension, value in enumerate(pair)],
        columns=["layer", "dimension", "mean"],
    )
    figure = Profiles(table, "layer", "dimension", "mean", [1], "mean", "caption")
    assert figure.panels_apart() == [3, 4]  # 0.5 is less than a fifth of 3
    shared = (-2.0, 3.0)
    ranges = {0: shared, 1: shared, 2: shared, 3: (0.0, 0.5), 4: (-90.0, 1.0)}
    assert figure.ranges() == ranges
    assert caption_of(figure) == "caption The panels share one range, except those marked “own range”."
    # A twentieth of the range, 0.25, decides which values have a label.
    assert figure.labels()["layer"].tolist() == [0, 1]
    spec = chart(figure)
    titles = ["layer 0", "layer 1", "layer 2", "layer 3 (own range)", "layer 4 (own range)"]
    assert spec["facet"]["sort"] == titles
    ends = rows(spec).dropna(subset=["least"]).set_index("panel")
    assert {title: tuple(ends.loc[title, ["least", "most"]]) for title in titles} == dict(
        zip(titles, ranges.values(), strict=True)
    )
    drawn = [axes.get_ylim() for axes in laid_out(figure).axes if axes.get_title()]
    assert drawn[0] == drawn[1] == drawn[2]
    for (low, high), (least, most) in zip(drawn, ranges.values(), strict=True):
        assert low < least
        assert most < high
        assert (high - low) < 2 * (most - least)


def test_categories_keep_their_colour_in_scatter_plots():
    figure = Scatter(GRID, "layer", "value", "category", {"cls": "cls", "sep": "sep"}, "x", "y", "caption")
    colour = chart(figure)["spec"]["layer"][0]["encoding"]["color"]
    assert colour["scale"] == {"domain": ["[CLS]", "[SEP]"], "range": series_style(["cls", "sep"])[0]}
    table = GRID.assign(category="method")
    assert (
        chart(dataclasses.replace(figure, table=table, panel_titles={"method": "m"}))["spec"]["layer"][0]["encoding"]
        == {}
    )


def test_word_maps_tell_equal_words_apart():
    table = pd.DataFrame(
        [("w", i, "same", j, "word", 0.5 * i + j, "sure" if i == j else "") for i in (0, 1) for j in (0, 1)],
        columns=["map", "target", "target_word", "source", "source_word", "value", "link"],
    )
    figure = WordMaps(
        table, "map", {"w": "weights"}, "caption", "target", "target_word", "source", "source_word", frame="link"
    )
    found = rows(chart(figure))
    assert sorted(set(found["row_word"])) == ["0 same", "1 same"]
    assert is_wide(figure)


def test_tables_are_ranked_by_magnitude():
    table = pd.DataFrame(
        {"dimension": [0, 1, 2, 3], "score": [9.0, -1.5, np.nan, 3.0], "is_outlier": [False, True, False, True]}
    )
    data = table_data(table, "caption", ("is_outlier", "score"), limit=3)
    columns = {column["name"]: column["values"] for column in data["columns"]}
    assert columns == {"dimension": [3, 1, 0], "score": [3.0, -1.5, 9.0], "is_outlier": ["yes", "yes", "no"]}
    assert table_data(table, "caption")["columns"][1]["values"] == [9.0, -1.5, None, 3.0]


def test_the_command_to_repeat_a_run_needs_no_folder():
    typed = "python run.py 'analysis=[mixing,norms]' output_dir=/tmp/run dataset.limit=3"
    assert repeated(typed) == "python run.py 'analysis=[mixing,norms]' dataset.limit=3"
    assert repeated("python run.py resume=outputs/run") == "python run.py reproduce=outputs/run"


def test_rows_of_dots_keep_their_order_on_the_page():
    table = pd.DataFrame(
        {"method": ["b", "a"], "panel": "p", "value": [2.0, 1.0], "low": [1.5, -1.0], "high": [3.0, 2.0]}
    )
    figure = Dots(table, "method", "value", "panel", {"p": "P"}, "gain", "caption", {"a": "A"}, ("low", "high"))
    spec = chart(figure)
    assert spec["spec"]["encoding"]["y"]["sort"] == ["b", "A"]
    assert spec["data"]["columns"] == {
        "panel": ["P", "P"],
        "row": ["b", "A"],
        "value": [2.0, 1.0],
        "low": [1.5, -1.0],
        "high": [3.0, 2.0],
    }
    reference, interval, dot = spec["spec"]["layer"]
    assert reference["encoding"]["x"] == {"datum": 0.0}
    assert (interval["encoding"]["x"]["field"], interval["encoding"]["x2"]["field"]) == ("low", "high")
    assert dot["encoding"]["x"]["field"] == "value"
    assert spec["usermeta"]["rows"] == 2
