"""Where an architecture keeps the parts of its attention block, as data."""

import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normscope.errors import InputError, one_line
from normscope.maths.composition import NormPosition
from normscope.maths.keys import KeyMap
from normscope.maths.mixing import CROSS_ATTENTION_METHODS, METHODS, Method
from normscope.maths.normalisation import Normalisation
from normscope.models.block import BlockParameters, HeadProjection, full_precision
from normscope.models.gates import GATES
from normscope.models.linear_layers import Columns, SideBySide, by_head, first_of, scaled_projection
from normscope.models.norm_weights import normalisation, normalised_heads, normalises_heads
from normscope.models.positions import longest_by_positions
from normscope.models.rotary import Planes
from normscope.rounding import numbered


class HeadsLayout(NamedTuple):
    """Where a layer makes the queries, keys or values of all heads, x W + b."""

    projection: str
    """W and b, a path in the layer. If every head has a linear layer of its own, their paths, joined by `BESIDE`."""
    columns: Columns | None = None
    """Its outputs by head; None if it has these heads alone, one after the other."""
    bias: str | None = None
    """b, if it is a separate parameter."""


class GateLayout(NamedTuple):
    """The gate on the outputs of the heads, g(x W + b) of each query; see `models/gates.py`."""

    projection: str
    """W and b, a path in the layer."""
    columns: Columns
    """Its outputs by head: one for each dimension, or a single one."""
    function: str
    """The name of g in `GATES`."""

    def applied(self, output: Float[Tensor, "batch query out"]) -> Float[Tensor, "batch head query #head_dim"]:
        """The gate, from the output of its linear layer."""
        return GATES[self.function](self.columns.take(output)).transpose(1, 2)


class HeadNorms(NamedTuple):
    """The norms of queries and keys."""

    key: str | None
    """The norm of the keys, of each head or of all heads together, a path in the layer."""
    query: str | None
    """The norm of the queries, likewise."""
    by_head: bool
    """Whether that of the keys reads (batch, head, key, head_dim) instead of (batch, key, ...)."""
    turned: bool
    """Whether the two come after the rotation, not before it."""
    layers: frozenset[int]
    """The layers that have them."""


BESIDE = ", "
"""Separates the paths of linear layers that together stand for one, as when every head has its own."""


Point = Literal["stream", "attention input", "attention output", "network", "end"]
"""Where vectors are observed: what layers read and return, what W_K reads, what W_O returns, in the network, or after the last
layer if no module runs it."""

Stack = Literal["encoder", "decoder", "cross"]
"""An attention of an encoder–decoder: self-attention of the encoder or the decoder, or the decoder's cross-attention."""


