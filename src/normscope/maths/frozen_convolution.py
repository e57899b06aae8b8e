"""A convolution over tokens with the slopes of its activation held fixed."""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.frozen import Gradient


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenConvolution:
    """g(u) with u_i = Σ_n x_{i+n} K_n + b, as u ⊙ s with the slope s held fixed."""

    kernel: Float[Tensor, "model group_model width"]
    """K, as torch's convolutions store it; its width is odd."""
    bias: Float[Tensor, " model"] | None
    slope: Float[Tensor, "batch token model"]
    """s(u_i); zero at padding."""
    groups: int

    def inputs(self, vectors: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch token model"]:
        """u without b."""
        half = self.kernel.shape[-1] // 2
        convolved = torch.nn.functional.conv1d(vectors.transpose(1, 2), self.kernel, padding=half, groups=self.groups)
        return convolved.transpose(1, 2)

    def linear(self, vectors: Float[Tensor, "*stack batch token model"]) -> Float[Tensor, "*stack batch token model"]:
        """u ⊙ s without b."""
        shape = vectors.shape
        return self.inputs(vectors.reshape(-1, *shape[-2:])).view(shape) * self.slope

    def constant(self, like: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch token model"]:
        """b ⊙ s."""
        return torch.zeros_like(like) if self.bias is None else self.bias * self.slope

    def transposed(self, gradient: Float[Tensor, "batch token model"]) -> Gradient:
        """The gradient at the convolution's inputs."""
        inner = gradient * self.slope
        half = self.kernel.shape[-1] // 2
        inputs = torch.nn.functional.conv_transpose1d(
            inner.transpose(1, 2), self.kernel, padding=half, groups=self.groups
        )
        bias = gradient.new_zeros(len(gradient)) if self.bias is None else (inner @ self.bias).sum(dim=-1)
        return Gradient(inputs.transpose(1, 2), bias)
