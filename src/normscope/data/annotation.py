"""Texts that come as words with annotations: parts of speech, heads, relations, labels."""

import itertools
import re
from collections.abc import Iterator, Sequence

from normscope.data.examples import Annotation, Corpus, Example
from normscope.errors import InputError, printable

UNSPECIFIED = "_"
"""What CoNLL-U writes where a column has no value."""

SPACES = " \t\n\r\v\f"
"""White space of ASCII. It alone separates the words to which links and labels refer: the programs that write them split at it.
No-break spaces, as before French punctuation, are part of words."""
_SPACED = re.compile(f"[^{SPACES}]+")

WITHOUT_FORMS = f"words without their text: every form is {UNSPECIFIED}"
"""The reason for sentences of data that come without their text, for want of a licence: only annotation is left."""

# Every value of a column becomes a category with its own rows and figures.
_MOST_VALUES = 100


def spaced_words(text: str) -> list[tuple[int, int]]:
    """Spans of the words between SPACES."""
    return [match.span() for match in _SPACED.finditer(text)]


def lack_forms(words: Sequence[str]) -> bool:
    """Whether the forms of all words are left out."""
    return bool(words) and set(words) == {UNSPECIFIED}


def spaced(words: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Words joined by spaces, without white space at either end, and the span of each."""
    joined = " ".join(words)
    start = len(joined) - len(joined.lstrip(SPACES))
    text = joined.strip(SPACES)
    ends = itertools.accumulate(len(word) + 1 for word in words)
    spans = [(end - 1 - len(word) - start, end - 1 - start) for word, end in zip(words, ends, strict=True)]
    return text, tuple((max(0, first), min(len(text), max(0, last))) for first, last in spans)


def column_values(corpus: Corpus, column: str) -> tuple[str, ...]:
    """All values of a column in a corpus, in alphabetical order, UNSPECIFIED left out.

    Raises:
        InputError: If no text has the column, or if it has too many values for categories.
    """
    values: set[str] = set()
    known: set[str] | None = None
    for annotation in _annotations(corpus):
        known = (known or set()) | set(annotation.columns)
        values.update(annotation.columns.get(column, ()))
        if len(values) > _MOST_VALUES:
            raise InputError(
                f"dataset.categories={column}: expected a column with at most {_MOST_VALUES} different values, got more"
            )
    if not known:
        raise InputError(
            f"dataset.categories={column}: the corpus has no annotated words; expected dataset=conllu, or rows with lists "
            "of words and labels"
        )
    if column not in known:
        raise InputError(
            f"dataset.categories={column}: the corpus has no such column; expected one of "
            f"{printable(', '.join(sorted(known)), 200)}"
        )
    return tuple(sorted(values - {UNSPECIFIED}))


def _annotations(corpus: Corpus) -> Iterator[Annotation]:
    for example in corpus.examples():
        if isinstance(example, Example) and example.annotation is not None:
            yield example.annotation
