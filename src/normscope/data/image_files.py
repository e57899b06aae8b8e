"""Image files as a corpus."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from normscope.data.examples import Corpus, Example
from normscope.data.text_files import find_files
from normscope.errors import InputError
from normscope.untrusted.images import names_image

KEY = "dataset.path"


@dataclasses.dataclass(frozen=True)
class ImageFiles(Corpus):
    """Images, each in a file."""

    paths: tuple[Path, ...]

    @classmethod
    def at(cls, path: str) -> "ImageFiles":
        """The images that a path names: a file, those in a folder, sorted by name, or those that match a pattern.

        Raises:
            InputError: If there are none.
        """
        location = Path(path).expanduser()
        inside = sorted(location.iterdir()) if location.is_dir() else find_files(path, KEY)
        if inside == [location]:
            return cls((location,))
        files = [file for file in inside if file.is_file() and names_image(file)]
        if not files:
            raise InputError(f"{KEY}={path}: expected image files (.jpg, .png, …), found none")
        return cls(tuple(files))

    @property
    def total(self) -> int:
        """The number of images."""
        return len(self.paths)

    def examples(self) -> Iterator[Example | str]:
        """The images in order; a model's reader opens them."""
        for row, path in enumerate(self.paths, start=1):
            yield Example(path.name, row=row, given=path)
