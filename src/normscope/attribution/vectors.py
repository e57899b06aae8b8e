"""The vectors x_{i⇐k}: what each token, and the bias, contribute to each hidden vector, carried through every layer.

Each is the response of the model to the vector of one token alone, with everything held fixed that is not linear. Tokens are
carried in groups, so memory grows with the length of a text and the size of a group, not with the square of the length.

Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.methods import check_followed
from normscope.attribution.passes import Carried, carried_pass
from normscope.maths.choices import ValueBias
from normscope.maths.embedder import pooled, pooled_parts
from normscope.maths.partition import Partition
from normscope.maths.shares import along
from normscope.maths.tensors import pieces, wide
from normscope.models.blocks.block import full_precision
from normscope.models.facts import ModelFacts

ENTRIES_AT_ONCE = {"cpu": 2**22}
"""Entries of neurons to materialise at once (source × batch × token × neuron), by device."""

ENTRIES_AT_ONCE_ON_ACCELERATORS = 2**27
"""The same on other devices."""

_FEWEST = 8
"""Sources that are carried together at least, since each group takes a pass of the model."""


class Sources(NamedTuple):
    """Some of what hidden vectors are made of."""

    tokens: range
    """Positions of tokens, or numbers of what tokens are merged into."""
    bias: bool
    """Whether the bias is one more, the last."""


def vector_maps(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    bias: ValueBias,
    *,
    keep: bool = False,
    groups: Partition | None = None,
) -> tuple[list[Float[Tensor, "batch query key"]], Float[Tensor, "batch query key"]]:
    """Norms and signed shares of the vectors x_{i⇐k}: how much of each output comes from each source; the last is the bias.

    The last hidden vectors are those that the model returns, after its final norm.

    Args:
        model: A base model in evaluation mode.
        inputs: Keyword arguments of the model.
        bias: Where the value biases of the first layer go.
        keep: Whether to return the norms after every layer instead of the last only.
        groups: Words, for instance, whose vectors are added up over the tokens of a source, and averaged over those of an
            output; the tokens by default.

    Returns:
        ‖x_{i⇐k}‖ after every layer, or after the last alone; and ⟨x_{i⇐k}, y_i⟩ / ⟨y_i, y_i⟩ in the last hidden vector y_i,
        whose sum over the sources is 1. In float64.
    """
    by_group: list[list[Tensor]] = []
    products: list[Tensor] = []
    check_followed(facts)
    groups = Partition.tokens(inputs["attention_mask"].bool()) if groups is None else groups
    units = None if groups.places is not None else groups.of_token

    def of_outputs(vectors: Tensor) -> Tensor:
        rows = groups.rows(vectors)
        return vectors if rows is None else rows @ vectors

    def measured(vectors: Tensor) -> Tensor:
        return wide(torch.linalg.vector_norm(of_outputs(vectors), dim=-1))

    for group in _groups(facts, inputs, groups.count):
        norms: list[Tensor] = []

        def note(vectors: Tensor, norms: list[Tensor] = norms) -> None:
            norms.append(measured(full_precision(vectors)))

        last, hidden, check = carried(model, facts, inputs, group, bias, note if keep else None, units)
        by_group.append([*norms[:-1], measured(last)])
        products.append(torch.linalg.vecdot(wide(of_outputs(last)), along(wide(of_outputs(hidden)))))
    norms = [torch.cat(parts).movedim(0, -1) for parts in zip(*by_group, strict=True)]
    shares = torch.cat(products).movedim(0, -1)
    missing = (shares.sum(dim=-1) - 1).abs() / shares.abs().sum(dim=-1)
    check.require("the vectors of an output", missing.masked_fill(~groups.exists, 0))
    return norms, shares


def pooled_vectors(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    weights: Callable[[Float[Tensor, "batch token model"], Bool[Tensor, "batch token"]], Tensor | None],
    bias: ValueBias,
    units: Int[Tensor, "batch token"] | None = None,
    head: PreTrainedModel | None = None,
) -> tuple[Float[Tensor, "batch source *token model"], Float[Tensor, "batch *token model"]]:
    """Σ_i w_i x_{i⇐k}: what each token, and last the bias, contribute to a pooled vector; and the pooled vector itself.

    Without weights, the same for every hidden vector.

    Args:
        model: A base model in evaluation mode.
        inputs: Keyword arguments of the model.
        weights: Turns the last hidden vectors and the mask of tokens into w, the weights of pooling.
        bias: Where the value biases of the first layer go.
        units: The source that each token belongs to, if sources are not tokens; −1 at padding, and at tokens of no source,
            with which the parts do not add up to the whole.
        head: A model that contains `model` and returns pooled vectors; there are no weights then.

    Returns:
        Both in float64.
    """
    check_followed(facts)
    mask = inputs["attention_mask"].bool()
    sources = None if units is None else int(units.max()) + 1
    found, whole = [], None
    for group in _groups(facts, inputs, sources):
        vectors, hidden, check = carried(model, facts, inputs, group, bias, units=units, head=head)
        chosen = weights(hidden, mask)
        pooling = None if chosen is None else wide(chosen)
        whole = pooled(pooling, wide(hidden))
        found.append(pooled_parts(pooling, wide(vectors)))
    assert whole is not None
    parts = torch.cat(found, dim=1)
    if units is not None and (units[mask] < 0).any():
        return parts, whole
    sizes = torch.linalg.vector_norm(parts, dim=-1).sum(dim=1)
    missing = torch.linalg.vector_norm(parts.sum(dim=1) - whole, dim=-1) / sizes
    check.require("the vectors of an embedding", missing if missing.ndim == 1 else missing.masked_fill(~mask, 0))
    return parts, whole


def _groups(facts: ModelFacts, inputs: Mapping[str, Tensor], sources: int | None = None) -> Iterator[Sources]:
    """Tokens, and last the bias, in groups that are carried through the layers together.

    Args:
        sources: Number of sources without the bias, if not that of tokens.
    """
    ids = inputs["input_ids"]
    at_once = ENTRIES_AT_ONCE.get(ids.device.type, ENTRIES_AT_ONCE_ON_ACCELERATORS)
    # A network is about four times as wide as the model.
    together = max(_FEWEST, at_once // (4 * ids.numel() * facts.width))
    end = ids.shape[1] if sources is None else sources
    for part in pieces(slice(0, end + 1), together):
        yield Sources(range(part.start, min(part.stop, end)), part.stop > end)


def carried(
    model: PreTrainedModel,
    facts: ModelFacts,
    inputs: Mapping[str, Tensor],
    sources: Sources,
    bias: ValueBias,
    visit: Callable[[Tensor], None] | None = None,
    units: Int[Tensor, "batch token"] | None = None,
    head: PreTrainedModel | None = None,
) -> Carried:
    """x_{i⇐k} of some sources k, at the vectors that the model returns, and these vectors.

    Args:
        sources: Which k.
        bias: Where the value biases of the first layer go.
        visit: Called with the vectors after every layer.
        units: The source that each token belongs to, if sources are not tokens: the model is linear, so it carries the sum of
            their vectors like each of them.
        head: See `pooled_vectors`.
    """
    ids = inputs["input_ids"]
    of_token = torch.arange(ids.shape[1], device=ids.device) if units is None else units
    numbers = torch.arange(sources.tokens.start, sources.tokens.stop, device=ids.device)
    own = (numbers[:, None, None] == of_token).expand(-1, len(ids), -1)
    return carried_pass(
        model,
        facts,
        inputs,
        own.to(model.dtype),
        bias=sources.bias,
        credited=bias is ValueBias.decompx,
        head=head,
        **({} if visit is None else {"visit": visit}),
    )
