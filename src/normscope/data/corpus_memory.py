"""What the first run of a sweep has read and tokenised, for the later runs over the same corpus."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from normscope.data.examples import Corpus, CorpusCounts, Example
from normscope.data.options import DatasetOptions
from normscope.data.token_sequence import TokenSequence

MOST_CHARACTERS = 50_000_000
MOST_TOKENS = 10_000_000
"""What is kept of all corpora of a sweep: a few hundred megabytes. Larger corpora are read again."""

Encode = Callable[[Sequence[Example], CorpusCounts], list[TokenSequence]]


class CorpusMemory:
    """Corpora by their options, and token sequences by what they depend on."""

    def __init__(self) -> None:
        self.characters = 0
        self.tokens = 0
        self._corpora: dict[str, Corpus] = {}
        self._sequences: dict[tuple[object, ...], SequenceMemory] = {}

    def corpus(self, options: DatasetOptions, open_corpus: Callable[[DatasetOptions], Corpus]) -> Corpus:
        """The corpus, which is read at most once if it fits.

        Args:
            options: What describes it.
            open_corpus: Opens it.
        """
        key = repr(options)
        if key not in self._corpora:
            self._corpora[key] = _KeptCorpus(open_corpus(options), self)
        return self._corpora[key]

    def sequences(self, options: DatasetOptions, identity: tuple[object, ...] | None) -> "SequenceMemory | None":
        """The token sequences of a corpus that one kind of encoder has made; None if its identity is not known.

        Args:
            options: What describes the corpus.
            identity: What else the sequences depend on; see `Encoder.identity`.
        """
        if identity is None:
            return None
        return self._sequences.setdefault((repr(options), identity), SequenceMemory(self))


class SequenceMemory:
    """Token sequences of the examples of a corpus, window by window."""

    def __init__(self, memory: CorpusMemory) -> None:
        self._memory = memory
        self._windows: dict[tuple[int, ...], _Window] = {}

    def encoded(self, examples: Sequence[Example], counts: CorpusCounts, encode: Encode) -> list[TokenSequence]:
        """The token sequences of examples, by `encode` unless these very objects were encoded before.

        Args:
            counts: Updated either way.
            encode: Makes the sequences and updates counts.
        """
        key = tuple(map(id, examples))
        window = self._windows.get(key)
        if window is None:
            own = CorpusCounts()
            window = _Window(examples, encode(examples, own), own)
            tokens = sum(len(sequence.input_ids) for sequence in window.sequences)
            if self._memory.tokens + tokens <= MOST_TOKENS:
                self._memory.tokens += tokens
                self._windows[key] = window
        counts.add(window.counts)
        return list(window.sequences)


@dataclasses.dataclass(frozen=True)
class _Window:
    examples: Sequence[Example]
    """Kept, so that no other object gets their ids."""
    sequences: Sequence[TokenSequence]
    counts: CorpusCounts


class _KeptCorpus(Corpus):
    """A corpus, or a part of one, that is kept as it is read for the first time.

    Args:
        corpus: Where it is read from.
        memory: Which it belongs to.
        numbered: Whether its examples get row numbers, so that they are the same objects in `NumberedCorpus`.
    """

    def __init__(self, corpus: Corpus, memory: CorpusMemory, *, numbered: bool = True) -> None:
        self._corpus, self._memory, self._numbered = corpus, memory, numbered
        self._items: list[Example | str] | None = None
        self._parts: dict[int, _KeptCorpus] = {}

    @property
    def total(self) -> int | None:
        return self._corpus.total if self._items is None else len(self._items)

    @functools.cached_property
    def parts(self) -> int | None:
        return self._corpus.parts

    @functools.cached_property
    def undivided(self) -> str:
        return self._corpus.undivided

    def part(self, index: int) -> Corpus:
        if index not in self._parts:
            self._parts[index] = _KeptCorpus(self._corpus.part(index), self._memory, numbered=False)
        return self._parts[index]

    def examples(self) -> Iterator[Example | str]:
        if self._items is not None:
            yield from self._items
            return
        items: list[Example | str] = []
        characters = 0
        for row, item in enumerate(self._corpus.examples(), start=1):
            if self._numbered and isinstance(item, Example):
                item = dataclasses.replace(item, row=row)
            characters += len(item) if isinstance(item, str) else len(item.text) + len(item.text_pair or "")
            if self._memory.characters + characters <= MOST_CHARACTERS:
                items.append(item)
            yield item
        if self._items is None and self._memory.characters + characters <= MOST_CHARACTERS:
            self._memory.characters += characters
            self._items = items
