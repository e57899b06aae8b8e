"""A figure for notebooks and files."""

import base64
import dataclasses
import html
from pathlib import Path

from normscope.api.arguments import in_terms_of_arguments
from normscope.api.calls import checked
from normscope.config.schema import check_options
from normscope.errors import InputError, one_line
from normscope.reporting import drawing
from normscope.reporting.figure_text import caption_of
from normscope.reporting.options import FigureOptions, appearance
from normscope.results.figures import Drawing


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """A figure that notebooks display and `save` writes to a file."""

    description: Drawing

    @checked
    def save(
        self,
        path: str | Path,
        *,
        width: str | float = "page",
        caption: bool = True,
        dpi: int = 200,
    ) -> None:
        """Save the figure to a file, in the format of its extension. `matplotlib.rc_context` changes its style.

        Args:
            path: The file: .png, .svg, .pdf, or another format of matplotlib's.
            width: `page` (6.9 inches), `column` (3.35 inches), or a number of inches.
            caption: Whether to write the caption below the panels.
            dpi: Pixels per inch.

        Raises:
            InputError: If an argument is invalid, the file cannot be written, or its extension is unknown.
        """
        options = FigureOptions(width=width, caption=caption, dpi=dpi)
        with in_terms_of_arguments({}):
            check_options(options, "figures.")
            look = appearance(options)
            try:
                drawing.draw(self.description, [Path(path)], look)
            except (ValueError, OSError) as error:
                raise InputError(f"{path}: {one_line(error)}") from error

    def _repr_png_(self) -> bytes:
        return drawing.png(self.description)

    def _repr_html_(self) -> str:
        encoded = base64.b64encode(self._repr_png_()).decode()
        alt = html.escape(caption_of(self.description))
        return f'<img alt="{alt}" style="max-width: 100%" src="data:image/png;base64,{encoded}">'


@checked
def draw(figure: Drawing) -> Picture:
    """Draw a figure of a run, which notebooks display and `save` writes to a file.

    Args:
        figure: One of `Result.figures`.

    Examples:
        >>> import normscope
        >>> result = normscope.run("mixing", texts=["A short text."])
        >>> picture = normscope.draw(result.figures["mixing_by_layer"])
        >>> picture.save("by_layer.pdf")
        >>> picture.description.y_label
        'mean mixing ratio (%)'
    """
    return Picture(figure)
