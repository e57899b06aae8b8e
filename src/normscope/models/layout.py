"""Where an architecture keeps the parts of its attention block, as data."""

import dataclasses
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.maths.composition import NormPosition
from normscope.maths.mixing import CROSS_ATTENTION_METHODS, METHODS, Method
from normscope.maths.normalisation import Normalisation
from normscope.models.block import BlockParameters, full_precision

Fusion = Literal["stacked", "interleaved"]

Stack = Literal["encoder", "decoder", "cross"]
"""Which attention of an encoder–decoder: the encoder's or the decoder's own, or the decoder's over the encoder's output."""


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """The parts of one family's attention block, as module paths.

    `layers`, `embedding_norm`, `convolution` and `position_embedding` are paths in the base model (what `AutoModel` builds; the
    encoder of an encoder–decoder where the stack is `encoder`); the others are paths in one layer. A path that a model does not
    have is an error when the model is bound, before anything runs.
    """

    model_type: str
    """The family's name in transformers configs."""
    layers: str
    """The list of layers."""
    attention: str
    """The module that is handed to transformers' attention function; or that returns its weights (see `registry`)."""
    query: str
    """W_Q and b_Q."""
    key: str
    """W_K and b_K."""
    value: str
    """W_V and b_V."""
    output: str
    """W_O: its input is the concatenated heads, its output the attention output."""
    norm_position: NormPosition
    """Where the block's norm stands: see `maths/mixing.py`."""
    source: str
    """Where transformers defines the family."""
    stack: Stack | None = None
    """Which stack of an encoder–decoder this is; None for a model that has but one."""
    heads: str = "num_attention_heads"
    """Config key of the number of heads."""
    layer_count: str = "num_hidden_layers"
    """Config key of the number of layers."""
    start: Literal["token", "last"] = "token"
    """What a decoder reads first: the start token, before the target; or the target's last token (mBART)."""
    residual: str | None = None
    """The module whose input is what the residual connection carries; None where the layer's own input is."""
    norm: str | None = None
    """The norm after the residual connection (`post`) or of the attention output (`branch`)."""
    sum_consumer: str | None = None
    """What the sum of attention and residual goes into, where no norm makes one of it (`pre`)."""
    shared: str | None = None
    """Where `layers` lists groups that several layers pass through: the list of a group's layers."""
    fused: Fusion | None = None
    """How W_Q, W_K and W_V lie in one module: one after another, or head by head."""
    query_bias: str | None = None
    """b_Q, where it is no part of the module."""
    value_bias: str | None = None
    """b_V, where it is no part of the module."""
    key_norm: str | None = None
    """A norm of the keys, head by head or over all heads."""
    rotary: bool = False
    """Whether queries and keys are rotated by position, as `position_embeddings` say that the attention module is given."""
    registry: bool = True
    """Whether attention goes through transformers' attention-function registry; else the module's own weights are observed."""
    float32_inside: bool = False
    """Whether a norm or a rotation that is observed computes in float32 whatever the model's type."""
    position_terms: str | None = None
    """Config key of the terms that the score has beside q·k, whose number divides the score (outside the registry)."""
    counted_terms: tuple[str, ...] | None = None
    """Those that count, each once; None where every entry of that key counts, whatever it is."""
    score_terms: str | None = None
    """What gives the other terms of the score (outside the registry): an argument of the attention module, or its method."""
    embedding_norm: str | None = None
    """The norm whose output is the hidden vector of layer 0; None where something else comes after it."""
    output_norm: str | None = None
    """The norm whose output is the layer's hidden vector."""
    convolution: str | None = None
    """What some models of the family put after the first layer, with a `LayerNorm` of its own."""
    position_embedding: str | None = None
    """A learned position embedding, which bounds the length of a sequence; None where there is none."""

    def __post_init__(self) -> None:
        # Without these nothing proves what the residual connection and the norm do.
        if self.norm_position in ("post", "branch") and self.norm is None:
            raise ValueError(f"{self.model_type}: a block with norm_position={self.norm_position!r} needs its `norm`")
        if self.norm_position == "pre" and self.sum_consumer is None:
            raise ValueError(
                f"{self.model_type}: a block with norm_position='pre' needs what reads its sum, `sum_consumer`"
            )
        if not self.registry and self.score_terms is None:
            raise ValueError(f"{self.model_type}: without the registry, `score_terms` must say what proves the scores")

    def bind(self, model: nn.Module) -> "list[BlockModules]":
        """The modules of every layer of a model, in order. A layer that is passed through twice is there twice.

        Raises:
            AttributeError: If the model lacks a part that the layout names.
        """
        return [
            BlockModules(
                layer=number,
                whole=layer,
                attention=attrgetter(self.attention)(layer),
                query=attrgetter(self.query)(layer),
                key=attrgetter(self.key)(layer),
                value=attrgetter(self.value)(layer),
                output=attrgetter(self.output)(layer),
                residual=layer if self.residual is None else attrgetter(self.residual)(layer),
                norm=_part(layer, self.norm),
                sum_consumer=_part(layer, self.sum_consumer),
                key_norm=_part(layer, self.key_norm),
                query_bias=_part(layer, self.query_bias),
                value_bias=_part(layer, self.value_bias),
                layout=self,
            )
            for number, layer in enumerate(self._passes(model), start=1)
        ]

    def hidden_norms(self, model: nn.Module) -> dict[int, nn.Module]:
        """The norms whose outputs are hidden vectors, by layer from 0, as far as there are such."""
        found = {} if self.embedding_norm is None else {0: attrgetter(self.embedding_norm)(model)}
        if self.output_norm is not None:
            found |= {
                number: attrgetter(self.output_norm)(layer) for number, layer in enumerate(self._passes(model), start=1)
            }
        if self.convolution is not None and (convolution := attrgetter(self.convolution)(model)) is not None:
            found[1] = convolution.LayerNorm
        return found

    def longest_sequence(self, model: Any) -> int | None:
        """How many tokens the positions allow, or None where nothing bounds them.

        RoBERTa's positions begin after the padding index, so its first rows are never used.
        """
        if self.position_embedding is None:
            limit = getattr(model.config, "max_position_embeddings", None)
            return None if limit is None or limit < 1 else int(limit)
        embedding = attrgetter(self.position_embedding)(model)
        return int(embedding.num_embeddings) - (0 if embedding.padding_idx is None else embedding.padding_idx + 1)

    @property
    def is_cross_attention(self) -> bool:
        """Whether the keys are another sequence than the queries."""
        return self.stack == "cross"

    @property
    def reads_target(self) -> bool:
        """Whether the model is given a target text beside the source."""
        return self.stack in ("decoder", "cross")

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that the family's blocks have."""
        return tuple(
            m for m in METHODS[self.norm_position] if not self.is_cross_attention or m in CROSS_ATTENTION_METHODS
        )

    def extra_terms(self, config: Any) -> int:
        """How many terms beside q·k count for the scale of the score."""
        if self.position_terms is None:
            return 0
        terms = getattr(config, self.position_terms) or ()
        return len(terms) if self.counted_terms is None else sum(term in terms for term in self.counted_terms)

    def own_scale(self, head_dim: int, extra_terms: int) -> float:
        """Factor on q·k where the attention module keeps it to itself."""
        if self.position_terms is None:
            return float(head_dim**-0.5)
        # DeBERTa takes this root in float32, whatever the model's type.
        return 1 / float(torch.tensor(head_dim * (1.0 + extra_terms), dtype=torch.float32).sqrt())

    def _passes(self, model: Any) -> list[nn.Module]:
        layers = attrgetter(self.layers)(model)
        if self.shared is None:
            return list(layers)
        passes = model.config.num_hidden_layers
        groups = [layers[int(number / (passes / len(layers)))] for number in range(passes)]
        return [layer for group in groups for layer in attrgetter(self.shared)(group)]


