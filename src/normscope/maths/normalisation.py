"""LayerNorm and RMSNorm as maps that are linear once their deviation is known.

Source: Kobayashi et al. 2021, section 3 (arXiv:2109.07152).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Normalisation(NamedTuple):
    """LN(x) = γ ⊙ (x − mean(x)) / σ + β with σ² = Var(x) + ε; RMSNorm leaves out the mean and β."""

    weight: Float[Tensor, "*head model"]
    """γ; a norm of keys may have one of its own for each head."""
    bias: Float[Tensor, " model"] | None
    """β; None if the norm has none."""
    epsilon: float
    """ε, added to the variance under the root."""
    centred: bool = True
    """Whether the mean is subtracted (LayerNorm) or not (RMSNorm)."""

    def deviation(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch"]:
        """σ of each input vector: √(Var + ε), or √(mean square + ε) without centring."""
        centred = self.centre(vectors)
        return (centred.square().mean(dim=-1) + self.epsilon).sqrt()

    def centre(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """The vectors minus their mean over `model`; unchanged if the norm does not centre."""
        return vectors - vectors.mean(dim=-1, keepdim=True) if self.centred else vectors

    def scaled(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """γ ⊙ (v − mean(v)): the part of the linear map that does not depend on σ."""
        # The sum of centred parts is the centred sum, so the parts of a vector can be scaled separately.
        return self.centre(vectors) * self.weight

    def normalised(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """The normalised vectors: LN(v), or RMSNorm(v)."""
        normalised = self.scaled(vectors) / self.deviation(vectors).unsqueeze(-1)
        return normalised if self.bias is None else normalised + self.bias


def scaled_norm(vectors: Float[Tensor, "*batch model"], normalisation: Normalisation) -> Float[Tensor, "*batch"]:
    """‖γ ⊙ (v − mean(v))‖ with one temporary tensor, where `normalisation.scaled` would make two."""
    if normalisation.centred:
        temporary = (vectors - vectors.mean(dim=-1, keepdim=True)).mul_(normalisation.weight)
    else:
        temporary = vectors * normalisation.weight
    return torch.linalg.vector_norm(temporary, dim=-1)
