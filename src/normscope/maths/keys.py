"""Rotation and normalisation of the keys: k_n = ρ_n(γ ⊙ (x_n W_K + b_K) / σ_n), linear once the deviation σ_n is known.

Some models rotate first: k_n = γ ⊙ ρ_n(x_n W_K + b_K) / σ_n.

Source of the rotation: Su et al. 2021 (arXiv:2104.09864).
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor


class PlaneMap(NamedTuple):
    """The map from x_n W_K + b_K to the key, in one form for every norm and rotation: k_d = a_d v_d + b_d v_p(d), where d and
    p(d) turn together. It differs from token to token.
    """

    own: Float[Tensor, "batch #head key head_dim"] | None = None
    """a: what each dimension takes from itself; None if the map is the identity."""
    other: Float[Tensor, "batch #head key head_dim"] | None = None
    """b: what it takes from the dimension that turns with it; None without rotation."""
    partner: Int[Tensor, " head_dim"] | None = None
    """p: the dimension that turns with each, or the dimension itself."""
    centred: bool = False
    """Whether the mean of each head's vector is subtracted first."""

    @property
    def same_for_all_keys(self) -> bool:
        """Whether the map is the identity."""
        return self.own is None

    def __call__(self, vectors: Float[Tensor, "batch head key head_dim"]) -> Float[Tensor, "batch head key head_dim"]:
        """The map applied to vectors, one per head and key."""
        if self.own is None:
            return vectors
        vectors = self._centre(vectors)
        mapped = vectors * self.own
        return mapped if self.other is None else mapped.add_(vectors[..., self.partner] * self.other)

    def back(self, vectors: Float[Tensor, "batch head key head_dim"]) -> Float[Tensor, "batch head key head_dim"]:
        """The transposed map: ⟨v, map(w)⟩ = ⟨back(v), w⟩."""
        if self.own is None:
            return vectors
        mapped = vectors * self.own
        if self.other is not None:
            mapped.add_((vectors * self.other)[..., self.partner])
        return self._centre(mapped)

    def _centre(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(dim=-1, keepdim=True) if self.centred else vectors  # symmetric: its own transpose
