"""Where a model keeps its layers, and layers the parts of attention, residual connection and network, as data."""

import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.maths.composition import NormPosition
from normscope.maths.mixing import CROSS_ATTENTION_METHODS, METHODS, Method
from normscope.maths.normalisation import Normalisation
from normscope.models.gates import GATES
from normscope.models.layer_parts import LayerParts
from normscope.models.linear_layers import Columns
from normscope.models.norm_weights import normalisation
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
class StreamLayout:
    """Where a stack keeps its layers, and what comes before and after them, as paths from the base model.

    The base model is what `AutoModel` builds, or its encoder if the stack is `encoder`.
    """

    layers: tuple[str, ...]
    """The layer of every number, from 1. One that runs twice stands there twice. If no module runs a whole layer, the first
    module of each that reads the layer's input."""
    width: int
    """Number of dimensions of hidden vectors."""
    without: frozenset[int] = frozenset()
    """Layers without softmax attention, as in hybrids. They have hidden vectors but no block."""
    places: tuple[Mapping[str, str], ...] = ()
    """If no module runs a whole layer, where the base model has the parts of every layer. Paths of parts are then those of
    the first layer that has the part."""
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


@dataclasses.dataclass(frozen=True)
class AttentionLayout:
    """Where a layer keeps the parts of its attention, as paths in the layer (but see `StreamLayout.places`), and its scores."""

    module: str
    """The module that calls transformers' attention function, or returns its own weights (see `registry`)."""
    query: HeadsLayout | None
    """W_Q and b_Q. None if queries are more than a linear map of what attention reads, a norm and a rotation."""
    key: HeadsLayout | None
    """W_K and b_K, likewise."""
    value: HeadsLayout | None
    """W_V and b_V; None if values are computed from each token in another way, as in latent attention."""
    output: str
    """W_O: its input is the concatenated heads, its output the attention output."""
    heads: int
    """Number of heads of queries."""
    key_heads: tuple[int, ...]
    """Number of heads of keys and values in every layer."""
    reader: str | None = None
    """A module that reads what attention reads, if W_K does not; None if no linear layer does."""
    gate: GateLayout | None = None
    """The gate on the outputs of the heads; None without one."""
    head_norms: HeadNorms | None = None
    """The norms of queries and keys; None if no layer has any."""
    rotation: Mapping[int, Planes] = dataclasses.field(default_factory=dict)
    """The planes in which attention turns queries and keys, in the layers in which it does."""
    scales: tuple[float, ...] | None = None
    """The factor on q·k in the score of every layer; None if scores are not a multiple of q·k plus other terms."""
    registry: bool = True
    """Whether attention goes through transformers' registry; if not, the weights that the module returns are observed."""
    fused_reference: bool = True
    """Whether the untouched model may run torch's fused attention; if not, transformers' own eager attention, because the
    fused one leaves out a soft cap or a sink."""

    @property
    def projections(self) -> tuple[HeadsLayout | None, HeadsLayout | None, HeadsLayout | None]:
        """Queries, keys and values."""
        return self.query, self.key, self.value


@dataclasses.dataclass(frozen=True)
class ResidualLayout:
    """The residual connection around attention with its norms and factors, as paths in the layer (but see
    `StreamLayout.places`)."""

    norm_position: NormPosition
    """The position of the block's norm; see `maths/composition.py`."""
    norm: str | None = None
    """The norm after the residual connection (`post`) or of the attention output (`branch`)."""
    attention_norm: str | None = None
    """The norm of what self-attention reads (`pre`, `parallel`); a layer may have an identity in its place."""
    sum_consumer: str | None = None
    """The module that reads the sum of attention output and residual, for a block without its own norm (`pre`). Empty if no
    network follows and the layer returns the sum."""
    output_norm: str | None = None
    """The norm whose output is the layer's hidden vector."""
    carried: str | None = None
    """The module whose input the residual connection carries; None if that is the layer's input."""
    bottleneck: str | None = None
    """The module that returns what the residual connection carries, if that is no vector of the stream (MobileBERT)."""
    scaling: str | None = None
    """The parameter by whose elements the attention output is multiplied (LayerScale); `parameters` has it in W_O and b_O."""
    scales: tuple[float, ...] = ()
    """For every layer, a factor on what attention and the feed-forward network add to the residual connection."""

    def __post_init__(self) -> None:
        # Verification needs these to prove what the residual connection and the norm do.
        if (self.norm_position in ("post", "branch")) != (self.norm is not None):
            raise ValueError("`norm` belongs to a block with norm_position='post' or 'branch'")
        if (self.norm_position == "pre") != (self.sum_consumer is not None):
            raise ValueError(
                "`sum_consumer`, the module that reads the block's sum, belongs to a block with norm_position='pre'"
            )


