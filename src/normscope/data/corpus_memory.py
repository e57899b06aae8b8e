"""What the first run of a sweep has read and tokenised, for the later runs over the same corpus."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from normscope.config.schema import DatasetOptions
from normscope.data.examples import Corpus, CorpusCounts, Example
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
        self._windows: dict[tuple[int, ...], tuple[list[TokenSequence], CorpusCounts]] = {}

    def encoded(self, examples: Sequence[Example], counts: CorpusCounts, encode: Encode) -> list[TokenSequence]:
        """The token sequences of examples, by `encode` if they are not known. Counts are updated either way."""
        key = tuple(example.row for example in examples)
        known = self._windows.get(key)
        if known is None:
            own = CorpusCounts()
            known = encode(examples, own), own
            tokens = sum(len(sequence.input_ids) for sequence in known[0])
            # Examples without a row number cannot be told apart.
            if 0 not in key and self._memory.tokens + tokens <= MOST_TOKENS:
                self._memory.tokens += tokens
                self._windows[key] = known
        counts.add(known[1])
        return list(known[0])


@dataclasses.dataclass
class _KeptCorpus(Corpus):
    """A corpus that is kept as it is read for the first time."""

    corpus: Corpus
    memory: CorpusMemory
    items: list[Example | str] | None = None

    @property
    def total(self) -> int | None:
        return self.corpus.total if self.items is None else len(self.items)

    def examples(self) -> Iterator[Example | str]:
        if self.items is not None:
            yield from self.items
            return
        items: list[Example | str] = []
        characters = 0
        for item in self.corpus.examples():
            characters += len(item) if isinstance(item, str) else len(item.text) + len(item.text_pair or "")
            if self.memory.characters + characters <= MOST_CHARACTERS:
                items.append(item)
            yield item
        if self.items is None and self.memory.characters + characters <= MOST_CHARACTERS:
            self.memory.characters += characters
            self.items = items
