"""Figures of pages: drawn from their tables, in the page's font and colours, with no identifier that another has."""

import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

from normscope.distribution import CHECKOUT
from normscope.reporting.comparison.runs import cells_of
from normscope.reporting.drawing import laid_out
from normscope.reporting.figure_text import caption_of, step_label
from normscope.reporting.figures.heatmaps import heatmaps
from normscope.reporting.figures.layout import series_styles
from normscope.reporting.figures.style import styled
from normscope.reporting.options import ACROSS, PAGE, SCREEN
from normscope.reporting.page.elements import table_data
from normscope.reporting.page.inline_svg import figure_element
from normscope.reporting.page.report import repeated
from normscope.reporting.palette import CATEGORY_COLOURS
from normscope.results.figures import Dots, Heatmaps, Lines, Profiles, Scatter, WordMaps
from normscope.results.result import Result

GRID = pd.DataFrame(
    [
        (layer, head, category, 0.1 * layer - head)
        for layer in (1, 2)
        for head in (1, 2, 3)
        for category in ("cls", "sep")
    ],
    columns=["layer", "head", "category", "value"],
)


def lines(table=GRID[GRID["head"] == 1], **options):
    return Lines(table, "layer", "value", "category", "caption", "values", **options)


def on_page(figure, name="figure"):
    """The elements of a figure as it stands in a page."""
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", figure_element(figure, name), re.DOTALL)[0])


def points(node):
    """The points of a path."""
    return np.array(re.findall(r"[ML] (-?[\d.]+) (-?[\d.]+)", node.attrib["d"]), dtype=float)


CURVES = pd.DataFrame(
    {"layer": [1, 2, 3, 4] * 2, "value": [0.1, 0.9, 0.4, 0.5, 0.7, 0.2, 0.6, 0.3], "category": ["a"] * 4 + ["b"] * 4}
)


@pytest.mark.draws
def test_the_paths_of_lines_go_through_the_numbers_of_the_table():
    svg = on_page(lines(CURVES, series_titles={"b": "second", "a": "first"}))
    strokes = {"b": "var(--series-1)", "a": "var(--series-2)"}
    found = {}
    for series, stroke in strokes.items():
        (path,) = (
            node for node in svg.iter("path") if f"stroke: {stroke}" in node.get("style", "") and len(points(node)) == 4
        )
        found[series] = points(path)
    x, y = (np.concatenate([found[name][:, axis] for name in "ab"]) for axis in (0, 1))
    # Pixels are the numbers times a factor, plus the place of zero.
    for drawn_at, name, sign in ((x, "layer", 1), (y, "value", -1)):
        slope, place = np.polyfit(CURVES[name], drawn_at, 1)
        assert sign * slope > 0
        np.testing.assert_allclose(drawn_at, slope * CURVES[name] + place, atol=0.02)


@pytest.mark.slow
@pytest.mark.draws
def test_a_page_has_its_own_font_and_colours_and_no_identifier_twice():
    hostile = "<script>alert(1)</script> & \"'"
    figures = [lines(CURVES, series_titles={"b": hostile, "a": "first"}), WORDS, SCATTER]
    with mpl.rc_context({"text.color": "#ff00ff", "svg.fonttype": "path", "figure.facecolor": "black"}):
        page = "".join(figure_element(figure, f"figure {number}") for number, figure in enumerate([*figures, *figures]))
    assert not re.search("<(script|style|metadata)|font-family|DejaVu|#ff00ff|xlink|ns0:", page)
    names = re.findall(r' id="([^"]*)"', page)
    assert len(set(names)) == len(names)
    for reference in re.findall(r'(?:href="#|url\(#)([^")]*)', page):
        assert f'id="{reference}"' in page
    style = (CHECKOUT / "src/normscope/reporting/page/page.css").read_text()
    for variable in set(re.findall(r"var\((--[\w-]+)\)", page)):
        assert f"{variable}:" in style.partition("@media")[0]
    assert "<figcaption>caption</figcaption>" in page
    assert "&lt;script&gt;" in page


WORDS = WordMaps(
    pd.DataFrame(
        [("w", i, "same", j, "word", 0.5 * i + j, "sure" if i == j else "") for i in (0, 1) for j in (0, 1)],
        columns=["map", "target", "target_word", "source", "source_word", "value", "link"],
    ),
    "map", {"w": "weights"}, "caption", "target", "target_word", "source", "source_word", frame="link", digits=1,
)  # fmt: skip
SCATTER = Scatter(GRID, "layer", "value", "category", {"cls": "cls", "sep": "sep"}, "x", "y", "caption")


