"""What a token takes from the patches of an image, laid on the image."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from PIL import Image

from normscope.reporting.figures.layout import fitted
from normscope.reporting.figures.style import SMALL, magnitudes, points
from normscope.reporting.palette import DIVERGING
from normscope.results.figures import PatchMaps, end_of_scale
from normscope.results.maps import pixels_of

_ABOVE, _LINE, _BELOW = 0.35, 0.15, 0.75
"""Inches above a row of images, for titles, for each further line of these, and below it, for a scale and for what other tokens
give."""
_SCALE, _HEIGHT = 0.38, 0.07
"""Inches from a map to the bottom of its colour scale, and the scale's own height."""
_NARROWEST = 1.35
"""Inches of a map beside others; more go below."""
_OPAQUE = 0.9
"""How much of the image the colour of the end of the scale hides."""
_FINEST = 300
"""Pixels per inch of the image under a map. The image by itself keeps its full resolution."""


def patch_maps(figure: PatchMaps, width: float) -> Canvas:
    """The image, and beside it each map on the image in grey."""
    pixels = pixels_of(figure.image)
    rows, columns, _ = pixels.shape
    count = 1 + len(figure.panel_titles)
    across = min(count, max(2, int(width / _NARROWEST)))
    down = -(-count // across)
    high = (width / across - 0.15) * rows / columns
    titles = ["image", *(fitted(title, width / across - 0.2) for title in figure.panel_titles.values())]
    above = _ABOVE + _LINE * max(title.count("\n") for title in titles)
    canvas = Canvas(figsize=(width, down * (high + above + _BELOW)), layout="constrained")
    cells = canvas.subplots(down, across, squeeze=False).ravel()
    for cell in cells[count:]:
        cell.remove()
    panels = cells[:count]
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title)
    panels[0].imshow(pixels)
    _plain(panels[0])
    under = _grey(pixels, width / across)
    for axes, panel in zip(panels[1:], figure.panel_titles, strict=True):
        image = _on_image(axes, under, figure.values_of(panel).to_numpy(dtype=float), signed=figure.signed)
        axes.set_xlabel(fitted(figure.beside[panel], width / across - 0.2), fontsize=points("xtick.labelsize"))
        _plain(axes)
        bar = canvas.colorbar(
            image, cax=axes.inset_axes((0.0, -_SCALE / high, 1.0, _HEIGHT / high)), orientation="horizontal"
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=points(scale=SMALL), length=0)
        bar.locator = MaxNLocator(nbins=3)
        bar.update_ticks()
    return canvas


def _grey(pixels: np.ndarray, inches: float) -> np.ndarray:
    """An image in light grey, as fine as a map of that width shows."""
    image = Image.fromarray(pixels).convert("L")
    image.thumbnail((round(inches * _FINEST), image.height))
    return 255 - (255 - np.asarray(image)) // 2


def _on_image(axes: Axes, grey: np.ndarray, values: np.ndarray, *, signed: bool) -> AxesImage:
    """Lay the values of patches on an image: the more, the less of the image can be seen through the colour."""
    rows, columns = grey.shape
    around = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255, extent=around)
    end = end_of_scale(np.abs(values))[0] or 1.0
    shares = np.clip(np.abs(values) / end, 0.0, 1.0)
    scale, colours = (Normalize(-end, end), DIVERGING) if signed else (Normalize(0, end), magnitudes())
    return axes.imshow(values, cmap=colours, norm=scale, alpha=_OPAQUE * shares, extent=around, aspect="equal")


def _plain(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
