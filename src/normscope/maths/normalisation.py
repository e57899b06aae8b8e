"""LayerNorm and RMSNorm as maps that are linear once their deviation is known.

Source: Kobayashi et al. 2021, section 3 (arXiv:2109.07152).
"""

import math
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
    adds_outside: bool = False
    """Whether σ = √Var + ε, as in some hand-written norms, instead of √(Var + ε)."""
    divides: bool = True
    """Whether the vectors are divided by σ. If not, σ counts as 1: γ ⊙ x + β, as in MobileBERT's NoNorm."""

    def deviation(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch"]:
        """σ of each input vector: √(Var + ε), or √(mean square + ε) without centring; 1 if the norm does not divide."""
        if not self.divides:
            return torch.ones_like(vectors[..., 0])
        length = torch.linalg.vector_norm(self.centre(vectors), dim=-1)
        if self.adds_outside:
            return length / math.sqrt(vectors.shape[-1]) + self.epsilon
        return (length.square() / vectors.shape[-1] + self.epsilon).sqrt()

    def centre(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """The vectors minus their mean over `model`; unchanged if the norm does not centre."""
        return vectors - vectors.mean(dim=-1, keepdim=True) if self.centred else vectors

    def scaled(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """γ ⊙ (v − mean(v)): the part of the linear map that does not depend on σ."""
        # The sum of centred parts is the centred sum, so the parts of a vector can be scaled separately.
        centred = self.centre(vectors)
        # The centred vectors are a copy, which can hold the result.
        in_place = self.centred and self.weight.dim() == 1 and self.weight.dtype == vectors.dtype
        return centred.mul_(self.weight) if in_place else centred * self.weight

    def scaled_(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """`scaled`, written over the vectors."""
        if self.centred:
            vectors.sub_(vectors.mean(dim=-1, keepdim=True))
        return vectors.mul_(self.weight)

    def transposed(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """u − mean(u) with u = γ ⊙ v: the transpose of `scaled`, so that ⟨scaled(w), v⟩ = ⟨w, transposed(v)⟩."""
        weighted = vectors * self.weight
        return weighted.sub_(weighted.mean(dim=-1, keepdim=True)) if self.centred else weighted

    def transposed_(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """`transposed`, written over the vectors."""
        vectors.mul_(self.weight)
        return vectors.sub_(vectors.mean(dim=-1, keepdim=True)) if self.centred else vectors

    def normalised(self, vectors: Float[Tensor, "*batch model"]) -> Float[Tensor, "*batch model"]:
        """The normalised vectors: LN(v), or RMSNorm(v)."""
        return self.applied(vectors)[0]

    def applied(self, vectors: Float[Tensor, "*batch model"]) -> tuple[Tensor, Float[Tensor, "*batch"]]:
        """The normalised vectors, and σ of each vector."""
        if self.centred and not self.adds_outside and self.weight.dim() == 1 and self.weight.dtype == vectors.dtype:
            normalised, _, scale = torch.native_layer_norm(
                vectors, self.weight.shape, self.weight, self.bias, self.epsilon
            )
            return normalised, 1 / scale.squeeze(-1)
        deviation = self.deviation(vectors)
        normalised = self.scaled(vectors) / deviation.unsqueeze(-1)
        return (normalised if self.bias is None else normalised + self.bias), deviation


def scaled_norm(vectors: Float[Tensor, "*batch model"], normalisation: Normalisation) -> Float[Tensor, "*batch"]:
    """‖γ ⊙ (v − mean(v))‖."""
    return torch.linalg.vector_norm(normalisation.scaled(vectors), dim=-1)
