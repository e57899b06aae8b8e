"""What tokens contribute to the hidden vectors of a batch of pairs, followed in the same pass in which the model runs."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.attribution.similarities import PairSums, SimilarityParts, cosine_parts, product_of_lengths
from normscope.attribution.vectors import sources_at_once
from normscope.maths.choices import ValueBias
from normscope.maths.embedder import Embedder, pooled, pooled_parts
from normscope.maths.frozen import FrozenLayer, FrozenNorm, transposed_through
from normscope.maths.tensors import pieces, wide


class LastVectors:
    """The last hidden vectors of a batch of pairs, and how embeddings are made of them.

    Args:
        hidden: After the final norm.
        prompts: Number of tokens at the start of each text that a prompt takes.
    """

    def __init__(
        self,
        embedder: Embedder,
        hidden: Float[Tensor, "batch token model"],
        token_mask: Bool[Tensor, "batch token"],
        prompts: Int[Tensor, " batch"] | None = None,
    ) -> None:
        self.embedder, self.hidden, self.token_mask, self.prompts = embedder, hidden, token_mask, prompts
        weights = embedder.weights(hidden, token_mask, prompts)
        assert weights is not None, "texts have one embedding here"
        self.weights = wide(weights)

    def parts(self, vectors: Float[Tensor, "source batch token model"]) -> Float[Tensor, "batch source model"]:
        """What each source contributes to the pooled vectors."""
        return pooled_parts(self.weights, wide(vectors))

    def embedded(
        self, parts: Float[Tensor, "batch source model"]
    ) -> tuple[Float[Tensor, "batch source made"], Float[Tensor, "batch made"]]:
        """What each source contributes to the embeddings, and the embeddings.

        Args:
            parts: What each source, and last the bias, contributes to the pooled vectors.
        """
        return self.embedder.parts(parts, pooled(self.weights, wide(self.hidden)))


class CarriedBias:
    """What the biases contribute to each hidden vector, up to where the model has run.

    Args:
        embeddings: The inputs of the first layer.
        bias: Where the value biases of the first layer go.
    """

    def __init__(self, embeddings: Float[Tensor, "batch token model"], bias: ValueBias) -> None:
        self.vectors = torch.zeros_like(embeddings)
        self.credited = bias is ValueBias.decompx
        """Whether the value biases of the next layer belong to tokens."""

    def pass_layer(self, layer: FrozenLayer) -> None:
        """Carry it through the next layer."""
        self.vectors = layer.affine(self.vectors, value_bias=not self.credited)
        self.credited = False  # only the value biases of the first layer belong to tokens

    def pass_norm(self, norm: FrozenNorm) -> None:
        """Carry it through the norm after the last layer."""
        self.vectors = norm.linear(self.vectors) + norm.constant(self.vectors)


class CarriedVectors:
    """What each token, and last the bias, contributes to each hidden vector, as far as the model has run.

    It holds a vector for every pair of tokens.

    Args:
        embeddings: The inputs of the first layer.
        bias: Where the value biases of the first layer go.

    Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873).
    """

    def __init__(self, embeddings: Float[Tensor, "batch token model"], bias: ValueBias) -> None:
        batch, tokens, model = embeddings.shape
        self._embeddings = embeddings
        self._bias = CarriedBias(embeddings, bias)
        self._vectors = embeddings.new_zeros(tokens, batch, tokens, model)
        each = torch.arange(tokens, device=embeddings.device)
        self._vectors[each, :, each] = embeddings.transpose(0, 1)

    def pass_layer(self, layer: FrozenLayer) -> None:
        """Carry the vectors through the next layer."""
        embeddings, tokens = self._embeddings, torch.arange(self._embeddings.shape[1], device=self._embeddings.device)
        for group in self._groups():
            own = tokens[group][:, None, None] == tokens
            value_bias = own.to(embeddings.dtype) if self._bias.credited else None
            self._vectors[group] = layer.linear(self._vectors[group], value_bias)
        self._bias.pass_layer(layer)

    def pass_norm(self, norm: FrozenNorm) -> None:
        """Carry the vectors through the norm after the last layer."""
        for group in self._groups():
            self._vectors[group] = norm.linear(self._vectors[group])
        self._bias.pass_norm(norm)

    def parts(self, last: LastVectors) -> SimilarityParts:
        """What each pair of tokens adds to the cosine of each pair of texts."""
        groups = [self._vectors[group] for group in self._groups()]
        parts = torch.cat([last.parts(group) for group in (*groups, self._bias.vectors[None])], dim=1)
        parts, whole = last.embedded(parts)
        return cosine_parts(parts[0::2], whole[0::2], parts[1::2], whole[1::2])

    def _groups(self) -> list[slice]:
        return [*pieces(slice(0, self._embeddings.shape[1]), sources_at_once(self._embeddings))]


class KeptLayers:
    """The layers that a batch has passed, held fixed, through which gradients go back; and the biases, which go forward.

    What a token of one text adds together with the whole other text is linear in the token's vector: gradient × input, from one
    backward pass. What the biases of both texts add together is not linear, so their vectors are carried through the layers.

    Args:
        embeddings: The inputs of the first layer.
        bias: Where the value biases of the first layer go.
    """

    def __init__(self, embeddings: Float[Tensor, "batch token model"], bias: ValueBias) -> None:
        self._embeddings, self._rule = embeddings, bias
        self._bias = CarriedBias(embeddings, bias)
        self._layers: list[FrozenLayer] = []
        self._norm: FrozenNorm | None = None

    def pass_layer(self, layer: FrozenLayer) -> None:
        """Keep the next layer."""
        self._layers.append(layer)
        self._bias.pass_layer(layer)

    def pass_norm(self, norm: FrozenNorm) -> None:
        """Keep the norm after the last layer."""
        self._norm = norm
        self._bias.pass_norm(norm)

    def sums(self, last: LastVectors) -> PairSums:
        """What each token adds together with the whole other text."""
        gradient, value, norms = _cosines(last)
        back = transposed_through(
            ((layer, None) for layer in reversed(self._layers)), self._norm, gradient.to(self._embeddings)
        )
        # What the modules after pooling add that comes from no hidden vector.
        after = value.repeat_interleave(2) - (gradient * wide(last.hidden)).sum(dim=(-2, -1))
        tokens, bias = back.attributed(self._embeddings, after, self._rule)
        added = torch.cat([tokens * last.token_mask, bias[:, None]], dim=1)
        constants, _ = last.embedded(last.parts(self._bias.vectors[None]))
        biases = torch.linalg.vecdot(constants[0::2, 0], constants[1::2, 0]) / norms
        return PairSums(added[0::2], added[1::2], value, biases)


def _cosines(last: LastVectors) -> tuple[Float[Tensor, "batch token model"], Float[Tensor, " pair"], Tensor]:
    """The gradients of cosines at the last hidden vectors of each text, lengths held fixed; the cosines; and ‖e_a‖ ‖e_b‖."""
    with torch.inference_mode(False), torch.enable_grad():
        hidden = wide(last.hidden).clone().requires_grad_()
        mask = last.token_mask.clone()
        made = last.embedder.embedding(hidden, mask, None if last.prompts is None else last.prompts.clone())
        still = made.detach()
        norms = product_of_lengths(still[0::2], still[1::2])
        sides = torch.linalg.vecdot(made[0::2], still[1::2]) + torch.linalg.vecdot(still[0::2], made[1::2])
        (gradient,) = torch.autograd.grad((sides / norms).sum(), hidden)
    return gradient, torch.linalg.vecdot(still[0::2], still[1::2]) / norms, norms
