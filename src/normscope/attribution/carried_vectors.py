"""The vectors x_{i⇐k} of a batch, carried along while the model runs, instead of in a pass of their own."""

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.attribution.vectors import groups_of_sources
from normscope.maths.choices import ValueBias
from normscope.maths.embedder import pooled_parts
from normscope.maths.frozen import FrozenLayer, FrozenNorm
from normscope.maths.tensors import wide


class CarriedVectors:
    """What each token, and last the bias, contributes to each hidden vector, as far as the model has run.

    It holds a vector for every pair of tokens.

    Args:
        embeddings: The inputs of the first layer.
        bias: Where the value biases of the first layer go.

    Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873).
    """

    def __init__(self, embeddings: Float[Tensor, "batch token model"], bias: ValueBias) -> None:
        batch, tokens, model = embeddings.shape
        self._embeddings = embeddings
        self._credited = bias is ValueBias.decompx
        self._vectors = embeddings.new_zeros(tokens + 1, batch, tokens, model)
        each = torch.arange(tokens, device=embeddings.device)
        self._vectors[each, :, each] = embeddings.transpose(0, 1)

    def pass_layer(self, layer: FrozenLayer) -> None:
        """Carry the vectors through the next layer."""
        embeddings, tokens = self._embeddings, torch.arange(self._embeddings.shape[1], device=self._embeddings.device)
        for group in groups_of_sources(embeddings):
            own = torch.tensor(group, device=embeddings.device)[:, None, None] == tokens
            value_bias = own.to(embeddings.dtype) if self._credited else None
            part = slice(group.start, group.stop)
            self._vectors[part] = layer.linear(self._vectors[part], value_bias)
        self._vectors[-1] += layer.constant(embeddings, value_bias=not self._credited)
        self._credited = False  # only the value biases of the first layer belong to tokens

    def pass_norm(self, norm: FrozenNorm) -> None:
        """Carry the vectors through the norm after the last layer."""
        for group in groups_of_sources(self._embeddings):
            part = slice(group.start, group.stop)
            self._vectors[part] = norm.linear(self._vectors[part])
        self._vectors[-1] += norm.constant(self._embeddings)

    def pooled(self, weights: Tensor) -> Float[Tensor, "batch source model"]:
        """Σ_i w_i x_{i⇐k}, what each token and the bias contribute to a weighted sum of the hidden vectors, in float64.

        Args:
            weights: w; see `pooling_weights`.
        """
        parts = [
            pooled_parts(wide(weights), wide(self._vectors[group.start : group.stop]))
            for group in groups_of_sources(self._embeddings)
        ]
        return torch.cat(parts, dim=1)
