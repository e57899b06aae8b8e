"""How the embedding of a text is made from its last hidden vectors: pooling, and the modules that follow it.

Pooling is linear in the hidden vectors: it is a weighted sum or, for the maximum, takes each dimension from one token, and that
choice is held fixed. The modules that follow are affine once what they compute from the whole vector is held fixed: a norm's
deviation, an activation's slope g(u)/u, a length. So the parts of the hidden vectors give parts of the embedding, which add up
to it exactly.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.maths.choices import Pooling, SimilarityFunction
from normscope.maths.normalisation import Normalisation


def pooling_weights(
    pooling: Pooling, token_mask: Float[Tensor, "batch token"], hidden: Float[Tensor, "batch token model"]
) -> Float[Tensor, "batch token"] | Float[Tensor, "batch token model"]:
    """The weight of each token's vector in an embedding; for the maximum, of each of its entries.

    Args:
        token_mask: 1 at tokens that are pooled, 0 elsewhere.
        hidden: The last hidden vectors.
    """
    match pooling:
        case Pooling.mean:
            return token_mask / token_mask.sum(dim=-1, keepdim=True)
        case Pooling.mean_sqrt:
            return token_mask / token_mask.sum(dim=-1, keepdim=True).sqrt()
        case Pooling.weighted_mean:
            # Positions count from the text's first token, pooled or not.
            positions = token_mask * torch.arange(1, token_mask.shape[1] + 1, device=token_mask.device)
            return positions / positions.sum(dim=-1, keepdim=True)
        case Pooling.max:
            largest = hidden.detach().masked_fill(token_mask.unsqueeze(-1) == 0, -torch.inf).argmax(dim=1)
            chosen = torch.nn.functional.one_hot(largest, token_mask.shape[1])
            return chosen.transpose(1, 2).to(token_mask)
    positions = token_mask.argmax(dim=-1)
    if pooling is Pooling.last:
        positions = token_mask.shape[1] - 1 - token_mask.flip(1).argmax(dim=-1)
    return torch.nn.functional.one_hot(positions, token_mask.shape[1]).to(token_mask)


class EmbeddingModule(Protocol):
    """A module that reads and returns one vector for each text."""

    def linear(self, vectors: Float[Tensor, "*batch given"], whole: Float[Tensor, "*#batch given"]) -> Tensor:
        """The module without its constants; what it computes from the whole vector is held fixed."""

    def constant(self, whole: Float[Tensor, "*batch given"]) -> Tensor | float:
        """Its constants. `linear` of the whole vector, plus these, is exactly what the module returns."""


@dataclasses.dataclass(frozen=True, eq=False)
class Projection:
    """g(x W + b), with the slopes (g(u) − g(0))/u held fixed, plus x or x R if there is a residual connection.

    Args:
        weight: W, of shape (given, made).
        bias: b; None without one.
        activation: g, applied dimension by dimension.
        residual: R, of shape (given, made). True stands for the identity; False and None, for no residual connection.
    """

    weight: Tensor
    bias: Tensor | None
    activation: Callable[[Tensor], Tensor]
    residual: Tensor | bool | None = None

    def linear(self, vectors: Tensor, whole: Tensor) -> Tensor:
        """s ⊙ v W, plus the residual connection; s are the slopes."""
        made = vectors @ self.weight.to(vectors) * self._slopes(whole)
        if self.residual is None or self.residual is False:
            return made
        return made + (vectors @ self.residual.to(vectors) if isinstance(self.residual, Tensor) else vectors)

    def constant(self, whole: Tensor) -> Tensor | float:
        """s ⊙ b + g(0)."""
        at_zero = self._activated(self.weight.new_zeros(1, self.weight.shape[1]).to(whole))[0]
        return at_zero if self.bias is None else self.bias.to(whole) * self._slopes(whole) + at_zero

    def _slopes(self, whole: Tensor) -> Tensor:
        inner = whole @ self.weight.to(whole)
        inner = (inner if self.bias is None else inner + self.bias.to(whole)).detach()
        zero = torch.zeros_like(inner)
        # Where u is 0, g(u) − g(0) is 0 as well, whatever the slope.
        return torch.where(inner == 0, 1.0, (self._activated(inner) - self._activated(zero)) / inner)

    def _activated(self, inner: Tensor) -> Tensor:
        """g, whose learned parameters, if there are any, have one value for each dimension or for all."""
        if isinstance(self.activation, nn.Module):
            self.activation.to(inner)
        with torch.no_grad():
            return self.activation(inner.reshape(-1, inner.shape[-1])).view_as(inner)


@dataclasses.dataclass(frozen=True, eq=False)
class Norm:
    """A layer normalisation, with σ held fixed."""

    norm: Normalisation

    def linear(self, vectors: Tensor, whole: Tensor) -> Tensor:
        """γ ⊙ (v − mean(v)) / σ."""
        norm = self.norm._replace(weight=self.norm.weight.to(vectors))
        return norm.scaled(vectors) / norm.deviation(whole.detach()).unsqueeze(-1)

    def constant(self, whole: Tensor) -> Tensor | float:
        """β."""
        return 0.0 if self.norm.bias is None else self.norm.bias.to(whole)


class UnitLength:
    """x/‖x‖, with ‖x‖ held fixed."""

    def linear(self, vectors: Tensor, whole: Tensor) -> Tensor:
        """v/‖x‖; a vector of zeros stays as it is."""
        lengths = torch.linalg.vector_norm(whole.detach(), dim=-1, keepdim=True)
        return vectors / lengths.masked_fill(lengths == 0, 1)

    def constant(self, _whole: Tensor) -> float:
        """There is none."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class Truncation:
    """The first entries of a vector (Matryoshka embeddings).

    Args:
        size: How many.
    """

    size: int

    def linear(self, vectors: Tensor, _whole: Tensor) -> Tensor:
        """The first entries."""
        return vectors[..., : self.size]

    def constant(self, _whole: Tensor) -> float:
        """There is none."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class LateInteraction:
    """Which tokens have vectors that are compared, if texts keep a vector for each token."""

    skipped: frozenset[str] = frozenset()
    """Tokens whose vectors are not compared."""
    skipped_in: frozenset[str] = frozenset({"document"})
    """The texts in which they are not: `query`, `document` or both."""
    lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Maximum number of tokens of a `query` and of a `document`, if they have their own limits."""


