"""Which dimensions of the hidden vectors determine the attention scores.

For query m and key n, before scaling and softmax, dimension j contributes C_j(m,n) = (q_m W_Kᵀ)_j x_nj to q_m·k_n.
Summed over j, this is the part of the score that depends on the key; the rest, q_m·b_K, is the same for all keys of a
query. Sums over pairs factorise, so no tensor with axes query × key × model is built.

Source: Maruta & Matsuzaki 2024, section 4.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.maths.masks import Mask

_BLOCK = 64
"""Queries whose scores are computed together in causal attention, about as many as a head has dimensions."""


def contribution_sums(
    query_sums: Float[Tensor, "batch head head_dim"],
    key_weight: Float[Tensor, "head model head_dim"],
    input_sums: Float[Tensor, "group batch model"],
) -> Float[Tensor, "group head model"]:
    """Σ C_j over all pairs of a sequence's queries and a group's keys, summed over the sequences.

    Σ_{m,n} C(m,n) = (Σ_m q_m) W_Kᵀ ⊙ Σ_n x_n where every query sees every key.

    Args:
        query_sums: Σ_m q_m of each sequence.
        key_weight: W_K.
        input_sums: Σ_n x_n of each sequence over the keys of each group; x is the input of W_K.
    """
    projected = query_sums.transpose(0, 1) @ key_weight.transpose(1, 2)  # head, batch, model
    return torch.stack([(projected * of_group).sum(dim=1) for of_group in input_sums])


def visible_contribution_sums(
    seen_by: Float[Tensor, "batch head key head_dim"],
    key_weight: Float[Tensor, "head model head_dim"],
    inputs: Float[Tensor, "batch key model"],
    places: Sequence[Int[Tensor, " _"]],
) -> Float[Tensor, "group head model"]:
    """The same where a query does not see every key: Σ_n (Σ_{m sees n} q_m) W_Kᵀ ⊙ x_n.

    Σ_n p_n W_Kᵀ ⊙ x_n is the diagonal of XᵀP W_Kᵀ: one projection of the group's keys, for all sequences at once.

    Args:
        seen_by: p_n, the sum of the queries that see key n.
        key_weight: W_K.
        inputs: x, the input of W_K.
        places: Indices of the keys of each group, counted through all sequences.
    """
    by_key, inputs = seen_by.transpose(1, 2).flatten(0, 1), inputs.flatten(0, 1)
    return torch.stack([_diagonal(inputs[group], by_key[group], key_weight) for group in places])


class ScoreSpread(NamedTuple):
    """The spread of the scores over a query's keys, summed over queries."""

    directions: Float[Tensor, "batch head key head_dim"]
    """Σ_m s̃_mn q_m / N_m, with s̃ the scores minus their mean over the N_m keys that query m sees."""
    variance: Float[Tensor, " head"]
    """Σ_m Var_n(s(m,n))."""


def score_spread(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    token_mask: Bool[Tensor, "batch key"],
) -> ScoreSpread:
    """The spread where every query sees every key.

    A term shared by all keys of a query changes no attention weight, so the spread is the variance over keys, query by
    query. With k̃ the keys minus their mean, Σ_m (q_m·k̃_n) q_m = k̃_n Q for Q = Σ_m q_mᵀ q_m: linear in length.

    Args:
        token_mask: Which tokens are not padding.
    """
    tokens = token_mask[:, None, :, None].to(key.dtype)
    lengths = tokens.sum(dim=2, keepdim=True)
    # Matrix products need the vectors of a head one after the other in memory: written so at once, not copied afterwards.
    centred, queries = (torch.empty_like(vectors, memory_format=torch.contiguous_format) for vectors in (key, query))
    torch.sub(key, masked_sum(key, token_mask).unsqueeze(2) / lengths, out=centred)
    torch.mul(query, tokens / lengths.sqrt(), out=queries)
    directions = (centred @ (queries.transpose(-1, -2) @ queries)).mul_(tokens)
    return ScoreSpread(directions, centred.mul_(directions).sum(dim=(0, 2, 3)))


