"""The vectors x_{i⇐k}: what each token, and the bias, contribute to each hidden vector, carried through every layer.

Each is the response of the frozen model to the vector of one token alone. Tokens are carried in groups, so memory grows with
the length of a text and the size of a group, not with the square of the length.

Source: Modarressi et al. 2023, DecompX (arXiv:2306.02873).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.modeling_utils import PreTrainedModel

from normscope.attribution.methods import check_supported
from normscope.maths.choices import ValueBias
from normscope.maths.embedder import pooled, pooled_parts
from normscope.maths.shares import along
from normscope.maths.tensors import pieces, wide
from normscope.maths.words import WordGroups
from normscope.models.block import full_precision
from normscope.models.frozen_pass import FrozenPass, frozen_pass
from normscope.models.layout import ModelLayout

ENTRIES_AT_ONCE = {"cpu": 2**22}
"""Entries of neurons to materialise at once (source × batch × token × neuron), by device."""

ENTRIES_AT_ONCE_ON_ACCELERATORS = 2**27
"""The same on other devices."""

_TOGETHER = 16
"""How many times as many sources are carried together as pass a feed-forward network at once: each layer is rebuilt once for
all of them. Their vectors take 64 MiB in float32 on a CPU."""

_TOGETHER_ON_ACCELERATORS = 4
"""The same on other devices: 512 MiB."""


class VectorMaps(NamedTuple):
    """How much of each output comes from each source. The last column is the bias."""

    norms: list[Float[Tensor, "batch query key"]]
    """‖x_{i⇐k}‖ after every layer, or after the last alone."""
    shares: Float[Tensor, "batch query key"]
    """⟨x_{i⇐k}, y_i⟩ / ⟨y_i, y_i⟩ in the last hidden vector y_i; those of a query add up to 1."""


def vector_maps(
    model: PreTrainedModel,
    layout: ModelLayout,
    inputs: Mapping[str, Tensor],
    bias: ValueBias,
    *,
    keep: bool = False,
    groups: WordGroups | None = None,
) -> VectorMaps:
    """Norms and signed shares of the vectors x_{i⇐k}, in float64.

    The last hidden vectors are those that the model returns, after its final norm.

    Args:
        model: A base model in evaluation mode.
        inputs: Keyword arguments of the model.
        bias: Where the value biases of the first layer go.
        keep: Whether to return the norms after every layer instead of the last only.
        groups: Words, whose vectors are added up over the tokens of a source, and averaged over those of an output; None for
            the vectors of tokens.
    """
    by_group: list[list[Tensor]] = []
    shares: list[Tensor] = []
    check_supported(layout)
    units = None if groups is None else groups.units.of_token

    def of_outputs(vectors: Tensor) -> Tensor:
        return vectors if groups is None else groups.like(vectors).rows @ vectors

    def measured(vectors: Tensor) -> Tensor:
        return wide(torch.linalg.vector_norm(of_outputs(vectors), dim=-1))

    with frozen_pass(model, layout, inputs) as passed:
        direction = along(wide(of_outputs(full_precision(passed.hidden.detach()))))
        for group in _carried_together(passed.embeddings, None if groups is None else groups.count):
            norms: list[Tensor] = []

            def note(vectors: Tensor, norms: list[Tensor] = norms) -> None:
                norms.append(measured(vectors))

            last = carried(passed, group, bias, note if keep else None, units)
            by_group.append([*norms[:-1], measured(last)])
            shares.append(torch.linalg.vecdot(wide(of_outputs(last)), direction))
    norms = [torch.cat(parts).movedim(0, -1) for parts in zip(*by_group, strict=True)]
    return VectorMaps(norms, torch.cat(shares).movedim(0, -1))


def pooled_vectors(
    model: PreTrainedModel,
    layout: ModelLayout,
    inputs: Mapping[str, Tensor],
    weights: Callable[[Float[Tensor, "batch token model"], Bool[Tensor, "batch token"]], Tensor | None],
    bias: ValueBias,
) -> tuple[Float[Tensor, "batch source *token model"], Float[Tensor, "batch *token model"]]:
    """Σ_i w_i x_{i⇐k}: what each token, and last the bias, contribute to a pooled vector; and the pooled vector itself.

    Without weights, the same for every hidden vector.

    Args:
        model: A base model in evaluation mode.
        inputs: Keyword arguments of the model.
        weights: Turns the last hidden vectors and the mask of tokens into w, the weights of pooling.
        bias: Where the value biases of the first layer go.

    Returns:
        Both in float64.
    """
    check_supported(layout)
    with frozen_pass(model, layout, inputs) as passed:
        passed.check_returned()
        hidden = passed.hidden.detach()
        chosen = weights(hidden, passed.token_mask)
        pooling = None if chosen is None else wide(chosen)
        whole = pooled(pooling, wide(hidden))
        parts = [
            pooled_parts(pooling, wide(carried(passed, group, bias))) for group in _carried_together(passed.embeddings)
        ]
    return torch.cat(parts, dim=1), whole


def sources_at_once(embeddings: Float[Tensor, "batch token model"]) -> int:
    """How many sources may pass a feed-forward network at once."""
    at_once = ENTRIES_AT_ONCE.get(embeddings.device.type, ENTRIES_AT_ONCE_ON_ACCELERATORS)
    # The network is about four times as wide as the model.
    return max(1, at_once // (4 * embeddings.numel()))


def _carried_together(embeddings: Float[Tensor, "batch token model"], sources: int | None = None) -> Iterator[range]:
    """Tokens, and last the bias, in groups that are carried through the layers together.

    Args:
        embeddings: What enters the first layer.
        sources: Number of sources without the bias, if not that of tokens.
    """
    end = (embeddings.shape[1] if sources is None else sources) + 1
    together = _TOGETHER if embeddings.device.type == "cpu" else _TOGETHER_ON_ACCELERATORS
    for part in pieces(slice(0, end), together * sources_at_once(embeddings)):
        yield range(part.start, part.stop)


def carried(
    passed: FrozenPass,
    sources: range,
    bias: ValueBias,
    visit: Callable[[Tensor], None] | None = None,
    units: Int[Tensor, "batch token"] | None = None,
) -> Float[Tensor, "source batch token model"]:
    """x_{i⇐k} of some sources k, at the model's last hidden vectors.

    Args:
        sources: Numbers of sources: positions of tokens, unless `units` says otherwise; the one after the last is the bias.
        bias: Where the value biases of the first layer go.
        visit: Called with the vectors after every layer.
        units: The source that each token belongs to, if sources are not tokens: the model is linear, so it carries the sum of
            their vectors like each of them.
    """
    with torch.inference_mode():
        embeddings = passed.embeddings
        of_token = torch.arange(embeddings.shape[1], device=embeddings.device) if units is None else units
        own = torch.tensor(sources, device=embeddings.device)[:, None, None] == of_token
        last = int(of_token.max()) + 1
        vectors = embeddings * own.unsqueeze(-1).to(embeddings.dtype)
        parts = [*pieces(slice(0, len(sources)), sources_at_once(embeddings))]
        credited = bias is ValueBias.decompx
        for number in range(1, passed.layers + 1):
            layer = passed.layer(number)
            first = credited and number == 1
            for part in parts:
                vectors[part] = layer.linear(vectors[part], own[part].to(embeddings.dtype) if first else None)
            if sources[-1] == last:
                vectors[-1] += layer.constant(embeddings, value_bias=not first)
            if visit is not None:
                visit(vectors)
        if passed.final_norm is not None:
            vectors = passed.final_norm.linear(vectors)
            if sources[-1] == last:
                vectors[-1] += passed.final_norm.constant(embeddings)
        return vectors
