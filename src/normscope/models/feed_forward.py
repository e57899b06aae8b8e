"""What the feed-forward network of one layer is made of, and what it did on one batch.

Row vectors. The network reads y_i of token i and gives

    g(u_i) W_2 + b_2            u_i = y_i W_1 + b_1
    (g(u_i) ⊙ w_i) W_2 + b_2    w_i = y_i V + c, if it is gated

A mixture of experts is one such network with the neurons of all experts, each multiplied by the weight that the router gives
its expert.

With s_i for what the attention block gives and LN_2 for the norm of this half of the layer, the layer's output z_i is

    post      y = s       z = LN_2(s + network(y))
    pre       y = LN_2(s) z = s + network(y)
    parallel  y = LN_2(x) z = s + network(y), where x enters the layer: the network does not read attention
    branch    y = s       z = s + LN_2(network(y))

Source: gated networks are those of Shazeer 2020 (arXiv:2002.05202).
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property

from jaxtyping import Bool, Float
from torch import Tensor

from normscope.maths.composition import NormPosition
from normscope.maths.feed_forward import FeedForwardNetwork
from normscope.maths.layer_composition import LayerComposition, LayerStage
from normscope.maths.layer_pairs import KeyRange, layer_pair_norms
from normscope.maths.normalisation import Normalisation
from normscope.maths.shares import Shares, layer_shares
from normscope.maths.tensors import as_double, pieces
from normscope.maths.word_layers import layer_word_norms
from normscope.maths.words import WordGroups
from normscope.models.block import AttentionBlock

PAIR_NEURONS = {"cpu": 2**21}
"""Neurons of pairs of tokens to materialise at once, by device. 2²¹ in float32 (8 MiB) were fastest on a CPU."""

PAIR_NEURONS_ON_ACCELERATORS = 2**26
"""The same on other devices, which need large pieces of work to be busy."""


@dataclasses.dataclass(frozen=True, eq=False)
class FeedForwardParameters(FeedForwardNetwork):
    """The weights of one feed-forward network in float32 or better, and its norms."""

    activation: Callable[[Tensor], Tensor]
    """g, applied neuron by neuron: the model's own."""
    norm_position: NormPosition
    """Where the norm of this half of the layer stands."""
    normalisation: Normalisation | None
    """LN_2 after the residual connection (`post`) or before the network (`pre`, `parallel`); None where there is none."""
    output_normalisation: Normalisation | None
    """LN_2 of the network's output, inside the residual connection (`branch`); None where there is none."""


