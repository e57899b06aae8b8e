"""Scaled dot-product attention that also returns its log-normaliser, and quantities derived from it.

The log-normaliser ℓ_i = log Σ_j exp(scale·q_i·k_j) gives any single attention weight, α_ij = exp(scale·q_i·k_j − ℓ_i),
without building the query × key matrix.
"""

import dataclasses
import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.kernels import kernel_for
from normscope.maths.masks import Mask

LOG2_E = math.log2(math.e)
"""exp(s) = 2^(s·log₂ e). Powers of two take a fraction of the time of exponentials."""


class Attention(NamedTuple):
    """The output of attention and the log-normaliser of every query."""

    output: Float[Tensor, "batch head query head_dim"]
    log_normaliser: Float[Tensor, "batch head query"]


def repeat_heads(
    grouped: Float[Tensor, "batch kv_head key head_dim"], heads: int
) -> Float[Tensor, "batch head key head_dim"]:
    """Keys or values of grouped-query attention, repeated so that every query head has its own.

    Args:
        grouped: Keys or values as the model computes them, with fewer heads than the queries.
        heads: Number of query heads, a multiple of the number of grouped heads.

    Returns:
        The same tensor if the numbers of heads agree; otherwise one with each head repeated in place (1 1 2 2, not 1 2 1 2).
    """
    repeats = heads // grouped.shape[1]
    return grouped if repeats == 1 else grouped.repeat_interleave(repeats, dim=1)


class AttentionCall(NamedTuple):
    """What attention is computed from. Several heads of queries may share a head of keys and values."""

    query: Float[Tensor, "batch head query head_dim"]
    key: Float[Tensor, "batch kv_head key head_dim"]
    value: Float[Tensor, "batch kv_head key value_dim"]
    mask: Mask | None
    scale: float
    """The factor on q·k."""
    cap: float | None = None
    """The soft cap of the scores; None without one."""
    sinks: Float[Tensor, " head"] | None = None
    """A learned score of each head that takes weight from the keys; None without them."""

    def repeated(self) -> "AttentionCall":
        """The same with keys and values for each head of queries."""
        heads = self.query.shape[1]
        return self._replace(key=repeat_heads(self.key, heads), value=repeat_heads(self.value, heads))


def attention(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    value: Float[Tensor, "batch head key value_dim"],
    mask: Mask | None,
    scale: float,
    *,
    cap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> Attention:
    """Attention by a fused kernel, with the log-normaliser of each query, in memory linear in length.

    Fused kernels know no soft cap, so capped scores are computed in strips of queries. A sink needs no other kernel: it adds
    exp(s) to the sum of the softmax, so the output shrinks by σ(ℓ_i − s), the part of the softmax that the keys keep.

    Args:
        query: Queries, after any rotary embedding.
        key: Keys, likewise, one head per query head.
        value: Values, one head per query head.
        mask: Which keys a query sees, and any positional bias; None if every query sees every key.
        scale: Factor on q·k before the softmax.
        cap: c of a soft cap: the score is c·tanh(scale·q·k / c); None without one. Biases are added after it.
        sinks: Each head's learned score for attending to no key; None without sinks.

    Returns:
        Output and log-normaliser; the latter in float32 or better, with the sink inside.
    """
    attended = _attention(query, key, value, mask, scale, cap)
    if sinks is None:
        return attended
    log_normaliser = torch.logaddexp(attended.log_normaliser, sinks.to(attended.log_normaliser.dtype)[:, None])
    kept = (attended.log_normaliser - sinks.to(attended.log_normaliser.dtype)[:, None]).sigmoid()
    return Attention((attended.output * kept.unsqueeze(-1)).to(value.dtype), log_normaliser)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, scale: float, cap: float | None
) -> Attention:
    lengths = len(query), query.shape[2], key.shape[2]
    kernel = kernel_for(query, value) if cap is None else None
    mask = Mask() if mask is None else mask
    # A mask whose rows differ (a window, or a bias plus a shift) would need the whole matrix, so it is processed in strips.
    if kernel is not None and mask.allowed is None and (mask.bias is None or mask.shift is None):
        everything = slice(0, lengths[1]), slice(0, lengths[2])
        shared = dataclasses.replace(mask, causal=False) if mask.causal else mask
        term = shared.term(*everything, lengths, query)
        return Attention(*kernel(query, key, value, term, mask.causal, scale))
    parts = []
    for rows, columns in mask.strips(*lengths[1:]):
        term = mask.term(rows, columns, lengths, query)
        part = query[:, :, rows], key[:, :, columns], value[:, :, columns]
        if kernel is not None:
            parts.append(Attention(*kernel(*part, term, False, scale)))
        else:
            scores = attention_scores(*part[:2], term, scale, cap)
            log_normaliser = scores.logsumexp(dim=-1)
            # A query that sees no key takes nothing, as in fused kernels.
            weights = scores.softmax(dim=-1).masked_fill_((log_normaliser == -torch.inf).unsqueeze(-1), 0.0)
            parts.append(Attention((weights @ part[2].to(weights.dtype)).to(value.dtype), log_normaliser))
    return Attention(torch.cat([part.output for part in parts], 2), torch.cat([part[1] for part in parts], 2))