@pytest.mark.draws
def test_numbers_on_cells_and_cells_without_a_value_change_with_the_ground():
    svg = on_page(WORDS)
    numbers = {node.text: node.get("style", "") for node in svg.iter("text") if "var(--on-" in node.get("style", "")}
    assert "var(--on-little)" in numbers["0.0"]
    assert "var(--on-much)" in numbers["1.5"]
    one = GRID[GRID["head"] == 1].assign(value=[0.1, np.nan, 0.2, 0.3])
    grey = on_page(Heatmaps(one, {"value": "a value"}, "layer", "head", "caption", "category"))
    assert any("var(--missing)" in node.get("style", "") for node in grey.iter("path"))


def canvas(figure, width=SCREEN):
    """A figure in our style."""
    with styled():
        return laid_out(figure, width, caption=False)


def titled(figure):
    """The axes of a figure that have a title, by title."""
    return {axes.get_title(): axes for axes in canvas(figure).axes if axes.get_title()}


@pytest.mark.draws
def test_panels_of_lines_are_in_order_and_hold_their_rows():
    figure = lines(GRID, panel="head", panel_titles={3: "third", 1: "first"}, series_titles={"sep": "s", "cls": "c"})
    panels = titled(figure)
    assert list(panels) == ["third", "first"]
    for title, head in (("third", 3), ("first", 1)):
        for line, category in zip(panels[title].get_lines(), ("sep", "cls"), strict=True):
            own = GRID[(GRID["head"] == head) & (GRID["category"] == category)]
            np.testing.assert_array_equal(line.get_xydata(), own[["layer", "value"]])


@pytest.mark.slow
@pytest.mark.draws
def test_axes_of_lines_are_those_of_the_figure():
    panels = {"panel": "head", "series_titles": {"cls": "classes"}}
    apart, shared = ({axes.get_ylim() for axes in titled(lines(GRID, **panels, sharey=it)).values()} for it in (0, 1))
    assert (len(apart), len(shared)) == (3, 1)
    logarithmic = canvas(lines(GRID.assign(value=GRID["value"].abs()), log_y=True)).axes[0]
    assert logarithmic.get_yscale() == "log"
    assert logarithmic.get_xticks().tolist() == [1, 2]
    halves = canvas(lines(GRID.assign(layer=GRID["layer"] / 2.3))).axes[0]
    assert 3 <= len(halves.get_xticks()) < 15, "between 0.43 and 0.87, not at these"
    assert not set(halves.get_xticks()) & set(GRID["layer"] / 2.3)
    high = canvas(lines(GRID.assign(value=90.0 + GRID["layer"]))).axes[0]
    assert high.get_ylim()[0] == 0
    assert high.get_ylim()[1] > 95, "markers of the highest line have room"


@pytest.mark.draws
@pytest.mark.parametrize(
    ("step", "label"),
    [
        (0, "0"),
        (999, "999"),
        (2000, "2k"),
        (1234, "1234"),
        (2500, "2.5k"),
        (10_000, "10k"),
        (123_456, "123k"),
        (1.5e6, "1.5M"),
    ],
)
def test_steps_are_short_where_nothing_is_lost(step, label):
    assert step_label(step) == label


def test_training_steps_are_on_a_logarithmic_axis_with_room_for_zero():
    steps = [0, 1, 3, 7, 1023, 143_000]
    table = pd.DataFrame({"layer": steps, "value": 1.0, "category": "a"})
    axes = canvas(lines(table, steps=True), PAGE).axes[0]
    places = axes.transData.transform([(step, 1.0) for step in steps])[:, 0]
    # With 1 as the first step, a step is at the logarithm of one more than it.
    gaps = np.diff(places) / (places[1] - places[0])
    np.testing.assert_allclose(gaps, np.diff(np.log2(np.array(steps) + 1)), rtol=1e-6)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["143k", "1023", "7", "0"]


@pytest.mark.slow
@pytest.mark.draws
def test_axes_of_scatter_plots_leave_out_what_the_figure_trims():
    table = pd.DataFrame({"x": np.arange(1001.0), "y": np.arange(1001.0) ** 2, "panel": "one"})
    figure = Scatter(table, "x", "y", "panel", {"one": "One"}, "x", "y", "caption")
    assert titled(figure)["One"].get_xlim() == (-50, 1050)
    logarithmic = titled(dataclasses.replace(figure, log_x=True))["One"]
    assert logarithmic.get_xscale() == "log"
    assert logarithmic.get_xlim() == pytest.approx([1000**-0.05, 1000**1.05])
    trimmed = titled(dataclasses.replace(figure, trim=0.1))["One"]
    # From 100 to 900, and a twentieth of that on either side.
    assert trimmed.get_xlim() == pytest.approx([60, 940])
    assert trimmed.get_ylim() == pytest.approx([1e4 - 4e4, 81e4 + 4e4])


