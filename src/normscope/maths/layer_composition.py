"""The parts of a whole layer's output: from the token itself, from the other tokens, and from no token.

Row vectors. With T_ij for what the attention block of token i takes from token j at its last stage, c_i for what it takes from
no token, and y_i = Σ_j T_ij + c_i (see `composition.py`), the feed-forward network adds three stages:

    FF_ij = ((N_ij W_1) ⊙ A_i) W_2                 the network alone (see `feed_forward.py`)
    FF_ij + T_ij                                   with its residual connection
    γ ⊙ (FF_ij + T_ij − mean) / σ_i                with the layer normalisation

Families differ in the position of the norm of this half of the layer:

    post      z = LN(y + network(y))       N_ij = T_ij; all three stages
    pre       z = y + network(LN(y))       N_ij = γ ⊙ (T_ij − mean) / σ_i; no norm follows the sum
    parallel  z = y + network(LN(x))       the network reads the token itself alone: N_ij = 0 for j ≠ i
    branch    z = y + LN(network(y))       N_ij = T_ij; the third stage is γ ⊙ (FF_ij − mean) / σ_i + T_ij, and there is no
                                           second one. A norm may also stand before the network, as in `pre`.

Own, others and the constant part add up to the layer's output at every stage. Only what is own and constant is built, because
the rest of the network's output comes from the others: memory is linear in the number of tokens.

Source: Kobayashi et al. 2024 (ICLR).
"""

import dataclasses
import enum
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.composition import Composition, NormPosition
from normscope.maths.feed_forward import FeedForwardNetwork, Slopes
from normscope.maths.normalisation import Normalisation
from normscope.maths.tensors import pieces


class LayerStage(enum.StrEnum):
    """How far through a layer a vector has come, from the end of the attention block on."""

    BLOCK = "atb"
    """T, the attention block."""
    NETWORK = "atbff"
    """FF."""
    RESIDUAL = "atbffres"
    """FF + T."""
    NORMALISED = "atbffresln"
    """The layer's output after a norm."""


LAYER_STAGES: Mapping[NormPosition, tuple[LayerStage, ...]] = {
    "post": tuple(LayerStage),
    "pre": (LayerStage.BLOCK, LayerStage.NETWORK, LayerStage.RESIDUAL),
    "parallel": (LayerStage.BLOCK, LayerStage.NETWORK, LayerStage.RESIDUAL),
    "branch": (LayerStage.BLOCK, LayerStage.NETWORK, LayerStage.NORMALISED),
}
"""The stages of a layer, by the position of the norm of its feed-forward half."""

WHOLE_LAYER = "layer"
"""The name of a family's last stage, whichever it is, where a stage is chosen."""

NEURONS_AT_ONCE = {"cpu": 2**21}
"""Neurons to hold at once, by device: larger matrices are slower on a CPU, because they do not fit into its cache."""

NEURONS_IN_CACHE = {"cpu": 2**17}
"""Neurons whose slopes are computed and applied at once, by device: 2¹⁷ stay in the cache of one of a CPU's cores."""

NEURONS_ON_ACCELERATORS = 2**28
"""Both on other devices, which need large pieces of work to be busy."""


class NetworkParts(NamedTuple):
    """The parts of the network's output."""

    own: Float[Tensor, "batch token model"]
    others: Float[Tensor, "batch token model"]
    constant: Float[Tensor, "batch token model"]


