"""Which values are images: files by their names, and what is in memory."""

from pathlib import Path

import numpy as np

from normscope.untrusted.plain_data import is_file


def names_image(path: str | Path) -> bool:
    """Whether a path ends as the names of images do that can be read."""
    from PIL import Image

    return Path(path).suffix.lower() in Image.registered_extensions()


def is_image(given: object) -> bool:
    """Whether an input is an image and not a text: a name is that of an image if there is such a file."""
    if isinstance(given, str):
        return names_image(given) and is_file(given)
    from PIL import Image

    return isinstance(given, Path | Image.Image) or (isinstance(given, np.ndarray) and given.ndim > 1)
