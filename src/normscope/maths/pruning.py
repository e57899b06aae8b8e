"""How much attention outputs change when the keys that score lowest are dropped, as a pruned cache drops them.

In every head, a score for each key ranks the keys of a sequence, and the lowest are dropped for all queries. A query keeps its
own token, as a cache does. With K the keys that query i keeps, its output changes, relative to the attention output y_i, by

    ‖(Σ_j α_ij v_j − c_i Σ_{j∈K} α_ij v_j) W_O‖ / ‖y_i‖

where c_i is 1, or 1 / Σ_{j∈K} α_ij if the remaining weights are renormalised. Dropping keys before the softmax renormalises.

Four scores are compared: Σ_i α_ij, the accumulated weight (Zhang et al. 2023, arXiv:2306.14048); the same times ‖v_j‖ (Guo et
al. 2024, arXiv:2406.12335); the same times ‖f(x_j)‖ (Kobayashi et al. 2020); and the signed share of the outputs.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SCORES = ("alpha", "alpha_v", "alpha_f", "share")
"""Names of the scores."""

FRACTIONS = (0.5, 0.8)
"""Fractions of the keys to drop."""


def kept_keys(scores: Float[Tensor, "head key"], fraction: float) -> Bool[Tensor, "head key"]:
    """Which keys of a sequence are kept, head by head: all but the lowest ⌊fraction · keys⌋. Ties go to the later key."""
    heads, keys = scores.shape
    lowest = scores.sort(dim=1, stable=True).indices[:, : int(fraction * keys)]
    return torch.ones(heads, keys, dtype=torch.bool, device=scores.device).scatter(1, lowest, False)


def pruning_errors(
    weights: Float[Tensor, "head query key"],
    value: Float[Tensor, "head key head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
    outputs: Float[Tensor, "query model"],
    scores: Mapping[str, Float[Tensor, "head key"]],
    own: Bool[Tensor, "query key"],
) -> Float[Tensor, "score fraction renormalised head_or_all"]:
    """The relative errors of one sequence, averaged over queries.

    Args:
        weights: α.
        value: v, with b_V inside.
        output_weight: W_O.
        outputs: The attention outputs of all heads.
        scores: By name, in the order of SCORES.
        own: Which key is the query's own token.

    Returns:
        For each score, fraction and kind of weights (unchanged; renormalised): the error of all heads pruned together, then
        of each head pruned alone.
    """
    size = torch.linalg.vector_norm(outputs, dim=-1).clamp(min=torch.finfo(outputs.dtype).tiny)
    whole = weights @ value
    errors = []
    for score in scores.values():
        for fraction in FRACTIONS:
            remaining = weights * (kept_keys(score, fraction)[:, None] | own)
            sums = remaining.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
            given = weights.sum(dim=-1, keepdim=True)  # below 1 where a learned sink takes a part
            for scale in (torch.ones_like(sums), given / sums):
                changes = (whole - remaining @ value * scale) @ output_weight  # head, query, model
                together = torch.linalg.vector_norm(changes.sum(dim=0), dim=-1)
                alone = torch.linalg.vector_norm(changes, dim=-1)
                errors.append((torch.cat([together[None], alone]) / size).mean(dim=-1))
    return torch.stack(errors).view(len(scores), len(FRACTIONS), 2, -1)
