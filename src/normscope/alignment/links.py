"""Word alignments: which word of a source sentence belongs to which word of its translation, in Pharaoh format."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from normscope.data.examples import Link, Links
from normscope.data.lines import Malformed, lines
from normscope.data.token_sequence import Segmenter
from normscope.errors import InputError

Direction = Literal["source-target", "target-source"]
DIRECTIONS: tuple[Direction, ...] = ("source-target", "target-source")

# Nine digits are more than any sentence has words, and few enough for Python to read.
_LINK = re.compile(r"(\d{1,9})([-p])(\d{1,9})")


@dataclasses.dataclass(frozen=True)
class LinkFile:
    """A file with one line of links per sentence pair: `1-2` is a sure link, `3p4` a possible one.

    Args:
        path: The file.
        key: The config key that named it, for messages.
        base: The number of a sentence's first word, 0 or 1.
        direction: Which side comes first in a link.
    """

    path: Path
    key: str
    base: int = 0
    direction: Direction = "source-target"

    def __post_init__(self) -> None:
        if self.base not in (0, 1):
            raise InputError(f"{self.key}={self.path}: words are counted from 0 or 1, not from {self.base}")
        if self.direction not in DIRECTIONS:
            raise InputError(
                f"{self.key}={self.path}: direction {self.direction!r}; expected {' or '.join(DIRECTIONS)}"
            )
        if not self.path.is_file():
            raise InputError(f"{self.key}={self.path}: no such file")

    def read(self, lengths: Sequence[Link]) -> list[Links]:
        """The links of every sentence pair.

        Args:
            lengths: How many words the source and the target of each pair have.

        Raises:
            InputError: If there are more or fewer lines than pairs, or a link is none, or points at no word; the message
                names the line and the link.
        """
        found = []
        try:
            for number, line in enumerate(lines(self.path), start=1):
                if number > len(lengths):
                    raise InputError(
                        f"{self.key}={self.path}: it goes on after line {len(lengths):,}, where the text ends; both need "
                        "one line per sentence pair"
                    )
                found.append(self._links(line, number, lengths[number - 1]))
        except Malformed as error:
            raise InputError(f"{self.key}={self.path}: {error}") from error
        except OSError as error:
            raise InputError(f"{self.key}={self.path}: cannot be read: {error.strerror or error}") from error
        if len(found) < len(lengths):
            raise InputError(
                f"{self.key}={self.path}: it has {len(found):,} lines, the text {len(lengths):,} sentence pairs"
            )
        if not any(links.possible for links in found):
            raise InputError(f"{self.key}={self.path}: no line has a link")
        return found

    def _links(self, line: str, number: int, lengths: Link) -> Links:
        sure, possible = set(), set()
        for entry in line.split():
            match = _LINK.fullmatch(entry)
            if match is None:
                raise InputError(
                    f"{self.key}={self.path}: line {number}: {entry[:40]!r} is no link; expected 1-2 or 3p4"
                )
            first, second = int(match[1]) - self.base, int(match[3]) - self.base
            link = (first, second) if self.direction == "source-target" else (second, first)
            for word, length, side in zip(link, lengths, ("source", "target"), strict=True):
                if not 0 <= word < length:
                    raise InputError(
                        f"{self.key}={self.path}: line {number}: {entry} points at {side} word {word + self.base}, but the "
                        f"sentence has {length} words, counted from {self.base}; see {self.key.rpartition('.')[0]}: base "
                        "and direction"
                    )
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        return Links(frozenset(sure), frozenset(possible))


def pharaoh(links: Sequence[Link] | frozenset[Link]) -> str:
    """Links as a line of Pharaoh format, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parsed(line: str) -> frozenset[Link]:
    """The links of a line that `pharaoh` wrote."""
    pairs = (entry.split("-") for entry in line.split())
    return frozenset((int(source), int(target)) for source, target in pairs)


_SPACED = re.compile(r"\S+")
_PUNCTUATED = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")


def spaced_words(text: str) -> list[tuple[int, int]]:
    """Words are what white space separates."""
    return [match.span() for match in _SPACED.finditer(text)]


def punctuated_words(text: str) -> list[tuple[int, int]]:
    """Words are runs of letters and digits, with hyphens and apostrophes inside; every other sign is a word by itself."""
    return [match.span() for match in _PUNCTUATED.finditer(text)]


def words_of(text: str, segmenter: Segmenter) -> Iterator[str]:
    """The words of a text."""
    return (text[start:end] for start, end in segmenter(text))
