"""Examples, the corpora they come from, and counts of them."""

import abc
import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Link = tuple[int, int]
"""Source word, target word; both counted from 0."""


class Message(NamedTuple):
    """What one side of a conversation says."""

    role: str
    content: str
    others: tuple[str, ...] = ()
    """What else it has, such as images and calls of tools, which is left out."""
    parts: tuple[Any, ...] = ()
    """If it has images: its texts, and its images or their files, in order, for a model that reads these."""

    @property
    def images(self) -> list[Any]:
        """Its images, in order."""
        return [part for part in self.parts if not isinstance(part, str)]

    @property
    def texts(self) -> list[str]:
        """Its texts, in order."""
        return [part for part in self.parts if isinstance(part, str)] if self.parts else [self.content]


@dataclasses.dataclass(frozen=True)
class Links:
    """The word alignment of one sentence pair."""

    sure: frozenset[Link]
    possible: frozenset[Link]
    """Includes the sure ones."""


ROOT = -1
"""The head of a word that depends on no other word."""


@dataclasses.dataclass(frozen=True)
class Annotation:
    """The words of a text, and what is known of each."""

    spans: tuple[tuple[int, int], ...]
    """Start and end of each word in the text. Words that the text does not tell apart (`du` is `de le`) share a span."""
    columns: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """One value per word, by the name of the column."""
    heads: tuple[int, ...] | None = None
    """The word that each word depends on, counted from 0, or ROOT; None if the text has no tree."""
    times: tuple[tuple[float, float], ...] | None = None
    """When each word of a transcript starts and ends in its recording, in seconds; None if that is not known."""


@dataclasses.dataclass(frozen=True)
class Example:
    """One text, or a pair of texts."""

    text: str
    text_pair: str | None = None
    row: int = 0
    """Its row in the corpus, counted from 1."""
    links: Links | None = None
    """The word alignment of a pair, if the corpus comes with one."""
    score: float | None = None
    """The gold score of a pair, if the corpus comes with one."""
    shortened: bool = False
    """Whether the end of a text was dropped because it lies beyond what any model reads."""
    annotation: Annotation | None = None
    """The words of the text and what is known of them, if the corpus comes with annotated words."""
    messages: tuple[Message, ...] | None = None
    """The messages of a conversation, to be written in the tokenizer's chat template."""
    query: int = 0
    """If the texts are a query and one of its documents: the number of the query in the corpus, counted from 1."""
    document: int = 0
    """The number of the document among those of the query, from 1; 0 if the texts are not a query and a document."""
    given: Any = None
    """An image, or whatever else a model reads that reads no texts; its text is then its title."""


@dataclasses.dataclass(frozen=True)
class TextRule:
    """How a model's own files or modules write a text, or a pair, before the tokenizer reads it."""

    prompt: str = ""
    """What is put before a text, or before the first of a pair; in a chat template, what the system says."""
    chat: Mapping[str, Any] | None = None
    """The variables of the chat template in which texts are written; None if they are not."""

    def applied(self, example: Example) -> Example:
        """A text, a pair or a conversation as it is written."""
        if self.chat is None:
            plain = not self.prompt or example.annotation is not None
            return example if plain else dataclasses.replace(example, text=self.prompt + example.text)
        texts = {"user": example.text}
        if example.text_pair is not None:
            texts = {"query": example.text, "document": example.text_pair}
        system = [Message("system", self.prompt)] if self.prompt else []
        said = example.messages or [Message(*each) for each in texts.items()]
        return dataclasses.replace(example, messages=(*system, *said))


AS_GIVEN = TextRule()
"""Texts are read as they are given."""


@dataclasses.dataclass
class CorpusCounts:
    """What became of the examples of a corpus: read = used + skipped."""

    read: int = 0
    used: int = 0
    sequences: int = 0
    """Model inputs: one per example used, except for documents cut into windows."""
    keys: int = 0
    """Sum of the keys of the sequences, which does not depend on their order; see `TokenSequence.key`."""
    cut: int = 0
    """Examples used that were truncated to the maximum length."""
    tokens: int = 0
    ordinary: int = 0
    """Tokens that are not special, or unknown."""
    unknown: int = 0
    """Those among them that the tokenizer does not know."""
    skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Examples by the reason why they were skipped."""
    remarks: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Examples that were used, by what was lost of them or is unusual about them."""
    categories: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Tokens by category."""
    compared: "CorpusCounts | None" = None
    """The counts of the same examples as pairs whose texts are compared, if only some of the analyses read them so."""

    @property
    def all_tokens(self) -> int:
        """The tokens that the model reads, however often."""
        return self.tokens + (0 if self.compared is None else self.compared.all_tokens)

    def facts(self) -> dict[str, Any]:
        """What results say about the corpus."""
        return {
            "skipped": dict(self.skipped),
            "remarks": dict(self.remarks),
            "examples_used": self.used,
            "sequences": self.sequences,
            "texts_digest": f"{self.keys % 2**128:032x}",
            "cut": self.cut,
            "tokens": self.tokens,
            "unknown_share": self.unknown / self.ordinary if self.ordinary else None,
        }

    def copy(self) -> "CorpusCounts":
        """Counts that do not change with these."""
        compared = None if self.compared is None else self.compared.copy()
        counters = {name: getattr(self, name).copy() for name in _BY_NAME}
        return dataclasses.replace(self, **counters, compared=compared)

    def become(self, other: "CorpusCounts") -> None:
        """Take the values of other counts, which must not change afterwards."""
        vars(self).update(vars(other))

    def clear(self) -> None:
        """Return to the counts of an empty corpus."""
        self.become(CorpusCounts())

    def add(self, other: "CorpusCounts") -> None:
        """Add the counts of another part of the corpus."""
        for name in ("read", "used", "sequences", "keys", "cut", "tokens", "ordinary", "unknown"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _BY_NAME:
            getattr(self, name).update(getattr(other, name))
        if other.compared is not None:
            self.of_compared().add(other.compared)

    def of_compared(self) -> "CorpusCounts":
        """`compared`, which counts from now on if it did not."""
        if self.compared is None:
            self.compared = CorpusCounts()
        return self.compared


_BY_NAME = ("skipped", "remarks", "categories")
"""The counts that are counters."""


class Corpus(abc.ABC):
    """A source of examples that can be read more than once."""

    @property
    @abc.abstractmethod
    def total(self) -> int | None:
        """The number of examples, empty ones included; None if counting them takes a pass over the corpus."""

    @abc.abstractmethod
    def examples(self) -> Iterator[Example | str]:
        """Examples in order, or the reason why one is skipped.

        Raises:
            InputError: If the source cannot be read; the message names the file and the line or row.
        """
