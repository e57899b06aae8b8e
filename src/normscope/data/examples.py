"""Examples and what is counted of them."""

import abc
import collections
import dataclasses
import json
from collections.abc import Iterator

Link = tuple[int, int]
"""Source word, target word; both counted from 0."""


@dataclasses.dataclass(frozen=True)
class Links:
    """The word alignment of one sentence pair."""

    sure: frozenset[Link]
    possible: frozenset[Link]
    """The sure ones among them."""


@dataclasses.dataclass(frozen=True)
class Example:
    """One text, or two that are fed together."""

    text: str
    text_pair: str | None = None
    tokens: tuple[str, ...] | None = None
    """The tokens themselves, where a corpus comes with them."""
    row: int = 0
    """Which row of its corpus it is, counted from 1."""
    links: Links | None = None
    """Which words belong together, where a corpus comes with that."""
    shortened: bool = False
    """Whether the end of a text is missing, because no model reads so far."""


@dataclasses.dataclass
class CorpusCounts:
    """What became of a corpus: examples read = used + skipped, by reason."""

    read: int = 0
    used: int = 0
    sequences: int = 0
    """What the model was given: as many as were used, but for documents that were cut into windows."""
    cut: int = 0
    """Used, but longer than the maximal length."""
    tokens: int = 0
    skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    categories: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    """Tokens by category."""

    def packed(self) -> str:
        """The counts in one word, for another process."""
        return json.dumps(vars(self))

    @classmethod
    def unpacked(cls, word: str) -> "CorpusCounts":
        """What `packed` has packed."""
        fields = json.loads(word)
        counters = {name: collections.Counter(fields[name]) for name in ("skipped", "categories")}
        return cls(**fields | counters)

    def add(self, other: "CorpusCounts") -> None:
        """Count what another part of the corpus became as well."""
        for name in ("read", "used", "sequences", "cut", "tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.skipped.update(other.skipped)
        self.categories.update(other.categories)


class Corpus(abc.ABC):
    """Somewhere that examples come from. It can be read more than once."""

    @property
    @abc.abstractmethod
    def total(self) -> int | None:
        """Examples that will be read, empty ones included; None where counting them would cost a pass."""

    @abc.abstractmethod
    def examples(self) -> Iterator[Example | str]:
        """Examples in order; a string in place of one says why it is skipped.

        Raises:
            InputError: If the source cannot be read; the message names file and place.
        """
