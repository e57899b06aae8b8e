"""Files of images, by their names."""

from pathlib import Path


def names_image(path: str | Path) -> bool:
    """Whether a path ends as the names of images do that can be read."""
    from PIL import Image

    return Path(path).suffix.lower() in Image.registered_extensions()
