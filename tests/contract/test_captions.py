"""Captions of all analyses name no panel, symbol, colour or mark that is not drawn, in a paper's widths and on a screen.

Every word for something on the canvas is in `CLAIMS`, with what must be drawn for it to be true. A word for which there is
nothing to check is refused.
"""

import colorsys
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text

from normscope.analyses.registry import analyses
from normscope.reporting.drawing import laid_out
from normscope.reporting.figure_text import caption_of
from normscope.reporting.figures.style import styled
from normscope.reporting.options import COLUMN, PAGE, SCREEN
from normscope.results.figures import Figure, Lines
from tests.oracles.comparison import everything


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What is on a canvas."""

    caption: str
    canvas: Canvas

    @property
    def panels(self) -> list[Axes]:
        """The axes with data, without those of colour scales."""
        shown = (axes for axes in self.canvas.axes if axes.get_visible() and axes.axison)
        return [axes for axes in shown if axes.get_label() != "<colorbar>"]

    @property
    def texts(self) -> list[str]:
        return [text.get_text() for text in self.canvas.findobj(Text) if text.get_visible()]

    def has_all(self, *kinds: type) -> bool:
        """Whether every panel has something of these kinds."""
        return all(any(isinstance(artist, kinds) for artist in axes.get_children()) for axes in self.panels)

    def lines(self, axes: Axes) -> int:
        return sum(len(np.atleast_1d(line.get_xdata())) > 1 and line.get_linestyle() != "None" for line in axes.lines)

    def bands(self) -> int:
        """Panels with a band, or with intervals."""
        kinds = (PolyCollection, LineCollection)
        found = (artist for axes in self.panels for artist in axes.collections if isinstance(artist, kinds))
        return sum(any(np.isfinite(path.vertices).all() for path in artist.get_paths()) for artist in found)

    def frames(self, *, dashed: bool) -> bool:
        patches = (patch for axes in self.panels for patch in axes.patches if isinstance(patch, Rectangle))
        return any(
            not patch.get_fill() and (patch.get_linestyle() not in ("solid", "-")) == dashed for patch in patches
        )

    def colours(self) -> Iterator[tuple[float, float, float]]:
        """Hue, lightness and saturation of what is drawn; of a map, those of both ends of its scale."""
        for axes in self.panels:
            for image in axes.images:
                for end in (0.0, 1.0):
                    yield colorsys.rgb_to_hls(*image.cmap(end)[:3])
            for line in axes.lines:
                yield colorsys.rgb_to_hls(*to_rgb(line.get_color()))

    def has_hue(self, low: float, high: float) -> bool:
        return any(low <= 360 * hue <= high and saturation > 0.3 for hue, _, saturation in self.colours())

    def has_grey(self) -> bool:
        return any(0.3 < lightness < 0.8 and saturation < 0.15 for _, lightness, saturation in self.colours())

    def maps(self) -> bool:
        return bool(self.panels) and all(axes.images for axes in self.panels)

    def darker_is_more(self) -> bool:
        ends = [[colorsys.rgb_to_hls(*image.cmap(end)[:3])[1] for end in (0.0, 1.0)] for image in self.images()]
        return bool(ends) and all(most < least for least, most in ends)

    def images(self) -> list:
        return [image for axes in self.panels for image in axes.images]


def _written(pattern: str) -> Callable[[Drawn], bool]:
    return lambda drawn: any(re.search(pattern, text) for text in drawn.texts)


def _never(_: Drawn) -> bool:
    return False


CLAIMS: Mapping[str, Callable[[Drawn], bool]] = {
    # Where panels lie depends on the width.
    r"\b(left|right|top|bottom|upper|lower|middle) (panels?|maps?|figures?|plots?|rows?|columns?)\b": _never,
    r"\bon the (left|right)\b|\b([Pp]anels?|[Mm]aps?|[Ff]igures?) (above|below)\b": _never,
    r"\b(first|second|third|last) (panel|map)\b": _never,
    r"\b(panels|other panels|each panel|maps|each map)\b": lambda drawn: len(drawn.panels) > 1,
    r"\bone panel per\b": lambda drawn: len(drawn.panels) > 1,
    r"\btitles say\b": lambda drawn: all(axes.get_title() for axes in drawn.panels),
    r"deepest at the top": lambda drawn: all(image.origin == "lower" for image in drawn.images()) and drawn.maps(),
    r"own range": lambda drawn: len({axes.get_ylim() for axes in drawn.panels}) > 1,
    r"marked “own range”": _written("own range"),
    r"\bcolumn of maps\b": lambda drawn: drawn.maps(),
    r"\(rows?\b|\brows add up|\(columns?\b|\bcells\b": lambda drawn: drawn.maps(),
    r"\blines?\b": lambda drawn: all(drawn.lines(axes) > 0 for axes in drawn.panels),
    r"\bgaps between the lines\b": lambda drawn: all(drawn.lines(axes) > 1 for axes in drawn.panels),
    r"\b[Aa] third line\b": lambda drawn: all(drawn.lines(axes) == 3 for axes in drawn.panels),
    r"\b[Bb]ands?\b|\bintervals?\b": lambda drawn: drawn.bands() > 0,
    r"\b[Ll]abels\b": lambda drawn: bool(drawn.canvas.findobj(Annotation)),
    r"\b[Ff]rames\b": lambda drawn: drawn.frames(dashed=False),
    r"\bdashed\b": lambda drawn: drawn.frames(dashed=True),
    r"\bdots?\b|\bpoints? (per|fall|lie)\b|\bcloud\b": lambda drawn: drawn.has_all(PathCollection),
    r"\bpoints are (larger|smaller)\b": _never,
    r"\blogarithmic\b": lambda drawn: all(axes.get_yscale() == "log" for axes in drawn.panels),
    r"\bn: number\b": _written(r"\(n\s=\s[\d,]+\)"),
    r"\(number of \w+\)": _written(r"\([\d,]+\)|n = "),
    r"\borange\b": lambda drawn: drawn.has_hue(15, 50),
    r"\bpurple\b": lambda drawn: drawn.has_hue(250, 300),
    r"\bdarker\b": Drawn.darker_is_more,
    r"the colour of zero": lambda drawn: all(image.norm.vmin == 0 for image in drawn.images()) and drawn.maps(),
    r"\bgrey cells\b": lambda drawn: any(
        not np.isfinite(image.get_array().filled(np.nan)).all() for image in drawn.images()
    ),
    r"\bgrey\b(?! cells)": lambda drawn: drawn.has_grey(),
    r"\b(blue|red|green|yellow|gray|black|white|pink|warm|cool|lighter|light|dark)\b": _never,
    r"\b(curves?|bars?|boxe?s?|markers?|arrows?|legend|solid|dotted)\b": _never,
    r"\b(circles?|(?<!mean )squares?|triangles?|diamonds?|stars?|crosses)\b": _never,
}

SYMBOL = re.compile(r"‖[^‖]+‖|\b\w?[αβγερμσ][ₖⱼᵢ]?|\bC[ⱼ]|\b[A-Z]\w*-[A-Z]\b|\b(?:[A-Z]{2,}|Atb\w*)\b")


def untrue(caption: str, canvas: Canvas) -> list[str]:
    """What a caption names that is not on the canvas."""
    drawn = Drawn(caption, canvas)
    wrong = [
        found[0]
        for words, holds in CLAIMS.items()
        if (found := re.search(words, caption, re.IGNORECASE)) and not holds(drawn)
    ]
    return wrong + unknown_symbols(caption, drawn.texts)


def unknown_symbols(caption: str, texts: list[str]) -> list[str]:
    """Symbols of a caption that are not drawn, but for one that has its value there, and one that is said to be left out."""
    absent = []
    for found in SYMBOL.finditer(caption):
        after = caption[found.end() :].partition(".")[0]
        explained = re.match(r" = \d", after) or "left out" in after
        if not explained and not any(found[0] in text for text in texts):
            absent.append(found[0])
    return absent


@pytest.mark.slow
@pytest.mark.draws
@pytest.mark.parametrize("name", analyses())
def test_captions_name_what_is_drawn_at_every_width(name):
    figures: Mapping[str, Figure] = everything(name).figures
    wrong = {}
    for (title, figure), width in itertools.product(figures.items(), (COLUMN, PAGE, SCREEN)):
        with styled():
            canvas = laid_out(figure, width, caption=False)
        wrong[title, width] = untrue(caption_of(figure), canvas)
    assert {place: words for place, words in wrong.items() if words} == {}


def _canvas(**options: object) -> Canvas:
    """Two panels of lines."""
    table = pd.DataFrame({"layer": [1, 2] * 2, "y": [0.1, 0.2, 0.3, 0.4], "panel": list("aabb"), "line": "l"})
    figure = Lines(table, "layer", "y", "line", "", "‖f(x)‖", {"l": "line"}, "panel", **options)
    with styled():
        return laid_out(figure, caption=False)


@pytest.mark.spread(3)
@pytest.mark.draws
@pytest.mark.parametrize(
    ("caption", "named"),
    [
        ("The norm ‖f(x)‖ by layer. Each panel has its own range.", []),
        ("The lines rise.", []),
        ("The left panel shows weights.", ["left panel"]),
        ("In the panel on the right, weights fall.", ["on the right"]),
        ("Bands are one standard deviation.", ["Bands"]),
        ("A third line leaves out the outliers.", ["A third line"]),
        ("Labels mark the outliers.", ["Labels"]),
        ("Dashed frames mark links.", ["frames", "Dashed"]),
        ("Each token (row) and each token (column).", ["(row"]),
        ("Orange raises it, purple lowers it.", ["Orange", "purple"]),
        ("The darker, the more.", ["darker"]),
        ("Grey cells have no value.", ["cells", "Grey cells"]),
        ("Norms on a logarithmic scale.", ["logarithmic"]),
        ("Pairs (n: number of pairs).", ["n: number"]),
        ("The weight α exceeds ε = 0.3, and ‖αf(x)‖ is small.", ["α", "‖αf(x)‖"]),
        ("Attn-W is half of Attn-N. AttnRes-W is left out.", ["Attn-W", "Attn-N"]),
        ("The bars show weights.", ["bars"]),
    ],
)
def test_the_check_sees_what_is_not_there(caption, named):
    assert untrue(caption, _canvas()) == named


@pytest.mark.draws
def test_the_check_sees_one_range_and_one_panel():
    assert untrue("Each panel has its own range.", _canvas(sharey=True)) == ["own range"]
    assert untrue("The panels share a range.", _canvas(panel_titles={"a": "one panel"})) == ["panels"]
