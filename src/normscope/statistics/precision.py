"""Samples that end as soon as the means over them are precise enough."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Float

from normscope.statistics.intervals import FEWEST, mean_interval

T = TypeVar("T")

ROUND = FEWEST
"""Sequences between two checks of the intervals. Intervals over fewer sequences are often narrow by chance."""


def half_width(values: Float[np.ndarray, "sequence measure"]) -> float:
    """Half the width of the widest 95% interval of the means of some measures; infinite for fewer than two sequences."""
    if len(values) < 2:
        return float("inf")
    intervals = [mean_interval(column) for column in values.T]
    return max((interval.high - interval.mean for interval in intervals), default=0.0)


def in_rounds(sample: Sequence[T], precision: float | None, size: int = ROUND) -> list[Sequence[T]]:
    """A sample in parts, after each of which `until_precise` checks the intervals.

    They depend on the sample alone, not on how it is batched.

    Args:
        sample: In random order.
        precision: See `until_precise`; None leaves the sample in one part.
        size: Number of sequences in a part.
    """
    if precision is None:
        return [sample]
    return [sample[start : start + size] for start in range(0, len(sample), size)]


def until_precise(parts: Iterable[T], half_width: Callable[[], float], precision: float | None) -> Iterator[T]:
    """The parts of a sample, one after the other, until the means of what was observed in them are precise enough.

    Because a sample ends where an interval happens to be narrow, intervals of samples that ended early are slightly too narrow.

    Args:
        parts: See `in_rounds`.
        half_width: Returns half the width of the headline's widest interval over all sequences so far.
        precision: The half-width at which the sample ends; None measures all of it.
    """
    for part in parts:
        yield part
        if precision is not None and half_width() <= precision:
            return
