"""Figures whose words, names and captions are any text, and the files, sizes and styles that users choose."""

import dataclasses
import io
import itertools
import re
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from normscope.distribution import CHECKOUT
from normscope.errors import InputError
from normscope.reporting import drawing
from normscope.reporting.drawing import draw, laid_out
from normscope.reporting.figure_text import caption_of
from normscope.reporting.figures.layout import panels_across
from normscope.reporting.figures.style import styled
from normscope.reporting.figures.word_maps import word_maps
from normscope.reporting.options import Appearance, FigureFormat, FigureOptions, appearance
from normscope.reporting.palette import FAINT, INK, MISSING
from normscope.results.figures import ColouredText, Heatmaps, Lines, Scatter, WordMaps, end_of_scale
from normscope.results.pictures import Picture

# Each of them, or a pair of them, is mathematics to matplotlib, and most of it is broken.
HOSTILE = ["$", "$x$", "$x_{$", "$$", "\\$", "\\frac", "^_{}", "a\x00b", "\x1b[1m", "\ufffd", "<&>\"'"]
HOSTILE += ["x" * 10_000, "{%"]


def word_map(words: list[str], title: str) -> WordMaps:
    cells = [
        {
            "method": "a",
            "target": i,
            "source": j,
            "target_word": target,
            "source_word": source,
            "value": 0.5,
            "gold": "none",
        }
        for i, target in enumerate(words)
        for j, source in enumerate(words)
    ]
    return WordMaps(
        table=pd.DataFrame(cells),
        panel="method",
        panel_titles={"a": title},
        row="target",
        row_label="target_word",
        column="source",
        column_label="source_word",
        value="value",
        frame="gold",
        caption=title,
    )


@pytest.mark.parametrize(
    ("sizes", "end", "beyond"),
    [
        ([19.1, 0.9, 0.8], 0.9, 1),
        ([19.1, 18.0, 0.9, 0.8], 0.9, 2),
        ([19.1, 9.0, 4.4, 1.0], 1.0, 3),
        ([19.1, 9.0, 4.4, 2.0, 0.1], 19.1, 0),
        ([1.9, 1.0, 0.9], 1.9, 0),
        ([9.0] * 4 + [1.0], 9.0, 0),  # a diagonal
        ([3.0, np.nan], 3.0, 0),
        ([0.0], 0.0, 0),
    ],
)
def test_few_cells_do_not_bleach_a_map(sizes, end, beyond):
    values = np.zeros((5, 6))
    values.ravel()[[7, 3, 20, 11, 28][: len(sizes)]] = sizes
    found, cells = end_of_scale(values)
    assert found == end
    assert [values[cell] for cell in cells] == sizes[:beyond]


@pytest.mark.draws
def test_a_cell_beyond_the_scale_has_its_value_written_in_it():
    figure = word_map(["a", "b", "c"], "Title.")
    assert "beyond" not in caption_of(figure)
    table = figure.table.assign(value=[19.06, *[0.5] * 8])
    figure = dataclasses.replace(figure, table=table)
    with styled():
        axes = laid_out(figure, caption=False).axes[0]
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [("19", (0, 0))]
    assert axes.images[0].get_clim() == (0, 0.5)
    assert caption_of(figure).endswith("Numbers are the values of cells that lie beyond the scale.")


@pytest.mark.draws
def test_the_line_that_a_figure_is_about_is_the_strongest():
    table = pd.DataFrame({"layer": [1, 2] * 3, "value": range(6), "line": ["a", "a", "b", "b", "c", "c"]})
    figure = Lines(table, "layer", "value", "line", "", "value", {name: name for name in "abc"}, leading="b")
    with styled():
        lines = laid_out(figure, caption=False).axes[0].get_lines()
        first, leading, last = (line for line in lines if len(line.get_xdata()) > 1)
        assert leading.get_linewidth() > 1.5 * max(first.get_linewidth(), last.get_linewidth())
        assert (leading.get_color(), leading.get_linestyle()) == (mpl.rcParams["text.color"], "-")
        assert leading.get_zorder() > max(first.get_zorder(), last.get_zorder())


