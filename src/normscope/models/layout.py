"""Where an architecture keeps the parts of its attention block, as data."""

import dataclasses
from operator import attrgetter
from typing import Literal

from torch import nn

from normscope.maths.normalisation import Normalisation
from normscope.models.block import BlockParameters, full_precision

NormPosition = Literal["post"]


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """The parts of one family's attention block, as module paths.

    `layers` and `position_embedding` are paths in the base model (what `AutoModel` builds); the others are paths in one
    layer. A path that a model does not have is an error when the model is bound, before anything runs.
    """

    model_type: str
    """The family's name in transformers configs."""
    layers: str
    """The list of layers."""
    attention: str
    """The module that is handed to transformers' attention function."""
    value: str
    """W_V and b_V."""
    output: str
    """W_O: its input is the concatenated heads, its output the attention output."""
    norm: str
    """The normalisation that belongs to the block."""
    norm_position: NormPosition
    """`post`: y = LN(x + attention(x))."""
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
                attrgetter(self.value)(layer),
                attrgetter(self.output)(layer),
                attrgetter(self.norm)(layer),
            )
            for number, layer in enumerate(layers, start=1)
        ]

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
    value: nn.Module
    output: nn.Module
    norm: nn.Module

    def parameters(self, heads: int) -> BlockParameters:
        """The weights of the block, split into its heads."""
        value, output, norm = self.value, self.output, self.norm
        assert isinstance(value, nn.Linear)
        assert isinstance(output, nn.Linear)
        assert isinstance(norm, nn.LayerNorm)
        value_weight, output_weight = full_precision(value.weight.T), full_precision(output.weight.T)
        bias = value.weight.new_zeros(value.out_features) if value.bias is None else value.bias
        return BlockParameters(
            value_weight=value_weight.view(value.in_features, heads, -1).transpose(0, 1),
            value_bias=full_precision(bias).view(heads, -1),
            output_weight=output_weight.view(heads, -1, output.out_features),
            output_bias=None if output.bias is None else full_precision(output.bias),
            normalisation=Normalisation(full_precision(norm.weight), full_precision(norm.bias), norm.eps),
        )
