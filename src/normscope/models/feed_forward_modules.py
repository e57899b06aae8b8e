"""Finds the feed-forward network of every layer of a model."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normscope.errors import InputError
from normscope.maths.activations import ACTIVATIONS, Activation, activation_of
from normscope.maths.composition import NormPosition
from normscope.models.block import full_precision
from normscope.models.experts import WideWeights, is_mixture, wide_weights
from normscope.models.feed_forward import FeedForwardParameters
from normscope.models.layer_parts import LayerParts
from normscope.models.layout import ModelLayout
from normscope.models.linear_layers import scaled_projection, weight_and_bias
from normscope.models.norm_weights import normalisation
from normscope.models.plain_operations import BareLinear
from normscope.models.pointwise import PointwiseLinear
from normscope.models.site import FeedForwardLayout, Site
from normscope.models.stored_weights import weights_present


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
    known_activation: Activation
    """What `activation` computes."""
    output: nn.Module
    """W_2."""
    norm: nn.Module | None
    output_norm: nn.Module | None
    norm_position: NormPosition
    scale: float | Tensor
    """Factor on the network's output, possibly one for each dimension; `parameters` has it in W_2 and b_2."""
    layout: FeedForwardLayout
    unit_offset: bool
    """Whether the norms store γ − 1."""
    shared: "FeedForwardModules | None" = None
    """The network beside the experts of a mixture that every token runs through; None if there is none."""
    shared_gate: nn.Module | None = None
    """What makes the logit of the factor on the output of `shared`; None if the factor is 1."""

    @property
    def routed(self) -> bool:
        """Whether `input` and `output` are one module with the experts of a mixture."""
        return self.layout.routed

    @property
    def experts(self) -> int:
        """Number of experts of a mixture."""
        return len(self.output.down_proj)  # type: ignore[arg-type]

    @property
    def gated(self) -> bool:
        """Whether a module of its own computes multipliers."""
        return self.multiplier is not None

    def halves(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """What belongs to W_1 and to V, of a fused network, along the last axis."""
        first, second = outputs.chunk(2, dim=-1)
        return (second, first) if self.layout.multiplier_first else (first, second)

    def parameters(self) -> FeedForwardParameters:
        """The weights of the network. Those of a model in float32 or float64 are not copied, but for those of experts."""
        if self.routed:
            return self._parameters(self._wide_weights())
        input_weight, input_bias = weight_and_bias(self.input)
        multiplier_weight: Tensor | None = None
        multiplier_bias: Tensor | None = None
        if self.layout.fused:
            input_weight, multiplier_weight = self.halves(input_weight)
            input_bias, multiplier_bias = (None, None) if input_bias is None else self.halves(input_bias)
        elif self.multiplier is not None:
            multiplier_weight, multiplier_bias = weight_and_bias(self.multiplier)
        output_weight, output_bias = scaled_projection(self.output, self.scale)
        weights = WideWeights(input_weight, multiplier_weight, output_weight)
        return self._parameters(weights, input_bias, multiplier_bias, output_bias)

    def _wide_weights(self) -> WideWeights:
        """The weights of the neurons of all experts, and of those that every token runs through."""
        weights = wide_weights(self.output)
        weights = weights._replace(output=weights.output * self.scale)
        if self.shared is None:
            return weights
        beside = self.shared.parameters()
        multiplier = weights.multiplier
        if multiplier is not None:
            assert beside.multiplier_weight is not None
            multiplier = torch.cat([multiplier, beside.multiplier_weight], dim=1)
        return WideWeights(
            torch.cat([weights.input, beside.input_weight], dim=1),
            multiplier,
            torch.cat([weights.output, beside.output_weight]),
        )

    def _parameters(
        self,
        weights: WideWeights,
        input_bias: Tensor | None = None,
        multiplier_bias: Tensor | None = None,
        output_bias: Tensor | None = None,
    ) -> FeedForwardParameters:
        input_weight, multiplier_weight, output_weight = weights
        return FeedForwardParameters(
            input_weight=input_weight,
            input_bias=input_bias,
            multiplier_weight=multiplier_weight,
            multiplier_bias=multiplier_bias,
            output_weight=output_weight,
            output_bias=output_bias,
            activation=_in_type(self.activation, input_weight.dtype),
            known_activation=self.known_activation,
            norm_position=self.norm_position,
            normalisation=self._normalisation(self.norm, output_weight),
            output_normalisation=self._normalisation(self.output_norm, output_weight),
        )

    def _normalisation(self, norm: nn.Module | None, output_weight: Tensor) -> Any:
        if norm is None:
            return None
        return normalisation(norm, (output_weight.shape[1], output_weight.device), unit_offset=self.unit_offset)


def bind_feed_forward(model: PreTrainedModel, layout: ModelLayout, name: str | None = None) -> list[FeedForwardModules]:
    """The feed-forward networks of all layers with attention, in order. A layer that runs twice appears twice.

    Args:
        name: For messages; the family's by default.

    Raises:
        InputError: If a layer has no network of a form that its family's layout describes (a mixture of experts, say), or
            an activation whose slope is not known.
    """
    networks = []
    for site in layout.sites:
        network = _bound(layout, site, LayerParts(model, site.layer), name or layout.family)
        if network is None:
            expected = "one" if site.network is None else f"{site.network.input} and {site.network.output}"
            raise InputError(
                f"model.name={name or layout.family}: layer {site.layer} has no feed-forward network that can be observed: "
                f"expected {expected} as linear layers or experts; set another model.name, or leave out the analyses that need "
                "the network"
            )
        networks.append(network)
    return networks


def _bound(layout: ModelLayout, site: Site, parts: LayerParts, name: str) -> FeedForwardModules | None:
    return None if site.network is None else _of_form(site.network, layout, site, parts, name)


def _of_form(
    form: FeedForwardLayout, layout: ModelLayout, site: Site, parts: LayerParts, name: str
) -> FeedForwardModules | None:
    """The network of a layer, if it has this form."""
    needed = [path for path in (form.input, form.multiplier, form.output, form.shared_gate) if path is not None]
    complete = form.activation is None or parts.get(form.activation) is not None
    if not complete or not all(_holds_weights(parts.get(path)) for path in needed):
        return None
    shared = None if form.shared is None else _of_form(form.shared, layout, site, parts, name)
    if (shared is None) != (form.shared is None):
        return None
    input_module, activation = parts.get(form.input), _activation(form, parts)
    with weights_present(input_module):
        like = full_precision((input_module.down_proj if form.routed else input_module.weight).flatten()[:1])
    return FeedForwardModules(
        layer=parts.number,
        input=input_module,
        multiplier=None if form.multiplier is None else parts.get(form.multiplier),
        activation=activation,
        known_activation=_known(activation, like, parts.number, name),
        output=parts.get(form.output),
        norm=None if form.norm is None else parts.get(form.norm),
        output_norm=None if form.output_norm is None else parts.get(form.output_norm),
        norm_position=site.residual.norm_position,
        scale=parts.scale(site.residual.scale, form.scaling),
        layout=form,
        unit_offset=layout.unit_offset,
        shared=shared,
        shared_gate=None if form.shared_gate is None else parts.get(form.shared_gate),
    )


def _holds_weights(module: Any) -> bool:
    linear = isinstance(module, nn.Linear | Conv1D | BareLinear | PointwiseLinear)
    return linear or (isinstance(module, nn.Module) and is_mixture(module))


def _activation(form: FeedForwardLayout, parts: LayerParts) -> Callable[[Tensor], Tensor]:
    if form.activation is None:
        assert form.function is not None
        return ACTIVATIONS[form.function].value
    found: Callable[[Tensor], Tensor] = parts.part("activation", form.activation)
    return found


def _known(activation: Callable[[Tensor], Tensor], like: Tensor, layer: int, name: str) -> Activation:
    known = activation_of(_in_type(activation, like.dtype), like)
    if known is None:
        kind = getattr(activation, "__name__", type(activation).__name__)
        raise InputError(
            f"model.name={name}: the activation of layer {layer}, {kind}, has no known slope: expected "
            f"{', '.join(ACTIVATIONS)} or leaky ReLU; set another model.name, or leave out the analyses that need the "
            "feed-forward network"
        )
    return known


def _in_type(activation: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """An activation whose learned parameters, if it has any (PReLU), have the type of what it is applied to."""
    if not isinstance(activation, nn.Module) or all(weight.dtype == dtype for weight in activation.parameters()):
        return activation
    return copy.deepcopy(activation).to(dtype)
