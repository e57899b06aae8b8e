"""Where a model keeps its layers and their parts, as data."""

import dataclasses
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.maths.composition import NormPosition
from normscope.maths.mixing import CROSS_ATTENTION_METHODS, METHODS, Method
from normscope.maths.normalisation import Normalisation
from normscope.models.sites.norm_weights import normalisation
from normscope.models.sites.positions import longest_by_positions
from normscope.models.sites.site import LayerParts, Site
from normscope.rounding import numbered

Point = Literal["stream", "attention input", "attention output", "end"]
"""Where vectors are observed: what layers read and return, what W_K reads, what W_O returns, or after the last layer if no
module runs it."""

Stack = Literal["encoder", "decoder", "cross"]
"""An attention of an encoder–decoder: self-attention of the encoder or the decoder, or the decoder's cross-attention."""


@dataclasses.dataclass(frozen=True)
class StreamLayout:
    """Where a stack keeps its layers, and what comes before and after them, as paths from the base model.

    The base model is what `AutoModel` builds, or its encoder if the stack is `encoder`.
    """

    layers: tuple[str, ...]
    """The layer of every number, from 1. One that runs twice stands there twice. If no module runs a whole layer, the first
    module of each that reads the layer's input."""
    width: int
    """Number of dimensions of hidden vectors."""
    end: str | None = None
    """If no module runs a whole layer, the module whose input is the last layer's output; empty if the model returns it."""
    embedding_norm: str | None = None
    """The norm whose output is the hidden vector of layer 0; None if something else follows it."""
    convolution: str | None = None
    """A convolution after the first layer, which some models of the family have; it ends in a `LayerNorm`."""
    final_norm: str | None = None
    """The norm after the last layer; None if the last layer's output is the model's."""
    output_projection: str | None = None
    """A linear map from the last hidden vectors to the model's output; None without one."""
    swapped: Mapping[Point, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """Where the axes are not (text, token, dimension): the two that must be swapped."""
    changes_in_place: bool = False
    """Whether layers add to hidden vectors in place, so that what is kept of them must be copied."""

    @property
    def in_modules(self) -> bool:
        """Whether a module runs each layer, from its input to its output."""
        return self.end is None


@dataclasses.dataclass(frozen=True)
class ModelLayout:
    """Where one stack of a model keeps its parts. Binding a model that lacks one of them fails, before anything runs."""

    family: str
    """The family's name in transformers configs (`model_type`)."""
    source: str
    """Where transformers defines the family."""
    stream: StreamLayout
    sites: tuple[Site, ...]
    """The layers with softmax attention, in order. The others, in hybrids, have hidden vectors but no block."""
    stack: Stack | None = None
    """The stack of an encoder–decoder; None for a model with a single stack."""
    routed: bool = False
    """Whether a router chooses among experts after the block. Rounding may change its choice, so verification gives every layer
    the untouched model's input."""
    unit_offset: bool = False
    """Whether its norms store γ − 1."""
    float32_inside: bool = False
    """Whether an observed norm, rotation or softmax computes in float32 regardless of the model's dtype."""
    registry: bool = True
    """Whether attention goes through transformers' registry; if not, the weights that the modules return are observed."""
    fused_reference: bool = True
    """Whether the untouched model may run torch's fused attention; if not, transformers' own eager attention, because the
    fused one leaves out a soft cap or a sink."""

    def __post_init__(self) -> None:
        if self.is_cross_attention and any(site.residual.attention_norm is not None for site in self.sites):
            raise ValueError("`attention_norm` is the norm of what self-attention reads")

    def normalisation(self, norm: Any, device: torch.device) -> Normalisation:
        """The weights of a norm of hidden vectors, which runs on this device."""
        return normalisation(norm, (self.stream.width, device), unit_offset=self.unit_offset)

    def by_text(self, vectors: Tensor, point: Point = "stream") -> Tensor:
        """Vectors with axes (text, token, dimension), or stacks of them. Applying it twice restores the original order."""
        axes = self.stream.swapped.get(point)
        return vectors if axes is None or vectors.ndim < 3 else vectors.transpose(axes[0] - 3, axes[1] - 3)

    def kept(self, vectors: Tensor, point: Point = "stream") -> Tensor:
        """Vectors by text, which the model does not change later."""
        vectors = self.by_text(vectors, point)
        return vectors.clone() if self.stream.changes_in_place else vectors

    def entries(self, model: Any) -> list[nn.Module]:
        """The modules whose inputs are the layers' inputs, in order. A layer that runs twice appears twice.

        Raises:
            InputError: If the model does not have its layers where the layout says.
        """
        try:
            return [attrgetter(path)(model) for path in self.stream.layers]
        except AttributeError as error:
            raise InputError(
                f"model: expected layers at {self.stream.layers} of {type(model).__name__}, got nothing"
            ) from error

    def hidden_norms(self, model: nn.Module) -> dict[int, nn.Module]:
        """The norms whose outputs are hidden vectors, by layer from 0. Layers without such a norm are left out."""
        stream = self.stream
        norms = {} if stream.embedding_norm is None else {0: attrgetter(stream.embedding_norm)(model)}
        for site in self.sites:
            if site.residual.output_norm is not None:
                parts = LayerParts(model, site.layer)
                norms[site.layer] = parts.module("norm of its output", site.residual.output_norm)
        if stream.convolution is not None and (convolution := attrgetter(stream.convolution)(model)) is not None:
            norms[1] = convolution.LayerNorm
        return norms

    def longest_sequence(self, model: Any) -> int | None:
        """The longest sequence that the positions allow, in tokens; None if there is no limit."""
        learned = longest_by_positions(model, self.entries(model)[0], reads_target=self.reads_target)
        if learned is not None:
            return learned
        limit = getattr(model.config, "max_position_embeddings", None)
        return None if limit is None or limit < 1 else int(limit)

    @property
    def attends(self) -> list[int]:
        """The layers with softmax attention, whose blocks can be observed."""
        return [site.layer for site in self.sites]

    @property
    def without_attention(self) -> list[int]:
        """The layers without softmax attention."""
        return sorted({*range(1, len(self.stream.layers) + 1)} - {*self.attends})

    def check_attends(self, argument: str, layer: int) -> None:
        """Check that a layer has softmax attention.

        Args:
            argument: The key or argument that names the layer, for the message.

        Raises:
            InputError: If it has none.
        """
        if layer in self.without_attention:
            raise InputError(
                f"{argument}: layer {layer} of this {self.family} has no softmax attention; expected layers that have it: "
                f"{numbered(self.attends)}"
            )

    @property
    def heads(self) -> int:
        """The largest number of heads of a layer."""
        return max(site.attention.heads for site in self.sites)

    @property
    def heads_differ(self) -> bool:
        """Whether layers differ in their number of heads."""
        return len({site.attention.heads for site in self.sites}) > 1

    @property
    def is_gated(self) -> bool:
        """Whether a gate multiplies the outputs of the heads in some layer."""
        return any(site.attention.gate is not None for site in self.sites)

    @property
    def has_value_weights(self) -> bool:
        """Whether W_V makes the values in every layer."""
        return all(site.attention.value is not None for site in self.sites)

    @property
    def has_score_weights(self) -> bool:
        """Whether W_Q and W_K make queries and keys in every layer."""
        return all(site.attention.query is not None and site.attention.key is not None for site in self.sites)

    @property
    def has_networks(self) -> bool:
        """Whether every layer with attention has a feed-forward network, and what leaves it has the block's dimensions."""
        return all(site.has_network and site.residual.bottleneck is None for site in self.sites)

    @property
    def is_cross_attention(self) -> bool:
        """Whether keys and queries come from different sequences."""
        return self.stack == "cross"

    @property
    def reads_target(self) -> bool:
        """Whether the model reads a target text as well as the source."""
        return self.stack in ("decoder", "cross")

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that are defined for the blocks of all layers."""
        defined = [METHODS[position] for position in self.norm_positions]
        return tuple(
            method
            for method in Method
            if all(method in each for each in defined)
            and (not self.is_cross_attention or method in CROSS_ATTENTION_METHODS)
        )

    @property
    def norm_positions(self) -> tuple[NormPosition, ...]:
        """The positions of the blocks' norms, each once."""
        return tuple(dict.fromkeys(site.residual.norm_position for site in self.sites))


def by_size(vectors: Tensor, size: tuple[int, ...]) -> Tensor:
    """Vectors with axes (text, token, dimension), whose first axes have these sizes, from any order of the axes."""
    if vectors.ndim != 3 or vectors.shape[:2] == size:
        return vectors
    if vectors.shape[:2] == size[::-1]:
        return vectors.transpose(0, 1)
    return vectors.mT if (vectors.shape[0], vectors.shape[2]) == size else vectors


def embeddings_of(model: Any) -> nn.Embedding:
    """The token embedding of a model, or of one of its stacks."""
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    return embeddings
