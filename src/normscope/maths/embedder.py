"""How the embedding of a text is made from its last hidden vectors: pooling, and the modules that follow it.

Pooling is linear in the hidden vectors: it is a weighted sum or, for the maximum, takes each dimension from one token, and that
choice is held fixed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.maths.choices import Pooling, SimilarityFunction


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
    """None for late interaction, in which texts keep a vector for each token, and with `head`."""
    modules: Sequence[nn.Module] = ()
    """What follows pooling, in order. Each reads and returns a tensor."""
    function: SimilarityFunction = SimilarityFunction.cosine
    """The similarity that the model uses."""
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Texts to put before a text, by name."""
    default_prompt: str | None = None
    """The name of the prompt that is used if none is chosen."""
    pools_prompt: bool = True
    """Whether the tokens of a prompt are pooled."""
    late: LateInteraction | None = None
    """Set for late interaction."""
    head: Any = None
    """A model around the base model that returns embeddings: its own code pools. None if pooling and modules make them."""

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

    def weights(
        self,
        hidden: Float[Tensor, "batch *token model"],
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


def pooled(weights: Tensor | None, hidden: Float[Tensor, "batch *given model"]) -> Float[Tensor, "batch *token model"]:
    """Pooled vectors; without pooling, those of all tokens.

    Args:
        weights: See `pooling_weights`.
    """
    if weights is None:
        return hidden
    return torch.einsum("bt,btm->bm" if weights.dim() == 2 else "btm,btm->bm", weights, hidden)


def pooled_parts(
    weights: Tensor | None, vectors: Float[Tensor, "source batch *given model"]
) -> Float[Tensor, "batch source *token model"]:
    """What each source contributes to pooled vectors.

    Args:
        weights: See `pooling_weights`.
        vectors: What each source contributes to the hidden vectors.
    """
    if weights is None:
        return vectors.transpose(0, 1)
    return torch.einsum("bt,kbtm->bkm" if weights.dim() == 2 else "btm,kbtm->bkm", weights, vectors)
