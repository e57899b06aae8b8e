"""The weights of linear layers, whole or by head."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from normscope.models.blocks.block import HeadProjection, full_precision
from normscope.models.stored.stored_weights import weights_present


class Columns(NamedTuple):
    """Which outputs of a linear layer form the vectors of the heads."""

    first: tuple[int, ...]
    """The first output of each head."""
    size: int
    """Number of dimensions of a head."""
    step: int = 1
    """Distance from one dimension of a head to the next."""

    @classmethod
    def of(cls, indices: Int[Tensor, "head dimension"]) -> "Columns | None":
        """The columns with these indices; None if they are not evenly spaced within each head."""
        step = int(indices[0, 1] - indices[0, 0]) if indices.shape[1] > 1 else 1
        columns = cls(tuple(indices[:, 0].tolist()), indices.shape[1], step)
        return columns if torch.equal(columns.indices, indices) else None

    @property
    def indices(self) -> Int[Tensor, "head dimension"]:
        """The index of each head's outputs."""
        return torch.tensor(self.first)[:, None] + self.step * torch.arange(self.size)

    def take(self, tensor: Float[Tensor, "*axes output"]) -> Float[Tensor, "*axes head dimension"]:
        """Split the last axis by head. If the heads lie one after the other, the result shares its memory."""
        start, heads = self.first[0], len(self.first)
        if self.step == 1 and self.first == tuple(range(start, start + heads * self.size, self.size)):
            return tensor[..., start : start + heads * self.size].unflatten(-1, (heads, self.size))
        return tensor[..., self.indices.to(tensor.device)]


class SideBySide(nn.Module):
    """Linear layers with the same input, whose outputs stand one after the other.

    Args:
        layers: The layers. They become submodules of this module as well, which is never run.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    @property
    def weight(self) -> Tensor:
        """W, of shape (input, output)."""
        return torch.cat([weight_and_bias(layer)[0] for layer in self.layers], dim=1)

    @property
    def bias(self) -> Tensor | None:
        """b, zero for layers without one; None if none has one."""
        parts = [weight_and_bias(layer) for layer in self.layers]
        if all(bias is None for _, bias in parts):
            return None
        return torch.cat([weight.new_zeros(weight.shape[1]) if bias is None else bias for weight, bias in parts])


def first_of(module: nn.Module | None) -> nn.Module | None:
    """The first of linear layers that stand for one; any other module itself."""
    return module.layers[0] if isinstance(module, SideBySide) else module


def weight_and_bias(projection: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight (in, out) and bias of a projection. GPT-2's Conv1D stores the weight this way, Linear stores its transpose."""
    with weights_present(projection):
        weight, bias = projection.weight, projection.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    weight = weight.T if isinstance(projection, nn.Linear) else weight
    return full_precision(weight), None if bias is None else full_precision(bias)


def scaled_projection(projection: nn.Module, scale: float | Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight (in, out) and bias of a projection whose output is multiplied by a number, or by a vector."""
    weight, bias = weight_and_bias(projection)
    unchanged = not isinstance(scale, Tensor) and scale == 1
    return (weight, bias) if unchanged else (weight * scale, None if bias is None else bias * scale)


def by_head(
    projection: nn.Module,
    heads: int,
    columns: Columns | None,
    added: Tensor | None = None,
    repeats: int = 1,
) -> HeadProjection:
    """W_Q, W_K or W_V by head.

    Args:
        added: A bias outside the linear layer.
        repeats: How many heads of queries share a head.
    """
    weight, bias = weight_and_bias(projection)
    bias = weight.new_zeros(weight.shape[1]) if bias is None else bias
    if columns is None:
        weight, bias = (tensor.unflatten(-1, (heads, -1)) for tensor in (weight, bias))
    else:
        weight, bias = columns.take(weight), columns.take(bias)
    weight = weight.transpose(0, 1)
    if added is not None:
        bias = bias + full_precision(added).view(heads, -1)
    if repeats > 1:
        weight, bias = (part.repeat_interleave(repeats, dim=0) for part in (weight, bias))
    return HeadProjection(weight, bias)