@dataclasses.dataclass(frozen=True)
class BlockModules:
    """The modules of one layer that are observed."""

    layer: int
    """Counted from 1."""
    whole: nn.Module
    """The layer: what enters it are the hidden vectors of the layer before."""
    attention: nn.Module
    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    residual: nn.Module
    """What enters it is what the residual connection carries."""
    norm: nn.Module | None
    sum_consumer: nn.Module | None
    key_norm: nn.Module | None
    query_bias: Tensor | None
    value_bias: Tensor | None
    layout: BlockLayout

    def parameters(self, heads: int, key_heads: int) -> BlockParameters:
        """The weights of the block, split into its heads; those of grouped heads are repeated."""
        layout = self.layout
        query_weight, query_bias = _by_head(self.query, heads, layout.fused, 0)
        key_weight, key_bias = _by_head(self.key, key_heads, layout.fused, 1)
        value_weight, value_bias = _by_head(self.value, key_heads, layout.fused, 2)
        if self.query_bias is not None:
            query_bias = query_bias + full_precision(self.query_bias).view(heads, -1)
        if self.value_bias is not None:
            value_bias = value_bias + full_precision(self.value_bias).view(key_heads, -1)
        output_weight, output_bias = _matrix(self.output)
        repeats = heads // key_heads
        key_weight, key_bias, value_weight, value_bias = (
            part if repeats == 1 else part.repeat_interleave(repeats, dim=0)
            for part in (key_weight, key_bias, value_weight, value_bias)
        )
        return BlockParameters(
            query_weight=query_weight,
            query_bias=query_bias,
            key_weight=key_weight,
            key_bias=key_bias,
            value_weight=value_weight,
            value_bias=value_bias,
            output_weight=output_weight.view(heads, -1, output_weight.shape[1]),
            output_bias=output_bias,
            normalisation=None if self.norm is None else normalisation(self.norm),
            norm_position=layout.norm_position,
            key_normalisation=None if self.key_norm is None else normalisation(self.key_norm),
        )


