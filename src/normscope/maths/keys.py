"""Rotation and normalisation of the keys: k_n = ρ_n(γ ⊙ (x_n W_K + b_K) / σ_n), linear once the deviation σ_n is known.

Some models rotate first: k_n = γ ⊙ ρ_n(x_n W_K + b_K) / σ_n.

Source of the rotation: Su et al. 2021 (arXiv:2104.09864).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class KeyMap(NamedTuple):
    """The linear map from x_n W_K + b_K to the key that enters the score. It differs from token to token."""

    cosine: Float[Tensor, "#batch key rotary"] | None = None
    """cos of the angles that rotate the first dimensions of a head; None without rotation."""
    sine: Float[Tensor, "#batch key rotary"] | None = None
    factors: Float[Tensor, "batch head key head_dim"] | None = None
    """γ / σ_n of a norm of the keys; None without one."""
    centred: bool = False
    """Whether that norm subtracts the mean of each head's key."""
    adjacent: bool = False
    """Whether neighbouring dimensions form the planes that turn (0 and 1, 2 and 3); else each dimension of the first half and
    its counterpart in the second."""

    turns_first: bool = False
    """Whether the rotation comes before the norm."""

    @property
    def same_for_all_keys(self) -> bool:
        """Whether the map is the identity."""
        return self.cosine is None and self.factors is None

    def __call__(self, vectors: Float[Tensor, "batch head key head_dim"]) -> Float[Tensor, "batch head key head_dim"]:
        """The map applied to vectors, one per head and key."""
        if self.turns_first:
            return self._normed(self._rotated(vectors, 1))
        return self._rotated(self._normed(vectors), 1)

    def back(self, vectors: Float[Tensor, "batch head key head_dim"]) -> Float[Tensor, "batch head key head_dim"]:
        """The transposed map: ⟨v, map(w)⟩ = ⟨back(v), w⟩."""
        if self.turns_first:
            return self._rotated(self._normed_back(vectors), -1)
        return self._normed_back(self._rotated(vectors, -1))

    def _normed(self, vectors: Tensor) -> Tensor:
        return vectors if self.factors is None else self._centre(vectors) * self.factors

    def _normed_back(self, vectors: Tensor) -> Tensor:
        return vectors if self.factors is None else self._centre(vectors * self.factors)

    def _centre(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(dim=-1, keepdim=True) if self.centred else vectors  # symmetric: its own transpose

    def _rotated(self, vectors: Tensor, direction: int) -> Tensor:
        if self.cosine is None or self.sine is None:
            return vectors
        turning, rest = vectors.tensor_split([self.cosine.shape[-1]], dim=-1)
        cosine, sine = self.cosine.unsqueeze(1), self.sine.unsqueeze(1)
        if self.adjacent:
            quarter_turn = torch.stack([-turning[..., 1::2], turning[..., 0::2]], dim=-1).flatten(-2)
        else:
            first, second = turning.chunk(2, dim=-1)
            quarter_turn = torch.cat([-second, first], dim=-1)
        return torch.cat([turning * cosine + direction * quarter_turn * sine, rest], dim=-1)
