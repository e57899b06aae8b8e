"""Maps of one layer: how much each key contributes to each query, by every method that works layer by layer."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.attribution.methods import MapMethod, MapStage
from normscope.attribution.tiles import PairTile, pair_tiles
from normscope.maths.composition import Stage
from normscope.maths.contributions import cosine_distance, row_normalised, with_identity
from normscope.maths.normalisation import Normalisation
from normscope.maths.norms import head_grams, norms_from_grams, replaced_diagonal
from normscope.maths.tensors import pieces, wide
from normscope.models.blocks.block import AttentionBlock
from normscope.models.observe.feed_forward import FeedForwardBlock

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
            strips = [wide(weights.mean(dim=1)) for _, weights in block.alpha.strips()]
            return with_identity(torch.cat(strips, dim=1))
        case MapMethod.ALTI:
            return row_normalised(_reductions(block))
        case _:
            last = block.composition.stages[-1]
            of_block = last if stage is MapStage.BLOCK else Stage(stage.removesuffix("_n"))
            return row_normalised(_norms(block, of_block))


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


def cross_attention_map(block: AttentionBlock) -> Float[Tensor, "batch query source"]:
    """The ALTI contributions of the source's tokens, and last of the residual connection, to each token of the target.

    Rows add up to one, in float64; rows of padding are zero.

    Args:
        block: A block of cross-attention.

    Source: Ferrando et al. 2022b, ALTI+, section 3 (arXiv:2205.11631).
    """
    parts = _Compared(block)
    missing = _l1(parts.output - parts.own)
    residual = (parts.size - missing).clamp(min=0) * block.token_mask.to(missing)
    return row_normalised(torch.cat([_reductions(block), residual.unsqueeze(-1)], dim=-1))


def changes_without_values(block: FeedForwardBlock) -> Float[Tensor, "batch query key"]:
    """1 − cos(z_i, z_i without the value of j), before rows are normalised.

    Without the value of j, the attention output of query i is the same minus F_ij; the layer runs again with it, including any
    router.

    Args:
        block: The layer.

    Source: Mohebbi et al. 2023, section 3 (arXiv:2301.12971).
    """
    attention = block.attention
    gives, changes = attention.transformed_norms != 0, _zeros(attention)
    # The network makes vectors about four times as wide.
    at_once = _at_once(attention.inputs.device) // (4 * attention.inputs[0].numel())
    for text in range(len(gives)):
        before = block.untouched(text)
        weights = attention.alpha.rows(slice(0, changes.shape[1]), slice(text, text + 1))[0]
        for keys in pieces(slice(0, changes.shape[2]), max(1, at_once)):
            some = weights[:, :, keys]
            distance = wide(cosine_distance(before, block.without_values(text, keys, some) - before))
            # A key that gives nothing changes nothing, whatever rounding says.
            changes[text, :, keys] = distance.T * ((some != 0) & gives[text, :, None, keys]).any(dim=0)
    return changes * attention.token_mask.unsqueeze(-1)


class _Compared:
    """What ALTI compares: a block's output, and what the residual connection adds to it, after the block's norm."""

    def __init__(self, block: AttentionBlock) -> None:
        stage = block.composition.stages[-1]
        self.output, self.own = wide(block.composition.output(stage)), wide(block.inputs)
        self.weight, self.divisor = wide(block.parameters.output_weight), None
        """W_O, with the norm folded in, and the deviation: the norm is linear once that is known."""
        if stage is Stage.NORMALISED:
            norm, self.divisor = (
                _wide_norm(block.parameters.normalisation),
                wide(block.composition.deviation).unsqueeze(-1),
            )
            self.weight = norm.scaled(self.weight)
            self.own = self.own if block.parameters.norm_position == "branch" else norm.scaled(self.own) / self.divisor
        self.size = _l1(self.output.clone())


def _reductions(block: AttentionBlock) -> Float[Tensor, "batch query key"]:
    """max(0, ‖y_i‖₁ − ‖y_i − V_ij‖₁): how much closer each key brings a query to its output, in the L1 norm.

    In cross-attention, the residual connection belongs to no key.

    Source: Ferrando et al. 2022, section 3.1 (arXiv:2203.04212).
    """
    block.require_vectors_of_keys()
    parts, reductions = _Compared(block), _zeros(block)
    for tile in _tiles(block, block.inputs.shape[-1], parts.weight.element_size()):
        at = (tile.sequence, tile.queries)
        scale = None if parts.divisor is None else 1 / parts.divisor[at].unsqueeze(0)
        missing = tile.subtracted(parts.output[at], parts.weight, scale)
        if not block.is_cross_attention:
            queries, keys = tile.own()
            missing[keys, queries] -= parts.own[tile.sequence, tile.queries.start + queries]
        distance = _l1(missing)
        reductions[tile.sequence, tile.queries, tile.keys] = (parts.size[at] - distance).clamp(min=0).T
    return reductions


def _l1(vectors: Float[Tensor, "*pair model"]) -> Float[Tensor, "*pair"]:
    """The L1 norm of vectors, which are overwritten: that takes a third of the time of `vector_norm`."""
    return vectors.abs_().sum(dim=-1)


def _norms(block: AttentionBlock, stage: Stage) -> Tensor:
    """‖R_ij‖ or ‖T_ij‖, from Gram matrices."""
    weight, norm = wide(block.parameters.output_weight), block.parameters.normalisation
    divisor = torch.ones_like(wide(block.inputs[..., 0]))
    if stage is Stage.NORMALISED and norm is not None:
        weight, divisor = _wide_norm(norm).scaled(weight), wide(block.composition.deviation)
    norms = _gram_norms(block, weight) / divisor.unsqueeze(-1)
    return replaced_diagonal(norms, torch.linalg.vector_norm(wide(block.composition.own(stage)), dim=-1))


def _globenc(block: FeedForwardBlock) -> Tensor:
    """‖γ2 ⊙ (T_ij − mean) / σ2_i‖: both norms fold into W_O, so no pair is built."""
    attention, (second, deviations) = block.attention, block.last_norm
    assert attention.parameters.normalisation is not None
    norm, deviation = _wide_norm(second), wide(deviations)
    weight = norm.scaled(
        _wide_norm(attention.parameters.normalisation).scaled(wide(attention.parameters.output_weight))
    )
    norms = _gram_norms(attention, weight) / (wide(attention.composition.deviation) * deviation).unsqueeze(-1)
    own = norm.scaled(wide(attention.composition.own(Stage.NORMALISED))) / deviation.unsqueeze(-1)
    return replaced_diagonal(norms, torch.linalg.vector_norm(own, dim=-1))


def _gram_norms(block: AttentionBlock, output_weight: Tensor) -> Tensor:
    block.require_vectors_of_keys()
    grams = head_grams(wide(block.value), output_weight)
    return torch.cat([norms_from_grams(wide(weights), grams) for _, weights in block.alpha.strips()], dim=1)


def _layer_norms(block: FeedForwardBlock) -> Tensor:
    """Norms of the layer's vectors at its last stage."""
    last = block.stages[-1]
    return wide(block.pair_maps(stages=[last], in_double=False)[last])


def _tiles(block: AttentionBlock, width: int, size: int) -> Iterator[PairTile]:
    """The pairs of tokens that attention connects, a few at a time: one vector of `width` entries per pair fits in memory.

    Args:
        width: Entries of a vector.
        size: Bytes of an entry.
    """
    # Several tensors of this size pass through the processor's cache.
    return pair_tiles(block, 2 * _at_once(block.inputs.device) // (width * size))


def _at_once(device: torch.device) -> int:
    return ENTRIES_AT_ONCE.get(device.type, ENTRIES_AT_ONCE_ON_ACCELERATORS)


def _zeros(block: AttentionBlock) -> Float[Tensor, "batch query key"]:
    batch, _, queries, _ = block.query.shape
    return wide(block.inputs.new_zeros(batch, queries, block.key.shape[2]))


def _wide_norm(norm: Normalisation | None) -> Normalisation:
    assert norm is not None
    return norm._replace(weight=wide(norm.weight), bias=None if norm.bias is None else wide(norm.bias))
