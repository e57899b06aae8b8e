"""Which dimensions of the hidden vectors determine the attention scores.

For query m and key n, before scaling and softmax, dimension j contributes C_j(m,n) = (q_m W_Kᵀ)_j x_nj to q_m·k_n. Over all j
it adds up to the part of the score that depends on the key; q_m·b_K is left, the same for all keys of a query. Sums over pairs
factorise, so that no tensor with axes query × key × model is built.

Source: Maruta & Matsuzaki 2024, section 3.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.masks import STRIP, Mask


def contribution_sums(
    query_sums: Float[Tensor, "batch head head_dim"],
    key_weight: Float[Tensor, "head model head_dim"],
    input_sums: Float[Tensor, "group batch model"],
) -> Float[Tensor, "group head model"]:
    """Σ C_j over all pairs of a sequence's queries and a group's keys, added up over the sequences.

    Σ_{m,n} C(m,n) = (Σ_m q_m) W_Kᵀ ⊙ Σ_n x_n where every query sees every key.

    Args:
        query_sums: Σ_m q_m of each sequence.
        key_weight: W_K.
        input_sums: Σ_n x_n of each sequence over the keys of each group; x is what enters W_K.
    """
    projected = torch.einsum("bhd,hmd->bhm", query_sums, key_weight)
    return torch.einsum("bhm,gbm->ghm", projected, input_sums)


def visible_contribution_sums(
    seen_by: Float[Tensor, "batch head key head_dim"],
    key_weight: Float[Tensor, "head model head_dim"],
    inputs: Float[Tensor, "batch key model"],
    members: Bool[Tensor, "group batch key"],
) -> Float[Tensor, "group head model"]:
    """The same where a query does not see every key: Σ_n (Σ_{m sees n} q_m) W_Kᵀ ⊙ x_n.

    Σ_n p_n W_Kᵀ ⊙ x_n is the diagonal of XᵀP W_Kᵀ: one projection of the group's keys, for all sequences at once.

    Args:
        seen_by: p_n, the sum of the queries that see key n.
        key_weight: W_K.
        inputs: x, what enters W_K.
        members: Which keys are in which group.
    """
    by_key = seen_by.transpose(1, 2)
    return torch.stack([_diagonal(inputs[group], by_key[group], key_weight) for group in members])


class ScoreSpread(NamedTuple):
    """How far the scores of a query's keys lie apart, added up over queries."""

    directions: Float[Tensor, "batch head key head_dim"]
    """Σ_m s̃_mn q_m / N_m, with s̃ the scores less their mean over the N_m keys that query m sees."""
    variance: Float[Tensor, " head"]
    """Σ_m Var_n(s(m,n))."""


def score_spread(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    token_mask: Bool[Tensor, "batch key"],
) -> ScoreSpread:
    """The spread where every query sees every key.

    What is the same for all keys of a query changes no attention weight, so the spread is the variance over keys, query by
    query. With k̃ the keys less their mean, Σ_m (q_m·k̃_n) q_m = k̃_n Q for Q = Σ_m q_mᵀ q_m: linear in length.

    Args:
        query: Queries.
        key: Keys.
        token_mask: Which tokens are no padding.
    """
    tokens = token_mask[:, None, :, None].to(key.dtype)
    lengths = tokens.sum(dim=2, keepdim=True)
    centred = (key - (key * tokens).sum(dim=2, keepdim=True) / lengths) * tokens
    queries = query * tokens
    directions = centred @ (queries.transpose(-1, -2) @ queries / lengths)
    return ScoreSpread(directions, (directions * centred).sum(dim=(0, 2, 3)))


def causal_score_spread(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    token_mask: Bool[Tensor, "batch key"],
) -> ScoreSpread:
    """The same where a query sees the keys up to its own: the variance is over the keys that it sees.

    With k̄_m the mean of the keys up to m, Σ_{m≥n} (q_m·k_n − q_m·k̄_m) q_m / m = k_n G_n − g_n, where G_n = Σ_{m≥n} q_mᵀq_m / m
    and g_n = Σ_{m≥n} (q_m·k̄_m) q_m / m grow from the last query to the first: linear in length.

    Args:
        query: Queries.
        key: Keys.
        token_mask: Which tokens are no padding; that is at the end.
    """
    tokens = token_mask[:, None, :, None].to(key.dtype)
    # Keys that share a large vector would leave small differences of large sums: their mean changes no spread.
    key = (key - (key * tokens).sum(dim=2, keepdim=True) / tokens.sum(dim=2, keepdim=True)) * tokens
    query = query * tokens
    counts = torch.arange(1, query.shape[2] + 1, device=query.device).unsqueeze(1).to(query.dtype)
    means = _precise(key).cumsum(dim=2).to(key.dtype) / counts
    weighted = query / counts
    own = (query * means).sum(dim=-1, keepdim=True) * weighted
    directions = -_sums_to_the_end(own)
    later = torch.zeros(*query.shape[:2], query.shape[-1], query.shape[-1], dtype=query.dtype, device=query.device)
    strips = torch.arange(query.shape[2], device=query.device).split(STRIP)
    for strip in reversed(strips):
        part = slice(int(strip[0]), int(strip[-1]) + 1)
        scores = (query[:, :, part] @ key[:, :, part].transpose(-1, -2)).tril()
        directions[:, :, part] += scores.transpose(-1, -2) @ weighted[:, :, part] + key[:, :, part] @ later
        later += query[:, :, part].transpose(-1, -2) @ weighted[:, :, part]
    return ScoreSpread(directions, (directions * key).sum(dim=(0, 2, 3)))


