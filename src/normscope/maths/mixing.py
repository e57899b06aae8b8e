"""The mixing ratio of a block: how much of a token's new vector comes from its context, by five methods.

Row vectors, as in the paper. For token i of one block, summed over its heads,

    F_ij = Σ_h α^h_ij f^h(x_j)                     what token j hands to token i
    R_ij = F_ij + δ_ij x_i                         with the residual connection
    T_ij = γ ⊙ (R_ij − mean(R_ij)) / σ_i           with the layer normalisation

and with V one of F, R, T

    r_i = ‖Σ_{j≠i} V_ij‖ / (‖Σ_{j≠i} V_ij‖ + ‖V_ii‖).

Only two vectors per token are needed: the preserving F_ii and the mixing Σ_{j≠i} F_ij = (attention output − b_O) − F_ii.
No tensor with axes query × key × model is ever built.

The block of other Transformers has its norm elsewhere:

    post      y = LN(x + attention(x))    all five methods
    pre       y = x + attention(LN(x))    no attnresln_n: no norm comes after the sum
    parallel  the feed-forward network is added to the same sum; as pre
    branch    y = x + LN(attention(x))    T_ij = γ ⊙ F_ij / σ_i + δ_ij x_i is attnresln_n; no attnres_n

Source: Kobayashi et al. 2021, sections 3 and 4 (arXiv:2109.07152).
"""

import enum
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.normalisation import Normalisation, scaled_norm

NormPosition = Literal["post", "pre", "parallel", "branch"]


class Method(enum.StrEnum):
    """The five ways of K21 to say how much a block mixes, from the weights alone to the whole block."""

    ATTN_W = "attn_w"
    ATTN_N = "attn_n"
    ATTNRES_W = "attnres_w"
    ATTNRES_N = "attnres_n"
    ATTNRESLN_N = "attnresln_n"


METHODS: Mapping[NormPosition, tuple[Method, ...]] = {
    "post": tuple(Method),
    "pre": (Method.ATTN_W, Method.ATTN_N, Method.ATTNRES_W, Method.ATTNRES_N),
    "parallel": (Method.ATTN_W, Method.ATTN_N, Method.ATTNRES_W, Method.ATTNRES_N),
    "branch": (Method.ATTN_W, Method.ATTN_N, Method.ATTNRES_W, Method.ATTNRESLN_N),
}
"""The methods that a block has, by the place of its norm. What it does not have is left out, never faked."""


CROSS_ATTENTION_METHODS = (Method.ATTNRES_N, Method.ATTNRESLN_N)
"""Those that are left in cross-attention, where no key is the token itself: what it keeps comes by the residual connection."""


def preserving_vectors(
    self_weights: Float[Tensor, "batch head token"],
    value: Float[Tensor, "batch head token head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
) -> Float[Tensor, "batch token model"]:
    """F_ii = Σ_h α^h_ii f^h(x_i): what each token takes from itself through attention.

    One matrix product, because Σ_h (α^h v^h) W_O^h is the output projection of the heads put side by side.

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
    )  # written straight into the order that the projection reads: no second copy
    return weighted.view(batch, tokens, heads * head_dim) @ output_weight.reshape(heads * head_dim, -1)


def ratio(mixing: Float[Tensor, "*batch"], preserving: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """mixing / (mixing + preserving) for norms ≥ 0; 0 where both vanish, since nothing is mixed there."""
    return mixing / (mixing + preserving).clamp(min=torch.finfo(mixing.dtype).tiny)


def mixing_ratios(
    self_weights: Float[Tensor, "batch head token"],
    preserving: Float[Tensor, "batch token model"],
    mixing: Float[Tensor, "batch token model"],
    inputs: Float[Tensor, "batch token model"],
    norm_position: NormPosition,
    normalisation: Normalisation | None,
    deviation: Float[Tensor, "batch token"] | None = None,
) -> dict[Method, Float[Tensor, "batch token"]]:
    """The mixing ratio r_i of every token by each method that the block has.

    Where the norm comes after the residual connection, σ_i divides both norms of `attnresln_n` alike and falls out of the
    ratio.

    Args:
        self_weights: α_ii per head.
        preserving: F_ii (see `preserving_vectors`).
        mixing: Σ_{j≠i} F_ij.
        inputs: x_i, what the residual connection adds.
        norm_position: Where the norm stands.
        normalisation: The norm of the block, where it is `post` or `branch`.
        deviation: σ_i of the attention output, where it is `branch`.

    Returns:
        Ratios in [0, 1], one tensor per method of METHODS. Rows of padding hold meaningless finite numbers.
    """
    attn_w = 1.0 - self_weights.mean(dim=1)
    mixing_norm = torch.linalg.vector_norm(mixing, dim=-1)
    ratios = {
        Method.ATTN_W: attn_w,
        Method.ATTN_N: ratio(mixing_norm, torch.linalg.vector_norm(preserving, dim=-1)),
        Method.ATTNRES_W: attn_w / 2,
    }
    if norm_position == "branch":
        assert normalisation is not None
        assert deviation is not None
        own = normalisation.scaled(preserving) / deviation.unsqueeze(-1) + inputs  # T_ii
        others = scaled_norm(mixing, normalisation) / deviation
        return ratios | {Method.ATTNRESLN_N: ratio(others, torch.linalg.vector_norm(own, dim=-1))}
    residual = preserving + inputs  # R_ii; R_ij = F_ij elsewhere
    ratios[Method.ATTNRES_N] = ratio(mixing_norm, torch.linalg.vector_norm(residual, dim=-1))
    if norm_position == "post":
        assert normalisation is not None
        ratios[Method.ATTNRESLN_N] = ratio(scaled_norm(mixing, normalisation), scaled_norm(residual, normalisation))
    return ratios