@dataclasses.dataclass(frozen=True)
class ModelLayout:
    """Where one stack of a model keeps its parts. Binding a model that lacks one of them fails, before anything runs."""

    family: str
    """The family's name in transformers configs (`model_type`)."""
    source: str
    """Where transformers defines the family."""
    stream: StreamLayout
    attention: AttentionLayout
    residual: ResidualLayout
    feed_forward: tuple[FeedForwardLayout, ...] = ()
    """The forms that the feed-forward network may have; a layer has the first whose modules it has. Empty if no network follows
    the block: a decoder's self-attention feeds cross-attention."""
    unknown_network: str | None = None
    """Why a layer has no feed-forward network that can be observed; None if all have one, or if none has any."""
    stack: Stack | None = None
    """The stack of an encoder–decoder; None for a model with a single stack."""
    inner: bool = False
    """Whether a layer returns more than the block's output and what one network adds to it. Then nothing relates blocks to
    the stream, and blocks alone can be observed."""
    routed: bool = False
    """Whether a router chooses among experts after the block. Rounding may change its choice, so verification gives every layer
    the untouched model's input."""
    unit_offset: bool = False
    """Whether its norms store γ − 1."""
    float32_inside: bool = False
    """Whether an observed norm, rotation or softmax computes in float32 regardless of the model's dtype."""

    def __post_init__(self) -> None:
        if self.is_cross_attention and self.residual.attention_norm is not None:
            raise ValueError("`attention_norm` is the norm of what self-attention reads")

    def normalisation(self, norm: Any, device: torch.device) -> Normalisation:
        """The weights of a norm of hidden vectors, which runs on this device."""
        return normalisation(norm, (self.stream.width, device), unit_offset=self.unit_offset)

    def by_text(self, vectors: Tensor, point: Point = "stream") -> Tensor:
        """Vectors with axes (text, token, dimension). Applying it twice restores the original order."""
        axes = self.stream.swapped.get(point)
        return vectors if axes is None or vectors.ndim != 3 else vectors.transpose(*axes)

    def kept(self, vectors: Tensor, point: Point = "stream") -> Tensor:
        """Vectors by text, which the model does not change later."""
        vectors = self.by_text(vectors, point)
        return vectors.clone() if self.stream.changes_in_place else vectors

    def parts(self, model: Any) -> list[LayerParts]:
        """The parts of every layer of a model, in order. A layer that runs twice appears twice.

        Raises:
            InputError: If the model does not have its layers where the layout says.
        """
        try:
            entries = [attrgetter(path)(model) for path in self.stream.layers]
        except AttributeError as error:
            raise InputError(
                f"model: expected layers at {self.stream.layers} of {type(model).__name__}, got nothing"
            ) from error
        places: Sequence[Mapping[str, str] | None] = self.stream.places or [None] * len(entries)
        return [
            LayerParts(model if place else entry, entry, number, place)
            for number, (entry, place) in enumerate(zip(entries, places, strict=True), start=1)
        ]

    def hidden_norms(self, model: nn.Module) -> dict[int, nn.Module]:
        """The norms whose outputs are hidden vectors, by layer from 0. Layers without such a norm are left out."""
        stream, output_norm = self.stream, self.residual.output_norm
        norms = {} if stream.embedding_norm is None else {0: attrgetter(stream.embedding_norm)(model)}
        if output_norm is not None:
            norms |= {
                parts.number: parts.module("norm of its output", output_norm)
                for parts in self.parts(model)
                if parts.number not in stream.without
            }
        if stream.convolution is not None and (convolution := attrgetter(stream.convolution)(model)) is not None:
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
        return [number for number in range(1, len(self.stream.layers) + 1) if number not in self.stream.without]

    def check_attends(self, argument: str, layer: int) -> None:
        """Check that a layer has softmax attention.

        Args:
            argument: The key or argument that names the layer, for the message.

        Raises:
            InputError: If it has none.
        """
        if layer in self.stream.without:
            raise InputError(
                f"{argument}: layer {layer} of this {self.family} has no softmax attention; expected layers that have it: "
                f"{numbered(self.attends)}"
            )

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
            m
            for m in METHODS[self.residual.norm_position]
            if not self.is_cross_attention or m in CROSS_ATTENTION_METHODS
        )


def embeddings_of(model: Any) -> nn.Embedding:
    """The token embedding of a model, or of one of its stacks."""
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    return embeddings
