"""The cosine similarity of two pooled embeddings, as a sum over pairs of tokens."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.vectors import pooled_vectors
from normscope.maths.choices import Pooling, ValueBias
from normscope.models.layout import BlockLayout
from normscope.models.pooling import pooling_weights


class SimilarityParts(NamedTuple):
    """The parts of cosine similarities, in float64."""

    matrix: Float[Tensor, "batch a b"]
    """What each pair of tokens adds; the last row and column are those of the biases."""
    value: Float[Tensor, " batch"]
    """The cosines, computed from the embeddings themselves."""


def similarity_parts(
    model: PreTrainedModel,
    layout: BlockLayout,
    inputs_a: Mapping[str, Tensor],
    inputs_b: Mapping[str, Tensor],
    *,
    pooling: Pooling,
    bias: ValueBias = ValueBias.token,
) -> SimilarityParts:
    """The parts of the cosine similarity of each text of a batch with the same text of another.

    If P_k is what token k contributes to the pooled vector e, the cosine is Σ_kl ⟨P_k, P_l⟩ / (‖e_a‖ ‖e_b‖). It takes
    as many frozen passes as both texts have tokens.

    Args:
        model: A base model in evaluation mode.
        inputs_a: Keyword arguments of the model.
        inputs_b: The same for the other texts, equally many.
        pooling: How an embedding is pooled from the hidden vectors.
        bias: Where the value biases of the first layer go.

    Raises:
        InputError: If attribution cannot follow the model.
    """
    (parts_a, whole_a), (parts_b, whole_b) = (
        pooled_vectors(model, layout, inputs, functools.partial(pooling_weights, pooling), bias)
        for inputs in (inputs_a, inputs_b)
    )
    return cosine_parts(parts_a, whole_a, parts_b, whole_b)


def cosine_parts(
    parts_a: Float[Tensor, "batch a model"],
    whole_a: Float[Tensor, "batch model"],
    parts_b: Float[Tensor, "batch b model"],
    whole_b: Float[Tensor, "batch model"],
) -> SimilarityParts:
    """The parts of cosine similarities: ⟨P_k, P_l⟩ / (‖e_a‖ ‖e_b‖). With a vector of zeros they are 0.

    Args:
        parts_a: P_k, what each token and the bias contribute to the pooled vectors.
        whole_a: The pooled vectors e_a.
        parts_b: P_l of the other texts.
        whole_b: Their pooled vectors e_b.
    """
    norms = torch.linalg.vector_norm(whole_a, dim=-1) * torch.linalg.vector_norm(whole_b, dim=-1)
    norms = norms.masked_fill(norms == 0, 1)
    matrix = parts_a @ parts_b.transpose(-1, -2) / norms[:, None, None]
    return SimilarityParts(matrix, (whole_a * whole_b).sum(dim=-1) / norms)