@pytest.mark.draws
def test_lines_that_a_figure_is_not_about_are_thin_and_grey():
    table = pd.DataFrame({"layer": [1, 2] * 3, "value": range(6), "line": ["a", "a", "b", "b", "c", "c"]})
    figure = Lines(
        table, "layer", "value", "line", "", "value", {name: name for name in "abc"}, leading="b", behind=["c"]
    )
    with styled():
        axes = laid_out(figure, caption=False).axes[0]
        first, leading, behind = (line for line in axes.get_lines() if len(line.get_xdata()) > 1)
        assert behind.get_linewidth() < first.get_linewidth() < leading.get_linewidth()
        assert behind.get_color() == FAINT != first.get_color()
        assert behind.get_marker() != first.get_marker(), "still told apart"
        assert {text.get_text(): text.get_color() for text in axes.texts} == {"a": INK, "b": INK, "c": FAINT}


@pytest.mark.draws
def test_a_line_alone_is_no_fainter_than_others():
    table = pd.DataFrame({"layer": [1, 2, 1, 2], "value": range(4), "line": ["a", "a", "b", "b"]})
    with styled():
        (one,) = laid_out(Lines(table[:2], "layer", "value", "line", "", "value")).axes[0].get_lines()
        assert (one.get_linewidth(), one.get_alpha()) == (mpl.rcParams["lines.linewidth"], 1.0)
        for line in laid_out(Lines(table, "layer", "value", "line", "", "value")).axes[0].get_lines():
            assert line.get_linewidth() < one.get_linewidth()


@pytest.mark.parametrize(
    ("panels", "width", "narrowest", "across"),
    [(7, 6.9, 1.9, 4), (7, 3.35, 1.5, 2), (4, 6.9, 2.0, 2), (5, 6.9, 2.0, 3), (6, 6.9, 2.0, 3), (1, 1.0, 2.0, 1)],
)
def test_panels_leave_few_places_empty(panels, width, narrowest, across):
    assert panels_across(panels, width, narrowest, pliable=True) == across


def test_panels_are_no_narrower_than_they_must_be():
    assert panels_across(7, 6.9, 1.9) == 3


@pytest.mark.draws
@pytest.mark.parametrize("several", [False, True])
def test_maps_of_words_have_their_colour_scales(several):
    figure = word_map(["a", "b", "c"], "Title.")
    if several:
        tables = [figure.table.assign(method=str(name), value=0.5 + name) for name in range(6)]
        titles = {str(name): str(name) for name in range(6)}
        figure = dataclasses.replace(figure, table=pd.concat(tables), panel_titles=titles)
    bars = [axes for axes in laid_out(figure, 1.6 if several else 3.35).axes if axes.get_label() == "<colorbar>"]
    assert len(bars) == len(figure.panel_titles)
    largest = dataclasses.replace(figure, largest=1.0, value_label="part of the sum")
    (bar,) = (axes for axes in laid_out(largest).axes if axes.get_label() == "<colorbar>")
    assert bar.get_xlabel() == "part of the sum"
    (bar,) = (
        axes
        for axes in laid_out(dataclasses.replace(largest, value_label="", measure="cosine similarity")).axes
        if axes.get_label() == "<colorbar>"
    )
    assert bar.get_xlabel() == "part of the cosine similarity"


