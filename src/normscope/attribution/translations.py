"""Attribution of a translation's next token to the tokens of the source and those of the target so far."""

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.attribution.scalars import ScalarAttribution
from normscope.maths.tensors import wide
from normscope.models.frozen_translation import FrozenTranslation


def attribute_translation(passed: FrozenTranslation, target: Float[Tensor, "1"]) -> ScalarAttribution:
    """Attribute a scalar of one text to the tokens of the source, then to those of the target.

    Gradient × input of the frozen model, as in `scalars.py`; the gradient reaches the source through the cross-attention of
    every layer. All biases are one part.

    Args:
        target: A scalar that autograd has recorded, linear in the logits.
    """
    leaves = [passed.source, passed.target, *passed.biases]
    gradients = torch.autograd.grad(target.sum(), leaves, allow_unused=True)
    parts = [
        wide(torch.zeros_like(leaf) if gradient is None else gradient) * wide(leaf.detach())
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]
    scores = torch.cat([part.sum(dim=-1) for part in parts[:2]], dim=-1)
    zero = wide(torch.zeros_like(target.detach()))
    bias = sum((part.sum() for part in parts[2:]), zero)
    return ScalarAttribution(scores, bias, zero, wide(target.detach()))
