"""Which tokens are erased to test an order of importance, and the sequences without them."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

COMPREHENSIVENESS, SUFFICIENCY = "comprehensiveness", "sufficiency"
MEASURES = (COMPREHENSIVENESS, SUFFICIENCY)


class Trial(NamedTuple):
    """One measure of one order at one share, and the positions that are erased for it."""

    order: str
    measure: str
    share: float
    erased: frozenset[int]


def trials(orders: Sequence[tuple[str, Int[np.ndarray, " ordinary"]]], shares: Sequence[float]) -> Iterator[Trial]:
    """Every measure of every order at every share.

    Args:
        orders: Names of orders, with positions of the ordinary tokens, the most important first.
        shares: Percentages of the ordinary tokens that count as the most important: at least one token, and not all of them.
    """
    for name, order in orders:
        for share in shares:
            # A share such as 0.07 × 100 may be a rounding error above a whole number.
            count = min(max(1, math.ceil(len(order) * share / 100 - 1e-9)), len(order) - 1)
            yield Trial(name, COMPREHENSIVENESS, share, frozenset(order[:count].tolist()))
            yield Trial(name, SUFFICIENCY, share, frozenset(order[count:].tolist()))


def by_score(
    scores: Float[np.ndarray, " token"], ordinary: Int[np.ndarray, " ordinary"]
) -> Int[np.ndarray, " ordinary"]:
    """The ordinary tokens by score, the highest first; of equal ones, the first."""
    return ordinary[np.argsort(-scores[ordinary], kind="stable")]


def random_orders(
    ordinary: Int[np.ndarray, " ordinary"], number: int, seed: int, fingerprint: int
) -> list[Int[np.ndarray, " ordinary"]]:
    """Random orders of the ordinary tokens, which depend on the seed and the sequence alone."""
    return [np.random.default_rng([seed, fingerprint, count]).permutation(ordinary) for count in range(number)]


def without(kinds: Int[Tensor, "kind token"], erased: frozenset[int], mask_token: int | None) -> Int[Tensor, "kind _"]:
    """A sequence with some tokens replaced by the mask token, or taken out.

    Args:
        kinds: The sequence, as `Batch.packed` has it.
        erased: Positions.
        mask_token: The id of the mask token; None takes the tokens out.
    """
    positions = torch.tensor(sorted(erased), dtype=torch.long)
    if mask_token is None:
        kept = torch.ones(kinds.shape[1], dtype=torch.bool)
        kept[positions] = False
        return kinds[:, kept]
    masked = kinds.clone()
    masked[0, positions] = mask_token
    return masked
