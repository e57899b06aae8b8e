"""What a model is, as one pass of its own code shows: how many layers it has, and what each attends with."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal

from jaxtyping import Bool
from torch import Tensor

from normscope.errors import InputError
from normscope.linear.layer_calls import ANYWHERE, Places
from normscope.linear.refusals import WITHOUT_ATTENTION, not_measured
from normscope.maths.composition import NormPosition
from normscope.maths.mixing import CROSS_ATTENTION_METHODS, METHODS, Method
from normscope.rounding import numbered

StackName = Literal["encoder", "decoder", "cross"]
"""An attention of an encoder–decoder: self-attention of the encoder or the decoder, or the decoder's cross-attention."""


TARGETS = "decoder", "cross"
"""The stacks that read a target text as well as the source."""


def token_mask_of(inputs: Mapping[str, Any], stack: StackName | None) -> Bool[Tensor, "batch token"]:
    """Which of the tokens that a stack asks about are not padding.

    Args:
        inputs: Keyword arguments of the model, with a mask.
        stack: The stack of an encoder–decoder.
    """
    mask: Tensor = inputs["decoder_attention_mask" if stack in TARGETS else "attention_mask"]
    return mask.bool()


@dataclasses.dataclass(frozen=True)
class BlockFacts:
    """One attention block."""

    layer: int
    """Counted from 1."""
    heads: int
    """Number of heads of queries."""
    norm_position: NormPosition
    has_gate: bool = False
    """Whether a gate multiplies the outputs of the heads."""
    has_value_weights: bool = True
    """Whether one linear map, W_V, makes the values of what attention reads."""
    has_score_weights: bool = True
    """Whether one linear map each, W_Q and W_K, makes queries and keys, up to a norm and a rotation."""
    networks: int | None = 1
    """Number of networks that add something to the residual connection after or beside the block, before the layer ends or
    another block begins; None if the layer makes something else of the block, so that the block alone can be observed."""


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """One stack of a model."""

    family: str
    """The family's name in transformers configs (`model_type`), or the class of another module."""
    source: str
    """Where the model's code is."""
    width: int
    """Number of dimensions of hidden vectors; inside a bottleneck, blocks have fewer."""
    layers: int
    """Number of layers with hidden vectors, up to the first that changes the number of tokens. Some may have no block."""
    blocks: tuple[BlockFacts, ...]
    """The blocks that are observed, in order."""
    stack: StackName | None = None
    """The stack of an encoder–decoder; None for a model with a single stack."""
    routed: bool = False
    """Whether a router chooses among experts. Rounding may change its choice."""
    places: Places = ANYWHERE
    """Where its layers are."""
    reads_vectors: bool = False
    """Whether it reads images or audio instead of token ids; a decoder beside it reads ids all the same."""
    writes_between: bool = False
    """Whether something is added to the hidden vectors between layers."""
    calls_function: bool = True
    """Whether attention calls transformers' function, through which masks are rules."""

    left_out: tuple[tuple[int, str], ...] = ()
    """Layers that attend in a way that is not measured, and what they have instead of attention that is."""

    is_plain: bool = True
    """Whether torch's fused attention gives what the model computes, which leaves out soft caps and sinks."""

    def require_starts(self, what: str) -> None:
        """Check that the vectors that enter layers can be taken or replaced.

        Args:
            what: What is to be done, for the message.

        Raises:
            InputError: If no module is given them.
        """
        if self.places.starts == ():
            raise InputError(
                f"model: what enters the layers of this {self.family} cannot be {what}, because no module in an nn.ModuleList "
                "or nn.Sequential is given it; put the layers, or what they begin with, in an nn.ModuleList"
            )

    @property
    def is_of_vectors(self) -> bool:
        """Whether the model is one stack of self-attention between vectors that are no tokens of a text."""
        return self.reads_vectors and self.stack is None

    @property
    def in_modules(self) -> bool:
        """Whether a module runs each layer, from its input to its output."""
        return self.places.starts is None

    @property
    def attends(self) -> list[int]:
        """The layers whose blocks can be observed."""
        return [block.layer for block in self.blocks]

    @property
    def not_measured(self) -> dict[int, str]:
        """The layers that have no block that can be observed, and what they have instead."""
        has, every = dict(self.left_out), range(1, self.layers + 1)
        return {each: has.get(each, WITHOUT_ATTENTION) for each in sorted({*every, *has} - {*self.attends})}

    @property
    def note(self) -> str:
        """Which layers are not measured, and why; empty if all are."""
        return f"not measured: {not_measured(self.not_measured)}" if self.not_measured else ""

    @property
    def last(self) -> int:
        """The number of the last layer, even if that is not measured."""
        return max([self.layers, *self.not_measured])

    def check_attends(self, argument: str, layer: int) -> None:
        """Check that a layer has a block that can be observed.

        Args:
            argument: The key or argument that names the layer, for the message.

        Raises:
            InputError: If it has none.
        """
        if layer in self.not_measured:
            raise InputError(
                f"{argument}: layer {layer} of this {self.family} has {self.not_measured[layer]}; expected layers that are "
                f"measured: {numbered(self.attends)}"
            )

    @property
    def heads_of(self) -> dict[int, int]:
        """The number of heads of each layer with attention."""
        return {block.layer: block.heads for block in self.blocks}

    @property
    def heads(self) -> int:
        """The largest number of heads of a layer."""
        return max(block.heads for block in self.blocks)

    @property
    def heads_differ(self) -> bool:
        """Whether layers differ in their number of heads."""
        return len({block.heads for block in self.blocks}) > 1

    @property
    def is_gated(self) -> bool:
        """Whether a gate multiplies the outputs of the heads in some layer."""
        return any(block.has_gate for block in self.blocks)

    @property
    def has_value_weights(self) -> bool:
        """Whether W_V makes the values in every layer."""
        return all(block.has_value_weights for block in self.blocks)

    @property
    def has_score_weights(self) -> bool:
        """Whether W_Q and W_K make queries and keys in every layer."""
        return all(block.has_score_weights for block in self.blocks)

    @property
    def has_networks(self) -> bool:
        """Whether every layer with attention has a feed-forward network, and what leaves it has the block's dimensions."""
        return all(block.networks for block in self.blocks)

    @property
    def has_other_layers(self) -> bool:
        """Whether some layer returns more than its block's output and what one network adds to it."""
        return any(block.networks is None or block.networks > 1 for block in self.blocks)

    @property
    def is_cross_attention(self) -> bool:
        """Whether keys and queries come from different sequences."""
        return self.stack == "cross"

    @property
    def reads_target(self) -> bool:
        """Whether the model reads a target text as well as the source."""
        return self.stack in TARGETS

    @property
    def norm_positions(self) -> tuple[NormPosition, ...]:
        """The positions of the blocks' norms, each once."""
        return tuple(dict.fromkeys(block.norm_position for block in self.blocks))

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that are defined for the blocks of all layers."""
        defined: list[Collection[Method]] = [METHODS[position] for position in self.norm_positions]
        return tuple(
            method
            for method in Method
            if all(method in each for each in defined)
            and (not self.is_cross_attention or method in CROSS_ATTENTION_METHODS)
        )
