"""Vector norms: the size of the vectors that attention passes on, rather than the weights it assigns.

f^h(x) = v W_O^h is the transformed vector of one head, with b_V inside v and b_O outside. Norms of f, of αf, and of the
block's pair vectors F, R and T come from small Gram matrices: no tensor with axes query × key × model is built.

Sources: Kobayashi et al. 2020, section 3 (arXiv:2004.10102); Kobayashi et al. 2021, section 3 (arXiv:2109.07152).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.maths.normalisation import Normalisation
from normscope.maths.tensors import pieces

ENTRIES_AT_ONCE = {"cpu": 2**21}
"""Entries of f(x) (key × head × model) to build at once, by device."""

ENTRIES_AT_ONCE_ON_ACCELERATORS = 2**26
"""The same on other devices, which need large pieces of work to be busy."""

KEYS_AT_ONCE = {"cpu": 128}
"""Keys whose norms come from Gram matrices at once, by device; all of them on others."""


def norm_factors(
    output_weight: Float[Tensor, "head head_dim model"],
) -> Float[Tensor, "head head_dim rank"]:
    """A factor L of each head's W_O, at most head_dim × head_dim, with ‖v W_O‖ = ‖v L‖ for every v.

    W_Oᵀ = Q R with orthonormal Q, so v W_O = v Rᵀ Qᵀ and L = Rᵀ. Unlike v (W_O W_Oᵀ) vᵀ, this does not square the
    condition number. The factor depends only on the weights, so it is computed once, in float64 on the CPU (not every
    accelerator has float64).
    """
    triangular = torch.linalg.qr(output_weight.cpu().double().transpose(-1, -2), mode="r").R
    return triangular.transpose(-1, -2).contiguous().to(output_weight)


def transformed_norms(
    value: Float[Tensor, "batch head key head_dim"],
    factors: Float[Tensor, "head head_dim rank"],
) -> Float[Tensor, "batch head key"]:
    """‖f^h(x_j)‖ of every head and key.

    Args:
        value: v, with b_V inside.
        factors: See `norm_factors`.

    Returns:
        Norms ≥ 0, in units of the residual stream.
    """
    # One product per head, for all sequences at once: the model's own layout has the heads of a token side by side.
    by_head = value.transpose(1, 2).flatten(0, 1).transpose(0, 1) @ factors
    return torch.linalg.vector_norm(by_head, dim=-1).unflatten(1, (len(value), -1)).transpose(0, 1)


def weighted_norms(
    weights: Float[Tensor, "batch head query key"],
    transformed_norms: Float[Tensor, "batch head key"],
) -> Float[Tensor, "batch head query key"]:
    """‖αf(x)‖, the norm of what each key contributes to each query, per head.

    α ≥ 0, so ‖α_ij f(x_j)‖ = α_ij ‖f(x_j)‖: no tensor with a `model` axis is built.

    Args:
        weights: Post-softmax α; zero at invisible keys.
        transformed_norms: ‖f(x_j)‖.

    Returns:
        Norms ≥ 0, in units of the residual stream. They do not add across heads.
    """
    return weights * transformed_norms.unsqueeze(-2)


def gated_head_norms(
    weights: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch head key head_dim"],
    gate: Float[Tensor, "batch head query #head_dim"],
    factors: Float[Tensor, "head head_dim rank"],
) -> Float[Tensor, "batch head query key"]:
    """‖α_ij (g_i ⊙ v_j) W_O‖ per head, if gates multiply what the heads have summed: a vector is built for each pair.

    Args:
        weights: Post-softmax α.
        value: v, with b_V inside.
        gate: g.
        factors: See `norm_factors`.
    """
    norms = [transformed_norms(value * one.unsqueeze(2), factors) for one in gate.unbind(2)]
    return weights * torch.stack(norms, dim=2).to(weights)


def head_grams(
    value: Float[Tensor, "batch head key head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
) -> Float[Tensor, "batch key head head"]:
    """K_j[h,g] = ⟨f^h(x_j), f^g(x_j)⟩, the Gram matrix of the heads' vectors at every key.

    The vectors are built for some keys at a time.

    Args:
        value: v, with b_V inside.
        output_weight: W_O; for vectors after normalisation, centred and scaled (see `scaled_output_weight`).
    """
    batch, heads, keys, _ = value.shape
    by_head = value.transpose(0, 1).flatten(1, 2)
    grams = value.new_empty(batch * keys, heads, heads)
    at_once = ENTRIES_AT_ONCE.get(value.device.type, ENTRIES_AT_ONCE_ON_ACCELERATORS)
    for some in pieces(slice(0, len(grams)), at_once // output_weight[:, 0].numel()):
        transformed = torch.bmm(by_head[:, some], output_weight).transpose(0, 1)
        torch.bmm(transformed, transformed.transpose(1, 2), out=grams[some])
    return grams.unflatten(0, (batch, keys))


def pair_norms(
    weights: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch head key head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
) -> Float[Tensor, "batch query key"]:
    """‖F_ij‖ = ‖Σ_h α^h_ij f^h(x_j)‖ for every query i and key j, all heads together.

    For norms after normalisation, pass a centred and scaled W_O (see `scaled_output_weight`).

    Args:
        weights: Post-softmax α.
        value: v, with b_V inside.
        output_weight: W_O.

    Returns:
        Norms ≥ 0, in units of the residual stream.
    """
    return norms_from_grams(weights, head_grams(value, output_weight))


def norms_from_grams(
    weights: Float[Tensor, "batch head query key"],
    grams: Float[Tensor, "batch key head head"],
) -> Float[Tensor, "batch query key"]:
    """The norms of `pair_norms` from the Gram matrices K_j: ‖F_ij‖² = a_ijᵀ K_j a_ij with a_ij = (α^h_ij)_h.

    Args:
        weights: Post-softmax α, of all queries or some.
        grams: See `head_grams`.
    """
    squares = weights.new_empty(weights.shape[0], *weights.shape[2:])
    for some in pieces(slice(0, weights.shape[3]), KEYS_AT_ONCE.get(weights.device.type, weights.shape[3])):
        # Products need α with the queries last. Some keys at a time, the copy and what follows stay in the cache.
        by_key = weights[..., some].transpose(2, 3).contiguous().transpose(1, 2)
        squares[..., some] = (grams[:, some] @ by_key).mul_(by_key).sum(dim=2).transpose(1, 2)
    # Rounding can make a zero square slightly negative.
    return squares.clamp_(min=0).sqrt_()


def gated_pair_norms(
    weights: Float[Tensor, "batch head query key"],
    value: Float[Tensor, "batch head key head_dim"],
    gate: Float[Tensor, "batch head query #head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
) -> Float[Tensor, "batch query key"]:
    """‖Σ_h α^h_ij (g^h_i ⊙ v^h_j) W_O^h‖ for every query i and key j, if gates multiply what the heads have summed.

    The vectors of a key differ between queries, so no Gram matrix serves them all: a vector is built for each pair, query by
    query.

    Args:
        weights: Post-softmax α.
        value: v, with b_V inside.
        gate: g.
        output_weight: W_O; for vectors after normalisation, centred and scaled (see `scaled_output_weight`).
    """
    projection = output_weight.flatten(0, 1)
    norms = []
    for of_query, factors in zip(weights.unbind(2), gate.unbind(2), strict=True):
        contexts = value * (of_query.unsqueeze(-1) * factors.unsqueeze(2))
        norms.append(torch.linalg.vector_norm(contexts.transpose(1, 2).flatten(2) @ projection, dim=-1))
    return torch.stack(norms, dim=1)


def scaled_output_weight(
    output_weight: Float[Tensor, "head head_dim model"], normalisation: Normalisation
) -> Float[Tensor, "head head_dim model"]:
    """W_O followed by γ ⊙ (· − mean): centring and scaling are linear, so they fold into the weights."""
    return normalisation.scaled(output_weight)


def replaced_diagonal(
    norms: Float[Tensor, "batch query key"],
    diagonal: Float[Tensor, "batch query"],
    tokens: Int[Tensor, " query"] | None = None,
) -> Float[Tensor, "batch query key"]:
    """Pair norms with new ones where query and key are the same token: only these pairs include the residual connection.

    Args:
        tokens: The key that is each query's own token; by default all, in order.
    """
    replaced = norms.clone()
    if tokens is None:
        replaced.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
    else:
        replaced[:, torch.arange(len(tokens), device=tokens.device), tokens] = diagonal
    return replaced


def expansion_rate(
    value_weight: Float[Tensor, "head model head_dim"],
    value_bias: Float[Tensor, "head head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
    output_bias: Float[Tensor, " model"] | None = None,
) -> float:
    """Root mean square singular value of the block's affine map x ↦ Σ_h f^h(x): how much it lengthens a vector.

    ‖M‖_F² is the sum of the squared singular values, so no decomposition is needed.

    Args:
        value_weight: W_V per head.
        value_bias: b_V per head.
        output_weight: W_O per head.
        output_bias: None by default, since f excludes b_O. If given, it is added to the constant part; the authors
            computed their published rates this way.

    Source: Kobayashi et al. 2021, section 4.4.
    """
    linear = torch.einsum("hmd,hdn->mn", value_weight.cpu().double(), output_weight.cpu().double())
    constant = torch.einsum("hd,hdn->n", value_bias.cpu().double(), output_weight.cpu().double())
    if output_bias is not None:
        constant = constant + output_bias.cpu().double()
    squares = linear.square().sum() + constant.square().sum() + 1
    return float((squares / (len(linear) + 1)).sqrt())


def singular_values(
    value_weight: Float[Tensor, "head model head_dim"],
    value_bias: Float[Tensor, "head head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
) -> Float[Tensor, "head index"]:
    """Singular values of each head's affine map x ↦ f^h(x), the largest first.

    As a linear map of model + 1 dimensions, it is [[W_V W_O, 0], [b_V W_O, 1]] = P Q with P = [[W_V, 0], [b_V, 1]] and
    Q = [[W_O, 0], [0, 1]]. With P = U R and Qᵀ = V S, where the columns of U and V are orthonormal, its singular values are
    those of R Sᵀ, a matrix of the head's size, and zeros, which are left out.

    Args:
        value_weight: W_V per head.
        value_bias: b_V per head.
        output_weight: W_O per head.

    Returns:
        One more value than head_dim (or model, if that is smaller), in float64. Values that rounding cannot tell from 0 are 0.

    Source: Kobayashi et al. 2020, appendix A.
    """
    heads = []
    for weight, bias, output in zip(value_weight, value_bias, output_weight, strict=True):
        sides = torch.cat([weight, bias[None]]), torch.nn.functional.pad(output.mT, (0, 0, 0, 1))
        first, second = (_triangular(side) for side in sides)
        heads.append(torch.linalg.svdvals(first @ second.mT))
    values = torch.stack(heads)
    rounding = torch.finfo(values.dtype).eps * (value_weight.shape[1] + 1)
    return values.masked_fill(values <= rounding * values[:, :1], 0.0)


def _triangular(side: Float[Tensor, "row head_dim"]) -> Float[Tensor, "rank column"]:
    """R of the QR decomposition of a matrix to which the column (0, …, 0, 1) is added."""
    padded = torch.nn.functional.pad(side.cpu().double(), (0, 1))
    padded[-1, -1] = 1
    return torch.linalg.qr(padded, mode="r").R