@pytest.mark.draws
@pytest.mark.parametrize("sharey", [True, False])
def test_panels_of_scatter_plots_share_the_y_axis_or_have_their_own(sharey):
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"x": generator.uniform(1, 99, 200), "y": generator.uniform(46, 97, 200), "panel": "one"})
    other = pd.DataFrame({"x": [3.0, 4.0, 5.0], "y": [-1.0, -1.0, -1.0], "panel": "two"})
    none = pd.DataFrame({"x": [np.nan], "y": [np.nan], "panel": "three"})
    titles = {"one": "One", "two": "Two", "three": "Three"}
    figure = Scatter(pd.concat([table, other, none]), "x", "y", "panel", titles, "x", "y", "caption", sharey=sharey)
    axes = canvas(figure).axes
    assert axes[0].get_ylim()[0] == pytest.approx(-5.9 if sharey else 43.5, abs=0.3)
    assert len({own.get_ylim() for own in axes}) == (1 if sharey else 3)


@pytest.mark.draws
def test_scatter_plots_hold_every_point_and_say_how_many_there_are():
    table = pd.DataFrame({"x": np.arange(1.0, 201), "y": np.arange(200.0) % 7, "kind_of": ["a"] * 150 + ["b"] * 50})
    figure = Scatter(table, "x", "y", "kind_of", {"a": "A", "b": "B", "c": "C"}, "x", "y", "caption", medians=True)
    panels = titled(figure)
    assert list(panels) == ["A (n\u00a0=\u00a0150)", "B (n\u00a0=\u00a050)"]
    for axes, own in zip(panels.values(), (table[:150], table[150:]), strict=True):
        (cloud,) = axes.collections
        np.testing.assert_array_equal(cloud.get_offsets(), own[["x", "y"]])
        assert len(axes.get_lines()[0].get_xdata()) == 16


def test_captions_say_which_scales_differ():
    two = {"panel": "head", "series_titles": {"cls": "classes"}}
    scatter = Scatter(GRID, "layer", "value", "category", {"cls": "C", "sep": "S"}, "x", "y", "caption")
    maps = Heatmaps(GRID, {"value": "a value", "layer": "another"}, "layer", "head", "caption", "category")
    words = WordMaps(GRID, "category", {"cls": "C", "sep": "S"}, "caption", row="layer", column="head")
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
    assert f'aria-label="{own_range}"' in figure_element(lines(GRID, **two), "two")


def test_a_category_has_one_colour_everywhere():
    with styled():
        sep, every, first = (style.color for style in series_styles(["sep", "all", "first"]).values())
        rates = [style.color for style in series_styles(["rate", "other rate"]).values()]
    assert (sep, every) == ("#E69F00", "#000000")
    assert first not in CATEGORY_COLOURS.values()
    assert series_styles(["sep", "all"])["sep"].marker == series_styles(["cls", "sep"])["sep"].marker
    assert rates == ["#0072B2", "#E69F00"]


@pytest.mark.draws
def test_categories_keep_their_colour_in_scatter_plots():
    for title, colour in (("[CLS]", "#0072B2"), ("[SEP]", "#E69F00")):
        (cloud,) = titled(SCATTER)[title].collections
        np.testing.assert_allclose(cloud.get_facecolor()[0][:3], mpl.colors.to_rgb(colour))


@pytest.mark.draws
def test_kinds_of_points_have_colours_of_their_own_and_a_legend():
    table = pd.DataFrame(
        {"x": np.arange(1.0, 13), "y": 1.0, "panel": ["one", "two"] * 6, "kind": ["cls"] * 2 + ["a"] * 10}
    )
    titles = {"a": "ordinary tokens", "cls": "cls", "sep": "sep"}
    figure = Scatter(table, "x", "y", "panel", {"one": "One", "two": "Two"}, "x", "y", "caption")
    drawn = canvas(dataclasses.replace(figure, series="kind", series_titles=titles))
    for axes, panel in zip(drawn.axes, ("one", "two"), strict=True):
        for points_of, kind in zip(axes.collections, ("a", "cls"), strict=True):
            own = table[(table["panel"] == panel) & (table["kind"] == kind)]
            np.testing.assert_array_equal(points_of.get_offsets(), own[["x", "y"]])
            colour = mpl.colors.to_hex(points_of.get_facecolor()[0]).upper()
            assert (colour == CATEGORY_COLOURS["cls"]) == (kind == "cls")
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ordinary tokens", "[CLS]"]


