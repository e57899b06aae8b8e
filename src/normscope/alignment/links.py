"""Word alignments in Pharaoh format (links of source and target words), and their agreement with human ones.

A is the alignment under test; people marked sure links S and possible links P ⊇ S.

Source: Och & Ney 2003, section 3.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from normscope.data.examples import Link, Links
from normscope.data.lines import Malformed, lines
from normscope.data.token_sequence import Segmenter
from normscope.data.words import extends
from normscope.errors import InputError
from normscope.rounding import counted

Direction = Literal["source-target", "target-source"]
DIRECTIONS: tuple[Direction, ...] = ("source-target", "target-source")

# Nine digits are more than any sentence has words, and few enough for Python to read.
_LINK = re.compile(r"(\d{1,9})([-p])(\d{1,9})")


@dataclasses.dataclass(frozen=True)
class LinkFile:
    """A file with one line of links per sentence pair: `1-2` is a sure link, `3p4` a possible one.

    Args:
        key: The config key that names it, for messages.
        base: The number of the first word of a sentence, 0 or 1.
        direction: Which side a link names first.
    """

    path: Path
    key: str
    base: int = 0
    direction: Direction = "source-target"

    def __post_init__(self) -> None:
        if self.base not in (0, 1):
            raise InputError(f"{self.key}={self.path}: base {self.base}; expected words counted from 0 or 1")
        if self.direction not in DIRECTIONS:
            raise InputError(
                f"{self.key}={self.path}: direction {self.direction!r}; expected {' or '.join(DIRECTIONS)}"
            )
        if not self.path.is_file():
            raise InputError(f"{self.key}={self.path}: no such file")

    def read(self, lengths: Sequence[Link]) -> list[Links]:
        """The links of every sentence pair.

        Args:
            lengths: The number of source and target words of each pair.

        Raises:
            InputError: If there are more or fewer lines than pairs, or an entry is not a link or points past the end of
                its sentence; the message names the line and the entry.
        """
        alignments = []
        try:
            for number, line in enumerate(lines(self.path), start=1):
                if number > len(lengths):
                    raise InputError(
                        f"{self.key}={self.path}: expected {counted(len(lengths), 'line')}, one per sentence "
                        "pair; the file has more"
                    )
                alignments.append(self._links(line, number, lengths[number - 1]))
        except Malformed as error:
            raise InputError(f"{self.key}={self.path}: {error}") from error
        except OSError as error:
            raise InputError(f"{self.key}={self.path}: cannot be read: {error.strerror or error}") from error
        if len(alignments) < len(lengths):
            raise InputError(
                f"{self.key}={self.path}: expected {counted(len(lengths), 'line')}, one per sentence pair; the file has "
                f"{len(alignments):,}"
            )
        if not any(links.possible for links in alignments):
            raise InputError(
                f"{self.key}={self.path}: expected lines of links such as 1-2 or 3p4; the file has no link"
            )
        return alignments

    def _links(self, line: str, number: int, lengths: Link) -> Links:
        sure, possible = set(), set()
        for entry in line.split():
            match = _LINK.fullmatch(entry)
            if match is None:
                raise InputError(
                    f"{self.key}={self.path}: line {number}: {entry[:40]!r} is not a link; expected 1-2 or 3p4"
                )
            first, second = int(match[1]) - self.base, int(match[3]) - self.base
            link = (first, second) if self.direction == "source-target" else (second, first)
            for word, length, side in zip(link, lengths, ("source", "target"), strict=True):
                if not 0 <= word < length:
                    raise InputError(
                        f"{self.key}={self.path}: line {number}: {entry} points at {side} word {word + self.base}, but the "
                        f"sentence has {counted(length, 'word')}, counted from {self.base}; see "
                        f"{self.key.rpartition('.')[0]}: base and direction"
                    )
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        return Links(frozenset(sure), frozenset(possible))


def pharaoh(links: Sequence[Link] | frozenset[Link]) -> str:
    """Links as a line of Pharaoh format, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def parsed(line: str) -> frozenset[Link]:
    """The inverse of `pharaoh`."""
    pairs = (entry.split("-") for entry in line.split())
    return frozenset((int(source), int(target)) for source, target in pairs)


_PUNCTUATED = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]")


def punctuated_words(text: str) -> list[tuple[int, int]]:
    """Spans of words: runs of letters and digits with hyphens and apostrophes inside, or single punctuation marks.

    Accents and joiners belong to the letters before them.
    """
    letters = "".join("x" if extends(character) else character for character in text)
    return [match.span() for match in _PUNCTUATED.finditer(letters)]


def words_of(text: str, segmenter: Segmenter) -> Iterator[str]:
    """The words of a text."""
    return (text[start:end] for start, end in segmenter(text))


Number = int | np.ndarray

RATES = ("aer", "precision", "recall")


def error_rates(links: Number, in_sure: Number, in_possible: Number, sure: Number) -> dict[str, np.ndarray]:
    """Alignment error rate, precision and recall from counts over a corpus, element by element.

    Args:
        links: |A|.
        in_sure: |A ∩ S|.
        in_possible: |A ∩ P|.
        sure: |S|.

    Returns:
        The three RATES: `aer` = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), or 1 if A and S are both empty; `precision` = |A∩P| / |A|,
        or 0 if A is empty; `recall` = |A∩S| / |S|, or 0 if S is empty.
    """
    return {
        "aer": 1 - _ratio(in_sure + in_possible, links + sure),
        "precision": _ratio(in_possible, links),
        "recall": _ratio(in_sure, sure),
    }


def evaluate(alignments: Iterable[frozenset[Link]], gold: Iterable[Links]) -> dict[str, float]:
    """The RATES of a corpus's alignments, one set of links per sentence pair."""
    counts = [
        (len(links), len(links & human.sure), len(links & human.possible), len(human.sure))
        for links, human in zip(alignments, gold, strict=True)
    ]
    totals = np.array(counts, dtype=np.int64).reshape(-1, 4).sum(axis=0, keepdims=True)
    return {name: rate.item() for name, rate in error_rates(*totals.T).items()}


def _ratio(numerator: Number, denominator: Number) -> np.ndarray:
    """The quotient, or 0 if the denominator is 0."""
    above, below = np.broadcast_arrays(numerator, denominator)
    return np.divide(above, below, out=np.zeros(above.shape), where=below != 0)
