"""Random samples of a corpus on which the model runs again, until the result is precise enough."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from jaxtyping import Int
from torch import Tensor

from normscope.models.interventions import InterventionRunner
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
    """What is to be done with a sample, step by step with a progress bar, until its headline is precise enough.

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
