"""Log-probabilities of tokens in float64, from logits in any precision, without a second table of the logits' size."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.maths.tensors import full_precision, wide

_ROWS_AT_ONCE = 32
"""Few, so that float64 takes little memory: 50 MiB with a vocabulary of 200,000."""


def log_probabilities(
    logits: Float[Tensor, "*rows vocabulary"], tokens: Int[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """The log-probability of one token per row, log p_t = ℓ_t − log Σ_v exp ℓ_v, in float64.

    In float32, the sum over the vocabulary alone costs about 1e-5.

    Args:
        logits: ℓ; gradients have their precision.
        tokens: t.
    """
    values: Tensor = _Chosen.apply(logits.flatten(0, -2), tokens.flatten())
    return values.reshape(tokens.shape)


class _Chosen(torch.autograd.Function):
    """Keeps the logits for the gradient, t − p, but nothing else of their size."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> Tensor:
        normalisers = torch.cat([wide(rows).logsumexp(dim=-1) for rows in logits.split(_ROWS_AT_ONCE)])
        ctx.save_for_backward(logits, tokens, normalisers)
        return wide(logits.gather(-1, tokens[:, None])[:, 0]) - normalisers

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, tokens, normalisers = ctx.saved_tensors
        gradient = gradients[0][:, None]
        # p = exp(ℓ − max ℓ) · exp(max ℓ − log Σ exp ℓ): the first factor is exact to its last bits in float32 where p is large.
        largest = logits.amax(dim=-1, keepdim=True)
        factors = (wide(largest) - normalisers[:, None]).exp_().mul_(-gradient).to(full_precision(largest))
        found = torch.empty_like(logits)
        parts = (each.split(_ROWS_AT_ONCE) for each in (found, logits, full_precision(largest), factors))
        for to, rows, most, factor in zip(*parts, strict=True):
            to.copy_((rows - most).exp_().mul_(factor))
        return found.scatter_add_(-1, tokens[:, None], gradient.to(found.dtype).to(found.device)), None