@pytest.mark.draws
def test_values_below_coloured_tokens_do_not_touch():
    table = pd.DataFrame({"token": list("abcdefgh"), "value": np.linspace(-0.123, 0.456, 8), "text": "one"})
    with styled():
        canvas = laid_out(ColouredText(table, "text", "", "effect"), caption=False)
        renderer = FigureCanvasAgg(canvas).get_renderer()
        boxes = sorted(
            (text.get_window_extent(renderer) for text in canvas.axes[0].texts if text.get_color() == FAINT),
            key=lambda box: box.x0,
        )
    assert len(boxes) > 1
    digit = boxes[0].width / 5
    assert all(left.x1 + digit < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.draws
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("x", ["layer", "depth", "rank"])
def test_lines_do_not_cross_layers_that_were_not_measured(named, x):
    layers = [1, 2, 4, 7, 8]
    table = pd.DataFrame({"layer": layers, "value": 0.5, "line": "a"}).assign(
        depth=lambda t: t["layer"] / 8, rank=layers
    )
    figure = Lines(table, x, "value", "line", "", "value", {"a": "first"} if named else None)
    with styled():
        (line,) = (line for line in laid_out(figure, caption=False).axes[0].get_lines() if len(line.get_xdata()) > 1)
    joined = np.diff(np.isfinite(line.get_ydata()).nonzero()[0]) == 1
    assert joined.tolist() == ([True] * 4 if x == "rank" else [True, False, False, True])
    assert line.get_marker() != "None" or x == "rank", "a layer without neighbours is a point"


@pytest.mark.parametrize("missing", [True, False])
def test_captions_say_what_grey_is_where_it_is(missing):
    table = pd.DataFrame({"category": "cls", "layer": [1, 1, 2, 2], "head": [1, 2, 1, 2], "value": 0.5, "same": 1.0})
    shown = table[:-1] if missing else table
    grid = Heatmaps(shown, {"value": "", "same": ""}, "layer", "head", "A map.", "category", limits=(0, 1))
    numbered = dataclasses.replace(grid, values={"value": ""}, panel_titles={"cls": ""}, numbered=True)
    ends = [caption_of(grid), caption_of(numbered)]
    assert ends == ["A map. Grey cells have no value." if missing else "A map."] * 2


@pytest.mark.draws
@pytest.mark.parametrize("diverging", [False, True])
def test_cells_without_a_value_have_no_colour_of_the_scale(diverging):
    table = pd.DataFrame(
        {"category": "cls", "layer": [1, 1, 2, 2], "head": [1, 2, 1, 2], "value": [0.0, 1.0, np.nan, 0.5]}
    )
    grid = Heatmaps(table, {"value": "a value"}, "layer", "head", "caption", "category", diverging=diverging)
    panels = Heatmaps(
        table, {"value": ""}, "layer", "head", "caption", "category", {"cls": "C"}, limits=(0.0, 1.0), numbered=True
    )
    for canvas in (laid_out(grid), laid_out(panels)):
        axes = next(axes for axes in canvas.axes if axes.images)
        (image,) = axes.images
        pixels = image.cmap(image.norm(image.get_array()))
        assert pixels[1, 0][3] == 0, "transparent"
        background = np.array(axes.get_facecolor()[:3])
        colours = image.cmap(np.linspace(0, 1, 256))[:, :3]
        assert np.abs(colours - background).max(axis=1).min() > 0.1


@pytest.mark.draws
def test_a_single_heat_map_needs_no_column_for_rows_of_panels(tmp_path):
    table = pd.DataFrame({"layer": [1, 1, 2, 2], "head": [1, 2, 1, 2], "value": [0.0, 1.0, 0.25, 0.5]})
    figure = Heatmaps(table, {"value": "a value"}, "layer", "head", "caption")
    (axes, _) = laid_out(figure).axes
    (image,) = axes.images
    np.testing.assert_array_equal(image.get_array(), [[0.0, 1.0], [0.25, 0.5]])
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("a value", "head", "layer")
    paths = [tmp_path / "map.png", tmp_path / "map.svg"]
    draw(figure, paths)
    Image.open(paths[0]).verify()
    ElementTree.parse(paths[1])


def test_pages_and_figures_share_their_colours():
    style = (CHECKOUT / "src/normscope/reporting/page/page.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6}[^;]*);", part)) for part in style.split("@media", 1))
    assert light["missing"] == MISSING
    light |= {name: light[f"paper-{name}"] for name in ("sequential", "diverging")}
    for theme in (light, dark):
        for scale in ("sequential", "diverging"):
            stops = np.array([_channels(colour) for colour in theme[scale].split(", ")])
            places = np.linspace(0, len(stops) - 1, 256)
            colours = np.stack([np.interp(places, range(len(stops)), channel) for channel in stops.T], axis=1)
            assert np.abs(colours - _channels(theme["missing"])).max(axis=1).min() > 25


def _channels(colour):
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


@pytest.mark.spread(2)
@pytest.mark.draws
@pytest.mark.parametrize(
    ("maps", "words", "width", "across"), [(6, 24, 6.9, 2), (2, 10, 6.9, 2), (4, 12, 3.35, 1), (2, 40, 3.35, 1)]
)
def test_maps_fill_a_page(maps, words, width, across):
    """Six maps below each other, as they were once, are three pages high."""
    figure = word_map([f"w{number}" for number in range(words)], "map 0")
    tables = [figure.table.assign(**{figure.panel: f"map {number}"}) for number in range(maps)]
    titles = {f"map {number}": f"map {number}" for number in range(maps)}
    canvas = word_maps(dataclasses.replace(figure, table=pd.concat(tables), panel_titles=titles), width)
    assert canvas.axes[0].get_gridspec().ncols == across
    assert canvas.get_figheight() < 10.5
    assert canvas.get_figwidth() == width


