"""What follows attention in a layer, run again on changed attention outputs."""

from jaxtyping import Float
from torch import Tensor

from normscope.attribution.tiles import Tile
from normscope.maths.normalisation import Normalisation
from normscope.models.feed_forward import FeedForwardBlock


class RestOfLayer:
    """What follows attention in a layer.

    F_ij is subtracted from the attention output of query i. Where a norm stands between attention and the network, the first
    projection of all pairs comes from projections of the heads' values, which are far fewer than pairs.

    Args:
        block: The layer.
    """

    def __init__(self, block: FeedForwardBlock) -> None:
        self._block, self._parameters = block, block.parameters
        attention = block.attention
        self._first, self._position = attention.normalisation, attention.norm_position
        self._second = block.parameters.normalisation
        self._norm: Normalisation | None = None
        """The norm through which the network reads attention's output, if it folds into the first projection."""
        normed, beside = attention.inputs + attention.attention_output, None
        match self._position, block.parameters.norm_position:
            case "post", "post":
                self._norm = self._first
            case "branch", "branch":
                self._norm, normed, beside = self._first, attention.attention_output, attention.inputs
            case "pre", "pre":
                self._norm = self._second
        weights, output_weight = self._parameters, attention.parameters.output_weight
        reading = (self._norm, normed, beside)
        self._inner = _Projection(*reading, weights.input_weight, weights.input_bias, output_weight)
        self._multiplier = None
        if weights.multiplier_weight is not None:
            self._multiplier = _Projection(*reading, weights.multiplier_weight, weights.multiplier_bias, output_weight)

    def outputs(
        self, tile: Tile, vectors: Float[Tensor, "key query model"] | None
    ) -> Float[Tensor, "#key query model"]:
        """The layer's outputs for the queries of a tile.

        Args:
            tile: The pairs.
            vectors: F, to subtract from the attention output; None to leave it as it is.
        """
        at, attention = (tile.sequence, tile.queries), self._block.attention
        inputs, attended = attention.inputs[at], attention.attention_output[at]
        changed = (attended if vectors is None else attended - vectors).reshape(-1, *attended.shape)
        match self._position:
            case "post":
                normed, residual = inputs + changed, _normalised(self._first, inputs + changed)
            case "branch":
                normed, residual = changed, inputs + _normalised(self._first, changed)
            case _:
                normed = residual = inputs + changed
        parameters = self._parameters
        if parameters.norm_position == "parallel":
            # The network does not read attention.
            neurons = self._block.activations[at].unsqueeze(0)
        else:
            read = _normalised(self._second, residual) if parameters.norm_position == "pre" else residual
            deviation = None if self._norm is None else self._norm.deviation(normed).unsqueeze(-1)
            neurons = parameters.activation(self._inner(tile, vectors, deviation, read))
            if self._multiplier is not None:
                neurons = neurons * self._multiplier(tile, vectors, deviation, read)
        added = neurons @ parameters.output_weight
        added = added if parameters.output_bias is None else added + parameters.output_bias
        output = residual + _normalised(parameters.output_normalisation, added)
        return _normalised(self._second, output) if parameters.norm_position == "post" else output


class _Projection:
    """A projection of what the network reads: LN(p − F) W + c = (p A − F A) / σ + c, with centring and γ folded into A.

    Args:
        norm: LN; None if the network reads attention's output through no norm, or through two.
        normed: p, what the norm is given.
        beside: What is added to the norm's output.
        weight: W.
        bias: Its bias.
        output_weight: W_O; F A comes from the values of the heads, which are far fewer than pairs.
    """

    def __init__(
        self,
        norm: Normalisation | None,
        normed: Float[Tensor, "batch token model"],
        beside: Float[Tensor, "batch token model"] | None,
        weight: Float[Tensor, "model neuron"],
        bias: Float[Tensor, " neuron"] | None,
        output_weight: Float[Tensor, "head head_dim model"],
    ) -> None:
        self._weight, self._bias, self._norm = weight, bias, norm
        if norm is None:
            return
        folded = norm.weight.unsqueeze(-1) * weight
        folded = folded - folded.mean(dim=0) if norm.centred else folded
        self._base = normed @ folded
        self._output_weight = output_weight @ folded
        constant = weight.new_zeros(weight.shape[1]) if norm.bias is None else norm.bias @ weight
        constant = constant if bias is None else constant + bias
        self._constant = constant.expand_as(self._base) if beside is None else constant + beside @ weight

    def __call__(
        self,
        tile: Tile,
        vectors: Float[Tensor, "key query model"] | None,
        deviation: Float[Tensor, "#key query 1"] | None,
        read: Float[Tensor, "#key query model"],
    ) -> Float[Tensor, "#key query neuron"]:
        """The projection for the queries of a tile.

        Args:
            tile: The pairs.
            vectors: F; None if it is not subtracted.
            deviation: σ of p − F; None without a norm.
            read: What the network reads.
        """
        if deviation is None:
            return read @ self._weight if self._bias is None else read @ self._weight + self._bias
        at = (tile.sequence, tile.queries)
        projected = self._base[at].unsqueeze(0)
        if vectors is not None:
            projected = projected - tile.mixed(self._output_weight)
        return (projected / deviation).add_(self._constant[at])


def _normalised(norm: Normalisation | None, vectors: Tensor) -> Tensor:
    return vectors if norm is None else norm.normalised(vectors)