def visible_score_spread(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    token_mask: Bool[Tensor, "batch key"],
    mask: Mask,
) -> ScoreSpread:
    """The same where a mask says what a query sees, a strip of queries at a time.

    Args:
        query: Queries.
        key: Keys.
        token_mask: Which tokens are no padding.
        mask: Which keys a query sees.
    """
    directions = torch.zeros_like(key)
    variance = torch.zeros_like(key[0, :, 0, 0])
    for rows, columns, visible in _strips(token_mask, mask):
        seen = visible.to(key.dtype)
        counts = seen.sum(dim=-1, keepdim=True).clamp(min=1)
        scores = query[:, :, rows] @ key[:, :, columns].transpose(-1, -2)
        centred = (scores - (scores * seen).sum(dim=-1, keepdim=True) / counts) * seen
        directions[:, :, columns] += (centred / counts).transpose(-1, -2) @ query[:, :, rows]
        variance += (centred.square() / counts).sum(dim=(0, 2, 3))
    return ScoreSpread(directions, variance)


def seen_by(
    vectors: Float[Tensor, "batch #head query size"], token_mask: Bool[Tensor, "batch query"], mask: Mask
) -> Float[Tensor, "batch #head key size"]:
    """Σ of the vectors of the queries that see a key, padding left out; meaningless at keys that are padding.

    Args:
        vectors: A vector of each query.
        token_mask: Which tokens are no padding.
        mask: Which keys a query sees.
    """
    vectors = vectors * token_mask[:, None, :, None].to(vectors.dtype)
    if mask.everything_visible:
        return vectors.sum(dim=2, keepdim=True).expand_as(vectors)
    if mask.causal:
        return _sums_to_the_end(vectors)
    sums = torch.zeros_like(vectors)
    for rows, columns, visible in _strips(token_mask, mask):
        sums[:, :, columns] += visible.to(vectors.dtype).transpose(-1, -2) @ vectors[:, :, rows]
    return sums


def _precise(tensor: Tensor) -> Tensor:
    """A tensor in float64, where long sums are made of it, if its device knows that."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def _sums_to_the_end(vectors: Tensor) -> Tensor:
    """Σ_{m≥n} of the vectors, for every n."""
    return _precise(vectors).flip(2).cumsum(dim=2).flip(2).to(vectors.dtype)


def _strips(token_mask: Tensor, mask: Mask) -> Iterator[tuple[slice, slice, Tensor]]:
    """Queries, the keys among which all are that they see, and which they see; padding sees none."""
    sequences, indices = (torch.arange(n, device=token_mask.device) for n in token_mask.shape)
    for rows, columns in mask.strips(len(indices), len(indices)):
        visible = mask.visible(indices[rows], indices[columns], sequences)
        tokens = token_mask[:, None, rows, None]
        yield rows, columns, tokens if visible is None else visible & tokens


def covariances(
    directions: Float[Tensor, "batch head key head_dim"],
    key_weight: Float[Tensor, "head model head_dim"],
    inputs: Float[Tensor, "batch key model"],
) -> Float[Tensor, "head model"]:
    """Σ_m Cov_n(C_j(m,n), s(m,n)): divided by the variance, the share of dimension j in the spread.

    Over all j, and what b_K adds where position makes it differ from key to key, it adds up to the variance.

    Args:
        directions: Those of the spread, taken back through the keys' map (see `keys.KeyMap`).
        key_weight: W_K.
        inputs: x, what enters W_K.
    """
    return _diagonal(inputs.flatten(0, 1), directions.transpose(1, 2).flatten(0, 1), key_weight)


def part_of_keys(
    inputs: Float[Tensor, "batch key model"],
    key_weight: Float[Tensor, "head model head_dim"],
    dimensions: Sequence[int],
) -> Float[Tensor, "batch head key head_dim"]:
    """Σ_{j∈dimensions} x_j W_K[j]: what some dimensions put into the keys."""
    chosen = list(dimensions)
    return torch.einsum("bkm,hmd->bhkd", inputs[..., chosen], key_weight[:, chosen])


def _diagonal(
    inputs: Float[Tensor, "token model"],
    vectors: Float[Tensor, "token head head_dim"],
    key_weight: Float[Tensor, "head model head_dim"],
) -> Float[Tensor, "head model"]:
    """Σ_n x_nj (p_n W_Kᵀ)_j for every head and dimension j."""
    heads, _, head_dim = key_weight.shape
    products = (inputs.T @ vectors.flatten(1)).view(-1, heads, head_dim)
    return torch.einsum("mhd,hmd->hm", products, key_weight)
