"""Values, weights and gates of a block that was recognised."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from normscope.linear.provenance import made_of
from normscope.linear.rules import Stack, Step
from normscope.linear.trails import Trail
from normscope.linear.weighted_values import Attended, Numbers
from normscope.maths.attention_weights import AttentionWeights
from normscope.maths.masks import Mask, Visibility
from normscope.maths.tensors import full_precision


class BlockAttention(NamedTuple):
    """What an `AttentionBlock` holds of attention itself. Heads are in the order in which the model's code has them."""

    value: Float[Tensor, "batch head key head_dim"]
    alpha: AttentionWeights
    gate: Float[Tensor, "batch head query head_dim"] | None
    """Factors that depend on the query's token, and come between the heads and W_O; None without them."""


def block_attention(
    trail: Trail,
    token_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    known_large: bool | None = None,
) -> BlockAttention:
    """Values, weights and gates of a block, in float32 or better.

    Numbers by which a model's own code multiplies queries or keys before their product are in the scale.

    Args:
        trail: The block, whose sum with the residual connection is known.
        token_mask: True at tokens, False at padding.
        key_mask: The same of the keys; in self-attention, the same tensor.
        known_large: See `AttentionWeights`.

    Raises:
        NotRecognisedError: If scores are not a multiple of q·k plus other terms.
    """
    numbers = [each.numbers(len(token_mask)) for each in trail.attention]
    known = [each for each in numbers if each is not None]
    if len(known) < len(numbers):
        raise trail.refusal("its scores are not a multiple of q·k plus other terms")
    call, log_normaliser, given, to_nowhere = _of_all_heads(known)
    mask = call.mask
    if given is not None:
        seen = (given > 0).any(dim=1)
        mask = Mask(
            keys=key_mask,
            allowed=lambda text, _head, query, key: seen[text, query, key],
            queries=token_mask,
            arbitrary=True,
        )
    elif mask is not None and mask.allowed is not None and mask.queries is None and log_normaliser is not None:
        # Padding may see no key in the model's own mask, and has no finite normaliser then.
        mask = dataclasses.replace(mask, queries=token_mask)
        log_normaliser = log_normaliser.masked_fill(~token_mask.unsqueeze(1), torch.inf)
    value = full_precision(call.value)
    return BlockAttention(
        value=value,
        alpha=AttentionWeights(
            query=call.query.to(value.dtype),  # GPT-J's queries and keys are float32 in any model
            key=call.key.to(value.dtype),
            log_normaliser=log_normaliser,
            seen=Visibility(mask, token_mask, key_mask, not trail.is_self),
            scale=call.scale,
            given=None if given is None else full_precision(given),
            cap=call.cap,
            known_large=known_large,
            sinks=None if call.sinks is None else full_precision(call.sinks),
            given_to_nowhere=to_nowhere,
        ),
        gate=_gate(trail, len(token_mask)),
    )


def _of_all_heads(numbers: Sequence[Numbers]) -> Numbers:
    """What several attentions, the heads of one block, have computed together."""
    first, *rest = numbers
    if not rest:
        return first

    def together(parts: Sequence[Tensor | None]) -> Tensor | None:
        known = [each for each in parts if each is not None]
        return torch.cat(known, dim=1) if known else None

    calls = [each.call for each in numbers]
    query, key, value = (torch.cat(parts, dim=1) for parts in zip(*(each[:3] for each in calls), strict=True))
    call = calls[0]._replace(query=query, key=key, value=value)
    return Numbers(call, *(together(parts) for parts in zip(*(each[1:] for each in numbers), strict=True)))


def is_gated(trail: Trail) -> bool:
    """Whether something multiplies the outputs of heads before W_O and depends on the query's token."""
    assert trail.written is not None
    return any(map(_is_gate, _steps(trail.written.operand, trail.attention)))


def heads_of(trail: Trail, texts: int) -> int:
    """Number of heads of queries.

    Args:
        texts: Number of texts in the batch.
    """
    return sum(each.by_head(each.nothing(), texts).shape[1] for each in trail.attention)


def _gate(trail: Trail, texts: int) -> Float[Tensor, "batch head query head_dim"] | None:
    """What multiplies the outputs of heads before W_O and depends on the query's token.

    Sources are the places in what attention returns and ones: one is moved to where W_O reads it, the other is moved and
    multiplied.
    """
    assert trail.written is not None
    operand = trail.written.operand
    gates = [step for step in _steps(operand, trail.attention) if _is_gate(step)]
    if not gates:
        return None
    if any(each.factor is each.operands[0] and each.over is not None for each in gates):
        raise trail.refusal("a mean is subtracted from the outputs of its heads")
    places, ones, first = {}, {}, 0
    for each in trail.attention:
        like = each.nothing()
        ones[each.result] = torch.ones_like(like).unsqueeze(0)
        places[each.result] = (first + torch.arange(like.numel(), device=like.device)).double().view(1, *like.shape)
        first += like.numel()
    factors = moved(operand, ones, gated=True).flatten()
    found = torch.empty_like(factors).index_copy(0, moved(operand, places, gated=False).flatten().long(), factors)
    parts = found.split([each.numel() for each in ones.values()])
    by_head = [
        attention.by_head(part.view(ones[attention.result].shape[1:]), texts)
        for attention, part in zip(trail.attention, parts, strict=True)
    ]
    return full_precision(torch.cat(by_head, dim=1))


def _steps(operand: Stack, heads: Sequence[Attended]) -> list[Step]:
    """The steps from what attention returns to what W_O reads."""
    results, waiting = {each.result for each in heads}, [operand]
    for each in waiting:
        waiting += [stack for stack in each.operands if stack not in results and stack not in waiting]
    return [each.step for each in waiting if each.step is not None]


def _is_gate(step: Step) -> bool:
    """Whether a step multiplies by numbers that depend on the tokens, other than by the part that a sink leaves."""
    made = made_of(step.factor)
    return made is not None and not made.is_of_scores


def moved(stack: Stack, known: Mapping[Stack, Tensor], *, gated: bool) -> Tensor:
    """What each source contributes to a stack, without the factors in between, or with those of gates alone."""
    if stack in known:
        return known[stack]
    parts = [moved(each, known, gated=gated) for each in stack.operands]
    step = stack.step
    if step is not None and step.factor is not None and not (gated and _is_gate(step)):
        return parts[0]
    made: Tensor = stack.function(*parts, bias=False)  # type: ignore[misc]
    return made