@dataclasses.dataclass(frozen=True)
class FeedForwardLayout:
    """The parts of one family's feed-forward network, as module paths in one layer.

    The network is g(u) W_2 + b_2 with u = y W_1 + b_1 or, if it is gated, (g(u) ⊙ w) W_2 + b_2 with w = y V + c.
    """

    input: str
    """W_1 and b_1, which make what the activation is applied to (Llama's `gate_proj`)."""
    activation: str | None
    """g, a module or a function; None if it is no attribute of the layer."""
    output: str
    """W_2 and b_2."""
    multiplier: str | None = None
    """V and c of a gated network (Llama's `up_proj`); None if it is not gated."""
    fused: bool = False
    """Whether `input` holds W_1 and V, one after the other, so that the network is gated without a `multiplier`."""
    multiplier_first: bool = False
    """Whether it holds V before W_1."""
    norm: str | None = None
    """The norm after the residual connection (post-LN), or of what the network reads (pre-LN)."""
    output_norm: str | None = None
    """The norm of the network's output, inside the residual connection."""
    scaling: str | None = None
    """The parameter by whose elements the output of `output` is multiplied (LayerScale)."""
    function: str | None = None
    """The name of g in `ACTIVATIONS`, if it is no attribute of the layer."""
    added_in_place: bool = False
    """Whether the layer changes the tensor that `output` returns (Falcon)."""
    routed: bool = False
    """Whether `input` and `output` are one module with the experts of a mixture, each a network without biases."""
    shared: "FeedForwardLayout | None" = None
    """The network beside the experts that every token runs through; None if there is none."""
    shared_gate: str | None = None
    """What makes the logit of the factor on the output of `shared`; None if the factor is 1."""


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """The parts of one family's attention block, as module paths.

    `layers`, `embedding_norm`, `final_norm`, `output_projection`, `convolution` and `end` are paths from the base model (what
    `AutoModel` builds, or its encoder if the stack is `encoder`); all others are paths from one layer (but see `places`).
    Binding a model that lacks one of them fails, before anything runs.
    """

    model_type: str
    """The family's name in transformers configs."""
    layers: tuple[str, ...]
    """The layer of every number, from 1. One that runs twice stands there twice. If no module runs a whole layer, the first
    module of each that reads the layer's input."""
    attention: str
    """The module that calls transformers' attention function, or returns its own weights (see `registry`)."""
    query: HeadsLayout | None
    """W_Q and b_Q. None if queries are more than a linear map of what attention reads, a norm and a rotation."""
    key: HeadsLayout | None
    """W_K and b_K, likewise."""
    value: HeadsLayout | None
    """W_V and b_V; None if values are computed from each token in another way, as in latent attention."""
    output: str
    """W_O: its input is the concatenated heads, its output the attention output."""
    norm_position: NormPosition
    """The position of the block's norm; see `maths/composition.py`."""
    source: str
    """Where transformers defines the family."""
    heads: int
    """Number of heads of queries."""
    key_heads: tuple[int, ...]
    """Number of heads of keys and values in every layer."""
    width: int
    """Number of dimensions of hidden vectors."""
    without: frozenset[int] = frozenset()
    """Layers without softmax attention, as in hybrids. They have hidden vectors but no block."""
    stack: Stack | None = None
    """The stack of an encoder–decoder; None for a model with a single stack."""
    start: Literal["token", "last"] = "token"
    """What the decoder reads before the target: the start token, or the target's last token (mBART)."""
    residual: str | None = None
    """The module whose input the residual connection carries; None if that is the layer's input."""
    bottleneck: str | None = None
    """The module that returns what the residual connection carries, if that is no vector of the stream (MobileBERT)."""
    inner: bool = False
    """Whether a layer returns more than the block's output and what one network adds to it. Then nothing relates blocks to
    the stream, and blocks alone can be observed."""
    norm: str | None = None
    """The norm after the residual connection (`post`) or of the attention output (`branch`)."""
    attention_norm: str | None = None
    """The norm of what self-attention reads (`pre`, `parallel`); a layer may have an identity in its place."""
    final_norm: str | None = None
    """The norm after the last layer, a path from the base model; None if the last layer's output is the model's."""
    sum_consumer: str | None = None
    """The module that reads the sum of attention output and residual, for a block without its own norm (`pre`). Empty if no
    network follows and the layer returns the sum."""
    reader: str | None = None
    """A module that reads what attention reads, if W_K does not; None if no linear layer does."""
    gate: GateLayout | None = None
    """The gate on the outputs of the heads; None without one."""
    head_norms: HeadNorms | None = None
    """The norms of queries and keys; None if no layer has any."""
    rotation: Mapping[int, Planes] = dataclasses.field(default_factory=dict)
    """The planes in which attention turns queries and keys, in the layers in which it does."""
    scaling: str | None = None
    """The parameter by whose elements the attention output is multiplied (LayerScale); `parameters` has it in W_O and b_O."""
    residual_scales: tuple[float, ...] = ()
    """For every layer, a factor on what attention and the feed-forward network add to the residual connection."""
    scales: tuple[float, ...] | None = None
    """The factor on q·k in the score of every layer; None if scores are not a multiple of q·k plus other terms."""
    registry: bool = True
    """Whether attention goes through transformers' registry; if not, the weights that the module returns are observed."""
    fused_reference: bool = True
    """Whether the untouched model may run torch's fused attention; if not, transformers' own eager attention, because the
    fused one leaves out a soft cap or a sink."""
    float32_inside: bool = False
    """Whether an observed norm, rotation or softmax computes in float32 regardless of the model's dtype."""
    embedding_norm: str | None = None
    """The norm whose output is the hidden vector of layer 0; None if something else follows it."""
    output_norm: str | None = None
    """The norm whose output is the layer's hidden vector."""
    convolution: str | None = None
    """A convolution after the first layer, which some models of the family have; it ends in a `LayerNorm`."""
    output_projection: str | None = None
    """A linear map from the last hidden vectors to the model's output, a path from the base model; None without one."""
    places: tuple[Mapping[str, str], ...] = ()
    """If no module runs a whole layer, where the base model has the parts of every layer. Paths of parts are then those of
    the first layer that has the part."""
    end: str | None = None
    """If no module runs a whole layer, the module whose input is the last layer's output; empty if the model returns it."""
    swapped: Mapping["Point", tuple[int, int]] = dataclasses.field(default_factory=dict)
    """Where the axes are not (text, token, dimension): the two that must be swapped."""
    changes_stream: bool = False
    """Whether layers add to hidden vectors in place, so that what is kept of them must be copied."""
    routed: bool = False
    """Whether a router chooses among experts after the block. Rounding may change its choice, so verification gives every layer
    the untouched model's input."""
    unit_offset: bool = False
    """Whether its norms store γ − 1."""
    feed_forward: tuple[FeedForwardLayout, ...] = ()
    """The forms that the feed-forward network may have; a layer has the first whose modules it has. Empty if no network follows
    the block: a decoder's self-attention feeds cross-attention."""
    unknown_network: str | None = None
    """Why a layer has no feed-forward network that can be observed; None if all have one, or if none has any."""

    def __post_init__(self) -> None:
        # Verification needs these to prove what the residual connection and the norm do.
        if (self.norm_position in ("post", "branch")) != (self.norm is not None):
            raise ValueError(f"{self.model_type}: `norm` belongs to a block with norm_position='post' or 'branch'")
        if (self.norm_position == "pre") != (self.sum_consumer is not None):
            raise ValueError(
                f"{self.model_type}: `sum_consumer`, the module that reads the block's sum, belongs to a block with "
                "norm_position='pre'"
            )

        if self.is_cross_attention and self.attention_norm is not None:
            raise ValueError(f"{self.model_type}: `attention_norm` is the norm of what self-attention reads")

    def bind(self, model: Any) -> "list[BlockModules]":
        """The modules of every layer with a block, in order. A layer that runs twice appears twice.

        Raises:
            InputError: If the model lacks a part that the layout names, or has something else in its place.
        """
        return [self._bind_layer(parts) for parts in self.parts(model) if parts.number not in self.without]

    def _bind_layer(self, find: "LayerParts") -> "BlockModules":
        whole, heads, number = find.whole, self.head_norms, self.residual_scales[find.number - 1]
        later = [form.scaling for form in self.feed_forward if form.scaling is not None]
        if heads is not None and find.number not in heads.layers:
            heads = None
        return BlockModules(
            layer=find.number,
            whole=whole,
            entry=find.entry,
            attention=find.module("attention module", self.attention),
            query=None if self.query is None else find.projection("W_Q", self.query.projection),
            key=None if self.key is None else find.projection("W_K", self.key.projection),
            value=None if self.value is None else find.projection("W_V", self.value.projection),
            reader=None if self.reader is None else find.module("reader of the input of attention", self.reader),
            output=find.projection("W_O", self.output),
            gate=None if self.gate is None else find.projection("gate", self.gate.projection),
            residual=whole if self.residual is None else find.module("residual connection", self.residual),
            bottleneck=None if self.bottleneck is None else find.module("bottleneck", self.bottleneck),
            norm=find.norm("norm of the block", self.norm),
            attention_norm=find.norm("norm before attention", self.attention_norm, identity=True),
            sum_consumer=find.module("reader of the sum", self.sum_consumer) if self.sum_consumer else None,
            key_norm=None if heads is None else find.norm("norm of the keys", heads.key),
            query_norm=None if heads is None else find.norm("norm of the queries", heads.query),
            output_norm=find.norm("norm of its output", self.output_norm),
            biases={
                heads: find.part("separate bias", heads.bias)
                for heads in (self.query, self.key, self.value)
                if heads is not None and heads.bias is not None
            },
            scale=find.scale(number, self.scaling),
            later_scales=(1.0, number, *(find.scale(number, path) for path in later if find.get(path) is not None)),
            layout=self,
        )

    def normalisation(self, norm: Any, device: torch.device) -> Normalisation:
        """The weights of a norm of hidden vectors, which runs on this device."""
        return normalisation(norm, (self.width, device), unit_offset=self.unit_offset)

    def by_text(self, vectors: Tensor, point: "Point" = "stream") -> Tensor:
        """Vectors with axes (text, token, dimension). Applying it twice restores the original order."""
        axes = self.swapped.get(point)
        return vectors if axes is None or vectors.ndim != 3 else vectors.transpose(*axes)

    def parts(self, model: Any) -> "list[LayerParts]":
        """The parts of every layer of a model, in order. A layer that runs twice appears twice.

        Raises:
            InputError: If the model does not have its layers where the layout says.
        """
        try:
            entries = [attrgetter(path)(model) for path in self.layers]
        except AttributeError as error:
            raise InputError(
                f"model: expected layers at {self.layers} of {type(model).__name__}, got nothing"
            ) from error
        places: Sequence[Mapping[str, str] | None] = self.places or [None] * len(entries)
        return [
            LayerParts(model if place else entry, entry, number, place)
            for number, (entry, place) in enumerate(zip(entries, places, strict=True), start=1)
        ]

    def hidden_norms(self, model: nn.Module) -> dict[int, nn.Module]:
        """The norms whose outputs are hidden vectors, by layer from 0. Layers without such a norm are left out."""
        norms = {} if self.embedding_norm is None else {0: attrgetter(self.embedding_norm)(model)}
        if self.output_norm is not None:
            norms |= {
                parts.number: parts.module("norm of its output", self.output_norm)
                for parts in self.parts(model)
                if parts.number not in self.without
            }
        if self.convolution is not None and (convolution := attrgetter(self.convolution)(model)) is not None:
            norms[1] = convolution.LayerNorm
        return norms

    def longest_sequence(self, model: Any) -> int | None:
        """The longest sequence that the positions allow, in tokens; None if there is no limit."""
        learned = longest_by_positions(model, self.parts(model)[0].entry, reads_target=self.reads_target)
        if learned is not None:
            return learned
        limit = getattr(model.config, "max_position_embeddings", None)
        return None if limit is None or limit < 1 else int(limit)

    @property
    def attends(self) -> list[int]:
        """The layers with softmax attention, whose blocks can be observed."""
        return [number for number in range(1, len(self.layers) + 1) if number not in self.without]

    def check_attends(self, argument: str, layer: int) -> None:
        """Check that a layer has softmax attention.

        Args:
            argument: The key or argument that names the layer, for the message.

        Raises:
            InputError: If it has none.
        """
        if layer in self.without:
            raise InputError(
                f"{argument}: layer {layer} of this {self.family} has no softmax attention; expected layers that have it: "
                f"{numbered(self.attends)}"
            )

    @property
    def family(self) -> str:
        """The family's name, for messages."""
        return self.model_type

    @property
    def has_networks(self) -> bool:
        """Whether the feed-forward network of every layer with attention can be observed."""
        return bool(self.feed_forward) and self.unknown_network is None

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
        """The methods that are defined for the family's blocks."""
        return tuple(
            m for m in METHODS[self.norm_position] if not self.is_cross_attention or m in CROSS_ATTENTION_METHODS
        )


