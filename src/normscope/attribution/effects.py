"""What heads and networks add to a scalar output: gradient × what they write, with everything held fixed.

With everything held fixed that `scalars.py` holds fixed, the scalar is affine in what any head or network writes. Two
gradients answer two questions:

- **direct**: along the residual connections and their norms alone, so what a part writes into the output itself. The parts of
  all layers, the embeddings and the biases add up to the scalar. For a logit of a pre-LN model this is direct logit
  attribution.
- **total**: through all later layers as well. Within a layer, the heads, what bypasses attention, and the biases that come
  later add up to the scalar; parts of different layers do not, since later ones pass on what earlier ones write.
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.attribution.passes import HeldPass
from normscope.attribution.scalars import ScalarAttribution, attribute_scalars
from normscope.maths.choices import ValueBias
from normscope.maths.tensors import lengthened, wide


@dataclasses.dataclass(frozen=True, eq=False)
class Effects:
    """What the parts of a model add to a scalar, of one text, in float64."""

    heads: Float[Tensor, "layer head token"]
    """From the values of each token, which include b_V. NaN for heads that a layer does not have."""
    networks: Float[Tensor, "layer token"]
    """From what each feed-forward network adds to each token's vector."""
    rest: Float[Tensor, "before token"]
    """Total effects: from each layer's inputs, by all ways but through its attention. Direct ones: one row, the embeddings."""
    bias: Float[Tensor, " before"]
    """From constants that come later; of direct effects, a single number."""
    direct: bool


def attribute_with_effects(
    passed: HeldPass,
    targets: Float[Tensor, " scalar"],
    bias: ValueBias = ValueBias.token,
    *,
    direct: bool,
    constants: Float[Tensor, " scalar"] | None = None,
) -> tuple[ScalarAttribution, list[Effects]]:
    """The parts of scalars by token, and the effects of all parts of the model on each of them.

    Args:
        passed: A pass of one text, recorded with its parts.
        targets: Scalars that autograd has recorded from `passed.output`.
        bias: Where the value biases of the first layer go.
        direct: Which effects; see the module.
        constants: What biases outside the model add to each scalar; None for nothing.
    """
    outside = wide(torch.zeros_like(targets) if constants is None else constants).detach()
    found = attribute_scalars(passed, targets, bias, constants=constants)
    effects = [
        _effects(passed, target, constant, direct=direct) for target, constant in zip(targets, outside, strict=True)
    ]
    return found, effects


def _effects(passed: HeldPass, target: Tensor, constant: Tensor, *, direct: bool) -> Effects:
    at_output, _ = passed.at_output(target)
    layers = passed.effects(at_output, direct=direct)
    of_heads, *others = zip(*layers, strict=True)
    most = max(len(heads) for heads in of_heads)
    heads = torch.stack([lengthened(each, most, 0, fill=torch.nan) for each in of_heads])
    networks, before, bias = map(torch.stack, others)
    if direct:  # those of the first layer's inputs, and all constants
        before, bias = before[:1], bias[:1]
    return Effects(heads, networks, before, bias + constant, direct)
