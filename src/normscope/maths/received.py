"""The weight that every key receives, Σ_i α_ij, without α."""

from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.attention import attention
from normscope.maths.masks import Mask
from normscope.maths.weight_tiles import weight_tiles


def weight_received(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch head key head_dim"],
    log_normaliser: Float[Tensor, "batch head query"],
    token_mask: Bool[Tensor, "batch query"],
    mask: Mask | None,
    scale: float,
    cap: float | None = None,
) -> Float[Tensor, "batch head key"]:
    """Σ_i α_ij over the queries that are not padding: the total weight that each key receives, without building α.

    Args:
        key: Keys, one head per query head.
        log_normaliser: ℓ_i of each query.
        token_mask: Queries that are not padding.
        mask: Which keys a query sees, and any positional bias; None if every query sees every key.
        scale: Factor on q·k before the softmax.
        cap: Soft cap of the scores; see `attention`.

    Returns:
        In the dtype of the log-normaliser; meaningless at keys that no token sees.
    """
    mask = Mask() if mask is None else mask
    if query.device.type != "cpu":  # where small tiles, which were not measured, would keep little of the device busy
        shift = (-log_normaliser).masked_fill(~token_mask.unsqueeze(1), float("-inf"))
        return _by_kernel(query.to(shift.dtype), key.to(shift.dtype), shift, mask, scale, cap)
    if mask.bias is None and mask.shift is None and mask.allowed is None:
        mask = Mask(causal=mask.causal)  # what padding receives means nothing
    received = log_normaliser.new_zeros(*query.shape[:2], key.shape[2])
    # Half the kernel's time, which multiplies by values too.
    for tile in weight_tiles(query, key, log_normaliser, token_mask, mask, scale, cap):
        received[tile.sequences, :, tile.keys] += tile.weights.sum(dim=2)
    return received


def _by_kernel(
    query: Tensor, key: Tensor, shift: Tensor, mask: Mask, scale: float, cap: float | None
) -> Float[Tensor, "batch head key"]:
    """By one more pass of a fused kernel.

    α_ij = exp(scale·q_i·k_j + b_ij − ℓ_i), so Σ_i α_ij is the exponential of a log-normaliser: that of attention from
    keys to queries, with the scores of query i shifted by −ℓ_i.
    """
    if mask.causal and mask.bias is None:
        # In reverse order, the queries that see a key are those up to its position: attention is causal again.
        query, key, shift = query.flip(2), key.flip(2), shift.flip(2)
        turned = attention(key, query, query, Mask(causal=True, shift=shift), scale, cap=cap)
        return turned.log_normaliser.exp().flip(2)
    return attention(key, query, query, mask.transposed(shift), scale, cap=cap).log_normaliser.exp()
