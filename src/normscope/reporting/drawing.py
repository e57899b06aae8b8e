"""Draws figures from their descriptions, with matplotlib."""

import contextlib
import io
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from normscope.config.schema import check_options
from normscope.errors import InputError, one_line
from normscope.reporting.figure_text import caption_of, with_token_names, with_visible_text
from normscope.reporting.figures.coloured_text import coloured_text
from normscope.reporting.figures.dots import dots
from normscope.reporting.figures.heatmaps import heatmaps
from normscope.reporting.figures.lines import lines
from normscope.reporting.figures.patch_maps import patch_maps
from normscope.reporting.figures.profiles import profiles
from normscope.reporting.figures.scatter import scatter
from normscope.reporting.figures.sound_maps import sound_maps
from normscope.reporting.figures.style import points, styled
from normscope.reporting.figures.word_maps import word_maps
from normscope.reporting.options import ENLARGED, PAGE, SCREEN, SLIDE, Appearance, FigureOptions, appearance
from normscope.reporting.palette import ON_PAGE
from normscope.results.figures import (
    ColouredText,
    Dots,
    Figure,
    Heatmaps,
    Lines,
    PatchMaps,
    Profiles,
    Scatter,
    SoundMaps,
    WordMaps,
)
from normscope.untrusted.writing import write_named

_DATE = "SOURCE_DATE_EPOCH"

_LONGEST_SIDE = 65_000
"""Pixels: matplotlib refuses sides of 65,536."""
_MOST_PIXELS = 150_000_000
"""0.6 GB while the file is written."""
_WIDER = (1.2, 1.5, 2.0)
"""How much wider than a slide a figure may be laid out that would be too tall."""
_POINTS = re.compile(rb"(?<=\")([\d.]+)pt")
_SCREEN_DPI = 150
"""Pixels per inch of the clouds of points on a page."""


DEFAULT = Appearance()
NOTEBOOK = Appearance(dpi=130)


def draw(figure: Figure, paths: Sequence[Path], look: Appearance = DEFAULT) -> None:
    """Draw a figure into files that the user has named, each in the format of its suffix.

    Raises:
        InputError: If a file cannot be written.
    """
    contents = drawn(figure, [path.suffix.lower().removeprefix(".") for path in paths], look)
    for path, content in zip(paths, contents, strict=True):
        write_named(path, content)


def save(figure: Figure, path: str | Path, look: Mapping[str, Any]) -> None:
    """Draw a figure into a file that the user has named.

    Args:
        figure: What to draw.
        path: The file, whose suffix is the format.
        look: Some of `FigureOptions`, by name.

    Raises:
        InputError: If an option is invalid, the file cannot be written, or its suffix is unknown.
    """
    options = FigureOptions(**look)
    check_options(options, "")
    try:
        draw(figure, [Path(path)], appearance(options))
    except ValueError as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def drawn(figure: Figure, formats: Sequence[str], look: Appearance = DEFAULT) -> list[bytes]:
    """The contents of a figure's files, one in each format: png, svg, pdf and others that matplotlib writes."""
    with styled(), _without_date():
        canvas, enlarged = (
            _for_a_slide(figure) if look.slide else (laid_out(figure, look.width, caption=look.caption), 1.0)
        )
        return [_saved(canvas, extension, look, _metadata(extension, figure), enlarged) for extension in formats]


def figure_files(figures: Mapping[str, Figure], look: Appearance = DEFAULT) -> Iterator[tuple[str, bytes]]:
    """The files of a run's figures: names in the folder of the run, and contents."""
    for name, figure in figures.items():
        for extension, content in zip(look.formats, drawn(figure, look.formats, look), strict=True):
            yield f"figures/{name}.{extension}", content
        if not look.caption:
            yield f"figures/{name}.txt", f"{caption_of(figure)}\n".encode()


def png(figure: Figure, look: Appearance = NOTEBOOK) -> bytes:
    """A figure as the bytes of a PNG."""
    with styled():
        return _saved(laid_out(figure, look.width, caption=look.caption), "png", look, {})


def _for_a_slide(figure: Figure) -> tuple[Canvas, float]:
    """The drawing, as wide as lets it be largest on a slide, and how much larger it is there.

    A figure that would be too tall at the width of a slide is drawn wider, with more panels beside each other.
    """
    across, down = SLIDE
    best, scale = None, 0.0
    for wider in (1.0, *_WIDER):
        canvas = laid_out(figure, wider * across, caption=False)
        width, height = map(float, canvas.get_size_inches())
        fits = min(across / width, down / height)
        if fits > scale:
            best, scale = canvas, fits
        if fits * wider > 0.99:  # no narrower than the slide: wider would only be smaller
            break
    assert best is not None
    return best, scale * ENLARGED


