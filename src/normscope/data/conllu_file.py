"""Treebanks in CoNLL-U: sentences as words with parts of speech, heads and relations.

The package `conllu` reads single cells. Lines are split here, so that errors name them: the package takes two spaces for a tab
and drops what it does not expect.

Source of the format: https://universaldependencies.org/format.html
"""

import dataclasses
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conllu.exceptions import ParseException
from conllu.parser import parse_dict_value, parse_id_value, parse_int_value

from normscope.data.annotation import UNSPECIFIED, WITHOUT_FORMS, lack_forms
from normscope.data.examples import ROOT, Annotation, Corpus, Example
from normscope.data.legibility import why_not_text
from normscope.data.lines import Malformed, is_gzipped, lines
from normscope.errors import InputError, printable
from normscope.rounding import counted

COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The columns of a word's line."""

# Above this size, counting the sentences for a progress bar takes noticeable time.
_COUNTED_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class ConlluFile(Corpus):
    """A CoNLL-U file, read sentence by sentence and never held in memory.

    Empty nodes and enhanced dependencies are read and left out, since no piece of the text belongs to them.
    """

    path: Path
    key: str = "dataset.path"
    """The config key that names the file, for messages."""

    def __post_init__(self) -> None:
        if not self.path.exists():
            raise InputError(f"{self.key}={self.path}: no such file")
        if not self.path.is_file():
            raise InputError(f"{self.key}={self.path}: expected a CoNLL-U file")
        if self.path.stat().st_size == 0:
            raise InputError(f"{self.key}={self.path}: the file is empty")

    @property
    def total(self) -> int | None:
        """The number of sentences, if they are cheap to count."""
        if is_gzipped(self.path) or self.path.stat().st_size > _COUNTED_BYTES:
            return None
        with self.path.open("rb") as stream:
            return sum(line.startswith(b"1\t") for line in stream)

    def examples(self) -> Iterator[Example | str]:
        """Sentences in the order of the file, or the reason why one is skipped.

        Raises:
            InputError: If the file is not CoNLL-U; the message names the line. If it has annotation and no text.
        """
        has_text = lacks_text = False
        try:
            for block in _blocks(self.path):
                example = _example(block)
                has_text |= isinstance(example, Example)
                lacks_text |= example == WITHOUT_FORMS
                yield example
        except Malformed as error:
            raise InputError(f"{self.key}={self.path}: {error}") from error
        except OSError as error:
            raise InputError(f"{self.key}={self.path}: cannot be read: {error.strerror or error}") from error
        if lacks_text and not has_text:
            raise InputError(
                f"{self.key}={self.path}: expected words, got a treebank without its text (every FORM is {UNSPECIFIED}); merge "
                "the text into it with the script that its authors provide"
            )


_EXPECTED = {
    "id": "the number of a word, a range such as 1-2, or an empty node such as 1.1",
    "head": f"the number of a word, 0 for the root, or {UNSPECIFIED}",
    "misc": f"pairs such as SpaceAfter=No, separated by |, or {UNSPECIFIED}",
}


class _Line(NamedTuple):
    number: int
    text: str


class _Surface(NamedTuple):
    """A stretch of text, and the words that it stands for: one, or those of a multi-word token."""

    form: str
    words: range
    space_after: bool


def _blocks(path: Path) -> Iterator[list[_Line]]:
    """The lines of each sentence."""
    block: list[_Line] = []
    for number, line in enumerate(lines(path), start=1):
        text = line.rstrip("\r\n")
        if text.strip():
            block.append(_Line(number, text))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _example(block: Sequence[_Line]) -> Example | str:
    comments = [line.text for line in block if line.text.startswith("#")]
    rows = [(line.number, _cells(line)) for line in block if not line.text.startswith("#")]
    words = [(number, cells) for number, cells in rows if cells["id"].isdecimal()]
    surfaces = _surfaces(rows, len(words))
    if not words:
        return "a block of comments alone"
    for expected, (number, cells) in enumerate(words, start=1):
        if cells["id"] != str(expected):
            raise Malformed(f"line {number}: expected word {expected} of the sentence, got {cells['id']}")
    if lack_forms([surface.form for surface in surfaces]):
        return WITHOUT_FORMS
    text, places = _placed(surfaces, comments)
    if (reason := why_not_text(text)) is not None:
        return reason
    spans = [
        span
        for surface, place in zip(surfaces, places, strict=True)
        for span in _spans(surface, place, [words[index][1]["form"] for index in surface.words])
    ]
    columns = {name: tuple(cells[name] for _, cells in words) for name in COLUMNS}
    return Example(text, annotation=Annotation(tuple(spans), columns, _heads(words)))