def attention_by_group(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    members: Bool[Tensor, "group batch key"],
    mask: Mask | None,
    scale: float,
    *,
    cap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, "batch head query group"]:
    """Σ_{j∈group} α_ij, the total weight of a group's keys, without building α.

    This is attention whose values are indicators of group membership.

    Args:
        key: Keys, one head per query head.
        members: Which keys are in which group.
        mask: Which keys a query sees, or None.
        scale: Factor on q·k before the softmax.
        cap: Soft cap of the scores; see `attention`.
        sinks: Each head's score of no key; see `attention`.
    """
    groups = len(members)
    # The fused kernel requires values as wide as the keys.
    width = max(groups, key.shape[-1])
    indicators = torch.zeros(*key.shape[:1], key.shape[2], width, dtype=key.dtype, device=key.device)
    indicators[..., :groups] = members.permute(1, 2, 0).to(key.dtype)
    values = indicators.unsqueeze(1).expand(-1, key.shape[1], -1, -1)
    return attention(query, key, values, mask, scale, cap=cap, sinks=sinks).output[..., :groups]


def attention_weights(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    term: Float[Tensor, "#batch #head #query #key"] | None,
    scale: float,
    *,
    cap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    log_normaliser: Float[Tensor, "batch head query"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Post-softmax attention weights α, in float32 or better; each row sums to one, or to less with a sink.

    Args:
        key: Keys, one head per query head.
        term: Term added to the scores (see `masks.Mask`), or None.
        scale: Factor on q·k before the softmax.
        cap: Soft cap of the scores; see `attention`.
        sinks: Each head's score of no key; see `attention`.
        log_normaliser: ℓ_i of each query, with the sink inside, if it is known: α_ij = exp(s_ij − ℓ_i) then takes half the
            time of a softmax. Rows whose ℓ is ∞ are zero.
    """
    if log_normaliser is not None:
        start = (-LOG2_E * log_normaliser).unsqueeze(-1)
        operands = query.to(start.dtype).flatten(0, 1), key.to(start.dtype).flatten(0, 1).transpose(1, 2)
        return exponents(start, None if term is None else LOG2_E * term, *operands, scale, cap).exp2_()
    scores = attention_scores(query, key, term, scale, cap)
    if sinks is None:
        return scores.softmax(dim=-1)
    sink = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]


def exponents(
    start: Float[Tensor, "batch head query 1"],
    term: Float[Tensor, "#batch #head #query key"] | None,
    query: Float[Tensor, "rows query head_dim"],
    key: Float[Tensor, "rows head_dim key"],
    scale: float,
    cap: float | None = None,
) -> Float[Tensor, "batch head query key"]:
    """log₂ of weights: start + term + log₂ e · scale·q·k. The sums of products begin at the first two, which saves a pass.

    Args:
        start: −ℓ_i · log₂ e.
        term: Term added to the scores, times log₂ e, or None.
        query: Queries of all heads of all sequences.
        key: Keys, likewise.
        scale: Factor on q·k before the softmax.
        cap: Soft cap of the scores; see `attention`.
    """
    shape = (*start.shape[:3], key.shape[-1])
    if cap is not None:
        scores = capped(query @ key * scale, cap).mul_(LOG2_E).view(shape).add_(start)
        return scores if term is None else scores.add_(term)
    if term is None:
        scores = torch.baddbmm(start.flatten(0, 1).expand(-1, -1, shape[-1]), query, key, alpha=scale * LOG2_E)
    else:
        scores = (start + term).flatten(0, 1).baddbmm_(query, key, alpha=scale * LOG2_E)
    return scores.view(shape)


def capped(scores: Float[Tensor, "*shape"], cap: float | None) -> Float[Tensor, "*shape"]:
    """Scores after their soft cap c·tanh(s / c), or as they are without one.

    Source: Gemma Team 2024, section 2 (arXiv:2408.00118).
    """
    return scores if cap is None else (scores / cap).tanh() * cap


def weights_of_pairs(
    query: Float[Tensor, "*pair head_dim"],
    key: Float[Tensor, "*pair head_dim"],
    log_normaliser: Float[Tensor, "*pair"],
    scale: float,
    added: Float[Tensor, "*#pair"] | None = None,
    cap: float | None = None,
) -> Float[Tensor, "*pair"]:
    """α_ij = exp(scale·q_i·k_j + b_ij − ℓ_i) of single pairs, such as those of each token with itself.

    Clamped to at most 1, because the terms round differently.

    Args:
        query: The query of each pair.
        key: The key of each pair.
        log_normaliser: ℓ of each query.
        scale: Factor on q·k before the softmax.
        added: b; None without a bias.
        cap: Soft cap of the scores; see `attention`.
    """
    scores = capped((query * key).sum(dim=-1).to(log_normaliser.dtype) * scale, cap)
    if added is not None:
        scores = scores + added
    return (scores - log_normaliser).exp().clamp(max=1.0)


def attention_scores(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    mask: Float[Tensor, "#batch #head #query #key"] | None,
    scale: float,
    cap: float | None = None,
) -> Float[Tensor, "batch head query key"]:
    """The input of the softmax, in float32 or better: scale·q·k, capped, plus the mask's term."""
    accumulation = torch.promote_types(query.dtype, torch.float32)
    # Scaling the queries scales the scores; the queries are smaller by a factor of head_dim / keys.
    scores = ((query * scale) @ key.transpose(-1, -2)).to(accumulation)
    scores = capped(scores, cap)
    return scores if mask is None else scores.add_(mask)
