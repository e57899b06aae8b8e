"""What follows attention in a layer, run again on changed attention outputs."""

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.attribution.tiles import PairTile
from normscope.maths.normalisation import Normalisation
from normscope.models.feed_forward import FeedForwardBlock

_QUERIES = 256
"""Queries to run at once with nothing subtracted."""


class RestOfLayer:
    """What follows attention in a layer, for queries whose attention output lacks F_ij.

    The network's first projection is affine in F_ij, but for the deviation of a norm. So it comes from projections of the
    heads' values, which are far fewer than pairs, and only the activation and the second projection run pair by pair.

    Args:
        block: The layer.
    """

    def __init__(self, block: FeedForwardBlock) -> None:
        self._block, self._parameters = block, block.parameters
        attention, parameters = block.attention, block.parameters
        self._first, self._second = attention.parameters.normalisation, parameters.normalisation
        branch = attention.parameters.norm_position == "branch"
        normed = attention.attention_output if branch else attention.inputs + attention.attention_output
        source = (normed, attention.parameters.output_weight)
        beside = attention.inputs if branch else None
        self._given = _Affine(*source, None)
        """What the block's norm is given, or the block's output if it has none."""
        self._residual = self._given if self._first is None else _Affine.normed(*source, self._first, beside)
        """The block's output."""
        reading = None
        match attention.parameters.norm_position, parameters.norm_position:
            case ("post", "post") | ("branch", "branch"):
                reading = self._first
            case "pre", "pre":
                reading = self._second
        self._reading = reading
        """The norm through which the network reads attention's output, if it is one norm alone."""
        self._weights = [(parameters.input_weight, parameters.input_bias)]
        if parameters.multiplier_weight is not None:
            self._weights.append((parameters.multiplier_weight, parameters.multiplier_bias))
        self._projections = [
            _Affine.normed(*source, reading, beside, weight, bias)
            for weight, bias in self._weights
            if reading is not None
        ]

    def untouched(self, sequence: int) -> Float[Tensor, "query model"]:
        """The layer's outputs with nothing subtracted, computed as `outputs` does.

        Args:
            sequence: Its place in the batch.
        """
        queries = self._block.attention.inputs.shape[1]
        strips = [slice(start, min(start + _QUERIES, queries)) for start in range(0, queries, _QUERIES)]
        return torch.cat([self._outputs((sequence, strip), None)[0] for strip in strips])

    def outputs(self, tile: PairTile) -> Float[Tensor, "key query model"]:
        """The layer's outputs for the queries of a tile, each without the value of each key.

        Args:
            tile: The pairs.
        """
        return self._outputs((tile.sequence, tile.queries), tile)

    def _outputs(self, at: tuple[int, slice], tile: PairTile | None) -> Float[Tensor, "#key query model"]:
        parameters, given = self._parameters, self._given(at, tile)
        scale = None if self._first is None else 1 / self._first.deviation(given).unsqueeze(-1)
        residual = given if scale is None else self._residual(at, tile, scale)
        if parameters.norm_position == "parallel":  # the network does not read attention
            neurons = self._block.activations[at].unsqueeze(0)
        elif self._reading is None:
            read = _normalised(self._second, residual) if parameters.norm_position == "pre" else residual
            neurons = self._neurons([_projected(read, weight, bias) for weight, bias in self._weights], at)
        else:
            scale = 1 / self._reading.deviation(given).unsqueeze(-1) if scale is None else scale
            neurons = self._neurons([projection(at, tile, scale) for projection in self._projections], at)
        added = _projected(neurons, parameters.output_weight, parameters.output_bias)
        output = residual + _normalised(parameters.output_normalisation, added)
        return _normalised(self._second, output) if parameters.norm_position == "post" else output

    def _neurons(
        self, inner: list[Float[Tensor, "#key query neuron"]], at: tuple[int, slice]
    ) -> Float[Tensor, "#key query neuron"]:
        """What the second projection reads. The weights of experts stay as they were.

        Args:
            inner: What the activation reads and, in a gated network, the multipliers.
            at: The sequence and its queries.
        """
        neurons, routing = self._parameters.activation(inner[0]), self._block.routing
        for factor in (*inner[1:], *([] if routing is None else [routing[at]])):
            neurons = neurons * factor
        return neurons


class _Affine:
    """A map of what attention gives: (p_i − F_ij W) c_ij + d_i, where c_ij is a number.

    Args:
        base: p.
        output_weight: W_O W.
        constant: d; None if there is none.
    """

    def __init__(
        self,
        base: Float[Tensor, "batch token out"],
        output_weight: Float[Tensor, "head head_dim out"],
        constant: Float[Tensor, "batch token out"] | None,
    ) -> None:
        self._base, self._output_weight, self._constant = base, output_weight, constant

    @classmethod
    def normed(
        cls,
        normed: Float[Tensor, "batch token model"],
        output_weight: Float[Tensor, "head head_dim model"],
        norm: Normalisation,
        beside: Float[Tensor, "batch token model"] | None,
        weight: Float[Tensor, "model out"] | None = None,
        bias: Float[Tensor, " out"] | None = None,
    ) -> "_Affine":
        """(LN(p − F) + b) W, where c_ij is one divided by the deviation of p_i − F_ij.

        Args:
            normed: p.
            output_weight: W_O.
            norm: LN.
            beside: b.
            weight: W; the identity by default.
            bias: What is added at the end.
        """

        def projected(vectors: Tensor) -> Tensor:
            return vectors if weight is None else vectors @ weight

        base = projected(norm.scaled(normed))
        parts = [projected(part) for part in (norm.bias, beside) if part is not None]
        parts += [] if bias is None else [bias]
        constant = sum(parts, base.new_zeros(base.shape[-1])).expand_as(base)
        return cls(base, projected(norm.scaled(output_weight)), constant)

    def __call__(
        self, at: tuple[int, slice], tile: PairTile | None, scale: Float[Tensor, "#key query 1"] | None = None
    ) -> Float[Tensor, "#key query out"]:
        """The map for some queries.

        Args:
            at: The sequence and its queries.
            tile: The pairs whose F is subtracted; None if nothing is.
            scale: c; one by default.
        """
        base = self._base[at]
        if scale is None or self._constant is None:
            return base.unsqueeze(0) if tile is None else tile.subtracted(base, self._output_weight)
        constant = self._constant[at]
        if tile is None:
            return torch.addcmul(constant, base, scale)
        return tile.subtracted(constant, self._output_weight, scale).addcmul_(base, scale)


def _projected(vectors: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    projected = vectors @ weight
    return projected if bias is None else projected.add_(bias)


def _normalised(norm: Normalisation | None, vectors: Tensor) -> Tensor:
    return vectors if norm is None else norm.normalised(vectors)
