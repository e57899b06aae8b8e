"""The similarity of two embeddings, as a sum over pairs of tokens."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.embeddings import embedding, parts_of_embedding
from normscope.attribution.passes import HeldPass, held_pass
from normscope.attribution.scalars import attribute_scalars
from normscope.attribution.vectors import pooled_vectors
from normscope.maths.choices import SimilarityFunction, ValueBias
from normscope.maths.embedder import Embedder
from normscope.maths.tensors import wide
from normscope.models.facts import ModelFacts


class SimilarityParts(NamedTuple):
    """The parts of similarities, in float64."""

    matrix: Float[Tensor, "batch a b"]
    """What each pair of tokens adds; the last row and column are those of the biases."""
    value: Float[Tensor, " batch"]
    """The similarities, computed from the embeddings themselves."""


class PairSums(NamedTuple):
    """What the tokens of each text of a pair add to a similarity, in float64. Those of each text add up to the similarity."""

    a: Float[Tensor, "batch a"]
    """What each token of the first text, and last its bias, adds together with the whole second text."""
    b: Float[Tensor, "batch b"]
    """The same for the second text."""
    value: Float[Tensor, " batch"]
    """The similarities."""
    units: Float[Tensor, "batch unit unit"]
    """What each unit of the first text adds together with each of the second; the last row and column are the biases'."""

    @property
    def with_bias(self) -> Float[Tensor, " batch"]:
        """What pairs with a bias on at least one side add."""
        return self.a[:, -1] + self.b[:, -1] - self.units[:, -1, -1]


def embedded_parts(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    *,
    embedder: Embedder,
    bias: ValueBias = ValueBias.token,
    prompt: int | Int[Tensor, " batch"] | None = 0,
    units: Int[Tensor, "batch token"] | None = None,
) -> tuple[Float[Tensor, "batch source *token made"], Float[Tensor, "batch *token made"]]:
    """What each token of some texts, and last the bias, contributes to their embeddings, and the embeddings, in float64.

    For late interaction, the embeddings are the vectors of all tokens.

    The vector of each token, or the sum of those of a unit, passes the model once.

    Args:
        model: A base model in evaluation mode.
        inputs: Keyword arguments of the model.
        embedder: How an embedding is made of the hidden vectors.
        bias: Where the value biases of the first layer go.
        prompt: Number of tokens at the start that a prompt takes, of all texts or of each.
        units: What the tokens are added up to; see `pooled_vectors`.

    Raises:
        InputError: If attribution cannot follow the model.
    """

    def weights(hidden: Tensor, mask: Tensor) -> Tensor | None:
        return embedder.weights(hidden, mask, prompt)

    return parts_of_embedding(embedder, *pooled_vectors(model, facts, inputs, weights, bias, units, embedder.head))


