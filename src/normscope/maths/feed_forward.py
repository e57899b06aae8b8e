"""A feed-forward network as a linear map of the vectors whose sum it reads.

Row vectors. With u = y W_1 + b_1 and w = y V + c, the network is g(u) W_2 + b_2 or, if it is gated, (g(u) ⊙ w) W_2 + b_2.
Integrated gradients along the path from zero to u and w give each summand v of y the contribution

    ((v W_1) ⊙ A) W_2                   A = g(u)/u
    ((v W_1) ⊙ A + (v V) ⊙ B) W_2       A = w ⊙ (g(u) − I(u))/u, B = I(u), if it is gated

with the slopes A and B of the token that reads y. The biases b_1 and c are summands of u and w, and contribute b_1 ⊙ A and
c ⊙ B before W_2. Contributions are linear in v and, with those of the biases, add up to the output, less b_2.

In a mixture of experts, Σ_e r_e FF_e(y), the neurons of all experts are those of one network, each multiplied by the weight r_e
that the router gives its expert. These weights are held at their values, as σ of a layer normalisation is: the slopes are
multiplied by them, and the contributions still add up.

Source: Kobayashi et al. 2024 (ICLR), which does not say whether its baseline is zero.
"""

import dataclasses
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.activations import Activation


class Slopes(NamedTuple):
    """The slopes that make a network linear, token by token."""

    input: Float[Tensor, "*token neuron"]
    """A, on v W_1."""
    multiplier: Float[Tensor, "*token neuron"] | None
    """B, on v V; None if the network is not gated."""

    def routed(self, routing: Float[Tensor, "*token neuron"] | None) -> "Slopes":
        """The slopes of neurons that are multiplied by the weights of their experts.

        Args:
            routing: r; None if the network is dense.
        """
        if routing is None:
            return self
        return Slopes(self.input * routing, None if self.multiplier is None else self.multiplier * routing)


class Read(NamedTuple):
    """What some vectors make of a network's neurons, before the slopes."""

    input: Float[Tensor, "*vector neuron"]
    """v W_1."""
    multiplier: Float[Tensor, "*vector neuron"] | None
    """v V; None if the network is not gated."""

    def sloped_(self, slopes: Slopes) -> Float[Tensor, "*vector neuron"]:
        """(v W_1) ⊙ A + (v V) ⊙ B, written over `input`."""
        neurons = self.input.mul_(slopes.input)
        if self.multiplier is None or slopes.multiplier is None:
            return neurons
        return neurons.addcmul_(self.multiplier, slopes.multiplier)

    def combined(self, coefficients: Float[Tensor, "token vector"]) -> "Read":
        """That of linear combinations of the vectors."""
        return Read(coefficients @ self.input, None if self.multiplier is None else coefficients @ self.multiplier)

    def some(self, rows: slice) -> "Read":
        """That of some of the vectors."""
        return Read(self.input[rows], None if self.multiplier is None else self.multiplier[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class FeedForwardNetwork:
    """The weights of a feed-forward network, whatever way its family stores them, and its activation."""

    input_weight: Float[Tensor, "model neuron"]
    """W_1."""
    input_bias: Float[Tensor, " neuron"] | None
    """b_1; None where there is none."""
    multiplier_weight: Float[Tensor, "model neuron"] | None
    """V; None if the network is not gated."""
    multiplier_bias: Float[Tensor, " neuron"] | None
    """c; None where there is none."""
    output_weight: Float[Tensor, "neuron model"]
    """W_2."""
    output_bias: Float[Tensor, " model"] | None
    """b_2; None where there is none."""
    known_activation: Activation
    """g with its slopes."""

    @property
    def gated(self) -> bool:
        """Whether g(u) is multiplied with another projection of what the network reads."""
        return self.multiplier_weight is not None

    def slopes(
        self,
        pre_activations: Float[Tensor, "*token neuron"],
        multipliers: Float[Tensor, "*token neuron"] | None,
    ) -> Slopes:
        """The slopes of tokens.

        Args:
            pre_activations: u.
            multipliers: w; None if the network is not gated.
        """
        u, w, activation = pre_activations, multipliers, self.known_activation
        if w is None:
            return Slopes(activation.slope(u), None)
        path_slope = activation.path_slope(u)
        return Slopes(activation.slope(u).sub_(path_slope).mul_(w), path_slope.mul_(u))

    def read(self, vectors: Float[Tensor, "*vector model"]) -> "Read":
        """What summands of the input make of the neurons, before the slopes."""
        weight = self.multiplier_weight
        return Read(vectors @ self.input_weight, None if weight is None else vectors @ weight)

    def contribution(self, vectors: Float[Tensor, "*vector model"], slopes: Slopes) -> Float[Tensor, "*vector model"]:
        """What the network makes of summands of its input, given the slopes of the tokens that read them.

        Args:
            vectors: The summands.
            slopes: Of shapes that broadcast to the vectors'.
        """
        return self.read(vectors).sloped_(slopes) @ self.output_weight

    def constant_read(
        self, coefficients: Float[Tensor, "token rank"], basis: Float[Tensor, "rank model"]
    ) -> tuple[Float[Tensor, "token rank_and_bias"], "Read"] | None:
        """What the constant part of the input and the biases make of the neurons, as coefficients by token and a few rows.

        The constant part is nearly the same for all tokens, so it needs no product with W_1 for each.

        Args:
            coefficients: The constant part of what token i reads is Σ_r coefficients_ir basis_r.
            basis: Some vectors.

        Returns:
            Coefficients and rows; None if there is nothing.
        """
        read = self.read(basis)
        if not (self.input_bias is None and self.multiplier_bias is None):
            biases = [
                read.input.new_zeros(read.input.shape[1]) if bias is None else bias
                for bias in (self.input_bias, self.multiplier_bias)
            ]
            rows = [
                None if part is None else torch.vstack([part, bias]) for part, bias in zip(read, biases, strict=True)
            ]
            assert rows[0] is not None
            read = Read(rows[0], rows[1])
            coefficients = torch.cat([coefficients, coefficients.new_ones(len(coefficients), 1)], dim=1)
        return (coefficients, read) if len(read.input) else None
