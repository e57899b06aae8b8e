"""Layers of a model with their attention weights, deviations and slopes held fixed; see `maths/frozen.py`."""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError
from normscope.maths.activations import Activation, activation_of
from normscope.maths.frozen import (
    FrozenAttention,
    FrozenFeedForward,
    FrozenLayer,
    FrozenNorm,
)
from normscope.maths.frozen_convolution import FrozenConvolution
from normscope.maths.normalisation import Normalisation
from normscope.models.block import AttentionBlock, full_precision
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.layout import ModelLayout
from normscope.models.norm_weights import normalisation
from normscope.models.stored_weights import execution_device


def frozen_layer(block: FeedForwardBlock) -> FrozenLayer:
    """One layer, held fixed at its inputs.

    Args:
        block: The layer's feed-forward network, with its attention block.

    Raises:
        InputError: If the activation of the network is none that we know.
    """
    attention, parameters = block.attention, block.parameters
    position = attention.parameters.norm_position
    block_norm = attention.parameters.normalisation
    norm = None if block.norm_inputs is None else FrozenNorm.at(parameters.normalisation, block.norm_inputs)
    after = parameters.norm_position == "post"
    return FrozenLayer(
        attention_norm=FrozenNorm.at(attention.parameters.input_normalisation, attention.inputs),
        attention=frozen_attention(attention),
        attention_output_norm=FrozenNorm.at(block_norm, attention.attention_output) if position == "branch" else None,
        block_norm=(
            FrozenNorm.at(block_norm, attention.inputs + attention.attention_output) if position == "post" else None
        ),
        feed_forward_norm=None if after else norm,
        feed_forward=FrozenFeedForward(
            parameters, parameters.slopes(block.pre_activations, block.multipliers).routed(block.routing)
        ),
        feed_forward_output_norm=FrozenNorm.at(parameters.output_normalisation, block.output),
        output_norm=norm if after else None,
        parallel=parameters.norm_position == "parallel",
    )


def frozen_attention(block: AttentionBlock) -> FrozenAttention:
    """The attention of one block, with its weights held fixed."""
    parameters = block.parameters
    return FrozenAttention(
        strips=block.alpha.strips,
        value_weight=parameters.value_weight,
        value_bias=parameters.value_bias,
        output_weight=parameters.output_weight,
        output_bias=parameters.output_bias,
        gate=block.gate,
    )


def known_activation(function: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> Activation:
    """The activation that a function computes.

    Args:
        function: A module or a function, applied neuron by neuron.
        dtype: The type that it takes, float32 or better.
        device: The device that it works on.

    Raises:
        InputError: If it is none that we know.
    """
    activation = activation_of(function, torch.empty(0, dtype=dtype, device=device))
    if activation is None:
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"the activation {name} has no known slope, so no attribution can pass through the feed-forward networks; set "
            "another model.name, or use rollout, norm_rollout or alti"
        )
    return activation


class LayerFreezer:
    """Holds the layers of a model fixed at their inputs."""

    def __init__(self, model: PreTrainedModel, layout: ModelLayout) -> None:
        self._model, self._layout = model, layout
        self._convolutions = FrozenConvolutions(model, layout)

    @cached_property
    def final_norm(self) -> Normalisation | None:
        """The norm after the last layer; None if there is none."""
        if self._layout.stream.final_norm is None:
            return None
        return self._layout.normalisation(
            attrgetter(self._layout.stream.final_norm)(self._model), execution_device(self._model)
        )

    def check(self, layers: int) -> None:
        """Check that vectors can be followed to the last hidden vectors.

        Args:
            layers: Number of layers of the model.

        Raises:
            InputError: If the model is a single layer with a convolution beside it.
        """
        if self._convolutions and layers == 1:
            kind = self._layout.family
            raise InputError(f"attribution needs at least two layers of a {kind} with a convolution; got one")

    def layer(self, block: FeedForwardBlock) -> FrozenLayer:
        """One layer, held fixed.

        Args:
            block: The layer's feed-forward network, with its attention block.

        Raises:
            InputError: If the activation of the network is none that we know.
        """
        frozen = frozen_layer(block)
        if block.layer > 1 or not self._convolutions:
            return frozen
        return self._convolutions.beside(block, frozen)


class FrozenConvolutions:
    """The convolution beside a model's first layer, if it has one, held fixed at its inputs."""

    def __init__(self, model: PreTrainedModel, layout: ModelLayout) -> None:
        self._module: Any = None if layout.stream.convolution is None else attrgetter(layout.stream.convolution)(model)

    def __bool__(self) -> bool:
        return self._module is not None

    def beside(self, block: FeedForwardBlock, layer: FrozenLayer) -> FrozenLayer:
        """The first layer with the convolution beside it.

        Args:
            block: The first layer.
            layer: The same, held fixed.
        """
        module: Any = self._module
        convolution, norm = module.conv, module.LayerNorm
        kernel, bias = full_precision(convolution.weight), convolution.bias
        frozen = FrozenConvolution(
            kernel,
            None if bias is None else full_precision(bias),
            torch.ones_like(block.layer_output),
            convolution.groups,
        )
        inputs = block.attention.inputs
        convolved = frozen.linear(inputs) + frozen.constant(inputs)
        activation = known_activation(ACT2FN[module.conv_act], convolved.dtype, convolved.device)
        slope = activation.slope(convolved) * block.token_mask.unsqueeze(-1)
        frozen = dataclasses.replace(frozen, slope=slope)
        summed = block.layer_output + frozen.linear(inputs) + frozen.constant(inputs)
        return dataclasses.replace(
            layer,
            beside=frozen,
            beside_norm=FrozenNorm.at(normalisation(norm, (inputs.shape[-1], inputs.device)), summed),
        )
