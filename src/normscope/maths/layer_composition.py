"""The parts of a whole layer's output: from the token itself, from the other tokens, and from no token.

Row vectors. With T_ij for what token i takes from token j at the last stage of the attention block (see `composition.py`), the
feed-forward network adds up to three stages:

    FF_ij                                          the network alone
    FF_ij + T_ij                                   with its residual connection
    γ ⊙ (FF_ij + T_ij − mean) / σ_i                with the layer normalisation

Everything that is not linear in the network is held at its value (see `linear/`): slopes of activations, the deviations of
norms, gates, and the weights of experts. With u = y W_1 + b_1 and w = y V + c, the network is g(u) W_2 + b_2 or, if it is
gated, (g(u) ⊙ w) W_2 + b_2. Integrated gradients along the path from zero to u and w give each summand v of y

    ((v W_1) ⊙ A) W_2                   A = g(u)/u
    ((v W_1) ⊙ A + (v V) ⊙ B) W_2       A = w ⊙ (g(u) − I(u))/u, B = I(u), if it is gated

Families differ in the position of the norm of this half of the layer:

    post      z = LN(y + network(y))       all three stages
    pre       z = y + network(LN(y))       no norm follows the sum
    parallel  z = y + network(LN(x))       no norm follows the sum, and the network reads the token itself alone
    branch    z = y + LN(network(y))       the third stage is γ ⊙ (FF_ij − mean) / σ_i + T_ij, and there is no second one

Own, others and the constant part add up to the layer's output at every stage.

Source: Kobayashi et al. 2024 (ICLR), which does not say whether its baseline is zero.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.composition import Composition, NormPosition


class LayerStage(enum.StrEnum):
    """How far through a layer a vector has come, from the end of the attention block on."""

    BLOCK = "atb"
    """T, the attention block."""
    NETWORK = "atbff"
    """FF."""
    RESIDUAL = "atbffres"
    """FF + T."""
    NORMALISED = "atbffresln"
    """The layer's output after a norm."""


LAYER_STAGES: Mapping[NormPosition, tuple[LayerStage, ...]] = {
    "post": tuple(LayerStage),
    "pre": (LayerStage.BLOCK, LayerStage.NETWORK, LayerStage.RESIDUAL),
    "parallel": (LayerStage.BLOCK, LayerStage.NETWORK, LayerStage.RESIDUAL),
    "branch": (LayerStage.BLOCK, LayerStage.NETWORK, LayerStage.NORMALISED),
}
"""The stages of a layer, by the position of the norm of its feed-forward half."""

WHOLE_LAYER = "layer"
"""The option value that stands for a family's last stage, whichever that is."""


class Parts(NamedTuple):
    """The parts of a vector of every token."""

    own: Float[Tensor, "batch token model"]
    others: Float[Tensor, "batch token model"]
    constant: Float[Tensor, "batch token model"]
    whole: Float[Tensor, "batch token model"]
    """The vector as the model computed it."""


@dataclasses.dataclass(frozen=True, eq=False)
class LayerComposition:
    """The parts of a layer's output."""

    attention: Composition
    """The attention block."""
    later: Mapping[LayerStage, Parts]
    """The parts at the stages after the attention block, in order."""

    @property
    def stages(self) -> tuple[LayerStage, ...]:
        """The stages of the layer."""
        return (LayerStage.BLOCK, *self.later)

    def parts(self, stage: LayerStage) -> Parts:
        """The parts at a stage.

        Raises:
            ValueError: If the layer does not have the stage.
        """
        if stage is LayerStage.BLOCK:
            block = self.attention
            own, others = block.last_parts
            return Parts(own, others, block.constant(block.stages[-1]), block.block_output)
        if stage not in self.later:
            raise ValueError(f"this layer has no stage {stage}, only {', '.join(self.stages)}")
        return self.later[stage]

    def relative_norms(self) -> dict[LayerStage, tuple[Float[Tensor, "batch token"], Float[Tensor, "batch token"]]]:
        """The norms of others and own by stage."""
        own, others = self.attention.last_parts
        return {LayerStage.BLOCK: _norms(others, own)} | {
            stage: _norms(parts.others, parts.own) for stage, parts in self.later.items()
        }


def _norms(others: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.vector_norm(others, dim=-1), torch.linalg.vector_norm(own, dim=-1)
