"""A mixture of experts as one wide network, whose neurons are multiplied by the weights that a router gives their experts.

Row vectors. With FF_e for expert e and r_ie for the weight that the router of token i gives it (zero if e is not chosen), a
mixture gives Σ_e r_ie FF_e(y_i), plus s_i FF_s(y_i) if every token also runs through a shared network (s_i is 1, or the sigmoid
of a linear map of y_i). That is one network whose neurons are those of all experts, each multiplied by its r_ie. Decompositions
hold r and s at their values, as they hold σ of a layer normalisation; they do not explain why experts were chosen.
"""

from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from normscope.models.block import full_precision
from normscope.models.stored_weights import weights_present


class WideWeights(NamedTuple):
    """The weights of the neurons of all experts, expert by expert."""

    input: Float[Tensor, "model neuron"]
    multiplier: Float[Tensor, "model neuron"] | None
    output: Float[Tensor, "neuron model"]


class Routes(NamedTuple):
    """The experts of every token, and their weights, as the model passes them to its experts."""

    chosen: Int[Tensor, "token choice"]
    weights: Float[Tensor, "token choice"]

    def by_neuron(self, experts: int, neurons: int) -> Float[Tensor, "token neuron"]:
        """r for every neuron: the weight of its expert, zero if that is not chosen.

        Args:
            experts: Number of experts.
            neurons: Number of neurons of all experts together.
        """
        weights = full_precision(self.weights)
        by_expert = weights.new_zeros(len(weights), experts).scatter_add(1, self.chosen, weights)
        return by_expert.repeat_interleave(neurons // experts, dim=1)


def is_mixture(module: nn.Module) -> bool:
    """Whether a module holds experts as transformers does since version 5: stacked weights, and routes among the arguments."""
    return hasattr(module, "_apply_gate") and hasattr(module, "has_gate") and hasattr(module, "down_proj")


def why_not_linear(module: Any) -> str | None:
    """Why the experts of a module cannot be decomposed; None if they can."""
    if module.has_bias:
        return "its experts have biases, which their weights multiply"
    if getattr(module, "has_post_expert_norm", False):
        return "its experts end in a norm"
    if module.has_gate and not module._apply_gate.__qualname__.startswith("_default"):
        return "its experts have a gate of their own kind"
    return None


def wide_weights(experts: nn.Module) -> WideWeights:
    """The weights of all experts side by side, in float32 or better. They are copied."""
    module: Any = experts
    with weights_present(experts):
        # (expert, out, in), unless the module says otherwise
        read = full_precision((module.gate_up_proj if module.has_gate else module.up_proj).detach())
        written = full_precision(module.down_proj.detach())
        if not module.is_transposed:
            read, written = read.transpose(1, 2), written.transpose(1, 2)
        parts = read.chunk(2, dim=2) if module.has_gate else (read,)
        inputs = [part.transpose(0, 1).flatten(1) for part in parts]  # (in, expert × neuron)
        return WideWeights(inputs[0], inputs[1] if module.has_gate else None, written.flatten(0, 1))


class SharedNetwork(NamedTuple):
    """What the network that every token runs through adds to the experts."""

    output: Float[Tensor, "*token model"]
    """FF_s(y)."""
    logit: Float[Tensor, "*token 1"] | None
    """What the sigmoid of its factor s is given; None if s is 1."""

    @property
    def factor(self) -> Float[Tensor, "*token 1"]:
        """s."""
        if self.logit is None:
            return full_precision(self.output[..., :1]).new_ones(*self.output.shape[:-1], 1)
        return full_precision(self.logit).sigmoid()

    def added_to(self, experts: Float[Tensor, "*token model"]) -> Float[Tensor, "*token model"]:
        """The output of the whole mixture, given that of its experts."""
        added = full_precision(self.output) * self.factor.reshape(*self.output.shape[:-1], 1)
        return full_precision(experts) + added.reshape(experts.shape)
