"""Maps of one layer: how much each key contributes to each query, by every method that works layer by layer."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.attribution.methods import MapMethod, MapStage
from normscope.attribution.precision import wide
from normscope.attribution.rest_of_layer import RestOfLayer
from normscope.attribution.tiles import Tile, tiles
from normscope.maths.composition import Stage
from normscope.maths.contributions import cosine_distance, row_normalised, with_identity
from normscope.maths.normalisation import Normalisation
from normscope.maths.norms import head_grams, norms_from_grams, replaced_diagonal
from normscope.models.block import AttentionBlock
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.frozen_layers import frozen_layer

ENTRIES_AT_ONCE = {"cpu": 2**21}
"""Entries of pair vectors (query × key × model) to build at once, by device."""

ENTRIES_AT_ONCE_ON_ACCELERATORS = 2**26
"""The same on other devices."""


def attention_map(method: MapMethod, stage: MapStage, block: AttentionBlock) -> Float[Tensor, "batch query key"]:
    """The map of a layer by a method that needs only its attention block, in float64.

    Args:
        method: `rollout`, `alti`, or `norm_rollout` with a stage of the block.
        stage: The stage of `norm_rollout`.
        block: The attention block.
    """
    match method:
        case MapMethod.ROLLOUT:
            strips = [wide(weights.mean(dim=1)) for _, weights in _weight_strips(block)]
            return with_identity(torch.cat(strips, dim=1))
        case MapMethod.ALTI:
            return row_normalised(_reductions(block))
        case _:
            return row_normalised(_norms(block, Stage(stage.removesuffix("_n"))))


def layer_map(method: MapMethod, block: FeedForwardBlock) -> Float[Tensor, "batch query key"]:
    """The map of a layer by a method that also needs its feed-forward network, in float64.

    Args:
        method: `globenc`, `value_zeroing`, or `norm_rollout` of the whole layer.
        block: The feed-forward network, with its attention block.
    """
    match method:
        case MapMethod.GLOBENC:
            return _globenc(block)
        case MapMethod.VALUE_ZEROING:
            return row_normalised(changes_without_values(block))
        case _:
            return row_normalised(_layer_norms(block))


def changes_without_values(block: FeedForwardBlock) -> Float[Tensor, "batch query key"]:
    """1 − cos(z_i, z_i without the value of j), before rows are normalised.

    Without the value of j, the attention output of query i is the same minus F_ij; the rest of the layer runs again on it, for
    the pairs that attention connects.

    Args:
        block: The layer.

    Source: Mohebbi et al. 2023, section 3 (arXiv:2301.12971).
    """
    attention, rest = block.attention, RestOfLayer(block)
    changes = _zeros(attention)
    for tile in _tiles(attention, block.pre_activations.shape[-1]):
        vectors = tile.mixed(attention.parameters.output_weight)
        untouched, zeroed = (rest.outputs(tile, each) for each in (None, vectors))
        # A key that gives nothing changes nothing, whatever rounding says.
        changed = (vectors != 0).any(dim=-1)
        found = wide(cosine_distance(zeroed, untouched.expand_as(zeroed)) * changed)
        changes[tile.sequence, tile.queries, tile.keys] = found.T
    return changes


def pair_vectors(
    block: AttentionBlock, stage: Stage, *, in_double: bool = True
) -> Iterator[tuple[slice, Float[Tensor, "batch _ key model"]]]:
    """V_ij of all keys, one strip of queries at a time.

    Args:
        block: A block of self-attention.
        stage: F, R or T.
        in_double: Whether to compute in float64.
    """
    as_wanted = wide if in_double else (lambda tensor: tensor)
    transformed = as_wanted(block.transformed())
    inputs = as_wanted(block.inputs)
    norm = _wide_norm(block.normalisation) if in_double and block.normalisation is not None else block.normalisation
    deviation = None if stage is not Stage.NORMALISED else as_wanted(block.composition.deviation)
    for queries, weights in _weight_strips(block, block.inputs.shape[-1]):
        vectors = torch.einsum("bhqk,bhkm->bqkm", as_wanted(weights), transformed)
        if deviation is None or norm is None:
            yield queries, vectors if stage is Stage.ATTENTION else _with_residual(vectors, inputs, queries)
            continue
        branch = block.norm_position == "branch"
        vectors = vectors if branch else _with_residual(vectors, inputs, queries)
        vectors = norm.scaled(vectors) / deviation[:, queries, None, None]
        yield queries, _with_residual(vectors, inputs, queries) if branch else vectors


def _reductions(block: AttentionBlock) -> Float[Tensor, "batch query key"]:
    """max(0, ‖y_i‖₁ − ‖y_i − V_ij‖₁): how much closer each key brings a query to its output, in the L1 norm.

    Source: Ferrando et al. 2022, section 3.1 (arXiv:2203.04212).
    """
    stage = block.composition.stages[-1]
    output, inputs = wide(block.composition.output(stage)), wide(block.inputs)
    weight, divisor, own = wide(block.parameters.output_weight), None, inputs
    if stage is Stage.NORMALISED:
        # The norm is linear once its deviation is known, so it folds into W_O and α.
        norm, divisor = _wide_norm(block.normalisation), wide(block.composition.deviation)
        weight = norm.scaled(weight)
        own = inputs if block.norm_position == "branch" else norm.scaled(inputs) / divisor.unsqueeze(-1)
    reductions = _zeros(block)
    for tile in _tiles(block, block.inputs.shape[-1]):
        at = (tile.sequence, tile.queries)
        missing = output[at] - tile.mixed(weight, None if divisor is None else divisor[at])
        queries, keys = tile.own()
        missing[keys, queries] -= own[tile.sequence, tile.queries.start + queries]
        distance = torch.linalg.vector_norm(missing, ord=1, dim=-1)
        size = torch.linalg.vector_norm(output[at], ord=1, dim=-1)
        reductions[tile.sequence, tile.queries, tile.keys] = (size - distance).clamp(min=0).T
    return reductions


def _norms(block: AttentionBlock, stage: Stage) -> Tensor:
    """‖R_ij‖ or ‖T_ij‖, from Gram matrices."""
    weight, norm = wide(block.parameters.output_weight), block.normalisation
    divisor = torch.ones_like(wide(block.inputs[..., 0]))
    if stage is Stage.NORMALISED and norm is not None:
        weight, divisor = _wide_norm(norm).scaled(weight), wide(block.composition.deviation)
    norms = _gram_norms(block, weight) / divisor.unsqueeze(-1)
    return replaced_diagonal(norms, torch.linalg.vector_norm(wide(block.composition.own(stage)), dim=-1))


def _globenc(block: FeedForwardBlock) -> Tensor:
    """‖γ2 ⊙ (T_ij − mean) / σ2_i‖: both norms fold into W_O, so no pair is built."""
    attention, second = block.attention, block.parameters.normalisation
    assert attention.normalisation is not None
    assert second is not None
    assert block.norm_inputs is not None
    norm = _wide_norm(second)
    weight = norm.scaled(_wide_norm(attention.normalisation).scaled(wide(attention.parameters.output_weight)))
    deviation = wide(second.deviation(block.norm_inputs))
    norms = _gram_norms(attention, weight) / (wide(attention.composition.deviation) * deviation).unsqueeze(-1)
    own = norm.scaled(wide(attention.composition.own(Stage.NORMALISED))) / deviation.unsqueeze(-1)
    return replaced_diagonal(norms, torch.linalg.vector_norm(own, dim=-1))


def _gram_norms(block: AttentionBlock, output_weight: Tensor) -> Tensor:
    grams = head_grams(wide(block.value), output_weight)
    return torch.cat([norms_from_grams(wide(weights), grams) for _, weights in _weight_strips(block)], dim=1)


def _layer_norms(block: FeedForwardBlock) -> Tensor:
    """Norms of the layer's vectors, carried through the rest of the layer with slopes and deviations held fixed."""
    attention, layer = block.attention, frozen_layer(block)
    stage = attention.composition.stages[-1]
    rows = []
    for queries, vectors in pair_vectors(attention, stage, in_double=False):
        inputs = _with_residual(torch.zeros_like(vectors), attention.inputs, queries)
        carried = layer.rows(queries).after_attention(vectors.movedim(2, 0), inputs.movedim(2, 0))
        rows.append(wide(torch.linalg.vector_norm(carried, dim=-1).movedim(0, 2)))
    return torch.cat(rows, dim=1)