def normalisation(norm: Any) -> Normalisation:
    """The weights of a norm, in float32 or better: LayerNorm has a bias, RMSNorm has none and does not centre."""
    epsilon = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    centred = isinstance(norm, nn.LayerNorm) or getattr(norm, "bias", None) is not None
    bias = getattr(norm, "bias", None)
    return Normalisation(full_precision(norm.weight), None if bias is None else full_precision(bias), epsilon, centred)


def embeddings_of(model: Any) -> nn.Embedding:
    """The embedding of the tokens that a model, or one of its stacks, reads."""
    embeddings = model.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding)
    return embeddings


def _part(layer: nn.Module, path: str | None) -> Any:
    return None if path is None else attrgetter(path)(layer)


def _matrix(projection: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight (in, out) and bias of a projection. GPT-2's Conv1D keeps its weight that way, Linear transposed."""
    weight, bias = projection.weight, projection.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    weight = weight.T if isinstance(projection, nn.Linear) else weight
    return full_precision(weight), None if bias is None else full_precision(bias)


def _by_head(projection: nn.Module, heads: int, fused: Fusion | None, part: int) -> tuple[Tensor, Tensor]:
    """Weight (head, model, head_dim) and bias (head, head_dim; zero where there is none) of W_Q, W_K or W_V."""
    weight, bias = _matrix(projection)
    bias = weight.new_zeros(weight.shape[1]) if bias is None else bias
    match fused:
        case None:
            weight, bias = weight.view(len(weight), heads, -1), bias.view(heads, -1)
        case "stacked":
            weight, bias = weight.view(len(weight), 3, heads, -1)[:, part], bias.view(3, heads, -1)[part]
        case "interleaved":
            weight, bias = weight.view(len(weight), heads, 3, -1)[:, :, part], bias.view(heads, 3, -1)[:, part]
    return weight.transpose(0, 1), bias


def stacked_heads(vectors: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W + b of every head: (batch, token, model) to (batch, head, token, head_dim)."""
    return torch.einsum("bkm,hmd->bhkd", vectors, weight) + bias[:, None]
