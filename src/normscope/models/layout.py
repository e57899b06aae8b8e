"""Where an architecture keeps the parts of its attention block, as data."""

import dataclasses
from operator import attrgetter
from typing import Literal

from torch import Tensor, nn

from normscope.maths.normalisation import Normalisation
from normscope.models.block import BlockParameters, full_precision

NormPosition = Literal["post"]


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """The parts of one family's attention block, as module paths.

    `layers`, `embedding_norm` and `position_embedding` are paths in the base model (what `AutoModel` builds); the others are
    paths in one layer. A path that a model does not have is an error when the model is bound, before anything runs.
    """

    model_type: str
    """The family's name in transformers configs."""
    layers: str
    """The list of layers."""
    attention: str
    """The module that is handed to transformers' attention function."""
    key: str
    """W_K and b_K."""
    value: str
    """W_V and b_V."""
    output: str
    """W_O: its input is the concatenated heads, its output the attention output."""
    norm: str
    """The normalisation that belongs to the block."""
    norm_position: NormPosition
    """`post`: y = LN(x + attention(x))."""
    embedding_norm: str | None
    """The norm whose output is the hidden vector of layer 0, in the base model; None where something else comes after it."""
    output_norm: str | None
    """The norm whose output is the layer's hidden vector."""
    position_embedding: str | None
    """A learned position embedding, which bounds the length of a sequence; None where there is none."""
    source: str
    """Where transformers defines the family."""

    def bind(self, model: nn.Module) -> "list[BlockModules]":
        """The modules of every layer of a model, in order.

        Raises:
            AttributeError: If the model lacks a part that the layout names.
        """
        layers = attrgetter(self.layers)(model)
        return [
            BlockModules(
                number,
                layer,
                attrgetter(self.attention)(layer),
                attrgetter(self.key)(layer),
                attrgetter(self.value)(layer),
                attrgetter(self.output)(layer),
                attrgetter(self.norm)(layer),
            )
            for number, layer in enumerate(layers, start=1)
        ]

    def hidden_norms(self, model: nn.Module) -> dict[int, nn.Module]:
        """The norms whose outputs are hidden vectors, by layer from 0, as far as there are such."""
        found = {} if self.embedding_norm is None else {0: attrgetter(self.embedding_norm)(model)}
        if self.output_norm is not None:
            layers = attrgetter(self.layers)(model)
            found |= {number: attrgetter(self.output_norm)(layer) for number, layer in enumerate(layers, start=1)}
        return found

    def longest_sequence(self, model: nn.Module) -> int | None:
        """How many tokens the learned positions allow, or None where nothing bounds them.

        RoBERTa's positions begin after the padding index, so its first rows are never used.
        """
        if self.position_embedding is None:
            return None
        embedding = attrgetter(self.position_embedding)(model)
        return int(embedding.num_embeddings) - (0 if embedding.padding_idx is None else embedding.padding_idx + 1)


@dataclasses.dataclass(frozen=True)
class BlockModules:
    """The modules of one layer that are observed."""

    layer: int
    """Counted from 1."""
    whole: nn.Module
    """The layer: what enters it is the block's input."""
    attention: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    norm: nn.Module

    def parameters(self, heads: int) -> BlockParameters:
        """The weights of the block, split into its heads."""
        output = self.output
        assert isinstance(output, nn.Linear)
        key_weight, key_bias = _by_head(self.key, heads)
        value_weight, value_bias = _by_head(self.value, heads)
        return BlockParameters(
            key_weight=key_weight,
            key_bias=key_bias,
            value_weight=value_weight,
            value_bias=value_bias,
            output_weight=full_precision(output.weight.T).view(heads, -1, output.out_features),
            output_bias=None if output.bias is None else full_precision(output.bias),
            normalisation=normalisation(self.norm),
        )


def normalisation(norm: nn.Module) -> Normalisation:
    """The weights of a norm, in float32 or better."""
    assert isinstance(norm, nn.LayerNorm)
    return Normalisation(full_precision(norm.weight), full_precision(norm.bias), norm.eps)


def _by_head(projection: nn.Module, heads: int) -> tuple[Tensor, Tensor]:
    """Weight (head, model, head_dim) and bias (head, head_dim; zero where there is none) of W_K or W_V."""
    assert isinstance(projection, nn.Linear)
    weight = full_precision(projection.weight.T).view(projection.in_features, heads, -1).transpose(0, 1)
    bias = projection.weight.new_zeros(projection.out_features) if projection.bias is None else projection.bias
    return weight, full_precision(bias).view(heads, -1)
