"""α in tiles, each small enough to stay in a processor's cache while its weights are computed, summed and counted."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.attention import LOG2_E, attention, exponents
from normscope.maths.masks import Mask
from normscope.maths.tensors import pieces

ENTRIES_AT_ONCE = {"cpu": 2**18}
"""Weights in a tile, by device: 1 MiB in float32."""

ENTRIES_AT_ONCE_ON_ACCELERATORS = 2**27
"""The same on other devices, which need large pieces of work to stay busy."""

SMALLEST_TILE = {True: 64, False: 128}
"""Smallest number of queries and keys in a tile, in causal attention and in any other. Small causal tiles hold fewer invisible
pairs."""


class Tile(NamedTuple):
    """The weights of some queries, or target words, and keys."""

    sequences: slice
    rows: slice
    """The queries or target words."""
    keys: slice
    weights: Float[Tensor, "some head query key"]
    """α; zero at keys that are not visible, and in rows of padding."""


def weight_tiles(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    log_normaliser: Float[Tensor, "batch head query"],
    token_mask: Bool[Tensor, "batch query"],
    mask: Mask | None,
    scale: float,
    cap: float | None = None,
    lone: Bool[Tensor, "batch query"] | None = None,
) -> Iterator[Tile]:
    """α, tile by tile; tiles without visible keys are left out.

    α_ij = exp(scale·q_i·k_j + b_ij − ℓ_i). Each sum of products starts at b_ij − ℓ_i, which saves a pass over the tile.

    Args:
        key: Keys, one head per query head.
        log_normaliser: ℓ_i of each query.
        token_mask: Queries that are not padding.
        mask: Which keys a query sees, and any positional bias; None if every query sees every key.
        scale: Factor on q·k before the softmax.
        cap: Soft cap of the scores; see `attention`.
        lone: Queries that see only themselves: their weight is set to 1, since exp(s − ℓ) is 1 only up to rounding.

    Yields:
        The tiles, in the dtype of the log-normaliser.
    """
    mask = Mask() if mask is None else mask
    (sequences, heads, queries, _), keys = query.shape, key.shape[2]
    start = (-LOG2_E * log_normaliser).masked_fill(~token_mask.unsqueeze(1), float("-inf")).unsqueeze(-1)
    query, key = query.to(start.dtype), key.to(start.dtype)
    only_causal = mask.causal and mask.keys is None and mask.bias is None and mask.shift is None
    at_once = ENTRIES_AT_ONCE.get(query.device.type, ENTRIES_AT_ONCE_ON_ACCELERATORS)
    # A power of two near the square root, so that whole tiles fill sequences of common lengths.
    size = 2 ** int(math.log2(max(1, at_once // (sequences * heads))) / 2 + 0.4)
    size = min(max(size, SMALLEST_TILE[only_causal]), max(queries, keys))
    for some in pieces(slice(0, sequences), at_once // (heads * size**2)):
        for rows, columns in mask.strips(queries, keys, size):
            for part in pieces(columns, size):
                term = None if only_causal else _term(mask, some, rows, part, (sequences, queries, keys), query)
                # Flattened tile by tile: nothing is copied of a single sequence, and the others stay in the cache.
                vectors = query[some, :, rows].flatten(0, 1), key[some, :, part].flatten(0, 1).transpose(1, 2)
                weights = exponents(start[some, :, rows], term, *vectors, scale, cap).exp2_()
                if only_causal and part.stop > rows.start + 1:
                    weights.tril_(rows.start - part.start)
                if lone is not None:
                    _set_own(weights, lone[some], rows, part)
                yield Tile(some, rows, part, weights)


def _term(
    mask: Mask, sequences: slice, queries: slice, keys: slice, lengths: tuple[int, int, int], like: Tensor
) -> Tensor | None:
    """The mask's term for one tile, in exponents of 2."""
    # With a bias, `term` would cache every tile, although layers share only the visibility.
    known = mask.bias is None
    place = queries, keys, lengths, like
    term = mask.term(*place) if known else mask.chosen_term(slice(None), *place)
    if term is None:
        return None
    term = term if len(term) == 1 else term[sequences]
    return term if mask.bias is None and mask.shift is None else term * LOG2_E  # 0 and −∞ remain as they are


def _set_own(weights: Tensor, lone: Tensor, queries: slice, keys: slice) -> None:
    """Set the weights of lone queries on themselves to 1."""
    both = slice(max(queries.start, keys.start), min(queries.stop, keys.stop))
    if both.start < both.stop:
        own = weights.diagonal(queries.start - keys.start, dim1=-2, dim2=-1)
        own.masked_fill_(lone[:, None, both], 1)


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
        key: Keys, one head per query head.
        log_normaliser: ℓ_i of each query.
        token_mask: Queries that are not padding.
        mask: Which keys a query sees, and any positional bias; None if every query sees every key.
        scale: Factor on q·k before the softmax.
        cap: Soft cap of the scores; see `attention`.

    Returns:
        In the dtype of the log-normaliser; meaningless at keys that no token sees.
    """
    mask = Mask() if mask is None else mask
    if query.device.type != "cpu":  # where small tiles (not measured) would leave most of the device idle
        shift = (-log_normaliser).masked_fill(~token_mask.unsqueeze(1), float("-inf"))
        return _by_kernel(query.to(shift.dtype), key.to(shift.dtype), shift, mask, scale, cap)
    if mask.bias is None and mask.shift is None and mask.allowed is None:
        mask = Mask(causal=mask.causal)  # what padding receives means nothing
    received = log_normaliser.new_zeros(*query.shape[:2], key.shape[2])
    # Takes half the time of the kernel, which also multiplies by values.
    for tile in weight_tiles(query, key, log_normaliser, token_mask, mask, scale, cap):
        received[tile.sequences, :, tile.keys] += tile.weights.sum(dim=2)
    return received


def _by_kernel(
    query: Tensor, key: Tensor, shift: Tensor, mask: Mask, scale: float, cap: float | None
) -> Float[Tensor, "batch head key"]:
    """`weight_received` by one more pass of a fused kernel.

    α_ij = exp(scale·q_i·k_j + b_ij − ℓ_i), so Σ_i α_ij is the exponential of a log-normaliser: that of attention from
    keys to queries, with the scores of query i shifted by −ℓ_i.
    """
    if mask.causal and mask.bias is None:
        # In reverse order, the queries that see a key are those up to its position: attention is causal again.
        query, key, shift = query.flip(2), key.flip(2), shift.flip(2)
        turned = attention(key, query, query, Mask(causal=True, shift=shift), scale, cap=cap)
        return turned.log_normaliser.exp().flip(2)
    return attention(key, query, query, mask.transposed(shift), scale, cap=cap).log_normaliser.exp()