@pytest.mark.draws
@pytest.mark.parametrize(("words", "shown"), [(12, 1), (60, 3)])
def test_a_map_of_many_words_is_as_wide_as_asked(words, shown):
    """Where cells are smaller than text, every so many words are written, in a size that can be read."""
    canvas = word_maps(word_map([f"w{number}" for number in range(words)], "map"), 3.35)
    assert canvas.get_figwidth() == 3.35
    for axis in (canvas.axes[0].xaxis, canvas.axes[0].yaxis):
        written = [label.get_text() for label in axis.get_ticklabels()]
        assert written == [f"w{number}" for number in range(0, words, shown)]
        assert all(label.get_fontsize() >= 6 for label in axis.get_ticklabels())


@pytest.mark.slow
@pytest.mark.draws
def test_words_of_a_corpus_are_drawn_as_they_are(tmp_path):
    paths = [tmp_path / "map.svg", tmp_path / "map.png"]
    draw(word_map(HOSTILE, "costs $5 or $x_{ more"), paths)
    svg = paths[0].read_text()
    texts = ["".join(node.itertext()) for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    for word in ("$", "$x$", "$x_{$", "$$", "\\$", "\\frac", "^_{}", "a\\x00b", "\\x1b[1m", "\ufffd", "<&>\"'", "{%"):
        assert texts.count(word) == 2, word
    assert texts.count("x" * 20 + "…" + "x" * 19) == 2
    assert texts.count("costs $5 or $x_{ more") == 2, "title and caption"
    assert paths[1].stat().st_size


@pytest.mark.slow
@pytest.mark.draws
def test_powers_of_ten_are_written_without_mathematics(tmp_path):
    table = pd.DataFrame({"x": [1e-3, 1.0, 1e4], "y": [1e-2, 1.0, 1e2], "panel": "p"})
    figure = Scatter(
        table=table, x="x", y="y", panel="panel", panel_titles={"p": "$"}, x_label="$x", y_label="y$", caption="$ $",
        log_x=True, log_y=True,
    )  # fmt: skip
    draw(figure, [tmp_path / "scatter.svg"])
    svg = (tmp_path / "scatter.svg").read_text()
    assert "mathdefault" not in svg
    assert "10⁻²" in svg


CURVES = Lines(
    table=pd.DataFrame({"layer": [1, 2, 3] * 2, "value": [1.0, 2.0, 3.0, 3.0, 2.0, 1.0], "kind": list("aaabbb")}),
    x="layer",
    y="value",
    series="kind",
    series_titles={"a": "‖αf(x)‖", "b": "second"},
    y_label="mean ratio",
    caption="What the lines show.",
)


@pytest.mark.slow
@pytest.mark.draws
def test_files_have_the_chosen_width_and_resolution_and_no_date(tmp_path):
    paths = [tmp_path / f"curves.{extension}" for extension in ("png", "svg", "pdf")]
    look = appearance(FigureOptions(width="column", caption=False, dpi=300, format=list(FigureFormat)))
    draw(CURVES, paths, look)
    first = [path.read_bytes() for path in paths]
    draw(CURVES, paths, look)
    assert [path.read_bytes() for path in paths] == first
    with Image.open(paths[0]) as image:
        assert image.width == pytest.approx(3.35 * 300, abs=1)
        assert image.info["Description"] == CURVES.caption
    svg, pdf = paths[1].read_text(), paths[2].read_bytes()
    assert float(re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)[1]) == pytest.approx(3.35 * 72)
    assert CURVES.caption not in svg
    assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)[1]) == pytest.approx(3.35 * 72, abs=0.01)
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
    assert CURVES.caption.encode() in pdf


@pytest.mark.draws
def test_a_figure_for_a_slide_is_as_large_as_fits_below_its_title():
    """12 inches wide and 6.1 high at most; text of 8 points is more than twice as large."""
    look = appearance(FigureOptions(width="slide", dpi=50))
    assert not look.caption
    png, svg, pdf = drawing.drawn(CURVES, ["png", "svg", "pdf"], look)
    with Image.open(io.BytesIO(png)) as image:
        inches = [pixels / dpi for pixels, dpi in zip(image.size, image.info["dpi"], strict=True)]
    assert inches == pytest.approx([5.7 * 2.1, 2.9 * 2.1], abs=0.03)
    root = ElementTree.fromstring(svg)
    points = [float(root.attrib[side].removesuffix("pt")) for side in ("width", "height")]
    assert points == pytest.approx([72 * side for side in inches], abs=3)
    assert [float(number) for number in root.attrib["viewBox"].split()[2:]] == pytest.approx([5.7 * 72, 2.9 * 72])
    assert [float(number) for number in re.search(rb"/MediaBox \[ 0 0 (\S+) (\S+) \]", pdf).groups()] == pytest.approx(
        [5.7 * 72, 2.9 * 72]
    )