@dataclasses.dataclass(frozen=True, eq=False)
class Embedder:
    """How embeddings are made from the last hidden vectors, and what they are compared by."""

    pooling: Pooling | None
    """None for late interaction, in which texts keep a vector for each token."""
    modules: Sequence[EmbeddingModule] = ()
    """What follows pooling, in order."""
    function: SimilarityFunction = SimilarityFunction.cosine
    """The similarity that the model uses."""
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Texts to put before a text, by name."""
    default_prompt: str | None = None
    """The name of the prompt that is used if none is chosen."""
    pools_prompt: bool = True
    """Whether the tokens of a prompt are pooled."""
    late: LateInteraction | None = None
    """Set if `pooling` is None."""

    @property
    def prompt_of_query(self) -> str:
        """The prompt for queries, as in `encode_query` of sentence-transformers; empty if there is none."""
        return self.prompts.get("query", "")

    @property
    def prompt_of_document(self) -> str:
        """The prompt for documents, as in `encode_document`; empty if there is none."""
        return next((self.prompts[name] for name in ("document", "passage", "corpus") if name in self.prompts), "")

    def prompt(self, given: str) -> str:
        """The prompt with this name; without one, the text that is given.

        `query` and `document` are names for every model, as in sentence-transformers.

        Raises:
            InputError: If it is a single word that is no name: put before a text, it would merge with the first word.
        """
        prompts = {"query": self.prompt_of_query, "document": self.prompt_of_document, **self.prompts}
        if given not in prompts and given.isascii() and given.replace("-", "").replace("_", "").isalnum():
            raise InputError(
                f"prompts: expected the name of one of the model's prompts ({', '.join(sorted(prompts))}), or a text that "
                f"ends with a space or a punctuation mark, got {given!r}"
            )
        return prompts.get(given, given)

    def default_prompts(self, *, ranked: bool = False) -> tuple[str, str]:
        """What goes before the two texts of a pair unless prompts are chosen.

        Args:
            ranked: Whether the pair is a query and one of its documents, as it always is for late interaction.
        """
        named = self.prompt_of_query, self.prompt_of_document
        if self.late is not None or (ranked and any(named)):
            return named
        default = self.prompts.get(self.default_prompt or "", "")
        return default, default

    def embedding(
        self,
        hidden: Float[Tensor, "batch token model"],
        token_mask: Bool[Tensor, "batch token"],
        prompt: int | Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch *token made"]:
        """The embeddings. Gradients hold fixed what the modules hold fixed, so gradient × input misses only the constants.

        Args:
            prompt: Number of tokens at the start that a prompt takes, of all texts or of each.
        """
        embedding = pooled(self.weights(hidden, token_mask, prompt), hidden)
        for module in self.modules:
            embedding = module.linear(embedding, embedding) + module.constant(embedding)
        return embedding

    def weights(
        self,
        hidden: Float[Tensor, "batch token model"],
        token_mask: Bool[Tensor, "batch token"],
        prompt: int | Int[Tensor, " batch"] | None = None,
    ) -> Tensor | None:
        """The weights of pooling, in the type of the hidden vectors; see `pooling_weights`. None without pooling."""
        if self.pooling is None:
            return None
        mask = token_mask.to(hidden.dtype)
        if prompt is not None and not self.pools_prompt:
            positions = torch.arange(mask.shape[1], device=mask.device)
            mask = mask * (positions >= torch.as_tensor(prompt, device=mask.device).reshape(-1, 1))
        return pooling_weights(self.pooling, mask, hidden)

    def parts(
        self, parts: Float[Tensor, "batch source *token model"], whole: Float[Tensor, "batch *token model"]
    ) -> tuple[Float[Tensor, "batch source *token made"], Float[Tensor, "batch *token made"]]:
        """What tokens and biases contribute to embeddings, and the embeddings.

        Args:
            parts: What each token, and last the bias, contributes to the pooled vectors.
            whole: The pooled vectors.
        """
        for module in self.modules:
            constant = module.constant(whole)
            parts, whole = module.linear(parts, whole.unsqueeze(1)), module.linear(whole, whole) + constant
            parts[:, -1] += constant
        return parts, whole


def pooled(weights: Tensor | None, hidden: Float[Tensor, "batch token model"]) -> Float[Tensor, "batch *token model"]:
    """Pooled vectors; without pooling, those of all tokens.

    Args:
        weights: See `pooling_weights`.
    """
    if weights is None:
        return hidden
    return torch.einsum("bt,btm->bm" if weights.dim() == 2 else "btm,btm->bm", weights, hidden)


def pooled_parts(
    weights: Tensor | None, vectors: Float[Tensor, "source batch token model"]
) -> Float[Tensor, "batch source *token model"]:
    """What each source contributes to pooled vectors.

    Args:
        weights: See `pooling_weights`.
        vectors: What each source contributes to the hidden vectors.
    """
    if weights is None:
        return vectors.transpose(0, 1)
    return torch.einsum("bt,kbtm->bkm" if weights.dim() == 2 else "btm,kbtm->bkm", weights, vectors)
