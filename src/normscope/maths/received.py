"""The weight that every key receives, Σ_i α_ij: after attention has run, or together with it."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.attention import Attention, attention, capped
from normscope.maths.masks import Mask

_SCORES_AT_ONCE = 2**18
"""Scores to hold at once, 1 MiB in float32: larger pieces leave a core's cache."""

_QUERIES_AT_ONCE = 128, 64
"""Most queries in a piece, and fewest, however many keys there are."""


def weight_received(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    log_normaliser: Float[Tensor, "batch head query"],
    token_mask: Bool[Tensor, "batch query"],
    mask: Mask | None,
    scale: float,
    cap: float | None = None,
) -> Float[Tensor, "batch head key"]:
    """Σ_i α_ij over the queries that are not padding: the total weight that each key receives, without building α.

    α_ij = exp(scale·q_i·k_j + b_ij − ℓ_i), so Σ_i α_ij is the exponential of a log-normaliser: that of attention from
    keys to queries, with the scores of query i shifted by −ℓ_i. This takes one more pass of a fused kernel.

    Args:
        query: Queries.
        key: Keys, one head per query head.
        log_normaliser: ℓ_i of each query.
        token_mask: Queries that are not padding.
        mask: Which keys a query sees, and any positional bias; None if every query sees every key.
        scale: Factor on q·k before the softmax.
        cap: Soft cap of the scores; see `attention`.

    Returns:
        In the dtype of the log-normaliser; meaningless at keys that no token sees.
    """
    shift = (-log_normaliser).masked_fill(~token_mask.unsqueeze(1), float("-inf"))
    query, key = query.to(shift.dtype), key.to(shift.dtype)
    mask = Mask() if mask is None else mask
    if mask.causal and mask.bias is None:
        # In reverse order, the queries that see a key are those up to its position: attention is causal again.
        query, key, shift = query.flip(2), key.flip(2), shift.flip(2)
        turned = attention(key, query, query, Mask(causal=True, shift=shift), scale, cap=cap)
        return turned.log_normaliser.exp().flip(2)
    return attention(key, query, query, mask.transposed(shift), scale, cap=cap).log_normaliser.exp()


def one_pass_is_faster(query: Float[Tensor, "batch head query head_dim"]) -> bool:
    """Whether `attention_with_received` takes less time than `attention` followed by `weight_received`.

    On a CPU, building the scores piece by piece takes about as long as the fused kernel, which would have to run twice. Half
    precision would round the scores.
    """
    return query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)


class AttentionAndReceived(NamedTuple):
    """Attention, and the weight that every key receives."""

    attention: Attention
    received: Float[Tensor, "batch head key"]
    """Σ_i α_ij over the queries that are not padding."""


def attention_with_received(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    value: Float[Tensor, "batch head key value_dim"],
    token_mask: Bool[Tensor, "batch query"],
    mask: Mask | None,
    scale: float,
    *,
    cap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> AttentionAndReceived:
    """Attention and the weight that each key receives, from scores that are built once, piece by piece.

    With m_i the largest score of query i, α_ij = exp(s_ij − m_i) · exp(m_i − ℓ_i). The second factor is applied to the products
    with the values and with the queries that count, so each score is read and written as often as in plain attention. Memory is
    linear in length.

    Args:
        query: Queries, after any rotary embedding.
        key: Keys, likewise, one head per query head.
        value: Values, one head per query head.
        token_mask: Queries that are not padding.
        mask: Which keys a query sees, and any positional bias; None if every query sees every key.
        scale: Factor on q·k before the softmax.
        cap: Soft cap of the scores; see `attention`.
        sinks: Each head's score of no key; see `attention`.
    """
    batch, heads, queries, _ = query.shape
    # The layout that the output projection reads.
    output = value.new_empty(batch, queries, heads, value.shape[-1]).transpose(1, 2)
    log_normaliser = query.new_empty(batch, heads, queries)
    received = query.new_zeros(batch, heads, key.shape[2])
    query = query * scale  # smaller than the scores by a factor of keys / head_dim
    for piece in _pieces(Mask() if mask is None else mask, (batch, heads, queries, key.shape[2]), query):
        at, seen = piece.queries, piece.keys
        scores = capped(query[at] @ key[seen].transpose(-1, -2), cap)
        piece.add_terms(scores)
        largest = scores.amax(dim=-1, keepdim=True)
        exponentials = scores.sub_(largest).exp_()
        normaliser = largest + exponentials.sum(dim=-1, keepdim=True).log()
        if sinks is not None:
            normaliser = torch.logaddexp(normaliser, sinks[at[1]].to(normaliser.dtype)[:, None, None])
        factors = (largest - normaliser).exp()
        torch.mul(exponentials @ value[seen], factors, out=output[at])
        log_normaliser[at] = normaliser.squeeze(-1)
        counted = factors * token_mask[at[0], None, at[2], None].to(factors.dtype)
        received[seen] += (counted.transpose(-1, -2) @ exponentials).squeeze(-2)
    return AttentionAndReceived(Attention(output, log_normaliser), received)


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Some queries of some heads and sequences, with all the keys that they see."""

    queries: tuple[slice, slice, slice]
    keys: tuple[slice, slice, slice]
    term: Tensor | None
    """Added to the scores of these queries and keys."""
    triangular: bool
    """Whether the last keys are the queries' own, of which each sees those up to its own."""

    def add_terms(self, scores: Tensor) -> None:
        """Add the terms to the scores, in place."""
        if self.term is not None:
            scores.add_(self.term)
        if self.triangular:
            rows = scores.shape[-2]
            later = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu(1)
            scores[..., -rows:].masked_fill_(later, float("-inf"))


def _pieces(mask: Mask, lengths: tuple[int, int, int, int], like: Tensor) -> Iterator[_Piece]:
    batch, heads, queries, keys = lengths
    # A triangle need not be added to all keys.
    triangular = mask.causal and mask.queries is None
    rest = dataclasses.replace(mask, causal=False) if triangular else mask
    most, fewest = _QUERIES_AT_ONCE
    for rows, columns in mask.strips(queries, keys, max(fewest, min(most, _SCORES_AT_ONCE // keys))):
        term = rest.term(rows, columns, (batch, queries, keys), like)
        size = (rows.stop - rows.start) * (columns.stop - columns.start)
        some_heads = max(1, min(heads, _SCORES_AT_ONCE // size))
        sequences = max(1, _SCORES_AT_ONCE // (size * heads))
        for start in range(0, batch, sequences):
            for head in range(0, heads, some_heads):
                at = slice(start, start + sequences), slice(head, head + some_heads)
                yield _Piece((*at, rows), (*at, columns), _needed(term, *at), triangular)


def _needed(term: Tensor | None, sequences: slice, heads: slice) -> Tensor | None:
    """The part of a term for some sequences and heads; None if it is zero, as it is for texts without padding."""
    if term is None:
        return None
    term = term[sequences if len(term) > 1 else slice(None), heads if term.shape[1] > 1 else slice(None)]
    return term if term.shape[2] > 1 or bool(term.any()) else None
