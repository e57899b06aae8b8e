"""The weight that every key receives, Σ_i α_ij, without α."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.attention import LOG2_E, attention, capped
from normscope.maths.masks import Mask
from normscope.maths.pieces import pieces

ENTRIES_AT_ONCE = 2**19
"""Weights in a tile on a CPU, 2 MiB in float32, so that the tile stays in its cache."""

SMALLEST_TILE = {True: 64, False: 128}
"""Least number of queries and keys in a tile, in causal attention and in other attention. In causal attention, small tiles hold
fewer pairs that no query sees."""


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
    # Not measured on other devices, where small tiles would keep little of the device busy.
    received_weight = _in_tiles if query.device.type == "cpu" else _by_kernel
    return received_weight(query, key, shift, mask, scale, cap)


def _in_tiles(
    query: Tensor, key: Tensor, shift: Tensor, mask: Mask, scale: float, cap: float | None
) -> Float[Tensor, "batch head key"]:
    """The sum of exp(scale·q_i·k_j + b_ij − ℓ_i), tile by tile: half the kernel's time, which multiplies by values too.

    Sums of products begin at −ℓ_i, which saves a pass over the tile.
    """
    (sequences, heads, queries, _), keys = query.shape, key.shape[2]
    lengths = sequences, queries, keys
    plain = mask.allowed is None and mask.bias is None and mask.shift is None
    size = 2 ** int(math.log2(max(1, ENTRIES_AT_ONCE // (sequences * heads))) / 2)
    size = min(max(size, SMALLEST_TILE[plain and mask.causal]), max(queries, keys))
    received = shift.new_zeros(sequences, heads, keys)
    by_head = query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2), (shift * LOG2_E).flatten(0, 1).unsqueeze(-1)
    for some in pieces(slice(0, sequences), ENTRIES_AT_ONCE // (heads * size**2)):
        own_query, own_key, own_shift = (tensor[some.start * heads : some.stop * heads] for tensor in by_head)
        own_received = received[some].flatten(0, 1)
        for rows, columns in mask.strips(queries, keys, size):
            for part in pieces(columns, size):
                start = own_shift[:, rows]
                if not plain:
                    # With a bias, the term of each tile would be kept, although only its visibility is shared by layers.
                    known = mask.bias is None
                    place = (rows, part, lengths, query)
                    term = mask.term(*place) if known else mask.chosen_term(slice(None), *place)
                    start = _with_term(start, term, some, heads)
                tile = start, own_query[:, rows], own_key[:, :, part]
                weights = _scores(*tile, scale, cap).exp2_()
                if plain and mask.causal and part.stop > rows.start + 1:
                    weights.tril_(rows.start - part.start)
                own_received[:, part] += weights.sum(dim=1)
    return received


def _with_term(start: Tensor, term: Tensor | None, some: slice, heads: int) -> Tensor:
    """Where the scores of a tile begin, with the mask's term."""
    if term is None:
        return start
    term = term if len(term) == 1 else term[some]
    return (start.unflatten(0, (-1, heads)) + term * LOG2_E).flatten(0, 1)


def _scores(start: Tensor, query: Tensor, key: Tensor, scale: float, cap: float | None) -> Tensor:
    """Scores of a tile less ℓ_i, as exponents of 2."""
    if cap is not None:
        return capped(query @ key * scale, cap).mul_(LOG2_E).add_(start)
    return torch.baddbmm(start.expand(-1, -1, key.shape[2]), query, key, alpha=scale * LOG2_E)


def _by_kernel(
    query: Tensor, key: Tensor, shift: Tensor, mask: Mask, scale: float, cap: float | None
) -> Float[Tensor, "batch head key"]:
    """By one more pass of a fused kernel.

    α_ij = exp(scale·q_i·k_j + b_ij − ℓ_i), so Σ_i α_ij is the exponential of a log-normaliser: that of attention from
    keys to queries, with the scores of query i shifted by −ℓ_i.
    """
    if mask.causal and mask.bias is None:
        # In reverse order, the queries that see a key are those up to its position: attention is causal again.
        query, key, shift = query.flip(2), key.flip(2), shift.flip(2)
        turned = attention(key, query, query, Mask(causal=True, shift=shift), scale, cap=cap)
        return turned.log_normaliser.exp().flip(2)
    return attention(key, query, query, mask.transposed(shift), scale, cap=cap).log_normaliser.exp()
