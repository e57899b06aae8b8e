"""Figures at the sizes of papers: no text overlaps another or leaves the canvas, and lines that coincide stay visible."""

import itertools
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.path import Path as Outline
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from normscope.reporting.drawing import laid_out
from normscope.reporting.figures.style import styled
from normscope.reporting.options import COLUMN, NARROWEST_FIGURE, PAGE
from normscope.results.figures import Figure, Heatmaps, Lines, Profiles, Scatter, WordMaps
from normscope.results.maps import MEASURES

CATEGORIES = ["cls", "sep", "punctuation", "mask", "other"]
LONG = [
    "α: attention weight",
    "‖αf(x)‖: weighted vector",
    "‖F‖: sum over heads",
    "with the residual connection",
    "the attention block",
]


def product(**columns) -> pd.DataFrame:
    table = pd.DataFrame(list(itertools.product(*columns.values())), columns=list(columns))
    generator = np.random.default_rng(0)
    return table.assign(value=generator.uniform(0.1, 99.9, len(table)))


BY_LAYER = product(layer=range(1, 13), category=CATEGORIES, panel=range(6))
NUMBERED = dict(zip("01234", LONG, strict=True))
CATEGORY_TITLES = {category: category for category in CATEGORIES}


def alike(count: int, *, panels: bool) -> Lines:
    """Lines that end at the same value."""
    table = product(layer=range(1, 13), method=range(count), panel=range(3)).assign(value=1.0)
    titles = {number: f"{title} ({number})" for number, title in zip(range(count), LONG, strict=False)}
    table = table if panels else table[table["panel"] == 0]
    panel = {"panel": "panel", "panel_titles": {0: "first", 1: "second", 2: "third"}} if panels else {}
    return Lines(table, "layer", "value", "method", "Caption.", "mean mixing ratio (%)", titles, **panel)


def profile(labelled: int, dimensions: int = 768) -> Profiles:
    table = product(layer=range(13), dimension=range(dimensions)).assign(value=lambda rows: rows["value"] - 50)
    return Profiles(
        table, "layer", "dimension", "value", list(range(300, 300 + labelled)), "mean over tokens", "Caption."
    )


def cloud(**options) -> Scatter:
    table = product(panel=CATEGORIES[:4], point=range(40)).assign(x=lambda rows: rows["point"] + 1.0)
    titles = dict(zip(CATEGORIES[:4], LONG, strict=False))
    labels = {"x_label": "frequency rank", "y_label": "mean over layers"}
    return Scatter(table, "x", "value", "panel", titles, caption="Caption.", **labels, **options)


def words(count: int, maps: int = 2, long: str = "word4") -> WordMaps:
    table = product(method=list("abcde"[:maps]), row=range(count), column=range(count))
    table = table.assign(row_word=table["row"].map("word{}".format), column_word=table["column"].map("word{}".format))
    titles = {"a": "α: weights, layer 3, alignment with output", "b": "‖αf(x)‖: vectors, layer 2"}
    table = table.assign(frame="none")
    titles = titles if maps == 2 else dict(zip("abcde", itertools.islice(MEASURES.values(), maps), strict=False))
    table = table.replace("word4", long)
    return WordMaps(table, "method", titles, "Caption.", "row", "row_word", "column", "column_word")


def spectrum(layers: int) -> Lines:
    table = product(index=range(1, 65), head=range(12), layer=range(1, layers + 1))
    options = {"panel": "layer", "log_y": True, "sharey": True}
    return Lines(table, "index", "value", "head", "Caption.", "mean over heads", **options)


INCOMPLETE = "word maps in rows of which the last is not full"

