"""How well word alignments agree with human ones.

A is the alignment under test; people marked sure links S and possible links P ⊇ S.

Source: Och & Ney 2003, section 3.
"""

from collections.abc import Iterable

import numpy as np

from normscope.data.examples import Link, Links

Number = int | np.ndarray

RATES = ("aer", "precision", "recall")


def error_rates(links: Number, in_sure: Number, in_possible: Number, sure: Number) -> dict[str, np.ndarray]:
    """Alignment error rate, precision and recall from counts over a corpus, element by element.

    Args:
        links: |A|.
        in_sure: |A ∩ S|.
        in_possible: |A ∩ P|.
        sure: |S|.

    Returns:
        The three RATES: `aer` = 1 − (|A∩S| + |A∩P|) / (|A| + |S|), or 1 if A and S are both empty; `precision` = |A∩P| / |A|,
        or 0 if A is empty; `recall` = |A∩S| / |S|, or 0 if S is empty.
    """
    return {
        "aer": 1 - _ratio(in_sure + in_possible, links + sure),
        "precision": _ratio(in_possible, links),
        "recall": _ratio(in_sure, sure),
    }


def evaluate(alignments: Iterable[frozenset[Link]], gold: Iterable[Links]) -> dict[str, float]:
    """The RATES of a corpus's alignments, one set of links per sentence pair."""
    counts = [
        (len(links), len(links & human.sure), len(links & human.possible), len(human.sure))
        for links, human in zip(alignments, gold, strict=True)
    ]
    totals = np.array(counts, dtype=np.int64).reshape(-1, 4).sum(axis=0, keepdims=True)
    return {name: rate.item() for name, rate in error_rates(*totals.T).items()}


def _ratio(numerator: Number, denominator: Number) -> np.ndarray:
    """The quotient, or 0 if the denominator is 0."""
    above, below = np.broadcast_arrays(numerator, denominator)
    return np.divide(above, below, out=np.zeros(above.shape), where=below != 0)
