"""Attribution of a scalar output to tokens: gradient × input of the frozen model, by one forward and one backward pass.

With attention weights, deviations and slopes held fixed, the model is affine in the vectors of its input tokens. Of a scalar
target ⟨g, h⟩ with gradient g at the last hidden vectors h, the part of token k is then ⟨gradient at x_k, x_k⟩, which is the sum
over i of ⟨g_i, x_{i⇐k}⟩: what the vectors of `vectors.py` would give, without building them.

Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873), for the vectors.
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.choices import ValueBias
from normscope.maths.tensors import wide
from normscope.models.frozen_pass import FrozenPass


@dataclasses.dataclass(frozen=True, eq=False)
class ScalarAttribution:
    """The parts of one scalar per sequence, in float64: scores, bias and remainder add up to the target."""

    scores: Float[Tensor, "batch token"]
    """From each token; 0 at padding."""
    bias: Float[Tensor, " batch"]
    """From all biases."""
    remainder: Float[Tensor, " batch"]
    """What is left if the target is not linear in the last hidden vectors."""
    target: Float[Tensor, " batch"]

    @property
    def error(self) -> Float[Tensor, " batch"]:
        """How far the parts miss the target, relative to the sum of their sizes."""
        missing = self.scores.sum(dim=-1) + self.bias + self.remainder - self.target
        size = self.scores.abs().sum(dim=-1) + self.bias.abs() + self.remainder.abs()
        return missing.abs() / size.clamp(min=torch.finfo(size.dtype).tiny)


def attribute_scalars(
    passed: FrozenPass, targets: Float[Tensor, " batch"], bias: ValueBias = ValueBias.token
) -> ScalarAttribution:
    """Attribute one scalar per sequence to its tokens.

    Args:
        targets: Scalars that autograd has recorded from `passed.hidden`, each from its own sequence.
        bias: Where the value biases of the first layer go.

    Raises:
        InputError: If the activation of a network is unknown.
    """
    after = from_head(passed, targets)
    (gradient,) = torch.autograd.grad(targets.sum(), passed.hidden, retain_graph=True)
    gradient = gradient * passed.token_mask.unsqueeze(-1)
    back = passed.transposed(gradient)
    assert back.value_bias is not None
    mask = passed.token_mask
    scores = wide((back.inputs * passed.embeddings).sum(dim=-1))
    from_biases = wide(back.bias) + after
    value_bias = wide(back.value_bias)
    if bias is ValueBias.decompx:
        scores = scores + value_bias
    else:
        from_biases = from_biases + value_bias.sum(dim=-1)
    target = wide(targets.detach())
    linear = wide((gradient.to(passed.embeddings.dtype) * passed.hidden.detach()).sum(dim=(-2, -1)))
    return ScalarAttribution(scores * wide(mask), from_biases, target - linear - after, target)


def from_head(passed: FrozenPass, targets: Tensor) -> Tensor:
    """What the biases after the last hidden vectors add to each target: gradient × bias."""
    if not passed.biases:
        return torch.zeros_like(wide(targets.detach()))
    added = []
    for target in targets:
        gradients = torch.autograd.grad(target, list(passed.biases), retain_graph=True, allow_unused=True)
        parts = [
            wide((gradient * parameter.detach()).sum())
            for gradient, parameter in zip(gradients, passed.biases, strict=True)
            if gradient is not None
        ]
        added.append(sum(parts, wide(torch.zeros_like(target.detach()))))
    return torch.stack(added)
