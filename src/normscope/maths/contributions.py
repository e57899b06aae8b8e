"""How much each key contributes to each query in one layer, and through several layers.

A map holds one number per query (row) and key (column). Maps of several layers are chained by the product of matrices, the
last layer on the left: row i of the product then says which inputs the output of token i comes from.

Sources: rollout, Abnar & Zuidema 2020 (arXiv:2005.00928); ALTI, Ferrando et al. 2022 (arXiv:2203.04212); value zeroing,
Mohebbi et al. 2023 (arXiv:2301.12971); ALTI+, Ferrando et al. 2022b (arXiv:2205.11631).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def row_normalised(maps: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch query key"]:
    """Maps whose rows add up to one. A row of zeros stays zero."""
    sums = maps.sum(dim=-1, keepdim=True)
    return maps / sums.masked_fill(sums == 0, 1)


def with_identity(maps: Float[Tensor, "*batch token token"]) -> Float[Tensor, "*batch token token"]:
    """½A + ½I: attention weights, with the residual connection counted as much as attention.

    Args:
        maps: α averaged over heads.

    Source: Abnar & Zuidema 2020, section 3.
    """
    mixed = maps / 2
    mixed.diagonal(dim1=-2, dim2=-1).add_(0.5)
    return mixed


def decoder_layer_map(
    cross: Float[Tensor, "*batch query source"],
    residual: Float[Tensor, "*batch query"],
    own: Float[Tensor, "*batch query target"],
) -> Float[Tensor, "*batch query token"]:
    """The map of a decoder's layer: its columns are the encoder's outputs, then the layer's inputs.

    What cross-attention's residual connection carries is what self-attention made of the layer's inputs. So the rows add up to
    one if those of cross-attention, with the residual connection, and of self-attention do.

    Args:
        cross: What the output of cross-attention takes from the encoder's outputs.
        residual: What it takes from the output of self-attention, through the residual connection.
        own: What the output of self-attention takes from the layer's inputs.

    Source: Ferrando et al. 2022b, ALTI+, section 3.
    """
    return torch.cat([cross, residual.unsqueeze(-1) * own], dim=-1)


def through_decoder_layer(
    layer: Float[Tensor, "*batch query token"],
    encoder: Float[Tensor, "*batch source input"],
    target: Float[Tensor, "*batch target token"],
) -> Float[Tensor, "*batch query token"]:
    """The map from a translation's tokens to the output of a decoder's layer. Columns: the source's tokens, then the target's.

    Args:
        layer: The layer's own map, from `decoder_layer_map`.
        encoder: The map from the source's tokens to the encoder's outputs.
        target: The map from the input to the layer's inputs; 0 and the identity for the first layer.

    Source: Ferrando et al. 2022b, ALTI+, section 3.
    """
    sources = encoder.shape[-1]
    through = layer[..., sources:] @ target
    through[..., :sources] += layer[..., :sources] @ encoder
    return through


def cosine_distance(
    vectors: Float[Tensor, "*#batch model"], changes: Float[Tensor, "*batch model"]
) -> Float[Tensor, "*batch"]:
    """1 − cos of v and v + d, in [0, 2].

    With t the length of v + d along v and s its length across, 1 − cos = s² / (r (r + t)), r² = s² + t². Small changes keep
    their digits, where 1 − cos would cancel. A vector of zeros has no direction: its distance from itself is 0, from any
    other ½.

    Args:
        vectors: v.
        changes: d.
    """
    size = torch.linalg.vector_norm(vectors, dim=-1)
    unit = vectors / size.masked_fill(size == 0, 1).unsqueeze(-1)
    along = torch.einsum("...m,...m->...", changes, unit)
    across = torch.linalg.vector_norm(torch.addcmul(changes, along.unsqueeze(-1), unit, value=-1), dim=-1)
    remaining = size + along
    length = torch.hypot(across, remaining)
    small = across.square() / (length * (length + remaining.abs())).masked_fill(length == 0, 1)
    distance = torch.where(remaining < 0, 2 - small, small)
    undefined = (size == 0) | (length == 0)
    return torch.where(undefined, torch.where(size == length, 0.0, 0.5), distance)