def causal_score_spread(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    token_mask: Bool[Tensor, "batch key"],
) -> ScoreSpread:
    """The same for causal attention: the variance is over the keys up to the query's position.

    With k̄_m the mean of the keys up to m, Σ_{m≥n} (q_m·k_n − q_m·k̄_m) q_m / m = k_n G_n − g_n, where G_n = Σ_{m≥n} q_mᵀq_m / m
    and g_n = Σ_{m≥n} (q_m·k̄_m) q_m / m accumulate from the last query to the first: linear in length. Within a block of queries
    the scores are cheaper than G_n, which is only needed where a block ends.

    Args:
        token_mask: Which tokens are not padding; padding is at the end.
    """
    tokens = token_mask[:, None, :, None].to(key.dtype)
    # The keys' mean does not affect the spread, and a large one would cause cancellation below.
    key = (key - (key * tokens).sum(dim=2, keepdim=True) / tokens.sum(dim=2, keepdim=True)) * tokens
    query = query * tokens
    counts = torch.arange(1, query.shape[2] + 1, device=query.device).unsqueeze(1).to(query.dtype)
    means = _precise(key).cumsum(dim=2).to(key.dtype) / counts
    weighted = query / counts
    own = (query * means).sum(dim=-1, keepdim=True) * weighted
    directions = -_sums_to_the_end(own)
    queries, keys, ends = (_blocks(vectors) for vectors in (query, key, weighted))
    within = (queries @ keys.transpose(-1, -2)).tril_().transpose(-1, -2) @ ends
    sums = queries.transpose(-1, -2) @ ends
    directions += (within + keys @ _sums_after(sums)).flatten(2, 3)[:, :, : query.shape[2]]
    return ScoreSpread(directions, (directions * key).sum(dim=(0, 2, 3)))


def _blocks(vectors: Float[Tensor, "batch head token head_dim"]) -> Float[Tensor, "batch head block some head_dim"]:
    """Blocks of consecutive tokens, the last one filled up with zeros."""
    padded = torch.nn.functional.pad(vectors, (0, 0, 0, -vectors.shape[2] % _BLOCK))
    return padded.unflatten(2, (-1, _BLOCK))


def visible_score_spread(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    token_mask: Bool[Tensor, "batch key"],
    mask: Mask,
) -> ScoreSpread:
    """The same for any mask, in strips of queries.

    Args:
        token_mask: Which tokens are not padding.
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


def masked_sum(
    vectors: Float[Tensor, "batch head token head_dim"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, "batch head head_dim"]:
    """Σ of the vectors of a sequence's tokens, without padding."""
    of_token = vectors.transpose(1, 2).flatten(2)
    return (token_mask.unsqueeze(1).to(vectors.dtype) @ of_token).view(len(vectors), *vectors.shape[1::2])


def seen_by(
    vectors: Float[Tensor, "batch #head query size"], token_mask: Bool[Tensor, "batch query"], mask: Mask
) -> Float[Tensor, "batch #head key size"]:
    """For each key, Σ of the vectors of the queries that see it, without padding; meaningless at padding keys.

    Args:
        vectors: One vector per query.
        token_mask: Which tokens are not padding.
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
    """The tensor in float64, for long sums, if its device supports it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def _sums_to_the_end(vectors: Tensor) -> Tensor:
    """Σ_{m≥n} of the vectors, for every n."""
    return _sums_after(vectors) + vectors


def _sums_after(vectors: Tensor) -> Tensor:
    """Σ_{m>n} of the vectors, for every n: the sum of all, less the sum up to n.

    Reversing the order twice would take longer, and float64 has digits to spare for the difference.
    """
    sums = _precise(vectors).cumsum(dim=2)
    return (sums[:, :, -1:] - sums).to(vectors.dtype)


def _strips(token_mask: Tensor, mask: Mask) -> Iterator[tuple[slice, slice, Tensor]]:
    """Strips of queries, a range of keys that includes all they see, and which ones they see. Padding sees none."""
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
    """Σ_m Cov_n(C_j(m,n), s(m,n)). Divided by the variance, it is the share of dimension j in the spread.

    The sum over j is the variance, less the part from b_K where position makes it differ from key to key.

    Args:
        directions: Those of the spread, mapped back through the keys' map (see `keys.PlaneMap`).
        key_weight: W_K.
        inputs: x, the input of W_K.
    """
    return _diagonal(inputs.flatten(0, 1), directions.transpose(1, 2).flatten(0, 1), key_weight)


def part_of_keys(
    inputs: Float[Tensor, "batch key model"],
    key_weight: Float[Tensor, "head model head_dim"],
    dimensions: Sequence[int],
) -> Float[Tensor, "batch head key head_dim"]:
    """Σ_{j∈dimensions} x_j W_K[j]: the contribution of some dimensions to the keys."""
    chosen = list(dimensions)
    return torch.einsum("bkm,hmd->bhkd", inputs[..., chosen], key_weight[:, chosen])


def _diagonal(
    inputs: Float[Tensor, "token model"],
    vectors: Float[Tensor, "token head head_dim"],
    key_weight: Float[Tensor, "head model head_dim"],
) -> Float[Tensor, "head model"]:
    """Σ_n x_nj (p_n W_Kᵀ)_j for every head and dimension j."""
    heads, _, head_dim = key_weight.shape
    # The products in the weight's own layout, which copies nothing: those of torch's linear layers have the inputs last.
    if key_weight.stride(1) == 1:
        products = (vectors.flatten(1).T @ inputs).view(heads, head_dim, -1)
        return products.mul_(key_weight.transpose(1, 2)).sum(dim=1)
    products = (inputs.T @ vectors.flatten(1)).view(-1, heads, head_dim)
    return products.mul_(key_weight.transpose(0, 1)).sum(dim=-1).T