@dataclasses.dataclass(frozen=True, eq=False)
class FeedForwardBlock:
    """The feed-forward network of one layer, and the attention block that came before it.

    It lives while its layer is being left and must not be kept: it holds the layer's activations. Everything below the
    fields is derived from them on first use, once, and shared by the analyses. Rows of padding hold meaningless finite
    numbers everywhere.
    """

    layer: int
    """Counted from 1."""
    inputs: Float[Tensor, "batch token model"]
    """y_i: what W_1 reads, after the norm where one comes before the network."""
    output: Float[Tensor, "batch token model"]
    """The network's output as the model computed it, with b_2, before a norm and the residual connection."""
    pre_activations: Float[Tensor, "batch token neuron"]
    """u_i = y_i W_1 + b_1, as the model computed it."""
    multipliers: Float[Tensor, "batch token neuron"] | None
    """w_i = y_i V + c of a gated network, as the model computed it; None if it is not gated."""
    routing: Float[Tensor, "batch token neuron"] | None
    """The weight of each neuron's expert, which decompositions hold at its value; None if the network is dense."""
    parameters: FeedForwardParameters
    attention: AttentionBlock
    """The attention block of the same layer."""

    @property
    def token_mask(self) -> Bool[Tensor, "batch token"]:
        """True at tokens, False at padding."""
        return self.attention.token_mask

    @cached_property
    def activations(self) -> Float[Tensor, "batch token neuron"]:
        """g(u_i), or g(u_i) ⊙ w_i of a gated network, times the weights of experts: what W_2 reads."""
        activated = self.parameters.activation(self.pre_activations)
        for factor in (self.multipliers, self.routing):
            activated = activated if factor is None else activated * factor
        return activated

    @property
    def residual(self) -> Float[Tensor, "batch token model"]:
        """s_i: the output of the attention block, which the residual connection carries past the network."""
        return self.attention.composition.block_output

    @cached_property
    def residual_sum(self) -> Float[Tensor, "batch token model"]:
        """s_i + network(y_i), or s_i + LN_2(network(y_i)) for `branch`."""
        return self.residual + _normalised(self.output, self.parameters.output_normalisation)

    @property
    def norm_inputs(self) -> Float[Tensor, "batch token model"] | None:
        """What `parameters.normalisation` is given; None where there is no such norm."""
        if self.parameters.normalisation is None:
            return None
        match self.parameters.norm_position:
            case "post":
                return self.residual_sum
            case "parallel":
                return self.attention.inputs
            case "pre" | "branch":
                return self.residual

    @property
    def read(self) -> Float[Tensor, "batch token model"]:
        """y_i, what W_1 reads, made of the block's output or of the layer's input."""
        vectors = self.attention.inputs if self.parameters.norm_position == "parallel" else self.residual
        return _normalised(vectors, None if self.parameters.norm_position == "post" else self.parameters.normalisation)

    @cached_property
    def layer_output(self) -> Float[Tensor, "batch token model"]:
        """z_i, what leaves the layer."""
        norm = self.parameters.normalisation
        return _normalised(self.residual_sum, norm if self.parameters.norm_position == "post" else None)

    def composition(self) -> LayerComposition:
        """The parts of the layer's output."""
        weights = self.parameters
        return LayerComposition(
            attention=self.attention.composition,
            network=weights,
            pre_activations=self.pre_activations,
            multipliers=self.multipliers,
            routing=self.routing,
            inputs=self.inputs,
            output=self.output,
            norm_position=weights.norm_position,
            normalisation=weights.normalisation,
            output_normalisation=weights.output_normalisation,
        )

    def shares(self) -> dict[LayerStage, Shares]:
        """The signed shares of the parts of every token's vector, from the end of the attention block on; they add up to 1."""
        return layer_shares(self.composition())

    def pair_maps(
        self,
        *,
        stages: Collection[LayerStage] | None = None,
        in_double: bool = True,
    ) -> dict[LayerStage, Float[Tensor, "batch query key"]]:
        """How much every query takes from every key at every stage from the end of the attention block on.

        The network's last projection runs once per pair of tokens. Padding and keys that no query of a strip sees are left out;
        their entries are 0.

        Args:
            stages: The stages to measure; all by default.
            in_double: Whether to compute in float64 on the CPU, or as the model does.
        """
        block = self.attention
        composition, value, output_weight = self._factors(in_double=in_double)
        ranges = (
            KeyRange(sequence, keys, self._strips(sequence, keys, value))
            for sequence in range(len(value))
            for keys in pieces(_extent(block.key_mask[sequence]), self._at_once(value) // value.shape[1])
        )
        return layer_pair_norms(
            composition, ranges, value, output_weight, stages, is_cross_attention=block.is_cross_attention
        )

    def _factors(self, *, in_double: bool) -> tuple[LayerComposition, Tensor, Tensor]:
        """What maps are made of beside α: the composition, v and W_O; in float64 on the CPU, or as the model has them."""
        self.attention.require_vectors_of_keys()
        composition, value = self.composition(), self.attention.value
        output_weight = self.attention.parameters.output_weight
        if in_double:
            return as_double(composition), as_double(value), as_double(output_weight)
        return composition, value, output_weight

    def _at_once(self, like: Tensor) -> int:
        """The number of pairs whose neurons may be materialised at once."""
        return PAIR_NEURONS.get(like.device.type, PAIR_NEURONS_ON_ACCELERATORS) // self.pre_activations.shape[-1]

    def _strips(self, sequence: int, keys: slice, like: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Ranges of queries of a sequence, the range of the given keys that they see, and α of both in the type of `like`."""
        block = self.attention
        for queries in pieces(_extent(self.token_mask[sequence]), self._at_once(like) // (keys.stop - keys.start)):
            seen = keys
            if not block.alpha.seen.is_complete:
                visible = block.alpha.seen.of(queries, slice(sequence, sequence + 1))[0].flatten(0, 1).any(dim=0)[keys]
                seen = _extent(visible, keys.start)
            if seen.start < seen.stop:
                yield queries, seen, block.alpha.rows(queries, slice(sequence, sequence + 1))[0, :, :, seen].to(like)

    def word_maps(
        self,
        groups: WordGroups,
        stages: Iterable[LayerStage] | None = None,
        *,
        in_double: bool = True,
    ) -> dict[LayerStage, Float[Tensor, "batch word unit"]]:
        """How much every word takes from every other, from the end of the attention block on.

        Args:
            stages: The stages to measure; all by default.
            in_double: Whether to compute in float64 on the CPU, or as the model does.
        """
        block = self.attention
        composition, value, output_weight = self._factors(in_double=in_double)
        return layer_word_norms(composition, block.alpha.rows, value, output_weight, groups.like(value), stages)


def _extent(mask: Bool[Tensor, " token"], offset: int = 0) -> slice:
    """From the first to the last True of a mask whose first entry has the number `offset`; empty without one."""
    true = mask.nonzero().flatten()[[0, -1]].tolist() if mask.any() else [0, -1]
    return slice(offset + true[0], offset + true[1] + 1)


def _normalised(vectors: Tensor, norm: Normalisation | None) -> Tensor:
    return vectors if norm is None else norm.normalised(vectors)