@pytest.mark.slow
@pytest.mark.draws
def test_a_tall_figure_for_a_slide_has_more_panels_beside_each_other():
    table = pd.DataFrame({"layer": [1, 2] * 12, "value": 0.5, "line": "a", "panel": np.repeat(range(12), 2)})
    figure = Lines(table, "layer", "value", "line", "", "value", {"a": "first"}, panel="panel")
    (png,) = drawing.drawn(figure, ["png"], appearance(FigureOptions(width="slide", dpi=50)))
    with Image.open(io.BytesIO(png)) as image:
        width, height = (pixels / dpi for pixels, dpi in zip(image.size, image.info["dpi"], strict=True))
    assert width <= 12.03
    assert height <= 6.12
    narrow = laid_out(figure, 5.7, caption=False).get_size_inches()
    assert height / narrow[1] < width / narrow[0], "wider than at the width of the slide"


@pytest.mark.draws
@pytest.mark.parametrize(("limit", "largest"), [("_LONGEST_SIDE", 500), ("_MOST_PIXELS", 100_000)])
def test_a_canvas_too_large_for_the_resolution_gets_fewer_pixels(tmp_path, monkeypatch, limit, largest):
    monkeypatch.setattr(drawing, limit, largest)
    draw(CURVES, [tmp_path / "curves.png"], Appearance(caption=False))
    with Image.open(tmp_path / "curves.png") as image:
        size = max(image.size) if limit == "_LONGEST_SIDE" else image.width * image.height
    assert size == pytest.approx(largest, rel=0.01)


SHEET = """
font.family: serif  # Times, or what stands in for it
font.size: 9
axes.titlesize: large
axes.prop_cycle: cycler(color=["#112233", "#445566"])
image.cmap: Greens
lines.linewidth: 2
text.usetex: True
savefig.bbox: tight
backend: Agg
"""


def test_a_style_sheet_changes_fonts_colours_and_lines_and_nothing_else(tmp_path):
    sheet = tmp_path / "paper.mplstyle"
    sheet.write_text(SHEET)
    before = dict(mpl.rcParams)
    with mpl.rc_context(fname=sheet), styled():
        canvas = laid_out(CURVES, 3.35, caption=False)
        assert mpl.rcParams["text.usetex"] is False
        assert mpl.rcParams["savefig.bbox"] is None
        assert mpl.rcParams["font.family"] == ["serif", "DejaVu Sans"]
    first, second = canvas.axes[0].get_lines()
    assert (first.get_color(), second.get_color()) == ("#112233", "#445566")
    assert first.get_linewidth() == 2
    assert canvas.legends[0].get_texts()[0].get_fontfamily()[0] == "serif"
    assert canvas.axes[0].xaxis.label.get_fontsize() == 8, "our size, since the sheet does not set axes.labelsize"
    assert dict(mpl.rcParams) == before


def test_what_would_change_a_figures_width_or_let_tokens_be_formulas_cannot_be_chosen():
    with mpl.rc_context({"savefig.bbox": "tight", "text.usetex": True, "text.parse_math": True}), styled():
        assert mpl.rcParams["savefig.bbox"] is None
        assert not mpl.rcParams["text.usetex"]
        assert not mpl.rcParams["text.parse_math"]


def test_a_picture_in_a_terminal_is_its_caption():
    assert repr(Picture(CURVES)) == f"Figure: {CURVES.caption}\n.save('figure.pdf') writes it to a file"


@pytest.mark.draws
def test_pictures_are_saved_at_the_width_of_a_column(tmp_path):
    Picture(CURVES).save(tmp_path / "curves.png", width="column", caption=False, dpi=100)
    with Image.open(tmp_path / "curves.png") as image:
        assert image.width == 335
    for wrong, message in (
        ({"width": "wide"}, "^width=wide: expected column, page, slide or"),
        ({"dpi": 5}, "^dpi=5: expected"),
    ):
        with pytest.raises(InputError, match=message):
            Picture(CURVES).save(tmp_path / "curves.png", **wrong)