@pytest.mark.draws
def test_maps_with_scales_of_their_own_reach_their_own_maxima():
    values = {"value": "a value", "more": "another"}
    table = GRID.assign(value=GRID["value"].abs() * np.arange(1, 1 + len(GRID)), more=range(len(GRID)))
    maps = Heatmaps(table, values, "layer", "head", "caption", "category", own_scales=True)
    images = [axes.images[0] for axes in canvas(maps).axes if axes.images]
    maxima = [rows[value].max() for _, rows in maps.panels() for value in values]
    assert [image.get_clim() for image in images] == [(0.0, largest) for largest in maxima]
    assert len(set(maxima)) == 4
    assert caption_of(maps) == "caption Each map has its own scale."


@pytest.mark.slow
def numbered(table, titles):
    """Maps of categories with their numbers."""
    maps = Heatmaps(table, {"value": ""}, "layer", "head", "caption", "category", titles)
    return dataclasses.replace(maps, limits=(0.0, 1.0), value_label="%", numbered=True)


@pytest.mark.draws
def test_heat_maps_hold_every_cell():
    one = GRID[GRID["head"] == 1]
    panels = numbered(one, {"sep": "S", "cls": "C"})
    for title, category in (("S", "sep"), ("C", "cls")):
        (image,) = titled(panels)[title].images
        np.testing.assert_array_equal(image.get_array()[:, 0], one[one["category"] == category]["value"])
    grid = Heatmaps(GRID, {"value": "a value"}, "layer", "head", "caption", "category", diverging=True)
    maps = [axes for axes in canvas(grid).axes if axes.images]
    for axes, (category, name) in zip(maps, (("cls", "[CLS]"), ("sep", "[SEP]")), strict=True):
        assert axes.get_ylabel() == f"{name}\nlayer"
        own = GRID[GRID["category"] == category].pivot(index="layer", columns="head", values="value")
        np.testing.assert_array_equal(axes.images[0].get_array(), own)
        assert axes.images[0].get_clim() == pytest.approx((-2.9, 2.9))


@pytest.mark.spread(2)
@pytest.mark.draws
@pytest.mark.parametrize(
    ("values", "limits", "expected"), [(1.0, None, 1), (0.3, None, 0.3), (0.0, None, 1), (0.3, (0, 1), 1)]
)
def test_scales_of_heat_maps_begin_at_zero(values, limits, expected):
    grid = Heatmaps(GRID.assign(value=values), {"value": "a value"}, "layer", "head", "caption", "category")
    (image, _) = (axes.images[0] for axes in canvas(dataclasses.replace(grid, limits=limits)).axes if axes.images)
    assert image.get_clim() == (0, expected)


@pytest.mark.draws
def test_without_any_difference_a_map_is_white():
    grid = Heatmaps(GRID.assign(value=0.0), {"value": "a value"}, "layer", "head", "caption", diverging=True)
    grid = dataclasses.replace(grid, table=grid.table[grid.table["category"] == "cls"])
    (image,) = titled(grid)["a value"].images
    assert min(image.cmap(image.norm(0.0))[:3]) > 0.95


def test_the_cells_of_a_single_heat_map_have_its_title():
    table = GRID[GRID["category"] == "cls"].drop(columns="category")
    figure = Heatmaps(table, {"value": "a value"}, "layer", "head", "caption")
    cells = cells_of(Result(figures={"own_map": figure}, config={"analysis": {"own": {"enabled": True}}}))
    assert set(cells["figure"]) == {"own/map"}
    assert set(cells["panel"]) == {"a value"}
    assert cells["value"].tolist() == table["value"].tolist()


@pytest.mark.draws
def test_cells_that_the_table_does_not_have_are_no_zeros():
    one = GRID[(GRID["head"] == 1)].assign(value=lambda table: table["value"].abs())
    missing = one.assign(value=one["value"].where(one.index != one.index[0])).iloc[:-1]
    panels = numbered(missing, {"sep": "S", "cls": "C"})
    grid = Heatmaps(missing, {"value": "a value"}, "layer", "head", "caption", "category")
    for figure in (panels, grid):
        images = [axes.images[0].get_array() for axes in canvas(figure).axes if axes.images]
        assert sum(np.ma.count_masked(np.ma.masked_invalid(image)) for image in images) == 2
        assert sum(image.size for image in images) == 4


