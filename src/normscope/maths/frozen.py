"""A Transformer layer with its attention weights, deviations and slopes held fixed: an affine map of its inputs.

Attention is linear in the values once α is fixed, a layer normalisation once σ is, and an activation g once its slope
s(u) = g(u)/u is: g(u) = u s(u). A gated network g(u) ⊙ w becomes u ⊙ A + w ⊙ B with A = w (g(u) − I(u))/u and B = I(u), where I
is the mean of g on the path from 0 to u. At its own inputs such a layer gives exactly what the layer gives.

`linear` carries vectors forward, and `transposed` carries a gradient backward, which is all that a scalar output needs: its
parts by token are gradient × input. Biases are kept apart from both.

Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873).
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.choices import ValueBias
from normscope.maths.feed_forward import FeedForwardNetwork, Slopes
from normscope.maths.normalisation import Normalisation
from normscope.maths.tensors import wide

Strips = Callable[[], Iterator[tuple[slice, Tensor]]]
"""Strips of α: the queries, and their weights (batch, head, query, key)."""


class Gradient(NamedTuple):
    """The gradient of a scalar at the inputs of a frozen part, and what the part's constants add to the scalar."""

    inputs: Float[Tensor, "batch token model"]
    bias: Float[Tensor, " batch"]
    """From constants that belong to no token."""
    value_bias: Float[Tensor, "batch token"] | None = None
    """From b_V of each token's values; None where there is no attention."""

    def attributed(
        self, embeddings: Float[Tensor, "#batch token model"], after: Float[Tensor, " batch"], rule: ValueBias
    ) -> tuple[Float[Tensor, "batch token"], Float[Tensor, " batch"]]:
        """Gradient × input of each token, and what biases add to the scalar, in float64.

        Args:
            embeddings: The inputs of the first layer, at which this is the gradient.
            after: What constants after the last hidden vectors add.
            rule: Where the value biases of the first layer go.
        """
        assert self.value_bias is not None
        scores = wide((self.inputs * embeddings).sum(dim=-1))
        biases, value_bias = wide(self.bias) + after, wide(self.value_bias)
        if rule is ValueBias.decompx:
            return scores + value_bias, biases
        return scores, biases + value_bias.sum(dim=-1)


