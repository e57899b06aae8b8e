"""Attribution of a scalar output to tokens: gradient × input with everything held fixed that is not linear.

With attention weights, deviations and slopes held fixed, the model is affine in the vectors of its input tokens. Of a scalar
target ⟨g, h⟩ with gradient g at the last hidden vectors h, the part of token k is then ⟨gradient at x_k, x_k⟩, which is the sum
over i of ⟨g_i, x_{i⇐k}⟩: what the vectors of `vectors.py` would give, without building them.

Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873), for the vectors.
"""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.attribution.passes import HeldPass
from normscope.maths.choices import ValueBias
from normscope.maths.tensors import wide


@dataclasses.dataclass(frozen=True, eq=False)
class ScalarAttribution:
    """The parts of each scalar, in float64: scores, bias and remainder add up to the target."""

    scores: Float[Tensor, "scalar token"]
    """From each token; 0 at padding."""
    bias: Float[Tensor, " scalar"]
    """From all biases."""
    remainder: Float[Tensor, " scalar"]
    """What is left if the target is not linear in the last hidden vectors; where attention weights are followed, with what
    their softmaxes absorb."""
    target: Float[Tensor, " scalar"]

    @property
    def error(self) -> Float[Tensor, " scalar"]:
        """How far the parts miss the target, relative to the sum of their sizes."""
        missing = self.scores.sum(dim=-1) + self.bias + self.remainder - self.target
        size = self.scores.abs().sum(dim=-1) + self.bias.abs() + self.remainder.abs()
        return missing.abs() / size.clamp(min=torch.finfo(size.dtype).tiny)

    @property
    def sum(self) -> "ScalarAttribution":
        """The parts of the sum of all scalars."""
        parts = (self.scores, self.bias, self.remainder, self.target)
        return ScalarAttribution(*(part.sum(dim=0, keepdim=True) for part in parts))


def joined(parts: Sequence[ScalarAttribution]) -> ScalarAttribution:
    """The parts of all scalars."""
    fields = dataclasses.fields(ScalarAttribution)
    return ScalarAttribution(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields))


def attribute_scalars(
    passed: HeldPass,
    targets: Float[Tensor, " scalar"],
    bias: ValueBias = ValueBias.token,
    *,
    constants: Float[Tensor, " scalar"] | None = None,
) -> ScalarAttribution:
    """Attribute scalars to the tokens of their sequences.

    Args:
        targets: Scalars that autograd has recorded from `passed.output`: one of each sequence, or any number of a single one.
        bias: Where the value biases of the first layer go.
        constants: What biases outside the model add to each scalar; None for nothing.

    Raises:
        InputError: If nothing can be attributed, or the parts of a scalar do not add up to it.
    """
    outside = wide(torch.zeros_like(targets) if constants is None else constants).detach()
    if len(passed.token_mask) == 1:
        parts = joined(
            [_of_scalar(passed, target, constant, bias) for target, constant in zip(targets, outside, strict=True)]
        )
    else:
        parts = _of_batch(passed, targets, outside, bias)
    return checked(passed, parts)


def checked(passed: HeldPass, parts: ScalarAttribution) -> ScalarAttribution:
    """The parts, if they add up.

    Raises:
        InputError: If they do not.
    """
    passed.check.require("the parts of the target", parts.error)
    return parts


def _of_scalar(passed: HeldPass, target: Tensor, constant: Tensor, bias: ValueBias) -> ScalarAttribution:
    at_output, remainder = passed.at_output(target)
    scores, ones, absorbed = _scores(passed, at_output, bias)
    rest = remainder + absorbed - constant
    return ScalarAttribution(scores, (ones + constant)[None], rest[None], wide(target.detach())[None])


def _of_batch(passed: HeldPass, targets: Tensor, constants: Tensor, bias: ValueBias) -> ScalarAttribution:
    """One backward pass for all texts. What constants add to each is what its tokens leave; that it is so is checked of the sum
    over all texts, which autograd gives.
    """
    values = wide(targets.detach())
    at_output, _ = passed.at_output(targets.sum())
    linear = passed.linear(at_output)
    scores, ones, absorbed = _scores(passed, at_output, bias)
    of_text = linear - scores.sum(dim=-1)
    missing = (of_text.sum() - ones - absorbed) / len(values)
    return ScalarAttribution(scores, of_text + constants - missing, values - linear - constants, values)


def _scores(passed: HeldPass, at_output: Sequence[Tensor], bias: ValueBias) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient × input of each token; what all other constants add to all texts; and what softmaxes absorb."""
    back = passed.back(at_output)
    scores, constants = passed.of_tokens(back.inputs), back.ones
    if bias is ValueBias.decompx and back.values is not None:
        of_bias = passed.of_value_biases(back.values)
        scores, constants = scores + of_bias, constants - of_bias.sum()
    return scores, constants, back.absorbed