@pytest.mark.draws
def test_profiles_hold_every_series_and_name_the_furthest():
    generator = np.random.default_rng(0)
    table = pd.DataFrame(
        [(1, head, dimension, generator.normal()) for head in (1, 2, 3) for dimension in range(20)],
        columns=["layer", "head", "dimension", "mean"],
    )
    figure = Profiles(table, "layer", "dimension", "mean", [7], "mean C_j", "caption", series="head")
    (axes,) = titled(figure).values()
    for line, (_, own) in zip(axes.get_lines(), table.groupby("head"), strict=False):
        np.testing.assert_array_equal(line.get_xydata(), own[["dimension", "mean"]])
    furthest = max(table[table["dimension"] == 7]["mean"], key=abs)
    ((label, place),) = [(text.get_text(), text.xy) for text in axes.texts]
    assert (label, place) == ("7", (7, furthest))


@pytest.mark.slow
@pytest.mark.draws
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
    marked = dataclasses.replace(figure, table=table.assign(outlier=table["layer"] != 1), marked="outlier")
    assert marked.labels()["layer"].tolist() == [0]
    titles = ["layer 0", "layer 1", "layer 2", "layer 3 (own range)", "layer 4 (own range)"]
    assert [axes.get_title() for axes in canvas(figure, PAGE).axes if axes.get_title()] == titles
    limits = [axes.get_ylim() for axes in canvas(figure, PAGE).axes if axes.get_title()]
    assert limits[0] == limits[1] == limits[2]
    for (low, high), (least, most) in zip(limits, ranges.values(), strict=True):
        assert low < least
        assert most < high
        assert (high - low) < 2 * (most - least)


@pytest.mark.draws
def test_rows_of_dots_keep_their_order():
    table = pd.DataFrame(
        {"method": ["b", "a"], "panel": "p", "value": [2.0, 1.0], "low": [1.5, -1.0], "high": [3.0, 2.0]}
    )
    figure = Dots(table, "method", "value", "panel", {"p": "P"}, "gain", "caption", {"a": "A"}, ("low", "high"))
    axes = titled(figure)["P"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "A"]
    assert axes.yaxis_inverted(), "the first is at the top"
    intervals = [segment[:, 0].tolist() for segment in axes.collections[0].get_segments()]
    assert intervals == [[1.5, 3.0], [-1.0, 2.0]]
    assert axes.get_lines()[0].get_xydata().tolist() == [[2.0, 0.0], [1.0, 1.0]]
    assert axes.get_lines()[1].get_xdata() == [0.0, 0.0]


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


VARIANTS = pd.concat([GRID.assign(category=f"variant {number}", value=number / 10) for number in range(6)])
TALL = Heatmaps(
    VARIANTS.drop_duplicates(["layer", "head", "category"]),
    {"value": "rate", "head": "another"},
    "layer",
    "head",
    "caption",
    "category",
    limits=(0.0, 1.0),
)


@pytest.mark.slow
@pytest.mark.draws
def test_a_tall_figure_beside_text_is_drawn_across_the_page_as_well():
    element = figure_element(TALL, "tall", first=True)
    narrow, wide = (ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", element, re.DOTALL))
    heights, widths = zip(
        *([float(svg.attrib["viewBox"].split()[place]) for place in (3, 2)] for svg in (narrow, wide)), strict=True
    )
    assert widths == pytest.approx((4 * 72, 8 * 72))
    assert heights[1] < 0.7 * heights[0]
    assert [node.get("class") for node in ElementTree.fromstring(f"<p>{element}</p>").iter("div")] == ["narrow", "wide"]
    names = re.findall(r' id="([^"]*)"', element)
    assert len(set(names)) == len(names)
    assert figure_element(TALL, "tall").count("<svg") == 1
    assert figure_element(lines(CURVES), "low", first=True).count("<svg") == 1


@pytest.mark.draws
def test_across_a_page_the_variants_are_the_columns_of_maps_on_one_scale():
    with styled():
        narrow, wide = (heatmaps(TALL, width) for width in (SCREEN, ACROSS))
    shapes = [[axes.get_title() for axes in canvas.axes if axes.get_title()] for canvas in (narrow, wide)]
    assert shapes == [["rate", "another"], [f"variant {number}" for number in range(6)]]
    for canvas, order in ((narrow, "C"), (wide, "F")):
        maps = [axes.images[0].get_array() for axes in canvas.axes if axes.images]
        rates = np.array([values.mean() for values in maps]).reshape((6, 2) if order == "C" else (2, 6))
        np.testing.assert_allclose(rates[:, 0] if order == "C" else rates[0], np.arange(6) / 10)