def _tiles(block: AttentionBlock, width: int) -> Iterator[Tile]:
    """The pairs of tokens that attention connects, a few at a time: one vector of `width` per pair fits in memory."""
    # Several tensors of this size pass through the processor's cache.
    return tiles(block, ENTRIES_AT_ONCE.get(block.inputs.device.type, ENTRIES_AT_ONCE_ON_ACCELERATORS) // 4 // width)


def _zeros(block: AttentionBlock) -> Float[Tensor, "batch query key"]:
    batch, _, queries, _ = block.query.shape
    return wide(block.inputs.new_zeros(batch, queries, block.key.shape[2]))


def _weight_strips(block: AttentionBlock, width: int = 0) -> Iterator[tuple[slice, Tensor]]:
    """α in strips of queries, short enough for one vector of `width` per pair of a strip to fit in memory."""
    batch, _, keys, _ = block.key.shape
    at_once = ENTRIES_AT_ONCE.get(block.inputs.device.type, ENTRIES_AT_ONCE_ON_ACCELERATORS)
    step = max(1, at_once // (batch * keys * width) if width else block.queries_at_once // batch)
    for start in range(0, block.query.shape[2], step):
        queries = slice(start, min(start + step, block.query.shape[2]))
        yield queries, block.weights_of(queries)


def _with_residual(vectors: Tensor, inputs: Tensor, queries: slice) -> Tensor:
    """Pair vectors (batch, query, key, model) with x_i added where query and key are the same token."""
    rows = torch.arange(queries.start, queries.stop, device=vectors.device)
    vectors[:, rows - queries.start, rows] += inputs[:, queries]
    return vectors


def _wide_norm(norm: Normalisation | None) -> Normalisation:
    assert norm is not None
    return norm._replace(weight=wide(norm.weight), bias=None if norm.bias is None else wide(norm.bias))
