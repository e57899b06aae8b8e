"""A figure for notebooks and files."""

import base64
import dataclasses
import html
from pathlib import Path

from normscope.analyses.findings import Figure
from normscope.errors import InputError, one_line
from normscope.reporting.drawing import draw, png


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """A figure that notebooks display and `save` writes to a file."""

    description: Figure

    def save(self, path: str | Path) -> None:
        """Save the figure to a file, in the format of its extension.

        Raises:
            InputError: If the file cannot be written or its extension is unknown.
        """
        try:
            draw(self.description, [Path(path)])
        except (ValueError, OSError) as error:
            raise InputError(f"{path}: {one_line(error)}") from error

    def _repr_png_(self) -> bytes:
        return png(self.description)

    def _repr_html_(self) -> str:
        encoded = base64.b64encode(self._repr_png_()).decode()
        alt = html.escape(self.description.caption)
        return f'<img alt="{alt}" style="max-width: 100%" src="data:image/png;base64,{encoded}">'