def sums_of_pairs(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    units: Int[Tensor, "batch token"],
    *,
    embedder: Embedder,
    bias: ValueBias,
    prompt: Int[Tensor, " batch"] | None = None,
) -> PairSums:
    """What each token of pairs of texts, one text after the other in a batch, adds to their cosine; and what pairs of units do.

    What a token of one text adds together with the whole other text is linear in the token's vector: gradient × input, from one
    backward pass for all. What two units add together is not, so the biases and all units but the last are carried through the
    layers; the last unit contributes what these leave of an embedding. What each unit adds together with the whole other text
    is then known both ways, and compared.

    Args:
        model: A base model in evaluation mode.
        inputs: Keyword arguments of the model.
        units: The unit that each token belongs to, such as its category; see `pooled_vectors`. The last should have most
            tokens, so that the rounding of the others is small beside it.
        embedder: How an embedding is made of the hidden vectors.
        bias: Where the value biases of the first layer go.
        prompt: Number of tokens at the start that a prompt takes, of each text.

    Raises:
        InputError: If attribution cannot follow the model.
    """
    count = int(units.max()) + 1
    own = units.masked_fill(units == count - 1, -1)
    parts, whole = embedded_parts(model, facts, inputs, embedder=embedder, bias=bias, prompt=prompt, units=own)
    if count:
        rest = (whole - parts.sum(dim=1)).unsqueeze(1)
        parts = torch.cat([parts[:, :-1], rest, parts[:, -1:]], dim=1)
    pairs = cosine_parts(parts[0::2], whole[0::2], parts[1::2], whole[1::2])
    passed = held_pass(model, facts, inputs)
    with torch.inference_mode(False), torch.enable_grad():
        made = embedding(embedder, wide(passed.returned), passed.token_mask, prompt)
        still = made.detach()
        lengths = product_of_lengths(still[0::2], still[1::2])
        others = torch.stack([still[1::2], still[0::2]], dim=1).flatten(0, 1)
        scalars = torch.linalg.vecdot(made, others) / lengths.repeat_interleave(2)
    found = attribute_scalars(passed, scalars, bias)
    # What the modules after pooling add that comes from no hidden vector is left.
    added = torch.cat([found.scores, (found.bias + found.remainder)[:, None]], dim=1)
    sums = torch.stack([pairs.matrix.sum(dim=2), pairs.matrix.sum(dim=1)], dim=1).flatten(0, 1)
    of_units = [found.scores.masked_fill(units != unit, 0).sum(dim=1) for unit in range(count)]
    sizes = pairs.matrix.abs().sum(dim=(1, 2)).repeat_interleave(2)
    if count:
        error = (torch.stack([*of_units, added[:, -1]], dim=1) - sums).abs().sum(dim=1) / sizes
        passed.check.require("what units add", error)
    return PairSums(added[0::2], added[1::2], pairs.value, pairs.matrix)


def compared(
    function: SimilarityFunction,
    a: tuple[Float[Tensor, "batch a made"], Float[Tensor, "batch made"]],
    b: tuple[Float[Tensor, "batch b made"], Float[Tensor, "batch made"]],
) -> SimilarityParts:
    """The parts of the similarity of each text of a batch with the same text of another.

    If P_k is what token k contributes to the embedding e, the cosine is Σ_kl ⟨P_k, P_l⟩ / (‖e_a‖ ‖e_b‖), and the product of
    two embeddings Σ_kl ⟨P_k, P_l⟩.

    Args:
        function: What the embeddings are compared by.
        a: The parts of the texts' embeddings, and the embeddings; see `embedded_parts`.
        b: The same of the other texts, equally many.
    """
    (parts_a, whole_a), (parts_b, whole_b) = a, b
    if function is SimilarityFunction.dot:
        return SimilarityParts(parts_a @ parts_b.transpose(-1, -2), torch.linalg.vecdot(whole_a, whole_b))
    return cosine_parts(parts_a, whole_a, parts_b, whole_b)


def parts_along(
    passed: HeldPass, vectors: Float[Tensor, "vector *token made"], bias: ValueBias = ValueBias.token
) -> Float[Tensor, "source vector"]:
    """⟨P_k, v⟩ for what each token, and last the bias, contributes to an embedding, in float64.

    For late interaction, the embedding is the vectors of all tokens, one behind the other.

    No P_k is built: each vector v takes one backward pass, however many tokens there are.

    Args:
        passed: A pass of one input that has returned its embedding.
        vectors: The vectors v.
        bias: Where the value biases of the first layer go.
    """
    with torch.inference_mode(False), torch.enable_grad():
        scalars = vectors.flatten(1) @ wide(passed.returned).flatten()
    found = attribute_scalars(passed, scalars, bias)
    return torch.cat([found.scores, (found.bias + found.remainder)[:, None]], dim=1).T


class Scored(NamedTuple):
    """The vectors of texts, or of the images of pages, to compare by late interaction."""

    parts: Float[Tensor, "batch source token made"] | HeldPass
    """What each token, and last the bias, contributes to the vector of each token; of a page, the pass that knows it."""
    whole: Float[Tensor, "batch token made"]
    """The vectors of the tokens."""
    mask: Bool[Tensor, "batch token"]
    """Whether the vector of a token is compared."""


def met(a: Scored, b: Scored) -> Int[Tensor, "batch a"]:
    """For each token, the token of the other text whose vector has the largest product with its own."""
    products = a.whole @ b.whole.transpose(-1, -2)
    return products.masked_fill(~b.mask[:, None], -torch.inf).argmax(dim=-1)


