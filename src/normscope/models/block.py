"""What one attention block did on one batch."""

import dataclasses
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths import attention as attention_maths
from normscope.maths.mixing import preserving_vectors
from normscope.maths.normalisation import Normalisation


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionBlock:
    """One block of one layer: attention, the residual connection and the normalisation that belongs to it.

    It lives while its layer is being visited and must not be kept: it holds the layer's activations. Everything below
    the fields is derived from them on first use, once, and shared by the analyses.
    """

    layer: int
    """Counted from 1."""
    inputs: Float[Tensor, "batch query model"]
    """x_i: the block's input, which the residual connection carries past attention."""
    query: Float[Tensor, "batch head query head_dim"]
    key: Float[Tensor, "batch head key head_dim"]
    value: Float[Tensor, "batch head key head_dim"]
    """v = x W_V + b_V."""
    mask: Float[Tensor, "#batch #head #query #key"] | None
    """What is added to the scores: 0 where visible, −∞ elsewhere; None where everything is visible."""
    scale: float
    """Factor on q·k before the softmax."""
    log_normaliser: Float[Tensor, "batch head query"]
    """log Σ_j exp(scale·q_i·k_j)."""
    attention_output: Float[Tensor, "batch query model"]
    """Σ_j F_ij + b_O, as the model computed it."""
    output_weight: Float[Tensor, "head head_dim model"]
    """W_O, one slice per head."""
    output_bias: Float[Tensor, " model"] | None
    """b_O."""
    normalisation: Normalisation
    """The norm after the residual connection."""
    real: Bool[Tensor, "batch query"]
    """True at tokens, False at padding. Rows of padding hold meaningless finite numbers everywhere."""

    @cached_property
    def weights(self) -> Float[Tensor, "batch head query key"]:
        """Post-softmax attention α; zero at invisible keys."""
        return attention_maths.attention_weights(self.query, self.key, self.mask, self.scale)

    @cached_property
    def self_weights(self) -> Float[Tensor, "batch head query"]:
        """α_ii, what each token gives to itself, without building `weights`."""
        return attention_maths.self_attention_weights(self.query, self.key, self.log_normaliser, self.scale)

    @cached_property
    def preserving(self) -> Float[Tensor, "batch query model"]:
        """F_ii, what each token takes from itself through attention."""
        return preserving_vectors(self.self_weights, self.value, self.output_weight)

    @cached_property
    def mixing(self) -> Float[Tensor, "batch query model"]:
        """Σ_{j≠i} F_ij, what each token takes from the others: the attention output less b_O and F_ii."""
        context = self.attention_output - self.preserving
        return context if self.output_bias is None else context.sub_(self.output_bias)

    @cached_property
    def deviation(self) -> Float[Tensor, "batch query"]:
        """σ_i of the norm after the residual connection."""
        return self.normalisation.deviation(self.inputs + self.attention_output)

    def transformed(self) -> Float[Tensor, "batch head key model"]:
        """f^h(x_j) of every head, explicitly. As large as `head` times the activations: for looking, not for corpora."""
        return torch.einsum("bhkd,hdm->bhkm", self.value, self.output_weight)