def _cells(line: _Line) -> dict[str, str]:
    cells = line.text.split("\t")
    if len(cells) != len(COLUMNS):
        raise Malformed(
            f"line {line.number}: expected {len(COLUMNS)} columns separated by tabs (CoNLL-U), got {len(cells)}"
        )
    for name, cell in zip(COLUMNS, cells, strict=True):
        if not cell.strip():
            raise Malformed(f"line {line.number}: the column {name} is empty; expected a value or {UNSPECIFIED}")
    return dict(zip(COLUMNS, cells, strict=True))


def _parsed(number: int, column: str, cell: str) -> Any:
    parse = {"id": parse_id_value, "head": parse_int_value, "misc": parse_dict_value}[column]
    try:
        return parse(cell)
    except (ParseException, ValueError) as error:  # Python refuses integers of thousands of digits
        expected = _EXPECTED[column]
        raise Malformed(f"line {number}: invalid {column} {printable(cell, 40)}; expected {expected}") from error


def _surfaces(rows: Sequence[tuple[int, dict[str, str]]], words: int) -> list[_Surface]:
    """The sentence from left to right, with multi-word tokens in place of their words."""
    surfaces: list[_Surface] = []
    reached = 0
    for number, cells in rows:
        identifier = _parsed(number, "id", cells["id"])
        if isinstance(identifier, int):
            members = range(identifier - 1, identifier)
        elif identifier is not None and identifier[1] == "-":
            members = range(identifier[0] - 1, identifier[2])
            if members.start != reached or members.stop > words:
                raise Malformed(
                    f"line {number}: the multi-word token {cells['id']} does not fit the words of the sentence"
                )
        elif identifier is None:
            raise Malformed(f"line {number}: expected the number of a word, got {cells['id']}")
        else:
            continue  # an empty node
        if members.start < reached:
            continue  # a word of the multi-word token before it
        misc = _parsed(number, "misc", cells["misc"]) or {}
        surfaces.append(_Surface(cells["form"], members, misc.get("SpaceAfter") != "No"))
        reached = members.stop
    return surfaces


def _placed(surfaces: Sequence[_Surface], comments: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The text of a sentence and the span of each surface form: as the comment `text` has it, if it spells the same words."""
    for comment in comments:
        name, _, text = comment[1:].partition("=")
        if name.strip() == "text" and (places := _found(surfaces, text.strip())) is not None:
            return text.strip(), places
    text, places = "", []
    for surface in surfaces:
        places.append((len(text), len(text) + len(surface.form)))
        text += surface.form + " " * surface.space_after
    return text.rstrip(), places


def _found(surfaces: Sequence[_Surface], text: str) -> list[tuple[int, int]] | None:
    places, position = [], 0
    for surface in surfaces:
        while position < len(text) and text[position].isspace():
            position += 1
        if not text.startswith(surface.form, position):
            return None
        places.append((position, position + len(surface.form)))
        position += len(surface.form)
    return places if position == len(text) else None


def _spans(surface: _Surface, place: tuple[int, int], forms: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The span of each word; all of a multi-word token that its words do not spell (`zum` is `zu dem`)."""
    start, end = place
    apart = len(forms) == 1 or (
        sum(map(len, forms)) == len(surface.form) and _letters("".join(forms)) == _letters(surface.form)
    )
    for form in forms:
        yield (start, start + len(form)) if apart and len(forms) > 1 else (start, end)
        start += len(form) if apart else 0


def _letters(text: str) -> str:
    """Without case and accents, which words may gain or lose when they are written as one (`dámelo` is `da me lo`)."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def _heads(words: Sequence[tuple[int, dict[str, str]]]) -> tuple[int, ...] | None:
    """The head of each word, None if no word has one."""
    if all(cells["head"] == UNSPECIFIED for _, cells in words):
        return None
    heads = []
    for number, cells in words:
        head = _parsed(number, "head", cells["head"])
        if head is None:
            raise Malformed(f"line {number}: the word has no head, but other words of the sentence do")
        if not 0 <= head <= len(words):
            raise Malformed(
                f"line {number}: the head {head} does not exist: the sentence has {counted(len(words), 'word')}"
            )
        heads.append(head - 1 if head else ROOT)
    _refuse_cycles(heads, words)
    return tuple(heads)


def _refuse_cycles(heads: Sequence[int], words: Sequence[tuple[int, dict[str, str]]]) -> None:
    reaches_root: set[int] = {ROOT}
    for start, (number, _) in enumerate(words):
        path: list[int] = []
        word = start
        while word not in reaches_root:
            if word in path:
                cycle = [*path[path.index(word) :], word]
                raise Malformed(
                    f"line {number}: the heads form a cycle: {' → '.join(str(index + 1) for index in cycle[:8])}"
                )
            path.append(word)
            word = heads[word]
        reaches_root.update(path)
