"""What heads and networks add to a scalar output: gradient × what they write, in the frozen model.

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

from normscope.attribution.scalars import last_gradients
from normscope.maths.frozen import LayerGradients
from normscope.maths.tensors import wide
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.frozen_pass import FrozenPass


@dataclasses.dataclass(frozen=True, eq=False)
class Effects:
    """What the parts of a model add to a scalar, of one text, in float64."""

    heads: Float[Tensor, "layer head token"]
    """From the values of each token, which include b_V."""
    networks: Float[Tensor, "layer token"]
    """From what each feed-forward network adds to each token's vector."""
    rest: Float[Tensor, "before token"]
    """Total effects: from each layer's inputs, by all ways but through its attention. Direct ones: one row, the embeddings."""
    bias: Float[Tensor, " before"]
    """From constants that come later; of direct effects, a single number."""
    direct: bool


def effects_of(passed: FrozenPass, target: Float[Tensor, ""], *, direct: bool) -> Effects:
    """The effects of all parts on a scalar.

    Args:
        passed: A pass of one text.
        target: A scalar that autograd has recorded from `passed.hidden`.
        direct: Which effects; see the module.
    """
    heads: list[Tensor] = []
    networks: list[Tensor] = []
    rest: list[Tensor] = []
    bias: list[Tensor] = []

    gradient, (after,) = last_gradients(passed, target[None])

    def note(block: FeedForwardBlock, parts: LayerGradients) -> None:
        heads.append(wide((parts.values * block.attention.value).sum(dim=-1))[0])
        networks.append(wide((parts.network * block.output).sum(dim=-1))[0])
        rest.append(wide((parts.bypass * block.attention.inputs).sum(dim=-1))[0])
        bias.append(wide(parts.bias)[0] + after)

    passed.transposed(gradient, note, direct=direct)
    if direct:  # those of the first layer's inputs, and all constants
        rest, bias = rest[-1:], bias[-1:]
    of_heads, of_networks, before, constants = (torch.stack(parts[::-1]) for parts in (heads, networks, rest, bias))
    return Effects(of_heads, of_networks, before, constants, direct)
