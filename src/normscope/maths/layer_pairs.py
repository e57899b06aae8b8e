"""The vectors that a whole layer passes from one token to another: see `layer_composition.py`."""

import dataclasses
from collections.abc import Collection, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.layer_composition import LayerComposition, LayerStage


class KeyRange(NamedTuple):
    """Some keys of one sequence, and the queries that see them."""

    sequence: int
    keys: slice
    strips: Iterable[tuple[slice, slice, Float[Tensor, "head _ _"]]]
    """Ranges of queries, the part of `keys` that each of them sees, and the α between the two."""


def layer_pair_norms(
    composition: LayerComposition,
    ranges: Iterable[KeyRange],
    value: Float[Tensor, "batch head key head_dim"],
    output_weight: Float[Tensor, "head head_dim model"],
    stages: Collection[LayerStage] | None = None,
    *,
    is_cross_attention: bool = False,
) -> dict[LayerStage, Float[Tensor, "batch token key"]]:
    """The norm of the vector of every query i and key j, by stage.

    The network's last projection runs once per pair, so pairs outside all ranges cost nothing; their norm is 0.

    Args:
        composition: The layer.
        ranges: The pairs to measure, with their α.
        value: v, with b_V inside.
        output_weight: W_O.
        stages: The stages to measure; all by default.
        is_cross_attention: Whether no key is the token itself; the token's own part then belongs to no pair.
    """
    stages = composition.stages if stages is None else stages
    output, deviations = composition.output, composition.last_deviation
    norms = {stage: output.new_zeros(*output.shape[:2], value.shape[2]) for stage in stages}
    heads = _Heads.of(composition, value, output_weight)
    own = None if is_cross_attention else (composition.attention.last_parts[0], composition.made_of_itself())
    for sequence, keys, strips in ranges:
        part = heads.vectors(sequence, keys)
        for queries, seen, weights in strips:
            block, network = _pairs(composition, sequence, queries, weights, part.some(seen, keys))
            if own is not None:
                shared = [token for token in range(queries.start, queries.stop) if seen.start <= token < seen.stop]
                both = torch.tensor(shared, dtype=torch.long, device=block.device)
                for pairs, vectors in zip((block, network), own, strict=True):
                    pairs[both - seen.start, both - queries.start] = vectors[sequence, both]
            deviation = None if deviations is None else deviations[sequence, queries, None]
            for stage in stages:
                vectors = composition.at(stage, network, block, deviation)
                norms[stage][sequence, queries, seen] = torch.linalg.vector_norm(vectors, dim=-1).T
    return norms


def _pairs(
    composition: LayerComposition,
    sequence: int,
    queries: slice,
    weights: Float[Tensor, "head query key"],
    heads: "_HeadVectors",
) -> tuple[Float[Tensor, "key query model"], Float[Tensor, "key query model"]]:
    """T_ij and FF_ij for j ≠ i, as weighted sums of the heads' vectors, so that W_1 is not applied to every pair."""
    if composition.attention.last_deviation is not None:
        weights = weights / composition.attention.last_deviation[sequence, queries, None]
    by_key = weights.permute(2, 1, 0)
    block = by_key @ heads.block
    if heads.input is None:
        return block, torch.zeros_like(block)
    if composition.input_deviation is not None:
        by_key = by_key / composition.input_deviation[sequence, queries, None]
    slopes = composition.query_slopes
    neurons = (by_key @ heads.input).mul_(slopes.input[sequence, queries])
    if heads.multiplier is not None and slopes.multiplier is not None:
        neurons.addcmul_(by_key @ heads.multiplier, slopes.multiplier[sequence, queries])
    return block, neurons @ composition.network.output_weight


@dataclasses.dataclass(frozen=True, eq=False)
class _HeadVectors:
    """Each head's vectors with weights and deviations of 1, for some keys of one sequence."""

    block: Float[Tensor, "key head model"]
    """For T."""
    input: Float[Tensor, "key head neuron"] | None
    """For u; None if the network does not read attention."""
    multiplier: Float[Tensor, "key head neuron"] | None
    """For w; None if the network is not gated."""

    def some(self, keys: slice, of: slice) -> "_HeadVectors":
        """The vectors of some of the keys."""
        chosen = slice(keys.start - of.start, keys.stop - of.start)
        return _HeadVectors(
            block=self.block[chosen],
            input=None if self.input is None else self.input[chosen],
            multiplier=None if self.multiplier is None else self.multiplier[chosen],
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Heads:
    """Makes the heads' vectors of a few keys at a time, because those of all keys need too much memory."""

    value: Float[Tensor, "batch head key head_dim"]
    output_weight: Float[Tensor, "head head_dim model"]
    read_weight: Float[Tensor, "head head_dim model"] | None
    """From v to what the network reads; None if it is part of `weights`."""
    weights: tuple[Tensor, ...]
    """The maps to u and w: W_1 and V, or each head's W_O times these. Empty if the network does not read attention."""

    @classmethod
    def of(cls, composition: LayerComposition, value: Tensor, output_weight: Tensor) -> "_Heads":
        """The weights that lead from the values to the vectors of a layer's pairs."""
        if composition.attention.normalisation is not None:
            output_weight = composition.attention.normalisation.scaled(output_weight)
        if composition.norm_position == "parallel":
            return cls(value, output_weight, None, ())
        norm, network = composition.input_norm, composition.network
        read = output_weight if norm is None else norm.scaled(output_weight)
        weights = [network.input_weight, *([] if network.multiplier_weight is None else [network.multiplier_weight])]
        sequences, heads, keys, _ = value.shape
        # W_O W_1 is one product for all keys; f(x_j) W_1 is one per key and head.
        if sequences * keys * (heads - 1) > output_weight.shape[-1]:
            return cls(value, output_weight, None, tuple(read @ weight for weight in weights))
        return cls(value, output_weight, read, tuple(weights))

    def vectors(self, sequence: int, keys: slice) -> _HeadVectors:
        """The vectors of some keys of one sequence."""
        value = self.value[sequence, :, keys]
        read = value if self.read_weight is None else value @ self.read_weight
        neurons = [_by_key(read @ weight) for weight in self.weights]
        return _HeadVectors(
            block=_by_key(value @ self.output_weight),
            input=neurons[0] if neurons else None,
            multiplier=neurons[1] if len(neurons) > 1 else None,
        )


def _by_key(vectors: Tensor) -> Tensor:
    """(head, key, …) to (key, head, …): then the product with the weights of a strip of queries copies nothing."""
    return vectors.transpose(0, 1).contiguous()
