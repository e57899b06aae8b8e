"""Finds the feed-forward network of every layer of a model."""

import copy
import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normscope.errors import InputError
from normscope.maths.composition import NormPosition
from normscope.models.feed_forward import FeedForwardParameters
from normscope.models.layout import BlockLayout, FeedForwardLayout, normalisation, weight_and_bias


@dataclasses.dataclass(frozen=True)
class FeedForwardModules:
    """The modules of one layer's feed-forward network."""

    layer: int
    """Counted from 1."""
    input: nn.Module
    """W_1; of a fused network V as well."""
    multiplier: nn.Module | None
    """V, where it is a module of its own."""
    activation: Callable[[Tensor], Tensor]
    output: nn.Module
    """W_2."""
    norm: nn.Module | None
    output_norm: nn.Module | None
    norm_position: NormPosition
    layout: FeedForwardLayout

    def parameters(self) -> FeedForwardParameters:
        """The weights of the network. Those of a model in float32 or float64 are not copied."""
        input_weight, input_bias = weight_and_bias(self.input)
        multiplier_weight: Tensor | None = None
        multiplier_bias: Tensor | None = None
        if self.layout.fused:
            input_weight, multiplier_weight = input_weight.chunk(2, dim=1)
            input_bias, multiplier_bias = (None, None) if input_bias is None else input_bias.chunk(2)
        elif self.multiplier is not None:
            multiplier_weight, multiplier_bias = weight_and_bias(self.multiplier)
        output_weight, output_bias = weight_and_bias(self.output)
        return FeedForwardParameters(
            input_weight=input_weight,
            input_bias=input_bias,
            multiplier_weight=multiplier_weight,
            multiplier_bias=multiplier_bias,
            output_weight=output_weight,
            output_bias=output_bias,
            activation=_in_type(self.activation, input_weight.dtype),
            norm_position=self.norm_position,
            normalisation=self._normalisation(self.norm),
            output_normalisation=self._normalisation(self.output_norm),
        )

    def _normalisation(self, norm: nn.Module | None) -> Any:
        return None if norm is None else normalisation(norm, unit_offset=self.layout.unit_offset)


def bind_feed_forward(model: PreTrainedModel, layout: BlockLayout, name: str | None = None) -> list[FeedForwardModules]:
    """The feed-forward networks of all layers of a model, in order. A layer that runs twice appears twice.

    Args:
        model: A base model.
        layout: The layout of its family.
        name: For messages; the family's by default.

    Raises:
        InputError: If a layer has no network of a form that its family's layout describes (a mixture of experts, say).
    """
    networks = []
    for number, layer in enumerate(layout.passes(model), start=1):
        network = _bound(model, layout, number, layer)
        if network is None:
            expected = " or ".join(f"{form.input} and {form.output}" for form in layout.feed_forward) or "one"
            raise InputError(
                f"model.name={name or layout.model_type}: layer {number} has no feed-forward network that can be observed: "
                f"expected {expected} as linear layers (mixtures of experts are not supported); set another model.name, or "
                "leave out the analyses that need the network"
            )
        networks.append(network)
    return networks


def _bound(model: PreTrainedModel, layout: BlockLayout, number: int, layer: nn.Module) -> FeedForwardModules | None:
    for form in layout.feed_forward:
        paths = [path for path in (form.input, form.multiplier, form.output) if path is not None]
        if all(isinstance(_part(layer, path), nn.Linear | Conv1D) for path in paths):
            return FeedForwardModules(
                layer=number,
                input=attrgetter(form.input)(layer),
                multiplier=None if form.multiplier is None else attrgetter(form.multiplier)(layer),
                activation=attrgetter(form.activation)(layer),
                output=attrgetter(form.output)(layer),
                norm=None if form.norm is None else attrgetter(form.norm)(layer),
                output_norm=None if form.output_norm is None else attrgetter(form.output_norm)(layer),
                norm_position=_norm_position(layout, form, model),
                layout=form,
            )
    return None


def _norm_position(layout: BlockLayout, form: FeedForwardLayout, model: PreTrainedModel) -> NormPosition:
    """Where the norm stands: that of the block, unless a config turns its parallel residual connection off."""
    sequential = form.parallel is not None and not getattr(model.config, form.parallel)
    return "pre" if sequential else layout.norm_position


def _part(layer: nn.Module, path: str) -> Any:
    try:
        return attrgetter(path)(layer)
    except AttributeError:
        return None


def _in_type(activation: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """An activation whose learned parameters, if it has any (PReLU), have the type of what it is applied to."""
    if not isinstance(activation, nn.Module) or all(weight.dtype == dtype for weight in activation.parameters()):
        return activation
    return copy.deepcopy(activation).to(dtype)
