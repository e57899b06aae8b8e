"""What one attention block is made of, and what it did on one batch."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths import attention as attention_maths
from normscope.maths.mixing import Method, mixing_ratios, preserving_vectors
from normscope.maths.normalisation import Normalisation
from normscope.maths.norms import norm_factors, transformed_norms


def full_precision(tensor: Tensor) -> Tensor:
    """A tensor in float32 or better: a model may run in half precision, what is measured of it may not."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclasses.dataclass(frozen=True, eq=False)
class BlockParameters:
    """The weights of one block, head by head, whatever way its family stores them; in float32 or better."""

    key_weight: Float[Tensor, "head model head_dim"]
    """W_K."""
    key_bias: Float[Tensor, "head head_dim"]
    """b_K; zero where there is none."""
    value_weight: Float[Tensor, "head model head_dim"]
    """W_V."""
    value_bias: Float[Tensor, "head head_dim"]
    """b_V; zero where there is none."""
    output_weight: Float[Tensor, "head head_dim model"]
    """W_O."""
    output_bias: Float[Tensor, " model"] | None
    """b_O."""
    normalisation: Normalisation
    """The norm after the residual connection."""

    @cached_property
    def norm_factors(self) -> Float[Tensor, "head head_dim rank"]:
        """What turns the norm of v W_O into the norm of a vector as small as a head."""
        return norm_factors(self.output_weight)


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
    everything_visible: bool
    """Whether every token sees every token, padding aside."""
    scale: float
    """Factor on q·k before the softmax."""
    log_normaliser: Float[Tensor, "batch head query"]
    """log Σ_j exp(scale·q_i·k_j)."""
    attention_output: Float[Tensor, "batch query model"]
    """Σ_j F_ij + b_O, as the model computed it."""
    parameters: BlockParameters
    real: Bool[Tensor, "batch query"]
    """True at tokens, False at padding. Rows of padding hold meaningless finite numbers everywhere."""

    @cached_property
    def weights(self) -> Float[Tensor, "batch head query key"]:
        """Post-softmax attention α; zero at invisible keys."""
        return attention_maths.attention_weights(self.query, self.key, self.mask, self.scale)

    @property
    def attention_inputs(self) -> Float[Tensor, "batch key model"]:
        """What enters W_Q, W_K and W_V."""
        return self.inputs

    @property
    def output_bias(self) -> Float[Tensor, " model"] | None:
        """b_O."""
        return self.parameters.output_bias

    @property
    def normalisation(self) -> Normalisation:
        """The norm after the residual connection."""
        return self.parameters.normalisation

    @cached_property
    def invisible(self) -> Bool[Tensor, "#batch #head query #key"] | None:
        """Which pairs do not count: queries that are padding, keys that a query does not see; None where all count."""
        hidden = None if self.mask is None else self.mask == float("-inf")
        if bool(self.real.all()):
            return hidden
        padding = ~self.real[:, None, :, None]
        return padding if hidden is None else hidden | padding

    @cached_property
    def received(self) -> Float[Tensor, "batch head key"]:
        """Σ_i α_ij over the real queries: all the weight that falls on each key."""
        return (self.real.to(self.weights.dtype)[:, None, None, :] @ self.weights).squeeze(2)

    @cached_property
    def transformed_norms(self) -> Float[Tensor, "batch head key"]:
        """‖f^h(x_j)‖."""
        return transformed_norms(self.value, self.parameters.norm_factors)

    @cached_property
    def self_weights(self) -> Float[Tensor, "batch head query"]:
        """α_ii, what each token gives to itself, without building `weights`."""
        return attention_maths.self_attention_weights(self.query, self.key, self.log_normaliser, self.scale)

    @cached_property
    def preserving(self) -> Float[Tensor, "batch query model"]:
        """F_ii, what each token takes from itself through attention."""
        return preserving_vectors(self.self_weights, self.value, self.parameters.output_weight)

    @cached_property
    def mixing(self) -> Float[Tensor, "batch query model"]:
        """Σ_{j≠i} F_ij, what each token takes from the others: the attention output less b_O and F_ii."""
        context = self.attention_output - self.preserving
        return context if self.output_bias is None else context.sub_(self.output_bias)

    @cached_property
    def mixing_ratios(self) -> Mapping[Method, Float[Tensor, "batch query"]]:
        """r_i of every token, by method."""
        return mixing_ratios(self.self_weights, self.preserving, self.mixing, self.inputs, self.normalisation)

    @cached_property
    def deviation(self) -> Float[Tensor, "batch query"]:
        """σ_i of the norm after the residual connection."""
        return self.normalisation.deviation(self.inputs + self.attention_output)

    def transformed(self) -> Float[Tensor, "batch head key model"]:
        """f^h(x_j) of every head, explicitly. As large as `head` times the activations: for looking, not for corpora."""
        return torch.einsum("bhkd,hdm->bhkm", self.value, self.parameters.output_weight)