class LayerParts(NamedTuple):
    """Finds the parts of one layer.

    All but `get` raise InputError if the layer lacks the part, or has something else in its place.
    """

    root: nn.Module
    """Where paths begin: the layer or, if no module runs it, the base model."""
    entry: nn.Module
    """The module whose input is the layer's: the layer itself or, if no module runs it, its first module."""
    number: int
    places: Mapping[str, str] | None
    """If no module runs the layer, where the base model has each of its parts."""

    @property
    def whole(self) -> nn.Module:
        """The layer or, if no module runs it, a list of its modules."""
        if self.places is None:
            return self.root
        found = {id(part): part for path in self.places if isinstance(part := self.get(path), nn.Module)}
        return nn.ModuleList(({id(self.entry): self.entry} | found).values())

    def get(self, path: str) -> Any:
        """Whatever is at a path; None if nothing."""
        try:
            return self._at(path)
        except AttributeError:
            return None

    def _at(self, path: str) -> Any:
        if self.places is not None:
            if path not in self.places:
                raise AttributeError(path)
            path = self.places[path]
        return attrgetter(path)(self.root) if path else self.root

    def part(self, part: str, path: str) -> Any:
        """Whatever is at a path."""
        try:
            return self._at(path)
        except AttributeError as error:
            kind = type(self.root).__name__
            raise InputError(
                f"model: expected the {part} of layer {self.number} at {path} of {kind}, got nothing"
            ) from error

    def scale(self, number: float, path: str | None) -> float | Tensor:
        """A factor on the output of a linear layer: a number, or its product with a vector of factors, if there is one."""
        if path is None:
            return number
        factors = self.part("LayerScale", path)
        if not isinstance(factors, Tensor):
            raise self._wrong("LayerScale", path, "a parameter", factors)
        return full_precision(factors.detach().flatten()) * number

    def module(self, part: str, path: str) -> nn.Module:
        """A module."""
        found = self.part(part, path)
        if not isinstance(found, nn.Module):
            raise self._wrong(part, path, "a module", found)
        return found

    def projection(self, part: str, path: str) -> nn.Module:
        """A linear layer."""
        if BESIDE in path:
            return SideBySide([self.projection(part, each) for each in path.split(BESIDE)])
        found = self.module(part, path)
        if not isinstance(getattr(found, "weight", None), Tensor) or not hasattr(found, "bias"):
            raise self._wrong(part, path, "a linear layer", found)
        return found

    def norm(self, part: str, path: str | None, *, identity: bool = False) -> nn.Module | None:
        """A norm, or one for each head; or an identity in its place."""
        if path is None:
            return None
        found = self.module(part, path)
        known = any(hasattr(each, "weight") or hasattr(each, "normalized_shape") for each in found.modules())
        vectors = {parameter.ndim for parameter in found.parameters()} <= {1}  # Llama 4 and NanoChat have none
        if not (known or vectors or identity) or (isinstance(found, nn.Identity) and not identity):
            raise self._wrong(part, path, "a norm", found)
        return found

    def _wrong(self, part: str, path: str, expected: str, found: object) -> InputError:
        return InputError(
            f"model: expected {expected} at {path} of layer {self.number}, its {part}, got {type(found).__name__}"
        )