@dataclasses.dataclass(frozen=True, eq=False)
class LayerComposition:
    """The parts of a layer's output."""

    attention: Composition
    """The attention block."""
    network: FeedForwardNetwork
    pre_activations: Float[Tensor, "batch token neuron"]
    """u_i."""
    multipliers: Float[Tensor, "batch token neuron"] | None
    """w_i; None if the network is not gated."""
    routing: Float[Tensor, "batch token neuron"] | None
    """The weight of each neuron's expert; None if the network is dense."""
    inputs: Float[Tensor, "batch token model"]
    """What the network reads: y_i, or its norm."""
    output: Float[Tensor, "batch token model"]
    """The network's output as the model computed it, before a norm and the residual connection."""
    norm_position: NormPosition
    normalisation: Normalisation | None
    """The norm after the residual connection (`post`) or before the network; None where there is none."""
    output_normalisation: Normalisation | None
    """The norm of the network's output (`branch`)."""

    @property
    def stages(self) -> tuple[LayerStage, ...]:
        """The stages of the layer."""
        return LAYER_STAGES[self.norm_position]

    @property
    def last_norm(self) -> Normalisation | None:
        """The norm after the network; None if none follows."""
        if self.output_normalisation is not None:
            return self.output_normalisation
        return self.normalisation if self.norm_position == "post" else None

    @cached_property
    def last_deviation(self) -> Float[Tensor, "batch token"] | None:
        """σ_i of the norm after the network; None if none follows."""
        if self.last_norm is None:
            return None
        before = self.output if self.output_normalisation is not None else self.attention.block_output + self.output
        return self.last_norm.deviation(before)

    def whole(self, stage: LayerStage) -> Float[Tensor, "batch token model"]:
        """The layer's output at a stage, computed from the whole vectors instead of the parts."""
        block = self.attention.block_output
        match stage:
            case LayerStage.BLOCK:
                return block
            case LayerStage.NETWORK:
                return self.output
            case LayerStage.RESIDUAL:
                return block + self.output
            case LayerStage.NORMALISED:
                assert self.last_norm is not None
                if self.output_normalisation is not None:
                    return block + self.last_norm.normalised(self.output)
                return self.last_norm.normalised(block + self.output)

    @cached_property
    def input_deviation(self) -> Float[Tensor, "batch token"] | None:
        """σ_i of the norm before the network; None if there is none."""
        norm = self.input_norm
        if norm is None:
            return None
        return norm.deviation(
            self.attention.inputs if self.norm_position == "parallel" else self.attention.block_output
        )

    @cached_property
    def parts(self) -> NetworkParts:
        """What the network's output takes from the token itself, from the others, and from no token."""
        own_input = None if self.norm_position == "parallel" else self._own_input().flatten(0, 1)
        unread = self.network.constant_read(*self._constant_input())
        own, constant = (torch.zeros_like(self.output).flatten(0, 1) for _ in range(2))
        at_once, in_cache = (
            sizes.get(self.output.device.type, NEURONS_ON_ACCELERATORS) // self.pre_activations.shape[-1]
            for sizes in (NEURONS_AT_ONCE, NEURONS_IN_CACHE)
        )
        for rows in pieces(slice(0, len(own)), at_once):
            reads = [] if own_input is None else [(own, self.network.read(own_input[rows]))]
            if unread is not None:
                reads.append((constant, unread[1].combined(unread[0][rows])))
            for some in pieces(rows, in_cache):
                slopes = self._slopes(some)
                for _, read in reads:
                    read.some(slice(some.start - rows.start, some.stop - rows.start)).sloped_(slopes)
            for result, read in reads:
                torch.matmul(read.input, self.network.output_weight, out=result[rows])
        bias = self.network.output_bias
        constant = (constant if bias is None else constant.add_(bias)).view_as(self.output)
        if own_input is None:
            return NetworkParts(self.output - constant, torch.zeros_like(constant), constant)
        own = own.view_as(self.output)
        return NetworkParts(own, (self.output - own).sub_(constant), constant)

    def own(self, stage: LayerStage) -> Float[Tensor, "batch token model"]:
        """What each token takes from itself.

        Raises:
            ValueError: If the layer does not have the stage.
        """
        return self._of_tokens(stage, self.parts.own, self.attention.last_parts[0])

    def others(self, stage: LayerStage) -> Float[Tensor, "batch token model"]:
        """What each token takes from the others.

        Raises:
            ValueError: If the layer does not have the stage.
        """
        return self._of_tokens(stage, self.parts.others, self.attention.last_parts[1])

    def constant(self, stage: LayerStage) -> Float[Tensor, "batch token model"]:
        """The part of the output that comes from no token.

        Raises:
            ValueError: If the layer does not have the stage.
        """
        constant = self._of_tokens(stage, self.parts.constant, self.attention.constant(self.attention.stages[-1]))
        norm = self.normalisation if self.norm_position == "post" else self.output_normalisation
        normed = stage is LayerStage.NORMALISED and norm is not None and norm.bias is not None
        return constant + norm.bias if normed and norm is not None and norm.bias is not None else constant

    def made_of_others(self) -> Float[Tensor, "batch token model"]:
        """What the network makes of the others' vectors, by running it on them: `parts.others` without a remainder.

        It costs another pass through the network, and proves the parts.
        """
        if self.norm_position == "parallel":
            return torch.zeros_like(self.output)
        vectors = self._as_input(self.attention.last_parts[1])
        return self.network.contribution(vectors, self.query_slopes)

    def made_of_itself(self) -> Float[Tensor, "batch token model"]:
        """What the network makes of each token's own vector, by running it on that: `parts.own` without a remainder."""
        return self.network.contribution(self._own_input(), self.query_slopes)

    def relative_norms(self) -> dict[LayerStage, tuple[Float[Tensor, "batch token"], Float[Tensor, "batch token"]]]:
        """The norms of others and own by stage, up to a factor common to both norms of a token.

        The factor is 1, except after a `post` norm: there it is σ_i, which cancels in every ratio.
        """
        block = self.attention.last_parts[::-1]
        network = self.parts.others, self.parts.own
        norms = {LayerStage.BLOCK: _norms(*block), LayerStage.NETWORK: _norms(*network)}
        if self.norm_position == "branch":
            normed = (self._of_tokens(LayerStage.NORMALISED, *parts) for parts in zip(network, block, strict=True))
            return norms | {LayerStage.NORMALISED: _norms(*normed)}
        sums = network[0] + block[0], network[1] + block[1]
        norms[LayerStage.RESIDUAL] = _norms(*sums)
        if self.norm_position == "post" and self.normalisation is not None:
            others, own = (self.normalisation.scaled_(part) for part in sums)
            norms[LayerStage.NORMALISED] = _norms(others, own)
        return norms

    @cached_property
    def query_slopes(self) -> Slopes:
        """The slopes of every token."""
        return self.network.slopes(self.pre_activations, self.multipliers).routed(self.routing)

    @property
    def input_norm(self) -> Normalisation | None:
        """The norm before the network."""
        return None if self.norm_position == "post" else self.normalisation

    def _own_input(self) -> Tensor:
        """N_ii, the part of what the network reads that comes from the token itself."""
        if self.norm_position == "parallel":
            norm = self.input_norm
            return self.inputs if norm is None or norm.bias is None else self.inputs - norm.bias
        return self._as_input(self.attention.last_parts[0])

    def _as_input(self, vectors: Tensor) -> Tensor:
        """What the network reads of parts of y_i: γ ⊙ (v − mean(v)) / σ_i if a norm stands before it."""
        norm, deviation = self.input_norm, self.input_deviation
        if norm is None or deviation is None:
            return vectors
        return norm.scaled(vectors).div_(deviation.unsqueeze(-1))

    def _constant_input(self) -> tuple[Float[Tensor, "token rank"], Float[Tensor, "rank model"]]:
        """The constant part of what the network reads, as coefficients by token and a few vectors."""
        like = self.output[..., 0]
        terms = [] if self.norm_position == "parallel" else self.attention.constant_terms(self.attention.stages[-1])
        norm, deviation = self.input_norm, self.input_deviation
        if norm is not None and deviation is not None:
            terms = [
                (1 / deviation if factor is None else factor / deviation, norm.scaled(vector))
                for factor, vector in terms
            ]
            terms += [] if norm.bias is None else [(None, norm.bias)]
        if not terms:
            return self.output.new_zeros(like.numel(), 0), self.output.new_zeros(0, self.output.shape[-1])
        factors = [torch.ones_like(like) if factor is None else factor for factor, _ in terms]
        return torch.stack(factors, dim=-1).flatten(0, 1), torch.stack([vector for _, vector in terms])

    def _slopes(self, rows: slice) -> Slopes:
        """The slopes of some tokens, counted over all sequences."""
        multipliers, routing = (
            None if factors is None else factors.flatten(0, 1)[rows] for factors in (self.multipliers, self.routing)
        )
        return self.network.slopes(self.pre_activations.flatten(0, 1)[rows], multipliers).routed(routing)

    def _of_tokens(self, stage: LayerStage, network: Tensor, block: Tensor) -> Tensor:
        return self.at(
            stage, network, block, None if self.last_deviation is None else self.last_deviation.unsqueeze(-1)
        )

    def at(self, stage: LayerStage, network: Tensor, block: Tensor, deviation: Tensor | None) -> Tensor:
        """A part of the output at a stage, without β, from the same part of the network's output and of y.

        Args:
            network: A part of the network's output.
            block: The same part of y.
            deviation: σ_i of the queries, of a shape that divides the vectors.
        """
        if stage not in self.stages:
            raise ValueError(f"a layer with norm_position={self.norm_position!r} has no stage {stage}")
        match stage:
            case LayerStage.BLOCK:
                return block
            case LayerStage.NETWORK:
                return network
            case LayerStage.RESIDUAL:
                return network + block
            case LayerStage.NORMALISED:
                assert deviation is not None
                if self.output_normalisation is not None:
                    return self.output_normalisation.scaled(network) / deviation + block
                assert self.normalisation is not None
                return self.normalisation.scaled(network + block) / deviation


def _norms(others: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.vector_norm(others, dim=-1), torch.linalg.vector_norm(own, dim=-1)