FIGURES: dict[str, Figure] = {
    "heat maps": Heatmaps(
        product(method=list("01234"), layer=range(1, 13), category=CATEGORIES),
        {"value": ""}, "layer", "category", "Caption.", "method", NUMBERED, limits=(0.0, 100.0),
        value_label="mixing ratio (%)", numbered=True,
    ),
    "deep heat maps": Heatmaps(
        product(method=list("01"), layer=range(1, 49), category=CATEGORIES),
        {"value": ""}, "layer", "category", "Caption.", "method", NUMBERED, limits=(0.0, 100.0),
        value_label="mixing ratio (%)", numbered=True,
    ),
    "heat maps of few layers": Heatmaps(
        product(method=list("01"), layer=range(1, 4), category=CATEGORIES[:2]),
        {"value": ""}, "layer", "category", "Caption.", "method", NUMBERED, limits=(0.0, 100.0),
        value_label="alignment error rate (%)", numbered=True,
    ),
    "grid": Heatmaps(
        product(category=CATEGORIES, layer=range(1, 13), head=range(1, 13)).assign(more=0.01, most=9.5),
        {"value": "α, summed over keys", "more": "‖αf(x)‖, summed over keys", "most": "‖f(x)‖, mean"},
        "layer", "head", "A caption of some length, which is wrapped where it is written below the panels. " * 3,
        "category",
    ),
    "grid of maps with scales of their own": Heatmaps(
        product(category=CATEGORIES, layer=range(1, 13), head=range(1, 13)).assign(more=0.01, most=9.5),
        {"value": "α, summed over keys", "more": "‖αf(x)‖, summed over keys", "most": "‖f(x)‖, mean"},
        "layer", "head", "Caption.", "category", own_scales=True,
    ),
    "diverging grid": Heatmaps(
        product(category=CATEGORIES, layer=range(1, 25), head=range(1, 17)).assign(**{str(i): -1.0 for i in range(5)}),
        {"value": "j = 1023"} | {str(i): f"j = {i + 500}" for i in range(5)},
        "layer", "head", "Caption.", "category", diverging=True,
    ),
    "single heat map": Heatmaps(
        product(layer=range(1, 13), head=range(1, 13)), {"value": "α, summed over keys"}, "layer", "head", "Caption.",
    ),
    "lines": Lines(
        BY_LAYER[BY_LAYER["panel"] == 0], "layer", "value", "category", "Caption.", "mean weight per key", CATEGORY_TITLES
    ),
    "panels of lines": Lines(
        BY_LAYER, "layer", "value", "category", "Caption.", "mean over heads", CATEGORY_TITLES, "panel",
        {number: f"dimension {number}" for number in range(6)},
    ),
    "lines that end together": alike(5, panels=False),
    "panels of lines that end together": alike(4, panels=True),
    "lines without titles": spectrum(12),
    "profiles": profile(6),
    "profiles with many neighbours": profile(40, 4096),
    "scatter": cloud(log_y=True, trim=0.005),
    "scatter with axes of its own": cloud(log_x=True, sharey=False, medians=True),
    "scatter with kinds of points": cloud(
        sharey=False, medians=True, series="point", series_titles={number: f"kind {number} of tokens" for number in range(4)}
    ),
    "one map more than fits in a row": Heatmaps(
        product(method=list("012"), layer=range(1, 7), category=CATEGORIES),
        {"value": ""}, "layer", "category", "Caption.", "method", NUMBERED, limits=(0.0, 100.0),
        value_label="mixing ratio (%)", numbered=True,
    ),
    "word maps": words(12),
    "large word maps": words(40),
    INCOMPLETE: words(10, maps=5, long="unremarkable"),
}  # fmt: skip


def texts(canvas: Canvas) -> list[tuple[str, Outline, Bbox]]:
    """What is written on a canvas, with its outline and its extent in pixels."""
    hidden = set()
    for axis in canvas.findobj(Axis):
        low, high = sorted(axis.get_view_interval())
        for kind in (False, True):
            for tick, place in zip(axis.get_ticklabels(minor=kind), axis.get_ticklocs(minor=kind), strict=False):
                if not axis.axes.get_visible() or not low <= place <= high or not axis.get_visible():
                    hidden.add(tick)
        if not axis.axes.get_visible():
            hidden |= set(axis.axes.findobj(Text))
    renderer = FigureCanvasAgg(canvas).get_renderer()
    found = []
    for text in canvas.findobj(Text):
        if text in hidden or not text.get_visible() or not text.get_text().strip():
            continue
        # The extent of an annotation would include its line.
        own = (
            Text.get_window_extent(text, renderer) if isinstance(text, Annotation) else text.get_window_extent(renderer)
        )
        found.append((text.get_text(), outline(text, own, renderer), own))
    return found


def outline(text: Text, own: Bbox, renderer) -> Outline:
    """The rectangle around a text, turned as the text is, and smaller by the half pixel that antialiasing adds."""
    angle = text.get_rotation()
    if angle % 90 == 0:
        return rectangle(own)
    anchor = text.get_transform().transform(text.get_unitless_position())
    text.set_rotation(0)
    straight = rectangle(text.get_window_extent(renderer))
    text.set_rotation(angle)
    return straight.transformed(mpl.transforms.Affine2D().rotate_deg_around(*anchor, angle))


def rectangle(box: Bbox) -> Outline:
    inner = box.padded(-1.0) if min(box.width, box.height) > 4 else box
    return Outline(inner.corners()[[0, 1, 3, 2, 0]], closed=True)


def check(figure: Figure, width: float, *, caption: bool = False, style: Mapping[str, Any] = {}) -> Canvas:
    """Draw a figure and check its text."""
    with mpl.rc_context(style), styled():
        canvas = laid_out(figure, width, caption=caption)
        canvas.draw_without_rendering()  # places the ticks and titles
        written = texts(canvas)
    edges = canvas.bbox
    for text, _, box in written:
        inside = edges.x0 - 1 <= box.x0 and box.x1 <= edges.x1 + 1 and edges.y0 - 1 <= box.y0 and box.y1 <= edges.y1 + 1
        assert inside, f"{text!r} leaves the canvas: {box} in {edges}"
    for (one, left, _), (other, right, _) in itertools.combinations(written, 2):
        assert not left.intersects_path(right, filled=True), f"{one!r} overlaps {other!r}"
    return canvas


