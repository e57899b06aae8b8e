"""What an answer's earlier sentences add to later ones, handed on to what those earlier sentences came from.

A sentence of an answer comes partly from the prompt and partly from the model's own words before it, which came from the prompt
in their turn. With A the parts of the prompt and B those of earlier sentences, row by row of the answer, a row hands on

    D_j = max(A_j, 0) + Σ_{i<j} max(B_ji, 0) W_i        W_j = D_j / Σ_k D_jk

in proportion to what raised it: shares of signed parts may be of any size. Each row then has A_j + Σ_{i≤j} B_ji W_i, which adds
up to the same number as before. A row that nothing raised hands nothing on; what comes from it stays with it.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class HandedOn(NamedTuple):
    """Parts of the prompt once those of the answer's own sentences are handed on."""

    parts: Float[np.ndarray, "sentence source"]
    """What each part of the prompt adds, directly and through sentences."""
    through: Float[np.ndarray, "sentence earlier source"]
    """What each part of the prompt adds through each sentence, itself included."""
    kept: Float[np.ndarray, " sentence"]
    """What stays with sentences that have nothing to hand it on to. With `parts`, it adds up to A and B."""


def handed_on(prompt: Float[np.ndarray, "sentence source"], answer: Float[np.ndarray, "sentence sentence"]) -> HandedOn:
    """Hand the parts of an answer's own sentences on to the prompt.

    Args:
        prompt: A: what each part of the prompt adds to each sentence.
        answer: B: what each sentence adds to itself and to later ones; 0 above the diagonal.
    """
    shares = np.zeros_like(prompt)
    for row in range(len(prompt)):
        raised = np.maximum(prompt[row], 0) + np.maximum(answer[row, :row], 0) @ shares[:row]
        if raised.sum() > 0:
            shares[row] = raised / raised.sum()
    through = answer[:, :, None] * shares
    kept = answer @ (shares.sum(axis=1) == 0)
    return HandedOn(prompt + through.sum(axis=1), through, kept)
