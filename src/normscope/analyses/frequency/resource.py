"""Token frequencies, counted or read before the first batch."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from normscope.analyses.frequency.options import FrequencyOptions
from normscope.data.batching import windows
from normscope.data.examples import Example
from normscope.data.resources import Resource, ResourceContext, State
from normscope.data.text_files import TextFile
from normscope.data.token_frequencies import TokenCounter, TokenFrequencies, conventional, read


class TokenFrequencyResource(Resource[TokenFrequencies]):
    """Counts the tokens of the corpus or of a text file, or reads their ranks from a file.

    Args:
        options: Where frequencies come from.
    """

    divisible = True
    content = "the token counts"

    def __init__(self, options: FrequencyOptions) -> None:
        self._options = options
        self.reads_corpus = options.path is None and options.source == "corpus"

    def start(self, context: ResourceContext) -> None:
        """Prepare to count."""
        self._context = context
        self._counter = TokenCounter(context.encoder, context.vocabulary)

    def read(self, examples: Sequence[Example | str]) -> None:
        """Count the tokens of some examples."""
        self._counter.update(examples)

    def state(self) -> dict[str, Tensor]:
        """The counts so far."""
        return {"counts": torch.from_numpy(self._counter.counts.copy())}

    def add(self, state: State) -> None:
        """Add the counts of another part of the corpus.

        Raises:
            ValueError: If they are those of another vocabulary.
        """
        counts = state["counts"].numpy()
        if counts.shape != self._counter.counts.shape:
            raise ValueError(f"expected the counts of {self._counter.counts.size:,} tokens, got {counts.size:,}")
        self._counter.counts += counts

    def finish(self) -> TokenFrequencies:
        """Rank and count of every token.

        Raises:
            InputError: If a file cannot be read.
        """
        frequencies = self._frequencies()
        return conventional(frequencies, self._context.encoder) if self._options.conventional else frequencies

    def digest(self, value: TokenFrequencies) -> str:
        """A hash of ranks and counts."""
        return hashlib.sha256(value.rank.tobytes() + value.count.tobytes()).hexdigest()

    def _frequencies(self) -> TokenFrequencies:
        if self._options.path is not None:
            return read(Path(self._options.path).expanduser(), self._context.vocabulary, "analysis.frequency.path")
        if self._options.source != "corpus":
            dataset = self._context.dataset
            text = TextFile(
                Path(self._options.source).expanduser(),
                dataset.text_column,
                dataset.pair_column,
                dataset.header,
                key="analysis.frequency.source",
            )
            for window in windows(text.examples()):
                self._counter.update(window)
        return self._counter.compute()
