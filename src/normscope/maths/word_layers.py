"""Maps of words through whole layers: see `words.py` and `layer_composition.py`."""

import dataclasses
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.layer_composition import LayerComposition, LayerStage
from normscope.maths.words import Strip, WordGroups


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
    then averaged, and the last projection runs once per pair of words.

    Args:
        composition: The layer.
        weights_of: α of a range of queries of a range of sequences.
        value: v, with b_V inside.
        output_weight: W_O.
        groups: The words.
        stages: The stages to measure; all by default.
    """
    stages = list(stages or composition.stages)
    transformed = torch.einsum("bhkd,hdm->bhkm", value, output_weight)
    norms = {stage: transformed.new_zeros(*groups.rows.shape[:2], groups.count) for stage in stages}
    heads = None if composition.norm_position == "parallel" else _head_neurons(composition, value, output_weight)
    own = composition.attention.own(composition.attention.stages[-1])
    for strip in groups.strips(composition.pre_activations.shape[-1]):
        weights = groups.others(weights_of(strip.queries, strip.sequences).to(transformed), strip)
        keys = transformed[strip.sequences].transpose(1, 2)
        neurons = None if heads is None else _neurons(composition, groups, strip, weights, *heads)
        pairs = _Pairs(composition, own, groups, strip, weights, keys, neurons)
        for stage in stages:
            vectors = pairs.at(stage, groups.rows_of(strip))
            norms[stage][strip.sequences, strip.words] = torch.linalg.vector_norm(vectors, dim=-1).transpose(1, 2)
    return norms


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """The vectors of a strip's pairs of words: batch, unit, word, model."""

    composition: LayerComposition
    own: Tensor
    """What every token takes from itself through the attention block."""
    groups: WordGroups
    strip: Strip
    weights: Tensor
    keys: Tensor
    neurons: Tensor | None
    """What the last projection reads for each query and source word; None if the network does not read attention."""

    def at(self, stage: LayerStage, rows: Tensor) -> Tensor:
        """The vectors at a stage, of target words that hold each query with the share in `rows`."""
        composition = self.composition
        match stage:
            case LayerStage.BLOCK:
                return self._block(rows)
            case LayerStage.NETWORK:
                return self._network(rows)
            case LayerStage.RESIDUAL:
                return self._network(rows) + self._block(rows)
            case LayerStage.NORMALISED:
                assert composition.deviation is not None
                scaled = rows / composition.deviation[self.strip.sequences, self.strip.queries].unsqueeze(1)
                if composition.norm_position == "branch":
                    assert composition.output_normalisation is not None
                    return composition.output_normalisation.scaled(self._network(scaled)) + self._block(rows)
                assert composition.normalisation is not None
                return composition.normalisation.scaled(self._network(scaled) + self._block(scaled))

    def _block(self, rows: Tensor) -> Tensor:
        attention = self.composition.attention
        vectors = attention.word_vectors(self.weights, self.keys, rows, self.strip, self.groups, attention.stages[-1])
        return self.groups.with_own(vectors, rows, self.own, self.strip)

    def _network(self, rows: Tensor) -> Tensor:
        if self.neurons is None:
            batch, words, _ = rows.shape
            vectors = rows.new_zeros(batch, self.groups.count, words, self.keys.shape[-1])
        else:
            vectors = (rows.unsqueeze(1) @ self.neurons) @ self.composition.network.output_weight
        return self.groups.with_own(vectors, rows, self.composition.parts.own, self.strip)


def _head_neurons(composition: LayerComposition, value: Tensor, output_weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """What each head's f(x_j) adds to the neurons of a query with weight 1 and deviations 1: batch, key, head, neuron.

    As in `LayerComposition.pair_norms`, but W_O, the norms and W_1 are multiplied first: W_1 reads as many numbers as a head
    has, not as a hidden vector.
    """
    if composition.attention_deviation is not None and composition.attention.normalisation is not None:
        output_weight = composition.attention.normalisation.scaled(output_weight)
    if composition.norm_position != "post" and composition.normalisation is not None:
        output_weight = composition.normalisation.scaled(output_weight)
    network = composition.network

    def neurons(weight: Tensor) -> Tensor:
        return (value @ (output_weight @ weight)).transpose(1, 2).contiguous()

    return neurons(network.input_weight), None if network.multiplier_weight is None else neurons(
        network.multiplier_weight
    )


def _neurons(
    composition: LayerComposition,
    groups: WordGroups,
    strip: Strip,
    weights: Tensor,
    inputs: Tensor,
    multipliers: Tensor | None,
) -> Tensor:
    """N_iJ W_1 ⊙ A_i of every query i and source word J of a strip: batch, unit, query, neuron.

    Args:
        composition: The layer.
        groups: The words.
        strip: The queries and words.
        weights: α of the strip's queries, zero on themselves.
        inputs: See `_head_neurons`.
        multipliers: The same of a gated network; else None.
    """
    sequences, queries = strip.sequences, strip.queries
    for deviation in (composition.attention_deviation, composition.input_deviation):
        if deviation is not None:
            weights = weights / deviation[sequences, None, queries, None]
    by_key = weights.permute(0, 3, 2, 1)  # batch, key, query, head
    slopes = composition.query_slopes
    neurons = groups.merged(by_key @ inputs[sequences], strip).mul_(slopes.input[sequences, None, queries])
    if multipliers is not None and slopes.multiplier is not None:
        gated = groups.merged(by_key @ multipliers[sequences], strip)
        neurons.addcmul_(gated, slopes.multiplier[sequences, None, queries])
    return neurons
