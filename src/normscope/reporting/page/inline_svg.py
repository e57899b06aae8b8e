"""Figures as elements of a page: SVG in the page's fonts and colours, with no identifier that another figure has."""

import re
import xml.etree.ElementTree as ElementTree

from markupsafe import Markup

from normscope.reporting.drawing import svg
from normscope.reporting.figure_text import caption_of
from normscope.reporting.figures.layout import POINTS_PER_INCH
from normscope.reporting.options import ACROSS, SCREEN
from normscope.reporting.palette import FAINT, GRID, INK, LINE_COLOURS, MISSING, ON_LITTLE, ON_MUCH
from normscope.results.figures import Figure, PatchMaps

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"

_VARIABLES = {
    INK: "text",
    FAINT: "faint",
    GRID: "line",
    MISSING: "missing",
    ON_LITTLE: "on-little",
    ON_MUCH: "on-much",
    **{colour: f"series-{number}" for number, colour in enumerate(LINE_COLOURS, start=1)},
}
"""Custom properties of `page.css`, by the colours whose place they take."""
_PROPERTIES = {colour.lower(): f"var(--{name})" for colour, name in _VARIABLES.items()}

_FONT = re.compile(r"font-family:[^;]*;?\s*")
_GEOMETRY = {"d", "x", "y", "transform"}
_DIGITS = re.compile(r"(\.\d\d)\d+")
"""Hundredths of a point, and what is smaller."""
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_REFERENCE = re.compile(r"url\(#(\w+)\)")


_TALL = 0.9
"""Ratio of height to width above which a figure leaves too much empty space beside it."""
_LOWER = 0.7
"""A figure is shown across the page if that makes it lower by at least this factor."""


def figure_element(figure: Figure, name: str, *, first: bool = False) -> Markup:
    """A figure with its caption, as an element whose `id` is its name.

    Args:
        figure: What to draw.
        name: The name of the element.
        first: Whether the figure is visible without unfolding. A tall one is then drawn a second time, in as
            many panels across as the page is wide; the page's style shows it where there is room.
    """
    caption = caption_of(figure)
    picture = svg(figure)
    shown = Markup(inlined(picture, name, caption))  # XML, in which every text is escaped
    if first and (height := _height(picture)) > _TALL * SCREEN:
        wide = svg(figure, ACROSS)
        if _height(wide) < _LOWER * height:
            shown = Markup('<div class="narrow">{}</div><div class="wide">{}</div>').format(
                shown, Markup(inlined(wide, f"{name}-wide", caption))
            )
    # A photograph is as light in dark mode.
    kind = Markup(' class="photograph"') if isinstance(figure, PatchMaps) else ""
    return Markup('<figure id="{}"{}>{}<figcaption>{}</figcaption></figure>').format(name, kind, shown, caption)


def _height(content: str) -> float:
    """The height of an SVG in inches."""
    return float(ElementTree.fromstring(content).attrib["height"].removesuffix("pt")) / POINTS_PER_INCH


def inlined(content: str, name: str, label: str) -> str:
    """The SVG as an element that scales with its place.

    Args:
        content: What matplotlib wrote, with text as text.
        name: The figure's own name, which begins all of its identifiers.
        label: What people hear who do not see the figure.
    """
    root = ElementTree.fromstring(content)
    for unwanted in [*root.findall(f"{{{_SVG}}}metadata"), *root.findall(f"{{{_SVG}}}defs[{{{_SVG}}}style]")]:
        root.remove(unwanted)  # a style would be that of the whole page
    for node in root.iter():
        node.tag = node.tag.removeprefix(f"{{{_SVG}}}")
        node.tail = None
        if node.tag != "text":
            node.text = None
        if "style" in node.attrib:
            node.set("style", _COLOUR.sub(_variable, _FONT.sub("", node.attrib["style"])))
        for attribute in _GEOMETRY.intersection(node.attrib):
            node.set(attribute, _DIGITS.sub(r"\1", node.attrib[attribute]))
        if _LINK in node.attrib:
            node.set("href", node.attrib.pop(_LINK))
    _rename(root, re.sub(r"\W", "_", name))
    for attribute in ("width", "height", "version"):
        del root.attrib[attribute]
    # The colour that matplotlib leaves out is black.
    root.attrib |= {"role": "img", "aria-label": label, "style": "fill: var(--text); stroke-linejoin: round"}
    return ElementTree.tostring(root, encoding="unicode")


def _variable(colour: re.Match[str]) -> str:
    return _PROPERTIES.get(colour[0], colour[0])


def _rename(root: ElementTree.Element, name: str) -> None:
    """Only what is referred to keeps an identifier."""
    links = {node.attrib["href"][1:] for node in root.iter() if node.attrib.get("href", "").startswith("#")}
    links |= {found for node in root.iter() for value in node.attrib.values() for found in _REFERENCE.findall(value)}
    for node in root.iter():
        own = node.attrib.pop("id", None)
        if own in links:
            node.set("id", f"{name}-{own}")
        if node.attrib.get("href", "").startswith("#"):
            node.set("href", f"#{name}-{node.attrib['href'][1:]}")
        for attribute, value in node.attrib.items():
            node.set(attribute, _REFERENCE.sub(rf"url(#{name}-\1)", value))
