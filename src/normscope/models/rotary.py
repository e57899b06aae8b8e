"""Rotations of queries and keys, derived from the keys before and after rotation."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.keys import KeyMap


class Planes(NamedTuple):
    """Which dimensions of a head are rotated together."""

    size: int
    """The number of rotated dimensions; they are the first ones."""
    adjacent: bool
    """Whether neighbours are rotated together; if not, each dimension of the first half with its counterpart in the second."""

    def mixed(self, head_dim: int) -> Bool[Tensor, "head_dim head_dim"]:
        """Which dimensions of a head a rotation mixes."""
        mixed = torch.eye(head_dim, dtype=torch.bool)
        one, other = self._split(torch.arange(self.size))
        mixed[one, other] = mixed[other, one] = True
        return mixed

    def rotation(
        self, before: Float[Tensor, "batch head key head_dim"], after: Float[Tensor, "batch head key head_dim"]
    ) -> KeyMap:
        """The rotation from some keys to others: for every plane, the angle and factor that fit all heads best.

        Args:
            before: The keys before the rotation.
            after: The same keys after the rotation.
        """
        (one, other), (turned, other_turned) = (self._split(keys[..., : self.size]) for keys in (before, after))
        squares = (one.square() + other.square()).sum(dim=1).clamp(min=torch.finfo(one.dtype).tiny)
        cosine = (one * turned + other * other_turned).sum(dim=1) / squares
        sine = (one * other_turned - other * turned).sum(dim=1) / squares
        return KeyMap(self._both(cosine), self._both(sine), adjacent=self.adjacent)

    def _split(self, turning: Tensor) -> tuple[Tensor, Tensor]:
        if self.adjacent:
            return turning[..., 0::2], turning[..., 1::2]
        first, second = turning.chunk(2, dim=-1)
        return first, second

    def _both(self, angles: Tensor) -> Tensor:
        return _side_by_side(angles) if self.adjacent else torch.cat([angles, angles], dim=-1)


def _side_by_side(angles: Tensor) -> Tensor:
    return angles.repeat_interleave(2, dim=-1)
