"""The word maps of a layer: single heads, the attention block, and the whole layer."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.syntax.arcs import Arcs
from normscope.maths.layer_composition import LAYER_STAGES
from normscope.models.block import AttentionBlock, BlockParameters
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.word_block import WordBlock

HEAD_MEASURES = ("attn_w", "attn_n")
"""Measures of single heads."""

LAYER = "layer"
"""The measure that follows vectors to the end of the layer."""


def block_measures(parameters: BlockParameters, methods: Sequence[str], *, layer: bool) -> list[str]:
    """Measures of whole blocks, by the position of their norm.

    Args:
        parameters: Those of a block.
        methods: The methods of mixing that are defined for the block.
        layer: Whether feed-forward networks are observed.
    """
    assert parameters.norm_position in LAYER_STAGES
    return [name for name in (*HEAD_MEASURES, "attnres_n", "attnresln_n") if name in methods] + [LAYER] * layer


def head_maps(block: AttentionBlock, arcs: Arcs) -> Float[Tensor, "batch measure head word unit"]:
    """The maps of single heads, by the measures of HEAD_MEASURES."""
    return torch.stack(WordBlock(block, arcs.groups).head_maps(in_double=False), dim=1)


def block_maps(
    block: AttentionBlock, network: FeedForwardBlock | None, arcs: Arcs, measures: Sequence[str]
) -> Float[Tensor, "batch measure word unit"]:
    """The maps of all heads together, by measure."""
    maps = {str(method): values for method, values in WordBlock(block, arcs.groups).maps(in_double=False).items()}
    if network is not None:
        last = network.stages[-1]
        maps[LAYER] = network.word_maps(arcs.groups, [last], in_double=False)[last]
    return torch.stack([maps[name] for name in measures], dim=1)
