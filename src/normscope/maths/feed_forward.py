"""A feed-forward network as a linear map of the vectors whose sum it reads.

Row vectors. With u = y W_1 + b_1 and w = y V + c, the network is g(u) W_2 + b_2 or, if it is gated, (g(u) ⊙ w) W_2 + b_2.
Integrated gradients along the path from a baseline to y give each summand v of y the contribution

    ((v W_1) ⊙ A) W_2                   A = g(u)/u
    ((v W_1) ⊙ A + (v V) ⊙ B) W_2       A = w ⊙ (g(u) − I(u))/u, B = I(u), if it is gated

with the slopes A and B of the token that reads y. Contributions are linear in v and add up to the output, less what the
baseline gives. Two baselines are common:

    summand   zero, with the biases among the summands
    inside    y = 0, with the biases inside the activation: u starts at b_1, and A is a slope of the secant from there

Source: Kobayashi et al. 2024 (ICLR), which does not say which baseline it takes.
"""

import dataclasses
import enum
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.activations import Activation


class BiasRule(enum.StrEnum):
    """Where integrated gradients leave the biases b_1 and c of a feed-forward network."""

    SUMMAND = "summand"
    """They are summands of what the activation reads; the baseline is zero."""
    INSIDE = "inside"
    """They stay inside the activation; the baseline is what the network gives without an input."""


class Slopes(NamedTuple):
    """The slopes that make a network linear, token by token."""

    input: Float[Tensor, "*token neuron"]
    """A, on v W_1."""
    multiplier: Float[Tensor, "*token neuron"] | None
    """B, on v V; None if the network is not gated."""


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
        rule: BiasRule = BiasRule.SUMMAND,
    ) -> Slopes:
        """The slopes of tokens.

        Args:
            pre_activations: u.
            multipliers: w; None if the network is not gated.
            rule: Where integrated gradients leave the biases.
        """
        u, w, activation = pre_activations, multipliers, self.known_activation
        inside = rule is BiasRule.INSIDE
        if w is None:
            if inside and self.input_bias is not None:
                return Slopes(activation.secant(u, self.input_bias), None)
            return Slopes(activation.slope(u), None)
        if inside and not (self.input_bias is None and self.multiplier_bias is None):
            b = u.new_zeros(u.shape[-1]) if self.input_bias is None else self.input_bias
            mean, path_secant = activation.path_secant(u, b)
            if self.multiplier_bias is None:
                return Slopes(w * path_secant, mean)
            c = self.multiplier_bias
            return Slopes((w - c) * path_secant + c * activation.secant(u, b), mean)
        path_slope = activation.path_slope(u)
        return Slopes(activation.slope(u).sub_(path_slope).mul_(w), path_slope.mul_(u))

    def contribution(self, vectors: Float[Tensor, "*vector model"], slopes: Slopes) -> Float[Tensor, "*vector model"]:
        """What the network makes of summands of its input, given the slopes of the tokens that read them.

        Args:
            vectors: The summands.
            slopes: Of shapes that broadcast to the vectors'.
        """
        neurons = (vectors @ self.input_weight).mul_(slopes.input)
        if self.multiplier_weight is not None and slopes.multiplier is not None:
            neurons.addcmul_(vectors @ self.multiplier_weight, slopes.multiplier)
        return neurons @ self.output_weight

    def constant(
        self,
        coefficients: Float[Tensor, "token rank"],
        basis: Float[Tensor, "rank model"],
        slopes: Slopes,
        rule: BiasRule = BiasRule.SUMMAND,
    ) -> Float[Tensor, "token model"] | None:
        """What the network makes of no token's vector: of the constant part of its input, and of its biases.

        The constant part is nearly the same for all tokens, so it needs no product with W_1 for each.

        Args:
            coefficients: The constant part of what token i reads is Σ_r coefficients_ir basis_r.
            basis: Some vectors.
            slopes: The slopes of the tokens.
            rule: Where integrated gradients leave the biases.

        Returns:
            The constant part of the network's output; None if it is zero.
        """
        inside = rule is BiasRule.INSIDE
        parts: list[Tensor] = []
        for weight, bias, slope in (
            (self.input_weight, self.input_bias, slopes.input),
            (self.multiplier_weight, self.multiplier_bias, slopes.multiplier),
        ):
            if weight is None or slope is None:
                continue
            rows, scale = basis @ weight, coefficients
            if bias is not None and not inside:
                rows = torch.cat([rows, bias.unsqueeze(0)])
                scale = torch.cat([coefficients, torch.ones_like(slope[:, :1])], dim=1)
            if len(rows):
                parts.append((scale @ rows).mul_(slope))
        result = None
        if parts:
            result = (parts[0] if len(parts) == 1 else parts[0].add_(parts[1])) @ self.output_weight
        for constant in (self._baseline() if inside else None, self.output_bias):
            if constant is not None:
                result = constant.expand(len(coefficients), -1) if result is None else result + constant
        return result

    def _baseline(self) -> Float[Tensor, " model"] | None:
        """What the network gives at y = 0, less b_2; None if that is zero."""
        if self.input_bias is None or (self.multiplier_weight is not None and self.multiplier_bias is None):
            return None
        neurons = self.known_activation.value(self.input_bias)
        return (neurons if self.multiplier_bias is None else neurons * self.multiplier_bias) @ self.output_weight
