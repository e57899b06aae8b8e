"""Files of images and of audio as corpora, the latter alone or with what is said in them."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from normscope.data.annotation import spaced_words
from normscope.data.examples import Annotation, Corpus, Example
from normscope.data.lines import Malformed, count, kind, lines
from normscope.data.text_files import find_files
from normscope.errors import InputError, one_line, printable
from normscope.untrusted.images import names_image
from normscope.untrusted.sounds import names_sound

KEY = "dataset.path"
ROWS = ".jsonl"
"""The extension of files that say which recordings there are, and what is said in them."""

FORMAT = '{"audio": FILE, "text": TRANSCRIPT, "times": [[start, end], ...]}'
"""A row of such a file; `text` and `times` may be left out."""


@dataclasses.dataclass(frozen=True)
class InputFiles(Corpus):
    """Images or recordings, each in a file."""

    paths: tuple[Path, ...]

    @classmethod
    def images(cls, path: str) -> Corpus:
        """The images that a path names: a file, those in a folder, sorted by name, or those that match a pattern.

        Raises:
            InputError: If there are none.
        """
        return cls._at(path, names_image, "image files (.jpg, .png, …)")

    @classmethod
    def recordings(cls, path: str) -> Corpus:
        """The recordings that a path names, in the same forms; or those of a file with a row for each.

        Raises:
            InputError: If there are none.
        """
        location = Path(path).expanduser()
        return (
            Recordings(location)
            if kind(location) == ROWS
            else cls._at(path, names_sound, "audio files (.wav, .flac, …)")
        )

    @classmethod
    def _at(cls, path: str, is_one: Callable[[Path], bool], expected: str) -> Corpus:
        location = Path(path).expanduser()
        inside = sorted(location.iterdir()) if location.is_dir() else find_files(path, KEY)
        files = inside if inside == [location] else [file for file in inside if file.is_file() and is_one(file)]
        if not files:
            raise InputError(f"{KEY}={path}: expected {expected}, found none")
        return cls(tuple(files))

    @property
    def total(self) -> int:
        """The number of files."""
        return len(self.paths)

    def examples(self) -> Iterator[Example | str]:
        """The files in order; a model's reader opens them."""
        for row, path in enumerate(self.paths, start=1):
            yield Example(path.name, row=row, given=path)


@dataclasses.dataclass(frozen=True)
class Recordings(Corpus):
    """Recordings with their transcripts, one to a line of JSON."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_file():
            raise InputError(f"{KEY}={self.path}: {'expected a file' if self.path.exists() else 'no such file'}")

    @property
    def total(self) -> int:
        """The number of rows."""
        return count(self.path)

    def examples(self) -> Iterator[Example | str]:
        """The recordings in order, or the reason why a row is skipped.

        Raises:
            InputError: If the file cannot be read, or a row is no recording; the message names the line.
        """
        try:
            for number, line in enumerate(lines(self.path), start=1):
                if not line.strip():
                    yield "empty"
                    continue
                example = recording(_parsed(line), f"{KEY}={self.path}: line {number}", self.path.parent)
                yield dataclasses.replace(example, row=number)
        except Malformed as error:
            raise InputError(f"{KEY}={self.path}: {error}") from error
        except OSError as error:
            raise InputError(f"{KEY}={self.path}: cannot be read: {error.strerror or error}") from error


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return one_line(error)


def recording(row: object, where: str, folder: Path = Path()) -> Example:
    """A recording with what is said in it.

    Args:
        row: A mapping as in `FORMAT`. From Python, `audio` may also be samples; see `sound_of`.
        where: The row, for messages.
        folder: Where files are that are named without one.

    Raises:
        InputError: If it is no such mapping.
    """
    audio = row.get("audio") if isinstance(row, Mapping) else None
    if not isinstance(row, Mapping) or not isinstance(audio, str | Path | np.ndarray | Tensor):
        raise InputError(f"{where}: expected {FORMAT}, got {printable(repr(row), 60)}")
    text = row.get("text")
    if text is not None and (not isinstance(text, str) or not text.strip()):
        raise InputError(f"{where}: text: expected a transcript, got {printable(repr(text), 60)}")
    given = folder / Path(audio).expanduser() if isinstance(audio, str | Path) else audio
    name = given.name if isinstance(given, Path) else "audio"
    times = None if row.get("times") is None else _times(row["times"], f"{where}: times")
    if times is None:
        return Example(name, text, given=given)
    spans = spaced_words(text or "")
    if len(spans) != len(times):
        raise InputError(
            f"{where}: times: expected [start, end] for each of the {len(spans)} words between spaces in the text, got "
            f"{len(times)}"
        )
    return Example(name, text, given=given, annotation=Annotation(tuple(spans), times=times))


def _times(given: Any, where: str) -> tuple[tuple[float, float], ...]:
    """The start and the end of each word, in seconds."""
    pairs = given if isinstance(given, list) else []
    numbers = [
        isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(each, int | float) and math.isfinite(each) for each in pair)
        and 0 <= pair[0] <= pair[1]
        for pair in pairs
    ]
    if not pairs or not all(numbers):
        wrong = given if not pairs else pairs[numbers.index(False)]
        raise InputError(f"{where}: expected [[start, end], ...] in seconds, got {printable(repr(wrong), 60)}")
    return tuple((float(start), float(end)) for start, end in pairs)
