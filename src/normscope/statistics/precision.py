"""Samples that end as soon as the means over them are precise enough."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from normscope.statistics.intervals import FEWEST, mean_interval

T = TypeVar("T")

ROUND = FEWEST
"""Sequences between two checks of the intervals."""

FIRST = 10
"""Sequences before the first check. Intervals over fewer are too often narrow by chance: if nine of ten values are zero, all of
the first five are zero in 59% of the samples, and all of the first ten in 35%. More would cost more than they tell: twenty make
`score` on MiniLM three times as slow. docs/guides/trust.md has the coverage."""


def half_width(values: Float[np.ndarray, "sequence measure"]) -> float:
    """Half the width of the widest 95% interval of the means of some measures; infinite for fewer than two sequences."""
    if len(values) < 2:
        return float("inf")
    intervals = [mean_interval(column) for column in values.T]
    return max((interval.high - interval.mean for interval in intervals), default=0.0)


def in_rounds(sample: Sequence[T], precision: float | None, first: int = FIRST, size: int = ROUND) -> list[Sequence[T]]:
    """A sample in parts, after each of which `until_precise` checks the intervals.

    They depend on the sample alone, not on how it is batched.

    Args:
        sample: In random order.
        precision: See `until_precise`; None leaves the sample in one part.
        first: Number of sequences in the first part.
        size: Number of sequences in every other part.
    """
    if precision is None:
        return [sample]
    ends = [*range(min(first, len(sample)), len(sample), size), len(sample)]
    return [sample[start:end] for start, end in itertools.pairwise([0, *ends]) if start < end]


def until_precise(parts: Iterable[T], half_width: Callable[[], float], precision: float | None) -> Iterator[T]:
    """The parts of a sample, one after the other, until the means of what was observed in them are precise enough.

    Because a sample ends where an interval happens to be narrow, intervals of samples that ended early are too narrow, the more
    so the more skewed the values are; docs/guides/trust.md has their coverage.

    Args:
        parts: See `in_rounds`.
        half_width: Returns half the width of the headline's widest interval over all sequences so far.
        precision: The half-width at which the sample ends; None measures all of it.
    """
    for part in parts:
        yield part
        if precision is not None and half_width() <= precision:
            return
