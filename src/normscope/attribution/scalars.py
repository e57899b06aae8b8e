"""Attribution of a scalar output to tokens: gradient × input of the frozen model, by one forward and one backward pass.

With attention weights, deviations and slopes held fixed, the model is affine in the vectors of its input tokens. Of a scalar
target ⟨g, h⟩ with gradient g at the last hidden vectors h, the part of token k is then ⟨gradient at x_k, x_k⟩, which is the sum
over i of ⟨g_i, x_{i⇐k}⟩: what the vectors of `vectors.py` would give, without building them.

Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873), for the vectors.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.errors import InputError
from normscope.maths.choices import ValueBias
from normscope.maths.frozen import LayerGradients
from normscope.maths.tensors import wide
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.frozen_pass import FrozenPass

_TOKENS_AT_ONCE = 8192
"""Tokens of gradients that go back through the layers together, so that many scalars of a long text fit into memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class ScalarAttribution:
    """The parts of each scalar, in float64: scores, bias and remainder add up to the target."""

    scores: Float[Tensor, "scalar token"]
    """From each token; 0 at padding."""
    bias: Float[Tensor, " scalar"]
    """From all biases."""
    remainder: Float[Tensor, " scalar"]
    """What is left if the target is not linear in the last hidden vectors."""
    target: Float[Tensor, " scalar"]

    @property
    def error(self) -> Float[Tensor, " scalar"]:
        """How far the parts miss the target, relative to the sum of their sizes."""
        missing = self.scores.sum(dim=-1) + self.bias + self.remainder - self.target
        size = self.scores.abs().sum(dim=-1) + self.bias.abs() + self.remainder.abs()
        return missing.abs() / size.clamp(min=torch.finfo(size.dtype).tiny)


def joined(parts: Sequence[ScalarAttribution]) -> ScalarAttribution:
    """The parts of all scalars."""
    fields = dataclasses.fields(ScalarAttribution)
    return ScalarAttribution(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields))


class LastGradients(NamedTuple):
    """The gradient of each scalar at the last hidden vectors, and what lies behind it."""

    hidden: Float[Tensor, "scalar token model"]
    """Zero at padding."""
    after: Float[Tensor, " scalar"]
    """What the biases after the last hidden vectors add to the scalar."""


def last_gradients(passed: FrozenPass, targets: Float[Tensor, " scalar"]) -> LastGradients:
    """The gradient of each scalar at the last hidden vectors.

    Args:
        targets: See `attribute_scalars`.
    """
    single, rows, after = len(passed.hidden) == 1, [], []
    for number, target in enumerate(targets):
        gradients = torch.autograd.grad(target, [passed.hidden, *passed.biases], retain_graph=True, allow_unused=True)
        assert gradients[0] is not None
        rows.append(gradients[0][0 if single else number])
        parts = [
            wide((gradient * parameter.detach()).sum())
            for gradient, parameter in zip(gradients[1:], passed.biases, strict=True)
            if gradient is not None
        ]
        after.append(sum(parts, wide(torch.zeros_like(target.detach()))))
    return LastGradients(torch.stack(rows) * passed.token_mask.unsqueeze(-1), torch.stack(after))


Note = Callable[[FeedForwardBlock, LayerGradients], None]
"""Receives a layer and the gradients at its parts, of all scalars that go back together."""


def attribute_scalars(
    passed: FrozenPass,
    targets: Float[Tensor, " scalar"],
    bias: ValueBias = ValueBias.token,
    note: Callable[[LastGradients], Note | None] = lambda _last: None,
    *,
    direct: bool = False,
    constants: Float[Tensor, " scalar"] | None = None,
) -> ScalarAttribution:
    """Attribute scalars to the tokens of their sequences.

    Args:
        targets: Scalars that autograd has recorded from `passed.hidden`: one of each sequence, or any number of a single one.
        bias: Where the value biases of the first layer go.
        note: Called with the last gradients of the scalars that go back together; returns what receives every layer, from the
            last to the first, if anything does.
        direct: Whether that receives the gradients along the residual connections and their norms alone.
        constants: What biases outside the model add to each scalar; None for nothing.

    Raises:
        InputError: If the activation of a network is unknown, or the parts of a scalar do not add up to it.
    """
    single = len(passed.hidden) == 1
    each = passed.hidden.shape[1] * (2 if direct else 1)
    at_once = max(1, _TOKENS_AT_ONCE // each) if single else len(targets)
    outside = torch.zeros_like(targets) if constants is None else constants
    parts = joined(
        [
            _attribute_together(passed, some, of_some, bias, note, direct=direct)
            for some, of_some in zip(targets.split(at_once), outside.detach().split(at_once), strict=True)
        ]
    )
    error = 0.0 if parts.error.device.type == "meta" else float(parts.error.max())
    if error >= passed.check.bound:
        raise InputError(
            f"{passed.check.name} cannot be attributed on these texts: the parts of the target miss it by {error:.1e} "
            f"(relative, at most {passed.check.bound:.0e})"
        )
    return parts


def _attribute_together(
    passed: FrozenPass,
    targets: Float[Tensor, " scalar"],
    constants: Float[Tensor, " scalar"],
    bias: ValueBias,
    note: Callable[[LastGradients], Note | None],
    *,
    direct: bool,
) -> ScalarAttribution:
    last = last_gradients(passed, targets)
    gradient, after = last = last._replace(after=last.after + wide(constants))
    # The direct gradients go back beside the others, so that each layer is rebuilt once.
    both = torch.cat([gradient, gradient]) if direct else gradient
    back = passed.transposed(both, note(last), direct=len(gradient) if direct else 0)
    scores, from_biases = back.attributed(passed.embeddings, after, bias)
    target = wide(targets.detach())
    linear = wide((gradient.to(passed.embeddings.dtype) * passed.hidden.detach()).sum(dim=(-2, -1)))
    return ScalarAttribution(scores * wide(passed.token_mask), from_biases, target - linear - after, target)