@pytest.mark.parametrize(
    ("name", "width"), [("lines", COLUMN), ("heat maps", PAGE), ("scatter", COLUMN), ("grid", PAGE), (INCOMPLETE, PAGE)]
)
@pytest.mark.spread(1)
def test_no_text_overlaps_or_leaves_the_canvas(name, width):
    canvas = check(FIGURES[name], width)
    assert canvas.get_figwidth() == pytest.approx(width) or name == "large word maps"
    assert canvas.get_figheight() <= 11.7, "no higher than a sheet of paper"


LARGE_SERIF = {"font.family": ["serif"], "font.size": 10, "axes.titlesize": 10, "axes.labelsize": 10} | dict.fromkeys(
    ["xtick.labelsize", "ytick.labelsize", "legend.fontsize"], 9
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("width", [NARROWEST_FIGURE, 12.0])  # PAGE is below, with larger letters
def test_no_text_overlaps_at_any_width(name, width):
    check(FIGURES[name], width)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_no_text_overlaps_in_a_style_with_larger_letters(name):
    check(FIGURES[name], PAGE, style=LARGE_SERIF)


@pytest.mark.slow
def test_a_caption_below_the_panels_has_room():
    check(FIGURES["grid"], COLUMN, caption=True)


def test_the_check_sees_what_overlaps_and_what_leaves():
    canvas = Canvas(figsize=(2, 2))
    first, second = canvas.text(0.5, 0.5, "first"), canvas.text(0.52, 0.5, "second")
    canvas.draw_without_rendering()
    (_, one, _), (_, other, _) = texts(canvas)
    assert one.intersects_path(other, filled=True)
    second.set_position((0.5, 0.8))
    (_, one, _), (_, other, _) = texts(canvas)
    assert not one.intersects_path(other, filled=True)
    first.set_position((0.9, 0.5))
    assert texts(canvas)[0][2].x1 > canvas.bbox.x1


def test_the_first_of_two_lines_that_coincide_shows_on_both_sides_of_the_other():
    table = product(layer=range(1, 7), map=["a", "b"]).assign(
        value=lambda rows: rows["layer"] + (rows["map"] == "a") * 1e-3
    )
    with styled():
        canvas = laid_out(Lines(table, "layer", "value", "map", "", "rate", {"a": "first", "b": "second"}))
    wide, narrow = canvas.axes[0].get_lines()[:2]
    assert wide.get_linewidth() >= 2 * narrow.get_linewidth()


@pytest.mark.filterwarnings("error")
def test_an_axis_without_positive_numbers_is_not_logarithmic():
    table = pd.DataFrame({"layer": [1, 2] * 2, "value": [0.0, 0.0, 0.0, 9.0], "panel": list("aabb"), "map": "c"})
    titles = {"a": "zeros", "b": "others"}
    canvas = laid_out(Lines(table, "layer", "value", "map", "", "‖v‖", {"c": "c"}, "panel", titles, log_y=True))
    assert [axes.get_yscale() for axes in canvas.axes[:2]] == ["linear", "log"]


def test_panels_that_share_an_axis_show_all_their_lines():
    table = product(layer=range(1, 7), category=["cls", "other"], map=["a"])
    table = table.assign(value=lambda rows: 0.1 + 0.8 * (rows["category"] == "cls"))
    titles = {"cls": "cls", "other": "other"}
    with styled():
        canvas = laid_out(Lines(table, "layer", "value", "map", "", "α", {"a": "a"}, "category", titles, sharey=True))
    for axes in canvas.axes:
        low, high = axes.get_ylim()
        assert low == 0
        assert high > 0.9


def test_a_logarithmic_axis_has_powers_or_numbers_but_not_both():
    with styled():
        canvas = laid_out(spectrum(2))
        narrow = laid_out(
            Scatter(
                pd.DataFrame({"x": [0.2, 0.9], "y": 1.0, "p": "p"}), "x", "y", "p", {"p": "p"}, "", "", "", log_x=True
            )
        )
    labels = [label.get_text() for label in canvas.axes[0].get_yticklabels()]
    assert "10⁰" in labels
    assert not any("×" in label for label in labels)
    assert {"0.2", "0.5"} <= {label.get_text() for label in narrow.axes[0].get_xticklabels()}
    assert not any(label.get_text() for label in narrow.axes[0].get_xticklabels(minor=True))
    with styled():
        table = pd.DataFrame({"layer": [1, 2], "value": [5.5, 12.0], "line": "a"})
        (axes,) = laid_out(Lines(table, "layer", "value", "line", "", "value", log_y=True), caption=False).axes
    low, high = axes.get_ylim()
    seen = [tick for tick in axes.get_yticks() if low <= tick <= high]
    assert len(seen) > 2, "of 1, 2 and 5 times powers of ten, only 10 is on this axis"
