"""Maps of words through whole layers: see `words.py` and `layer_composition.py`."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.layer_composition import LayerComposition, LayerStage
from normscope.maths.word_batches import KeyVectors, Strip, WordBatch, word_batches
from normscope.maths.words import WordGroups


def layer_word_norms(
    composition: LayerComposition,
    weights_of: Callable[[slice, slice], Float[Tensor, "batch head _ key"]],
    value: Float[Tensor, "batch head key head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
    groups: WordGroups,
    stages: Iterable[LayerStage] | None = None,
) -> dict[LayerStage, Float[Tensor, "batch word unit"]]:
    """The norm of the vector that a layer passes between two words, by stage.

    Slopes and deviations belong to tokens, so the network's neurons are computed for every token of a target word. They are
    then averaged, and the last projection runs once per pair of words: 2 · neuron · model operations, nearly all of the cost.

    Args:
        composition: The layer.
        weights_of: α of a range of queries of a range of sequences.
        value: v, with b_V inside.
        output_weight: W_O.
        stages: The stages to measure; all by default.
    """
    stages = list(stages or composition.stages)
    norms = {stage: value.new_zeros(*groups.rows.shape[:2], groups.count) for stage in stages}
    linear = _LinearStages.of(composition, output_weight, stages)
    for batch in word_batches(groups, composition.pre_activations.shape[-1]):
        neurons = [batch.key_vectors(value, weight) for weight in linear.read]
        blocks = {stage: batch.key_vectors(value, weight) for stage, weight in linear.block.items()}
        for strip, weights in batch.weighted_strips(weights_of, value):
            pairs = _Pairs(composition, linear, batch, strip, weights, neurons, blocks)
            for stage in stages:
                lengths = torch.linalg.vector_norm(pairs.at(stage), dim=-1).transpose(1, 2)
                norms[stage][strip.sequences, strip.words, batch.units] = lengths
    return norms


@dataclasses.dataclass(frozen=True, eq=False)
class _LinearStages:
    """Weights of the maps that lead to the stages. Norms are linear given their deviations, so they are part of the weights."""

    read: tuple[Tensor, ...]
    """From v to the neurons, W_1 and V after W_O and the norms; empty if the network does not read attention."""
    block: dict[LayerStage, Tensor]
    """From v to the block's part of the vector, for the stages that have one."""
    written: dict[LayerStage, Tensor]
    """From the neurons to the network's part of the vector, for the stages that have one."""
    own_block: dict[LayerStage, Float[Tensor, "batch token model"]]
    """The block's part of what every token takes from itself, but for σ_i of the stage's norm."""
    own_network: dict[LayerStage, Float[Tensor, "batch token model"]]
    """The network's part."""

    @classmethod
    def of(cls, composition: LayerComposition, output_weight: Tensor, stages: Sequence[LayerStage]) -> "_LinearStages":
        """The weights of a layer's stages."""
        network, attention = composition.network, composition.attention.normalisation
        if composition.attention.last_deviation is not None and attention is not None:
            output_weight = attention.scaled(output_weight)
        read = output_weight
        if composition.norm_position != "post" and composition.normalisation is not None:
            read = composition.normalisation.scaled(read)
        weights = network.input_weight, network.multiplier_weight
        reads = composition.norm_position != "parallel"
        inputs = tuple(read @ weight for weight in weights if reads and weight is not None)
        branch = composition.norm_position == "branch"
        norm = composition.output_normalisation if branch else composition.normalisation
        own = composition.attention.own(composition.attention.stages[-1])
        own_network = composition.made_of_itself() if inputs else composition.parts.own

        def normed(stage: LayerStage, values: Tensor, *, by: bool = True) -> Tensor:
            return norm.scaled(values) if norm is not None and by and stage is LayerStage.NORMALISED else values

        of_block = [stage for stage in stages if stage is not LayerStage.NETWORK]
        of_network = [stage for stage in stages if stage is not LayerStage.BLOCK]
        return cls(
            read=inputs,
            # The norm of a `branch` is that of the network's part alone.
            block={stage: normed(stage, output_weight, by=not branch) for stage in of_block},
            written={stage: normed(stage, network.output_weight) for stage in of_network},
            own_block={stage: normed(stage, own, by=not branch) for stage in of_block},
            own_network={stage: normed(stage, own_network) for stage in of_network},
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """The vectors of a strip's pairs of words: batch, unit, word, model."""

    composition: LayerComposition
    linear: _LinearStages
    batch: WordBatch
    strip: Strip
    weights: Float[Tensor, "batch head query key"]
    """α, zero on itself."""
    neurons: list[KeyVectors]
    blocks: dict[LayerStage, KeyVectors]

    def at(self, stage: LayerStage) -> Float[Tensor, "batch unit word model"]:
        """The vectors at a stage."""
        rows = self.batch.rows_of(self.strip)
        scaled = rows
        if stage is LayerStage.NORMALISED:
            assert self.composition.last_deviation is not None
            scaled = rows / self._of_queries(self.composition.last_deviation).unsqueeze(1)
        if stage is LayerStage.BLOCK:
            return self._block(stage, rows)
        vectors = self._network(stage, scaled)
        if stage is LayerStage.NETWORK:
            return vectors
        return vectors.add_(self._block(stage, rows if self.composition.norm_position == "branch" else scaled))

    def _block(self, stage: LayerStage, rows: Tensor) -> Tensor:
        shares = rows
        if self.composition.attention.last_deviation is not None:
            shares = rows / self._of_queries(self.composition.attention.last_deviation).unsqueeze(1)
        vectors = self.batch.merged(shares, self.weights, self.blocks[stage])
        return self.batch.with_own(vectors, rows, self.linear.own_block[stage], self.strip)

    def _network(self, stage: LayerStage, rows: Tensor) -> Tensor:
        own = self.linear.own_network[stage]
        if not self.neurons:
            shape = len(rows), len(self.batch.units), rows.shape[1], own.shape[-1]
            return self.batch.with_own(rows.new_zeros(shape), rows, own, self.strip)
        shares = rows
        for deviation in (self.composition.attention.last_deviation, self.composition.input_deviation):
            if deviation is not None:
                shares = shares / self._of_queries(deviation).unsqueeze(1)
        slopes = (slope for slope in self.composition.query_slopes if slope is not None)
        gates = list(zip(self.neurons, map(self._of_queries, slopes), strict=True))
        neurons = self.batch.merged_neurons(self.strip, shares, self.weights, gates)
        return self.batch.with_own(neurons @ self.linear.written[stage], rows, own, self.strip)

    def _of_queries(self, values: Tensor) -> Tensor:
        return values[self.strip.sequences, self.strip.queries]
