"""Random samples of a corpus: sequences, on which the model runs again until the result is precise enough, or pairs."""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int
from torch import Tensor

from normscope.data.examples import Example
from normscope.data.resources import Resource, ResourceContext, State, packed, unpacked
from normscope.errors import InputError
from normscope.models.load.interventions import InterventionRunner
from normscope.statistics.precision import in_rounds, until_precise

S = TypeVar("S")
T = TypeVar("T")


def steps_until_precise(
    runner: InterventionRunner,
    sample: Sequence[S],
    steps: Callable[[Sequence[S]], Sequence[T]],
    half_width: Callable[[], float],
    precision: float | None,
    title: str,
) -> Iterator[T]:
    """Steps of work on a sample, with a progress bar, until its headline is precise enough.

    Args:
        sample: In random order.
        steps: Returns the steps for a part of the sample, such as its batches (`InterventionRunner.batches`).
        half_width: See `until_precise`.
        precision: The half-width at which the sample ends; None for the whole sample.
        title: Title of the progress bar.
    """
    parts = [steps(part) for part in in_rounds(sample, precision)]
    enough = itertools.chain.from_iterable(until_precise(parts, half_width, precision))
    yield from runner.progress(enough, sum(map(len, parts)), title)


def note_on_length(analysis: str, sample: Sequence[Int[Tensor, "kind _"]], tokens: int | None) -> list[str]:
    """That short sequences were drawn before others; nothing if others had to be drawn as well.

    Args:
        analysis: The name of the analysis.
        sample: The sequences that were drawn.
        tokens: Sequences of at most so many tokens were drawn first; None if all were drawn alike.
    """
    if tokens is None or any(kinds.shape[1] > tokens for kinds in sample):
        return []
    return [f"{analysis}: the sample is drawn from sequences of at most {tokens} tokens (analysis.{analysis}.tokens)"]


PAIRS = "sampled_pairs"
"""Name of the resource that holds them."""


class SampledPairs(Resource[tuple[Example, ...]]):
    """Reads a whole corpus and keeps random pairs of texts, in the order of the corpus.

    Which pairs are kept depends on the seed and on their texts alone.

    Args:
        size: Number of pairs.
        seed: Seed of the sample.
        expected: The key that needs pairs and what it expects, for the message if there are none.
    """

    reads_corpus = True
    content = "a sample of the pairs"

    def __init__(self, size: int, seed: int, expected: str) -> None:
        self._size, self._seed, self._expected = size, seed, expected

    def start(self, _context: ResourceContext) -> None:
        """Prepare for the first pairs."""
        self._rows = 0
        # Priority and row decide; the row also keeps examples from being compared.
        self._kept: list[tuple[float, int, Example]] = []

    def read(self, examples: Sequence[Example | str]) -> None:
        """Offer the next pairs."""
        for row, example in enumerate(examples, start=self._rows + 1):
            if isinstance(example, Example) and example.text_pair is not None:
                pair = Example(example.text, example.text_pair, row=row)
                self._kept.append((self._priority(pair), row, pair))
        self._rows += len(examples)
        self._kept = sorted(self._kept)[: self._size]

    def finish(self) -> tuple[Example, ...]:
        """The pairs, with their row numbers.

        Raises:
            InputError: If the corpus has none.
        """
        if not self._kept:
            raise InputError(f"{self._expected}; the corpus has none")
        return tuple(pair for _, _, pair in sorted(self._kept, key=lambda kept: kept[1]))

    def state(self) -> State:
        """The finished sample."""
        return packed([_packed(pair) for pair in self.finish()])

    def add(self, state: State) -> None:
        """Take a finished sample."""
        pairs = [_unpacked(pair) for pair in unpacked(state)]
        self._kept = [(self._priority(pair), pair.row, pair) for pair in pairs]

    def digest(self, value: tuple[Example, ...]) -> str:
        """A hash of the texts."""
        return hashlib.sha256(repr([_packed(pair) for pair in value]).encode()).hexdigest()

    def _priority(self, pair: Example) -> float:
        digest = hashlib.sha256(repr((pair.text, pair.text_pair)).encode()).digest()
        return float(np.random.default_rng([self._seed, int.from_bytes(digest[:16], "little")]).random())


def _packed(pair: Example) -> list[Any]:
    return [pair.row, pair.text, pair.text_pair]


def _unpacked(content: Sequence[Any]) -> Example:
    row, text, text_pair = content
    return Example(str(text), str(text_pair), row=int(row))
