"""Scaled dot-product attention that also hands out its log-normaliser, and what follows from it.

The log-normaliser ℓ_i = log Σ_j exp(scale·q_i·k_j) is all that is needed to know any single attention weight,
α_ij = exp(scale·q_i·k_j − ℓ_i), without building the query × key matrix.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Rows of the score matrix that exist at one time when a fused kernel gives no log-normaliser.
QUERY_CHUNK = 256


class Attention(NamedTuple):
    """What attention computed: the mixed values and the log-normaliser of every query."""

    output: Float[Tensor, "batch head query head_dim"]
    log_normaliser: Float[Tensor, "batch head query"]


def repeat_heads(
    grouped: Float[Tensor, "batch kv_head key head_dim"], heads: int
) -> Float[Tensor, "batch head key head_dim"]:
    """Keys or values of grouped-query attention, repeated so that every query head has its own.

    Args:
        grouped: Keys or values as the model computes them, fewer heads than the queries have.
        heads: Number of query heads, a multiple of the number of grouped heads.

    Returns:
        The same tensor where the numbers agree, else one with each head repeated in place (1 1 2 2, not 1 2 1 2).
    """
    repeats = heads // grouped.shape[1]
    return grouped if repeats == 1 else grouped.repeat_interleave(repeats, dim=1)


def additive_mask(visible: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """A boolean mask (True = visible) as the term to add to the scores: 0 where visible, −∞ elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def attention(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    value: Float[Tensor, "batch head key value_dim"],
    mask: Float[Tensor, "#batch #head #query #key"] | None,
    scale: float,
) -> Attention:
    """Attention by a fused kernel, with the log-normaliser of each query.

    Args:
        query: Queries, after any rotary embedding.
        key: Keys, likewise, one head per query head.
        value: Values, one head per query head.
        mask: Term to add to the scores (see `additive_mask`), or None where everything is visible.
        scale: Factor on q·k before the softmax.

    Returns:
        Output and log-normaliser; the latter in float32 or better.
    """
    if query.device.type == "cpu" and query.shape[-1] == value.shape[-1]:
        # Private, so kept behind one door with an exact fallback below it: torch's own fused CPU kernel computes the
        # log-normaliser for its backward pass and gives it away.
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return Attention(*kernel(query, key, value, attn_mask=mask, scale=scale))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return Attention(output, log_normaliser(query, key, mask, scale))


def attention_by_group(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    members: Bool[Tensor, "group batch key"],
    mask: Float[Tensor, "#batch #head #query #key"] | None,
    scale: float,
) -> Float[Tensor, "batch head query group"]:
    """Σ_{j∈group} α_ij, the weight that a group's keys get together, without building α.

    It is attention whose values say which group a key is in.

    Args:
        query: Queries.
        key: Keys, one head per query head.
        members: Which keys are in which group.
        mask: Term to add to the scores, or None.
        scale: Factor on q·k before the softmax.
    """
    groups = len(members)
    # The fused kernel wants values as wide as the keys.
    width = max(groups, key.shape[-1])
    indicators = torch.zeros(*key.shape[:1], key.shape[2], width, dtype=key.dtype, device=key.device)
    indicators[..., :groups] = members.permute(1, 2, 0).to(key.dtype)
    values = indicators.unsqueeze(1).expand(-1, key.shape[1], -1, -1)
    return attention(query, key, values, mask, scale).output[..., :groups]


def log_normaliser(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    mask: Float[Tensor, "#batch #head #query #key"] | None,
    scale: float,
) -> Float[Tensor, "batch head query"]:
    """ℓ_i = log Σ_j exp(scale·q_i·k_j + mask_ij), a chunk of queries at a time, in float32 or better."""
    parts = []
    for start in range(0, query.shape[2], QUERY_CHUNK):
        rows = slice(start, start + QUERY_CHUNK)
        chunk_mask = None if mask is None else (mask if mask.shape[2] == 1 else mask[:, :, rows])
        parts.append(_scores(query[:, :, rows], key, chunk_mask, scale).logsumexp(dim=-1))
    return torch.cat(parts, dim=-1)


def attention_weights(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    mask: Float[Tensor, "#batch #head #query #key"] | None,
    scale: float,
) -> Float[Tensor, "batch head query key"]:
    """Post-softmax attention weights α, in float32 or better; each row sums to one."""
    return _scores(query, key, mask, scale).softmax(dim=-1)


def self_attention_weights(
    query: Float[Tensor, "batch head token head_dim"],
    key: Float[Tensor, "batch head token head_dim"],
    log_normaliser: Float[Tensor, "batch head token"],
    scale: float,
    added: Float[Tensor, "#batch #head token"] | None = None,
) -> Float[Tensor, "batch head token"]:
    """α_ii, what each token gives to itself, without the other weights.

    α_ii = exp(scale·q_i·k_i + b_ii − ℓ_i), clamped to at most 1 since the terms round apart; b is what `added` gives, a bias.
    """
    scores = torch.einsum("bhtd,bhtd->bht", query, key).to(log_normaliser.dtype) * scale
    if added is not None:
        scores = scores + added
    return (scores - log_normaliser).exp().clamp(max=1.0)


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    accumulation = torch.promote_types(query.dtype, torch.float32)
    # Scaling the queries is scaling the scores, on a tensor that is smaller by head_dim / keys.
    scores = ((query * scale) @ key.transpose(-1, -2)).to(accumulation)
    return scores if mask is None else scores.add_(mask)
