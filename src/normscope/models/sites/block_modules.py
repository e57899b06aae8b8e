"""The modules of attention blocks, which the sites of a layout name, found in a model, and their weights."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.maths.normalisation import Normalisation
from normscope.models.blocks.block import BlockParameters, HeadProjection
from normscope.models.sites.layout import ModelLayout
from normscope.models.sites.linear_layers import SideBySide, by_head, first_of, scaled_projection
from normscope.models.sites.norm_weights import normalisation
from normscope.models.sites.site import GateSite, HeadsSite, LayerParts, Site
from normscope.models.stored.stored_weights import is_offloaded


class HeadModules(NamedTuple):
    """The modules of one layer that make queries, keys and values, and the gate on what the heads return."""

    query: nn.Module | None
    key: nn.Module | None
    value: nn.Module | None
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    gate: nn.Module | None
    """The linear layer of the gate."""
    biases: Mapping[HeadsSite, Tensor]
    """b_Q, b_K and b_V that are separate parameters."""


@dataclasses.dataclass(frozen=True)
class BlockModules:
    """The modules of one layer that are observed."""

    site: Site
    """Where they are, and what the layer does with them."""
    entry: nn.Module
    """The module whose input is the layer's: the layer or, if no module runs it, its first module."""
    attention: nn.Module
    heads: HeadModules
    reader: nn.Module | None
    """A module that reads what attention reads, if W_K does not; None if no linear layer does."""
    output: nn.Module
    carried: nn.Module | None
    """The module whose input the residual connection carries; None if that is the layer's input, or `bottleneck` makes it."""
    bottleneck: nn.Module | None
    norm: nn.Module | None
    attention_norm: nn.Module | None
    sum_consumer: nn.Module | None
    """The module that reads the block's sum; None if the block has a norm of its own, or the layer returns the sum."""
    output_norm: nn.Module | None
    scale: float | Tensor
    """Factor on the attention output, possibly one for each dimension; `parameters` has it in W_O and b_O."""
    later_scales: tuple[float | Tensor, ...]
    """Factors that may be on what the rest of the layer adds."""
    layout: ModelLayout

    @property
    def layer(self) -> int:
        """The number of the layer, from 1."""
        return self.site.layer

    @property
    def softmaxes(self) -> int:
        """How many softmaxes the attention module runs: one, or one for each head that is a separate module."""
        query = self.heads.query
        return len(query.layers) if isinstance(query, SideBySide) else 1

    @cached_property
    def attends_throughout(self) -> bool:
        """Whether the attention module runs the layer, as the module itself does whose `forward` attends."""
        return self.attention is not self.entry and any(each is self.entry for each in self.attention.modules())

    @property
    def reads_attention_inputs(self) -> nn.Module | None:
        """A module whose input is that of attention; None if no linear layer reads it."""
        return first_of(self.heads.key or self.reader)

    @property
    def reads_query_inputs(self) -> nn.Module | None:
        """A module whose input is that of W_Q, if this is cross-attention, in which W_K reads something else."""
        return first_of(self.heads.query) if self.layout.is_cross_attention else None

    @property
    def own_scale(self) -> float:
        """The factor on q·k in the scores of an attention module that does not pass it to an attention function."""
        scale = self.site.attention.scale
        if scale is None:
            raise InputError(
                f"the attention of layer {self.layer} cannot be observed: its scores are not a multiple of q·k plus other terms"
            )
        return scale

    def parameters(self) -> BlockParameters:
        """The weights of the block by head; keys and values that several heads share are repeated.

        Raises:
            InputError: If the weights do not have that many heads.
        """
        heads, key_heads = self.site.attention.heads, self.site.attention.key_heads
        try:
            return self._parameters(heads, key_heads)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise InputError(
                f"model: the weights of layer {self.layer} do not fit the {heads} query heads and {key_heads} heads of keys "
                f"and values in its config: {one_line(error)}"
            ) from error

    def _parameters(self, heads: int, key_heads: int) -> BlockParameters:
        layout, attention, own = self.layout, self.site.attention, self.heads
        repeats = heads // key_heads
        output_weight, output_bias = scaled_projection(self.output, self.scale)
        of_head, of_model = (
            (size, output_weight.device) for size in (len(output_weight) // heads, output_weight.shape[1])
        )
        key_norm = self._normalisation_of_heads(own.key_norm, of_head)
        key = self._by_head(attention.key, own.key, key_heads, repeats)
        if key is not None and key_norm is not None and key_norm.centred and not key_norm.is_of_heads(key.weight):
            key = key.centred()
        return BlockParameters(
            query=self._by_head(attention.query, own.query, heads),
            key=key,
            value=self._by_head(attention.value, own.value, key_heads, repeats),
            output_weight=output_weight.view(heads, -1, output_weight.shape[1]),
            output_bias=output_bias,
            normalisation=None
            if self.norm is None
            else normalisation(self.norm, of_model, unit_offset=layout.unit_offset),
            input_normalisation=None
            if self.attention_norm is None
            else layout.normalisation(self.attention_norm, output_weight.device),
            norm_position=self.site.residual.norm_position,
            key_normalisation=key_norm,
            query_normalisation=self._normalisation_of_heads(own.query_norm, of_head),
        )

    def _by_head(
        self, site: HeadsSite | None, projection: nn.Module | None, heads: int, repeats: int = 1
    ) -> HeadProjection | None:
        if site is None or projection is None:
            return None
        return by_head(projection, heads, site.columns, self.heads.biases.get(site), repeats)

    def _normalisation_of_heads(self, module: Any, of_head: tuple[int, torch.device]) -> Normalisation | None:
        if module is None:
            return None
        if next(module.children(), None) is None:
            return normalisation(module, of_head, unit_offset=self.layout.unit_offset)
        norms = [normalisation(part, of_head) for part in module.norms]  # StableLM has a module for each head
        return norms[0]._replace(weight=torch.stack([norm.weight for norm in norms]))


def bind_blocks(model: Any, layout: ModelLayout) -> list[BlockModules]:
    """The modules of every layer with a block, in order. A layer that runs twice appears twice.

    Raises:
        InputError: If the model lacks a part that the layout names, or has something else in its place.
    """
    entries = layout.entries(model)
    return [_bound(layout, site, LayerParts(model, site.layer), entries[site.layer - 1]) for site in layout.sites]


def _bound(layout: ModelLayout, site: Site, find: LayerParts, entry: nn.Module) -> BlockModules:
    attention, residual = site.attention, site.residual

    def module(part: str, path: str | None) -> nn.Module | None:
        return find.module(part, path) if path else None

    later = residual.scaling_of_network
    return BlockModules(
        site=site,
        entry=entry,
        attention=find.module("attention module", attention.module),
        heads=_heads(site, find),
        reader=module("reader of the input of attention", attention.reader),
        output=find.projection("W_O", attention.output),
        carried=module("residual connection", residual.carried),
        bottleneck=module("bottleneck", residual.bottleneck),
        norm=find.norm("norm of the block", residual.norm),
        attention_norm=find.norm("norm before attention", residual.attention_norm),
        sum_consumer=module("reader of the sum", residual.sum_consumer),
        output_norm=find.norm("norm of its output", residual.output_norm),
        scale=find.scale(residual.scale, residual.scaling),
        later_scales=(1.0, residual.scale, *([] if later is None else [find.scale(residual.scale, later)])),
        layout=layout,
    )


def _heads(site: Site, find: LayerParts) -> HeadModules:
    attention, norms = site.attention, site.attention.head_norms

    def projection(part: str, given: HeadsSite | GateSite | None) -> nn.Module | None:
        return None if given is None else find.projection(part, given.projection)

    return HeadModules(
        query=projection("W_Q", attention.query),
        key=projection("W_K", attention.key),
        value=projection("W_V", attention.value),
        query_norm=None if norms is None else find.norm("norm of the queries", norms.query),
        key_norm=None if norms is None else find.norm("norm of the keys", norms.key),
        gate=projection("gate", attention.gate),
        biases={
            heads: find.part("separate bias", heads.bias)
            for heads in attention.projections
            if heads is not None and heads.bias is not None
        },
    )


class BlockWeights(Mapping[int, BlockParameters]):
    """The weights of blocks, by layer.

    Args:
        layers: The modules of each layer.
        keep: Whether to read the weights of all layers now. Otherwise they are read one layer at a time, when needed: all
            of them together would take more memory than the model's own.
    """

    def __init__(self, layers: Mapping[int, BlockModules], *, keep: bool) -> None:
        self._layers, self._keep = layers, keep
        self._read: dict[int, BlockParameters] = {}
        # Kept for all layers: each takes a decomposition of W_O to compute, but little memory.
        self._factors: dict[int, Tensor] = {}
        if keep:
            for layer in layers:
                self[layer]

    def __getitem__(self, layer: int) -> BlockParameters:
        if layer in self._read:
            return self._read[layer]
        if not self._keep:
            self._release()
        parameters = self._layers[layer].parameters()
        if layer in self._factors:
            parameters.__dict__["norm_factors"] = self._factors[layer]
        self._read[layer] = parameters
        return parameters

    def _release(self) -> None:
        for layer, parameters in self._read.items():
            if "norm_factors" in parameters.__dict__:
                self._factors[layer] = parameters.norm_factors
        self._read.clear()

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def takes_no_copy(model: PreTrainedModel) -> bool:
    """Whether reading weights in float32 or better copies nothing, because the model's own are already."""
    return model.dtype in (torch.float32, torch.float64) and not is_offloaded(model)