def _saved(canvas: Canvas, extension: str, look: Appearance, about: dict[str, Any], enlarged: float = 1.0) -> bytes:
    """The contents of a file. Pixels and SVG are enlarged; LaTeX includes a PDF at the width that it is given."""
    stream = io.BytesIO()
    resolution = _resolution(canvas, look.dpi * enlarged)
    size: dict[str, Any] = {"pil_kwargs": {"dpi": (resolution / enlarged,) * 2}} if extension == "png" else {}
    canvas.savefig(stream, format=extension, dpi=resolution, metadata=about, **size)
    return _larger(stream.getvalue(), enlarged) if extension == "svg" else stream.getvalue()


def _larger(content: bytes, times: float) -> bytes:
    """An SVG of another size, whose coordinates stay."""
    start, end, rest = content.partition(b"viewBox")
    return _POINTS.sub(lambda size: b"%.6gpt" % (float(size[1]) * times), start) + end + rest if times != 1 else content


@contextlib.contextmanager
def _without_date() -> Iterator[None]:
    """Context without the date of a reproducible build, which matplotlib parses even where a file has no date."""
    date = os.environ.pop(_DATE, None)
    try:
        yield
    finally:
        if date is not None:
            os.environ[_DATE] = date


def svg(figure: Figure, width: float = SCREEN) -> str:
    """A figure as SVG for a page, which has its own fonts and colours: text as text, in our ink, on no ground."""
    with styled(), mpl.rc_context(ON_PAGE), _without_date():
        stream = io.StringIO()
        canvas = laid_out(figure, width, caption=False)
        canvas.savefig(stream, format="svg", dpi=_SCREEN_DPI, metadata={"Date": None})
    return stream.getvalue()


def _resolution(canvas: Canvas, dpi: float) -> float:
    """Pixels per inch, fewer for a canvas so large that matplotlib or the memory would not do."""
    width, height = canvas.get_size_inches()
    return float(min(dpi, _LONGEST_SIDE / max(width, height), (_MOST_PIXELS / (width * height)) ** 0.5))


def _metadata(extension: str, figure: Figure) -> dict[str, Any]:
    """The caption, in formats that hold one; no date, so that the same figure has the same bytes."""
    match extension:
        case "svg":
            return {"Date": None}
        case "pdf":
            return {"Subject": caption_of(figure), "CreationDate": None}
        case _:
            return {"Description": caption_of(figure)}


def laid_out(figure: Figure, width: float = PAGE, *, caption: bool = True) -> Canvas:
    """The drawing, laid out once for all files.

    Args:
        figure: What to draw.
        width: Width in inches. Maps of many words become wider.
        caption: Whether to write the caption below the panels.
    """
    figure = with_visible_text(with_token_names(figure))
    match figure:
        case Heatmaps():
            canvas = heatmaps(figure, width)
        case Lines():
            canvas = lines(figure, width)
        case Profiles():
            canvas = profiles(figure, width)
        case Scatter():
            canvas = scatter(figure, width)
        case Dots():
            canvas = dots(figure, width)
        case WordMaps():
            canvas = word_maps(figure, width)
        case PatchMaps():
            canvas = patch_maps(figure, width)
        case SoundMaps():
            canvas = sound_maps(figure, width)
        case ColouredText():
            canvas = coloured_text(figure, width)
        case _:
            assert_never(figure)
    if caption:
        _add_caption(canvas, caption_of(figure))
    canvas.get_layout_engine().execute(canvas)  # type: ignore[union-attr]
    canvas.set_layout_engine(None)  # with any other, each file would be drawn twice, the first time for the layout
    return canvas


def _add_caption(canvas: Canvas, caption: str) -> None:
    """Make the canvas higher and write the caption below the panels."""
    width, height = canvas.get_size_inches()
    size = points()
    text = textwrap.fill(caption, max(20, int((width - 0.2) / (0.52 * size / 72))))
    room = (text.count("\n") + 1) * size * 1.4 / 72 + 0.15
    canvas.set_size_inches(width, height + room)
    share = room / (height + room)
    canvas.get_layout_engine().set(rect=(0, share, 1, 1 - share))  # type: ignore[union-attr, call-arg]
    canvas.text(0.1 / width, share - 0.08 / (height + room), text, fontsize=size, va="top", linespacing=1.4)