def late_parts(a: Scored, b: Scored, places: Int[Tensor, "batch a"], *, mean: bool) -> SimilarityParts:
    """The parts of similarities by late interaction, Σ_i max_j ⟨a_i, b_j⟩. Which j is the largest is held fixed.

    If the vectors of the first text are concatenated, and so are those that they are matched with, the similarity is the
    product of the two resulting vectors.

    Args:
        places: Which j is the largest; see `met`.
        mean: Whether to divide by the number of vectors of the first text.
    """
    assert isinstance(a.parts, Tensor)
    assert isinstance(b.parts, Tensor)
    scale = a.mask.to(a.whole) / (a.mask.sum(dim=-1, keepdim=True) if mean else 1)
    parts_a, whole_a = a.parts * scale[:, None, :, None], a.whole * scale[..., None]
    width = b.whole.shape[-1]
    whole_b = b.whole.gather(1, places[..., None].expand(-1, -1, width))
    parts_b = b.parts.gather(2, places[:, None, :, None].expand(-1, b.parts.shape[1], -1, width))
    matrix = parts_a.flatten(2) @ parts_b.flatten(2).transpose(-1, -2)
    return SimilarityParts(matrix, torch.linalg.vecdot(whole_a, whole_b).sum(dim=-1))


def late_parts_along(
    query: Scored, page: Scored, places: Int[Tensor, "1 query"], bias: ValueBias
) -> tuple[SimilarityParts, Float[Tensor, "vector source"]]:
    """The parts of one similarity by late interaction, and of the product of each vector of the query with its match.

    Σ_q ⟨a_q, b_p(q)⟩ is linear in the vectors of the page. What a token of the query adds together with each of the page is
    therefore Σ_q ⟨P_k,q, b_p(q)⟩ in one backward pass; what a vector a_q adds, ⟨a_q, b_p(q)⟩ in another.

    Args:
        query: One query, whose parts have been carried.
        page: One page, whose pass has been recorded.
        places: Which p(q) is the largest; see `met`.
        bias: Where the value biases of the first layer go.

    Returns:
        Parts by source of the query and of the page; parts by vector of the query that is compared, and source of the page.
    """
    assert isinstance(query.parts, Tensor)
    assert isinstance(page.parts, HeldPass)
    compared_ = query.mask[0]
    at, whole = places[0, compared_], query.whole[0, compared_]
    alone = torch.diag_embed(whole.T).movedim(0, -1)  # each vector by itself
    rows = torch.cat([query.parts[0][:, compared_], alone])
    along = rows.new_zeros(len(rows), *page.whole.shape[1:]).index_add_(1, at, rows)
    found = parts_along(page.parts, along, bias).T
    matrix, of_vectors = found.tensor_split([query.parts.shape[1]])
    return SimilarityParts(matrix[None], torch.linalg.vecdot(whole, page.whole[0, at]).sum()[None]), of_vectors


def product_of_lengths(a: Float[Tensor, "batch model"], b: Float[Tensor, "batch model"]) -> Float[Tensor, " batch"]:
    """‖a‖ ‖b‖, by which a product is divided to make a cosine; 1 instead of 0."""
    lengths = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return lengths.masked_fill(lengths == 0, 1)


def cosine_parts(
    parts_a: Float[Tensor, "batch a model"],
    whole_a: Float[Tensor, "batch model"],
    parts_b: Float[Tensor, "batch b model"],
    whole_b: Float[Tensor, "batch model"],
) -> SimilarityParts:
    """The parts of cosine similarities: ⟨P_k, P_l⟩ / (‖e_a‖ ‖e_b‖). With a vector of zeros they are 0.

    Args:
        parts_a: P_k, what each token and the bias contribute to the embeddings.
        whole_a: The embeddings e_a.
        parts_b: P_l of the other texts.
        whole_b: Their embeddings e_b.
    """
    norms = product_of_lengths(whole_a, whole_b)
    matrix = parts_a @ parts_b.transpose(-1, -2) / norms[:, None, None]
    return SimilarityParts(matrix, (whole_a * whole_b).sum(dim=-1) / norms)
