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

from normscope.attribution.scalars import LastGradients, Note, ScalarAttribution, attribute_scalars
from normscope.maths.choices import ValueBias
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


def attribute_with_effects(
    passed: FrozenPass,
    targets: Float[Tensor, " scalar"],
    bias: ValueBias = ValueBias.token,
    *,
    direct: bool,
    constants: Float[Tensor, " scalar"] | None = None,
) -> tuple[ScalarAttribution, list[Effects]]:
    """The parts of scalars by token, and the effects of all parts of the model on each of them.

    They are recorded while gradients go back through the layers. For direct effects, a second gradient of each scalar goes back
    beside the one that gives its scores.

    Args:
        passed: A pass of one text.
        targets: Scalars that autograd has recorded from `passed.hidden`.
        bias: Where the value biases of the first layer go.
        direct: Which effects; see the module.
        constants: What biases outside the model add to each scalar; None for nothing.
    """
    noted: list[_Noted] = []

    def note(last: LastGradients) -> Note:
        noted.append(_Noted(last.after))
        return noted[-1]

    found = attribute_scalars(passed, targets, bias, note, direct=direct, constants=constants)
    return found, [effects for each in noted for effects in each.effects(direct=direct)]


class _Noted:
    """The effects of the layers on scalars that go back together, from the last layer to the first.

    Args:
        after: What constants behind the last hidden vectors add to each scalar.
    """

    def __init__(self, after: Float[Tensor, " scalar"]) -> None:
        self._after = after
        self._heads: list[Tensor] = []
        self._networks: list[Tensor] = []
        self._rest: list[Tensor] = []
        self._bias: list[Tensor] = []

    def __call__(self, block: FeedForwardBlock, parts: LayerGradients) -> None:
        self._heads.append(wide((parts.values * block.attention.value).sum(dim=-1)))
        self._networks.append(wide((parts.network * block.output).sum(dim=-1)))
        self._rest.append(wide((parts.bypass * block.attention.inputs).sum(dim=-1)))
        self._bias.append(wide(parts.bias) + self._after)

    def effects(self, *, direct: bool) -> list[Effects]:
        """The effects on each scalar."""
        # Of direct effects: those of the first layer's inputs, and all constants.
        rest, bias = (self._rest[-1:], self._bias[-1:]) if direct else (self._rest, self._bias)
        parts = [torch.stack(part[::-1], dim=1) for part in (self._heads, self._networks, rest, bias)]
        of_scalars = zip(*parts, strict=True)
        return [
            Effects(heads, networks, before, constants, direct) for heads, networks, before, constants in of_scalars
        ]
