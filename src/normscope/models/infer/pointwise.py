"""Convolutions that read one token at a time, as the linear layers that they are (SqueezeBERT).

Such a convolution, and the norm beside it, reads vectors with the axes (text, dimension, token). Each is replaced by a module
that turns the axes, runs a linear layer or a norm with the same parameters, and turns the axes back.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class PointwiseLinear(nn.Module):
    """x W + b with the parameters of a convolution of width 1.

    Args:
        convolution: The convolution. With groups, W is zero outside blocks along the diagonal.
    """

    def __init__(self, convolution: nn.Conv1d) -> None:
        super().__init__()
        self.kernel, self.bias, self.groups = convolution.weight, convolution.bias, convolution.groups

    @property
    def weight(self) -> Tensor:
        """W, of shape (input, output)."""
        return torch.block_diag(*self.kernel.squeeze(-1).chunk(self.groups)).T

    def forward(self, vectors: Tensor) -> Tensor:
        """The outputs (..., output) of vectors (..., input)."""
        return functional.conv1d(vectors.mT, self.kernel, self.bias, groups=self.groups).mT


class DimensionsFirst(nn.Module):
    """A module of vectors, applied to vectors with the axes (text, dimension, token).

    Args:
        inner: The module.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, vectors: Tensor) -> Tensor:
        """What the module makes of every token, with the axes in the same order."""
        made: Tensor = self.inner(vectors.mT)
        return made.mT


def replace_pointwise(model: nn.Module) -> None:
    """Replace every convolution of width 1, and every layer norm of vectors with such axes, in place."""
    for parent in list(model.modules()):
        for name, module in parent.named_children():
            inner = _inner(module)
            if inner is not None:
                setattr(parent, name, DimensionsFirst(inner).train(module.training))


def _inner(module: nn.Module) -> nn.Module | None:
    """What a module does with the vector of a token, if the axis of tokens is the last that it reads."""
    if isinstance(module, nn.Conv1d):
        plain = (module.kernel_size, module.stride, module.padding) == ((1,), (1,), (0,))
        return PointwiseLinear(module) if plain and type(module).forward is nn.Conv1d.forward else None
    if isinstance(module, nn.LayerNorm) and _reads_dimensions_first(module):
        norm = nn.LayerNorm(list(module.normalized_shape), module.eps, device="meta")
        norm.weight, norm.bias = module.weight, module.bias
        return norm
    return None


def _reads_dimensions_first(norm: nn.LayerNorm) -> bool:
    """Whether a subclass of the layer norm turns the axes of what it reads."""
    if type(norm).forward is nn.LayerNorm.forward or len(norm.normalized_shape) != 1:
        return False
    (size,) = norm.normalized_shape
    try:
        with torch.no_grad():
            vectors = norm.weight.new_ones(1, size, size + 1)
            return norm(vectors).shape == vectors.shape
    except (RuntimeError, TypeError, ValueError):  # it reads vectors with other axes
        return False
