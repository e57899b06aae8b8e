"""The mixing ratio of a block: how much of a token's output comes from its context, by five methods.

With V one of F, R and T (see `composition.py`), the mixing ratio of token i is

    r_i = ‖Σ_{j≠i} V_ij‖ / (‖Σ_{j≠i} V_ij‖ + ‖V_ii‖).

Two methods use only the weights: attn_w is 1 − α_ii, averaged over heads; attnres_w gives the residual connection as
much weight as attention, which halves the ratio.

Source: Kobayashi et al. 2021, sections 3 and 4 (arXiv:2109.07152).
"""

import enum
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.composition import STAGES, Composition, NormPosition, Stage


class Method(enum.StrEnum):
    """The five measures in K21 of how much a block mixes, from only the weights to the whole attention block."""

    ATTN_W = "attn_w"
    ATTN_N = "attn_n"
    ATTNRES_W = "attnres_w"
    ATTNRES_N = "attnres_n"
    ATTNRESLN_N = "attnresln_n"


OF_STAGE: Mapping[Stage, Method] = {
    Stage.ATTENTION: Method.ATTN_N,
    Stage.RESIDUAL: Method.ATTNRES_N,
    Stage.NORMALISED: Method.ATTNRESLN_N,
}
"""The method that measures the vectors of each stage."""

METHODS: Mapping[NormPosition, tuple[Method, ...]] = {
    position: tuple(
        method
        for method in Method
        if method in (Method.ATTN_W, Method.ATTNRES_W) or method in {OF_STAGE[stage] for stage in stages}
    )
    for position, stages in STAGES.items()
}
"""The methods defined for a block, by the position of its norm."""

CROSS_ATTENTION_METHODS = (Method.ATTNRES_N, Method.ATTNRESLN_N)
"""The methods for cross-attention. No key is the token itself there, so only the residual connection preserves it."""


def preserving_vectors(
    self_weights: Float[Tensor, "batch head token"],
    value: Float[Tensor, "batch head token head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
) -> Float[Tensor, "batch token model"]:
    """F_ii = Σ_h α^h_ii f^h(x_i): what each token takes from itself through attention.

    This is one matrix product: Σ_h (α^h v^h) W_O^h is the output projection of the concatenated heads.

    Args:
        self_weights: α_ii.
        value: v, with b_V inside.
        output_weight: W_O, one slice per head; b_O stays outside f.

    Returns:
        F_ii, in the dtype of `value`.
    """
    batch, heads, tokens, head_dim = value.shape
    weighted = value.new_empty(batch, tokens, heads, head_dim)
    torch.mul(
        value.transpose(1, 2), self_weights.to(value.dtype).transpose(1, 2).unsqueeze(-1), out=weighted
    )  # written in the layout that the projection reads: no second copy
    return weighted.view(batch, tokens, heads * head_dim) @ output_weight.reshape(heads * head_dim, -1)


def ratio(mixing: Float[Tensor, "*batch"], preserving: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """mixing / (mixing + preserving) for norms ≥ 0; 0 if both are 0, since nothing is mixed."""
    return mixing / (mixing + preserving).clamp(min=torch.finfo(mixing.dtype).tiny)


def mixing_ratios(
    own_weights: Float[Tensor, "batch head token"],
    composition: Composition,
    to_nowhere: Float[Tensor, "batch head token"] | None = None,
    rows: Float[Tensor, "batch group token"] | None = None,
) -> dict[Method, Float[Tensor, "batch _"]]:
    """The mixing ratio of every token or group, by each method defined for the block.

    Vectors are averaged over the tokens of a group, and then measured:

        r_I = ‖Σ_{J≠I} V_IJ‖ / (‖Σ_{J≠I} V_IJ‖ + ‖V_II‖),    V_IJ = 1/|I| Σ_{i∈I} Σ_{j∈J} V_ij

    Args:
        own_weights: α_ii per head; of groups, what each token gives to all tokens of its own: Σ_{j∈I} α_ij.
        composition: The parts of the block's output. Of groups, `preserving` is what each token takes from its own.
        to_nowhere: 1 − Σ_j α_ij per head, the weight that a learned sink takes; None if every row of α sums to one.
        rows: The share of each token in its group, 1/|I|; None for tokens.

    Returns:
        Ratios in [0, 1], one tensor per method of METHODS. Values at padding are finite but meaningless.
    """

    def averaged(weights: Float[Tensor, "batch head token"]) -> Tensor:
        of_tokens = weights.mean(dim=1)
        return of_tokens if rows is None else torch.einsum("bgt,bt->bg", rows, of_tokens.to(rows))

    by_weight = _ratios_of_weights(averaged(own_weights), None if to_nowhere is None else averaged(to_nowhere))
    if rows is None:
        norms = composition.relative_norms()
    else:
        norms = {
            stage: (
                torch.linalg.vector_norm(rows @ composition.others(stage), dim=-1),
                torch.linalg.vector_norm(rows @ composition.own(stage), dim=-1),
            )
            for stage in composition.stages
        }
    return by_weight | {OF_STAGE[stage]: ratio(*of_stage) for stage, of_stage in norms.items()}


def _ratios_of_weights(
    own: Float[Tensor, "batch token"], to_nowhere: Float[Tensor, "batch token"] | None
) -> dict[Method, Float[Tensor, "batch token"]]:
    if to_nowhere is None:
        return {Method.ATTN_W: 1.0 - own, Method.ATTNRES_W: (1.0 - own) / 2}
    others = (1.0 - own - to_nowhere).clamp(min=0)
    # The residual connection counts as a weight of 1 on the token itself.
    return {Method.ATTN_W: ratio(others, own), Method.ATTNRES_W: ratio(others, own + 1)}