@dataclasses.dataclass(frozen=True)
class BlockModules:
    """The modules of one layer that are observed."""

    layer: int
    """Counted from 1."""
    whole: nn.Module
    """The layer itself or, if no module runs it, a list of its modules."""
    entry: nn.Module
    """The module whose input is the layer's: the layer or, if no module runs it, its first module."""
    attention: nn.Module
    query: nn.Module | None
    key: nn.Module | None
    value: nn.Module | None
    reader: nn.Module | None
    """A module that reads what attention reads, if W_K does not; None if no linear layer does."""
    output: nn.Module
    gate: nn.Module | None
    """The linear layer of the gate on the outputs of the heads."""
    residual: nn.Module
    """The module whose input the residual connection carries, unless `bottleneck` makes that."""
    bottleneck: nn.Module | None
    norm: nn.Module | None
    attention_norm: nn.Module | None
    sum_consumer: nn.Module | None
    """The module that reads the block's sum; None if the block has a norm of its own, or the layer returns the sum."""
    key_norm: nn.Module | None
    query_norm: nn.Module | None
    output_norm: nn.Module | None
    biases: Mapping[HeadsLayout, Tensor]
    """b_Q, b_K and b_V that are separate parameters."""
    scale: float | Tensor
    """Factor on the attention output, possibly one for each dimension; `parameters` has it in W_O and b_O."""
    later_scales: tuple[float | Tensor, ...]
    """Factors that may be on what the rest of the layer adds."""
    layout: BlockLayout

    @property
    def softmaxes(self) -> int:
        """How many softmaxes the attention module runs: one, or one for each head that is a separate module."""
        return len(self.query.layers) if isinstance(self.query, SideBySide) else 1

    @property
    def reads_attention_inputs(self) -> nn.Module | None:
        """A module whose input is that of attention; None if no linear layer reads it."""
        return first_of(self.key or self.reader)

    @property
    def reads_query_inputs(self) -> nn.Module | None:
        """A module whose input is that of W_Q, if this is cross-attention, in which W_K reads something else."""
        return first_of(self.query) if self.layout.is_cross_attention else None

    @property
    def own_scale(self) -> float:
        """The factor on q·k in the scores of an attention module that does not pass it to an attention function."""
        scales = self.layout.scales
        if scales is None:
            raise InputError(
                f"the attention of layer {self.layer} cannot be observed: its scores are not a multiple of q·k plus other terms"
            )
        return scales[self.layer - 1]

    @property
    def planes(self) -> Planes | None:
        """The planes in which this layer turns its queries and keys; None if it does not."""
        return self.layout.rotation.get(self.layer)

    def parameters(self) -> BlockParameters:
        """The weights of the block by head; keys and values that several heads share are repeated.

        Raises:
            InputError: If the weights do not have that many heads.
        """
        heads, key_heads = self.layout.heads, self.layout.key_heads[self.layer - 1]
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
        layout = self.layout
        repeats = heads // key_heads
        output_weight, output_bias = scaled_projection(self.output, self.scale)
        of_head, of_model = (
            (size, output_weight.device) for size in (len(output_weight) // heads, output_weight.shape[1])
        )
        key_norm = self._normalisation_of_heads(self.key_norm, of_head)
        key = self._by_head(layout.key, self.key, key_heads, repeats)
        if key is not None and key_norm is not None and key_norm.centred and not normalises_heads(key_norm, key.weight):
            key = key.centred()
        return BlockParameters(
            query=self._by_head(layout.query, self.query, heads),
            key=key,
            value=self._by_head(layout.value, self.value, key_heads, repeats),
            output_weight=output_weight.view(heads, -1, output_weight.shape[1]),
            output_bias=output_bias,
            normalisation=None
            if self.norm is None
            else normalisation(self.norm, of_model, unit_offset=layout.unit_offset),
            input_normalisation=self._input_normalisation(output_weight.device),
            norm_position=layout.norm_position,
            key_normalisation=key_norm,
            query_normalisation=self._normalisation_of_heads(self.query_norm, of_head),
        )

    def _by_head(
        self, layout: HeadsLayout | None, projection: nn.Module | None, heads: int, repeats: int = 1
    ) -> HeadProjection | None:
        if layout is None or projection is None:
            return None
        return by_head(projection, heads, layout.columns, self.biases.get(layout), repeats)

    def _input_normalisation(self, device: torch.device) -> Normalisation | None:
        # ModernBERT's first layer reads what the norm of the embedding has made, through an identity.
        if self.attention_norm is None or isinstance(self.attention_norm, nn.Identity):
            return None
        return self.layout.normalisation(self.attention_norm, device)

    def _normalisation_of_heads(self, module: Any, of_head: tuple[int, torch.device]) -> Normalisation | None:
        if module is None:
            return None
        if next(module.children(), None) is None:
            return normalisation(module, of_head, unit_offset=self.layout.unit_offset)
        norms = [normalisation(part, of_head) for part in module.norms]  # StableLM has a module for each head
        return norms[0]._replace(weight=torch.stack([norm.weight for norm in norms]))


def embeddings_of(model: Any) -> nn.Embedding:
    """The token embedding of a model, or of one of its stacks."""
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    return embeddings


def mapped_queries(
    queries: Tensor, norm: Normalisation | None, keys: KeyMap
) -> Float[Tensor, "batch head token dimension"]:
    """Queries after their norm and the rotation of the keys.

    Args:
        queries: x W_Q + b_Q, (batch, head, token, dimension).
    """

    def normed(vectors: Tensor) -> Tensor:
        return vectors if norm is None else normalised_heads(norm, vectors)

    turned = keys._replace(factors=None, centred=False)
    return normed(turned(queries)) if keys.turns_first else turned(normed(queries))
