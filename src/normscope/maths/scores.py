"""Which dimensions of the hidden vectors decide the attention scores.

For query m and key n, before scaling and softmax, dimension j contributes C_j(m,n) = (q_m W_Kᵀ)_j x_nj to q_m·k_n. Over all j
it adds up to the part of the score that depends on the key; q_m·b_K is left, the same for all keys of a query. Sums over pairs
factorise, so that no tensor with axes query × key × model is built.

Source: Maruta & Matsuzaki 2024, section 3.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


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
    real: Bool[Tensor, "batch key"],
) -> ScoreSpread:
    """The spread where every query sees every key.

    What is the same for all keys of a query changes no attention weight, so the spread is the variance over keys, query by
    query. With k̃ the keys less their mean, Σ_m (q_m·k̃_n) q_m = k̃_n Q for Q = Σ_m q_mᵀ q_m: linear in length.

    Args:
        query: Queries.
        key: Keys.
        real: Which tokens are no padding.
    """
    tokens = real[:, None, :, None].to(key.dtype)
    lengths = tokens.sum(dim=2, keepdim=True)
    centred = (key - (key * tokens).sum(dim=2, keepdim=True) / lengths) * tokens
    queries = query * tokens
    directions = centred @ (queries.transpose(-1, -2) @ queries / lengths)
    return ScoreSpread(directions, (directions * centred).sum(dim=(0, 2, 3)))


def visible_score_spread(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    visible: Bool[Tensor, "batch #head query key"],
) -> ScoreSpread:
    """The same where a query does not see every key: the variance is over the keys that it sees.

    Args:
        query: Queries.
        key: Keys.
        visible: Which keys a query sees; none in rows of padding.
    """
    seen = visible.to(key.dtype)
    counts = seen.sum(dim=-1, keepdim=True).clamp(min=1)
    scores = query @ key.transpose(-1, -2)
    centred = (scores - (scores * seen).sum(dim=-1, keepdim=True) / counts) * seen
    return ScoreSpread((centred / counts).transpose(-1, -2) @ query, (centred.square() / counts).sum(dim=(0, 2, 3)))


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