@runtime_checkable
class FrozenMap(Protocol):
    """A part of a layer that treats every token alone."""

    def linear(self, vectors: Tensor) -> Tensor:
        """The map without its constants, of vectors (*stack, batch, token, model)."""

    def constant(self, like: Tensor) -> Tensor:
        """What the map adds to every token, in the shape and type of `like` (batch, token, model)."""

    def transposed(self, gradient: Tensor) -> Gradient:
        """The gradient at the map's inputs."""


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenNorm:
    """γ ⊙ (v − mean(v)) / σ_i + β with σ_i held fixed."""

    norm: Normalisation
    deviation: Float[Tensor, "batch token"]
    """σ_i."""

    @classmethod
    def at(cls, norm: Normalisation | None, vectors: Float[Tensor, "batch token model"]) -> "FrozenNorm | None":
        """A norm with the deviations that it has at these vectors; None without a norm."""
        return None if norm is None else cls(norm, norm.deviation(vectors))

    def linear(self, vectors: Float[Tensor, "*stack batch token model"]) -> Float[Tensor, "*stack batch token model"]:
        """γ ⊙ (v − mean(v)) / σ_i."""
        return self.norm.scaled(vectors) / self.deviation.unsqueeze(-1)

    def constant(self, like: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch token model"]:
        """β of every token."""
        return torch.zeros_like(like) if self.norm.bias is None else self.norm.bias.expand_as(like)

    def transposed(self, gradient: Float[Tensor, "batch token model"]) -> Gradient:
        """The gradient at the norm's inputs: centring is symmetric."""
        bias = _product(gradient, self.norm.bias)
        return Gradient(self.norm.transposed(gradient) / self.deviation.unsqueeze(-1), bias)


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenFeedForward:
    """A feed-forward network with its slopes held fixed: (u ⊙ A) W_2 + b_2, or (u ⊙ A + w ⊙ B) W_2 + b_2 if it is gated."""

    network: FeedForwardNetwork
    slopes: Slopes
    """Of every token."""

    def linear(self, vectors: Float[Tensor, "*stack batch token model"]) -> Float[Tensor, "*stack batch token model"]:
        """The network without b_1, c and b_2."""
        return self.network.contribution(vectors, self.slopes)

    def constant(self, like: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch token model"]:
        """(b_1 ⊙ A + c ⊙ B) W_2 + b_2."""
        network, slopes = self.network, self.slopes
        neurons = like.new_zeros(slopes.input.shape)
        if network.input_bias is not None:
            neurons = neurons + network.input_bias * slopes.input
        if network.multiplier_bias is not None and slopes.multiplier is not None:
            neurons = neurons + network.multiplier_bias * slopes.multiplier
        constant = neurons @ network.output_weight
        return constant if network.output_bias is None else constant + network.output_bias

    def affine(self, vectors: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch token model"]:
        """`linear` plus `constant`, in one step: ((v W_1 + b_1) ⊙ A + (v V + c) ⊙ B) W_2 + b_2."""
        network, read = self.network, self.network.read(vectors)
        if network.input_bias is not None:
            read.input.add_(network.input_bias)
        if network.multiplier_bias is not None and read.multiplier is not None:
            read.multiplier.add_(network.multiplier_bias)
        output = read.sloped_(self.slopes) @ network.output_weight
        return output if network.output_bias is None else output + network.output_bias

    def transposed(self, gradient: Float[Tensor, "batch token model"]) -> Gradient:
        """The gradient at what the network reads."""
        network, slopes = self.network, self.slopes
        bias = _product(gradient, network.output_bias)
        neurons = gradient @ network.output_weight.T
        inner = neurons * slopes.input
        bias = bias + _product(inner, network.input_bias)
        inputs = inner @ network.input_weight.T
        if network.multiplier_weight is not None and slopes.multiplier is not None:
            inner = neurons * slopes.multiplier
            bias = bias + _product(inner, network.multiplier_bias)
            inputs = inputs + inner @ network.multiplier_weight.T
        return Gradient(inputs, bias)


def slope_of_tanh(inputs: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """tanh(u)/u, which is 1 at u = 0. Near 0, tanh(u) is as exact as u, so the quotient loses no digits."""
    return torch.where(inputs == 0, 1.0, torch.tanh(inputs) / inputs.masked_fill(inputs == 0, 1))


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenAttention:
    """Attention with α held fixed: Σ_h α^h (x W_V^h + b_V^h) W_O^h + b_O."""

    strips: Strips
    """α. It is asked for again in each direction, so it is never kept as a whole."""
    value_weight: Float[Tensor, "head model head_dim"]
    value_bias: Float[Tensor, "head head_dim"]
    output_weight: Float[Tensor, "head head_dim model"]
    output_bias: Float[Tensor, " model"] | None
    gate: Float[Tensor, "batch head token #head_dim"] | None = None
    """Factors on what each head sums, held fixed as well; None without a gate."""

    def linear(
        self,
        vectors: Float[Tensor, "*stack batch token model"],
        value_bias: Float[Tensor, "*stack #batch token"] | None = None,
    ) -> Float[Tensor, "*stack batch token model"]:
        """Attention without b_O.

        Args:
            vectors: What W_V reads.
            value_bias: How often each value holds b_V; never by default.
        """
        heads, model, head_dim = self.value_weight.shape
        value = vectors @ self.value_weight.transpose(0, 1).reshape(model, -1)
        if value_bias is not None:
            value = value + value_bias.unsqueeze(-1) * self.value_bias.flatten()
        # The vectors of a stack share α: side by side, they need one product for each head.
        value = value.reshape(-1, *value.shape[-3:-1], heads, head_dim).permute(1, 3, 2, 0, 4).flatten(-2)
        # Strips of queries cover all of them, in order.
        contexts = torch.cat([weights @ value for _, weights in self.strips()], dim=-2)
        contexts = self._gated(contexts.unflatten(-1, (-1, head_dim)).permute(3, 0, 1, 2, 4))
        side_by_side = contexts.transpose(-3, -2).reshape(*vectors.shape[:-1], -1)
        return side_by_side @ self.output_weight.flatten(0, 1)

    def constant(self, like: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch token model"]:
        """b_O of every token."""
        return torch.zeros_like(like) if self.output_bias is None else self.output_bias.expand_as(like)

    def at_values(self, gradient: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch head token head_dim"]:
        """The gradient at the values of every head. Values that receive no weight from a token get none."""
        heads, _, head_dim = self.value_weight.shape
        context = (gradient @ self.output_weight.flatten(0, 1).T).unflatten(-1, (heads, head_dim)).transpose(1, 2)
        context = self._gated(context)
        value = torch.zeros_like(context)
        for queries, weights in self.strips():
            value += _to_keys(weights, context[:, :, queries])
        return value

    def _gated(self, contexts: Float[Tensor, "*stack head token head_dim"]) -> Tensor:
        return contexts if self.gate is None else contexts * self.gate.to(contexts)

    def before_values(
        self, values: Float[Tensor, "batch head token head_dim"]
    ) -> tuple[Float[Tensor, "batch token model"], Float[Tensor, "batch token"]]:
        """The gradient at what W_V reads, from that at the values; and what b_V adds to the scalar, by token."""
        model = self.value_weight.shape[1]
        side_by_side = values.transpose(1, 2).flatten(2)
        inputs = side_by_side @ self.value_weight.transpose(0, 1).reshape(model, -1).T
        return inputs, side_by_side @ self.value_bias.flatten()


def _to_keys(
    weights: Float[Tensor, "text head query key"], context: Float[Tensor, "batch head query head_dim"]
) -> Float[Tensor, "batch head key head_dim"]:
    """α^T times the gradient at what each query has summed. Several gradients of one text share α, which is not repeated."""
    scalars = len(context)
    if len(weights) == scalars:
        return weights.transpose(-1, -2) @ context
    side_by_side = context.permute(1, 2, 0, 3).flatten(2)
    return (weights[0].transpose(-1, -2) @ side_by_side).unflatten(-1, (scalars, -1)).permute(2, 0, 1, 3)


class LayerGradients(NamedTuple):
    """The gradients of a scalar at the parts of a layer.

    Where everything else is held fixed, the scalar is gradient × value summed over the heads, gradient × input summed over what
    bypasses attention, and the bias.
    """

    values: Float[Tensor, "batch head token head_dim"]
    """At the values of every head."""
    network: Float[Tensor, "batch token model"]
    """At the output of the feed-forward network."""
    bypass: Float[Tensor, "batch token model"]
    """At the layer's input, by all ways but through attention."""
    bias: Float[Tensor, " batch"]
    """What constants add that come after the values."""


@dataclasses.dataclass(frozen=True, eq=False)
class FrozenLayer:
    """A layer with everything held fixed that makes it non-linear. None stands for a norm that the layer does not have.

    With N for the norms, in the order of the fields, the layer is

        s = N_3(x + N_2(attention(N_1(x))))
        z = N_6(s + N_5(network(N_4(s))))

    or, if the network is parallel to attention, with network(N_4(x)).
    """

    attention_norm: FrozenMap | None
    attention: FrozenAttention
    attention_output_norm: FrozenMap | None
    block_norm: FrozenMap | None
    feed_forward_norm: FrozenMap | None
    feed_forward: FrozenMap
    feed_forward_output_norm: FrozenMap | None
    output_norm: FrozenMap | None
    parallel: bool
    """Whether the network reads the layer's input."""
    beside: FrozenMap | None = None
    """A map of the layer's input whose result is added after the layer, and `beside_norm` what norms the sum."""
    beside_norm: FrozenMap | None = None

    def linear(
        self,
        inputs: Float[Tensor, "*stack batch token model"],
        value_bias: Float[Tensor, "*stack #batch token"] | None = None,
    ) -> Float[Tensor, "*stack batch token model"]:
        """The layer without its constants.

        Args:
            inputs: Vectors at the layer's input.
            value_bias: How often each token's value holds b_V; never by default.
        """
        attended = self.attention.linear(_linear(self.attention_norm, inputs), value_bias)
        block = _linear(self.block_norm, inputs + _linear(self.attention_output_norm, attended))
        read = _linear(self.feed_forward_norm, inputs if self.parallel else block)
        added = _linear(self.feed_forward_output_norm, self.feed_forward.linear(read))
        outputs = _linear(self.output_norm, block + added)
        if self.beside is None:
            return outputs
        return _linear(self.beside_norm, outputs + self.beside.linear(inputs))

    def constant(
        self, like: Float[Tensor, "batch token model"], *, value_bias: bool
    ) -> Float[Tensor, "batch token model"]:
        """What the layer adds to every token that comes from none of its inputs.

        Args:
            like: A tensor of the shape and type of the layer's input.
            value_bias: Whether to include b_V.
        """
        return self.affine(torch.zeros_like(like), value_bias=value_bias)

    def affine(
        self, inputs: Float[Tensor, "batch token model"], *, value_bias: bool
    ) -> Float[Tensor, "batch token model"]:
        """The layer with its constants.

        Args:
            inputs: Vectors at the layer's input.
            value_bias: Whether to include b_V.
        """
        read = _affine(self.attention_norm, inputs)
        attended = self.attention.linear(read, torch.ones_like(inputs[..., 0]) if value_bias else None)
        attended = _affine(self.attention_output_norm, attended + self.attention.constant(inputs))
        block = _affine(self.block_norm, inputs + attended)
        read = _affine(self.feed_forward_norm, inputs if self.parallel else block)
        added = _affine(self.feed_forward, read)
        output = _affine(self.output_norm, block + _affine(self.feed_forward_output_norm, added))
        if self.beside is None:
            return output
        return _affine(self.beside_norm, output + _affine(self.beside, inputs))

    def transposed(
        self,
        gradient: Float[Tensor, "batch token model"],
        note: Callable[[LayerGradients], None] | None = None,
        *,
        direct: int = 0,
    ) -> Gradient:
        """The gradient at the layer's input of a scalar with this gradient at its output.

        Args:
            note: Receives the gradients at the layer's parts.
            direct: Number of gradients, the last ones, that go back along the residual connections and their norms alone.

        Returns:
            The gradients; from b_V of each token's values, what it adds to the scalars whose gradients are not direct.
        """
        through = len(gradient) - direct
        beside = torch.zeros_like(gradient)
        bias = gradient.new_zeros(len(gradient))
        if self.beside is not None:
            gradient, bias = _back(self.beside_norm, gradient, bias)
            beside, bias = _back(self.beside, gradient, bias)
        block, bias = _back(self.output_norm, gradient, bias)
        network, bias = _back(self.feed_forward_output_norm, block, bias)
        inputs = beside
        read, added = _back(self.feed_forward, network[:through], bias[:through])
        read, added = _back(self.feed_forward_norm, read, added)
        bias = torch.cat([added, bias[through:]])
        if self.parallel:
            inputs = _added_to_first(inputs, read)
        else:
            block = _added_to_first(block, read)
        block, bias = _back(self.block_norm, block, bias)
        attended, bias = _back(self.attention_output_norm, block, bias)
        values = self.attention.at_values(attended)
        bias = bias + _product(attended, self.attention.output_bias)
        inputs = inputs + block
        if note is not None:
            note(LayerGradients(values, network, inputs, bias))
        read, value_bias = self.attention.before_values(values[:through])
        read, added = _back(self.attention_norm, read, bias[:through])
        inputs, bias = _added_to_first(inputs, read), torch.cat([added, bias[through:]])
        return Gradient(inputs, bias, value_bias)


Noted = Callable[[LayerGradients], None]
"""Receives the gradients at the parts of a layer."""


def transposed_through(
    layers: Iterable[tuple[FrozenLayer, Noted | None]],
    final_norm: FrozenMap | None,
    gradient: Float[Tensor, "batch token model"],
    *,
    direct: int = 0,
) -> Gradient:
    """Carry the gradient of a scalar from the last hidden vectors back to the first layer's inputs.

    Args:
        layers: The layers, from the last to the first, each with what receives the gradients at its parts, if anything does.
            Their bias includes that of all later layers.
        final_norm: The norm after the last layer.
        gradient: At the last hidden vectors; zero at padding.
        direct: Number of gradients, the last ones, that go back along the residual connections and their norms alone. If there
            are any, layers note these.

    Returns:
        The gradient at the first layer's inputs, the part of the scalar that comes from biases other than those of the first
        layer's values, and by token what comes from these; of the gradients that are not direct.
    """
    through = len(gradient) - direct
    chosen = slice(through if direct else 0, None)
    gradient, bias = _back(final_norm, gradient, gradient.new_zeros(len(gradient)))
    value_bias: Tensor | None = None
    for layer, note in layers:
        if value_bias is not None:  # that of the layer after this one
            bias = _added_to_first(bias, value_bias.sum(dim=-1))

        def noted(parts: LayerGradients, note: Noted | None = note, later: Tensor = bias) -> None:
            if note is not None:
                note(LayerGradients(*(part[chosen] for part in parts._replace(bias=parts.bias + later))))

        gradient, added, value_bias = layer.transposed(gradient, noted, direct=direct)
        bias = bias + added
    return Gradient(gradient[:through], bias[:through], value_bias)


def _linear(part: FrozenMap | None, vectors: Tensor) -> Tensor:
    return vectors if part is None else part.linear(vectors)


def _affine(part: FrozenMap | None, vectors: Tensor) -> Tensor:
    if isinstance(part, FrozenFeedForward):
        return part.affine(vectors)
    return vectors if part is None else part.linear(vectors) + part.constant(vectors)


def _back(part: FrozenMap | None, gradient: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    if part is None:
        return gradient, bias
    back = part.transposed(gradient)
    return back.inputs, bias + back.bias


def _added_to_first(gradients: Tensor, added: Tensor) -> Tensor:
    """The gradients, with something added to the first of them."""
    count = len(added)
    if count == len(gradients):
        return gradients + added
    return torch.cat([gradients[:count] + added, gradients[count:]])


def _product(gradient: Tensor, constant: Tensor | None) -> Tensor:
    """⟨gradient, constant⟩ over tokens and the last axis, by sequence."""
    return gradient.new_zeros(len(gradient)) if constant is None else (gradient @ constant).sum(dim=-1)
