"""Attention sinks: how the weight of a head is distributed over the keys that receive it.

Source: Gu et al. 2025, section 3 (arXiv:2410.10781).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.masks import Mask
from normscope.maths.scores import seen_by


def queries_of_keys(token_mask: Bool[Tensor, "batch token"], mask: Mask | None) -> Int[Tensor, "batch token"]:
    """The number of tokens that see each token.

    Args:
        token_mask: True at tokens, False at padding.
        mask: Which keys a query sees; None if every query sees every key.
    """
    ones = torch.ones_like(token_mask, dtype=torch.float32)[:, None, :, None]
    counts: Tensor = seen_by(ones, token_mask, mask or Mask())
    return counts[:, 0, :, 0].round().long()


def importance(
    received: Float[Tensor, "batch head key"], queries: Int[Tensor, "batch key"]
) -> Float[Tensor, "batch head key"]:
    """α_k = Σ_i α_ik / #{i that see k}: mean weight of a key over the queries that see it; 0 where none does.

    In a causal model of T tokens, this is Σ_{i≥k} α_ik / (T − k + 1).

    Args:
        received: Σ_i α_ik.
        queries: See `queries_of_keys`.
    """
    return received / queries.clamp(min=1).unsqueeze(1).to(received.dtype)
