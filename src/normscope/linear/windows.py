"""Attention within windows as attention between all tokens, with weights of zero between tokens of different windows.

A model moves its tokens into windows, each of which is an entry of the batch, and what W_O writes back to where the residual
connection has them. Numbers that go the same way show which query of which window is which token's. What a model makes of each
window's keys and values is theirs, so its blocks are exact.
"""

import dataclasses

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.linear.axes import Axes
from normscope.linear.block_attention import moved
from normscope.linear.residual_sum import Addition
from normscope.linear.rules import stack_of
from normscope.linear.weighted_values import Attended, Numbers
from normscope.maths.attention import AttentionCall, attention


def leave_windows(addition: Addition, entered: Tensor | None, texts: int) -> bool:
    """Let a block's attention be between all tokens.

    Args:
        addition: The sum with what the residual connection carries.
        entered: What has entered the layer.
        texts: Number of texts in the batch.

    Returns:
        False if windows are not made of all tokens of one text each, every token once, or the residual connection carries
        something else than has entered the layer: other tokens' vectors for example.
    """
    trail = addition.trail
    if len(trail.attention) > 1 or entered is None or trail.written is None:
        return False
    with torch._C.DisableTorchFunction():
        carried = addition.axes(texts).by_text(addition.other, texts)
        by_layer = Axes.of(entered, texts, width=trail.written.width).by_text(entered, texts)
        if carried.shape != by_layer.shape or not torch.equal(carried, by_layer):
            return False
        places = _places(addition, texts)
        if places is None:
            return False
        trail.attention = [_between_all(trail.attention[0], places)]
    return True


def _places(addition: Addition, texts: int) -> Int[Tensor, "text token head"] | None:
    """Which query is each token's in each head, among those of all windows and heads in order."""
    (one,), written = addition.trail.attention, addition.trail.written
    assert written is not None
    rows = one.nothing().movedim(one.axis, -2)
    numbers = torch.arange(rows.numel(), device=rows.device).view(rows.shape).movedim(-2, one.axis)
    read = moved(written.operand, {one.result: numbers.double().unsqueeze(0)}, gated=False)
    if written.axis != -1 or read.shape[-1] % rows.shape[-1] or read.numel() != rows.numel():
        return None
    of_heads = (read.long() // rows.shape[-1]).view(-1, read.shape[-1] // rows.shape[-1], rows.shape[-1])
    numbers = torch.arange(written.vectors.numel(), device=rows.device).view(written.vectors.shape)
    added = moved(stack_of(addition.wrote), {addition.trail.output: numbers.double().unsqueeze(0)}, gated=False)
    tokens = addition.axes(texts).by_text(added[0], texts)[..., 0].long() // written.width
    every = torch.arange(len(of_heads), device=rows.device)
    if not (of_heads == of_heads[..., :1]).all() or not torch.equal(tokens.flatten().sort().values, every):
        return None
    places = of_heads[tokens][..., 0]
    by_window = _owners(places).view(-1, one.queries) // tokens.shape[1]
    return places if bool((by_window == by_window[:, :1]).all()) else None


def _owners(places: Int[Tensor, "text token head"]) -> Int[Tensor, " window_head_query"]:
    """Whose each query of each window and head is: the number of the token, counted through all texts."""
    owners = torch.empty(places.numel(), dtype=torch.int64, device=places.device)
    owners[places.flatten()] = torch.arange(places.numel(), device=places.device) // places.shape[2]
    return owners


def _between_all(one: Attended, places: Int[Tensor, "text token head"]) -> Attended:
    """Attention between all tokens that is the same as attention within windows."""
    texts, tokens, heads = places.shape
    numbers = one.numbers

    def by_head(tensor: Tensor, _texts: int) -> Float[Tensor, "text head query size"]:
        return _by_token(tensor.movedim(one.axis, -2), places)

    def between_all(_texts: int) -> Numbers | None:
        count = texts * tokens * heads // one.queries
        made = numbers(count) or numbers(count // heads)  # all axes before queries as one, or fused attention
        if made is None:
            return None
        call, weights = made.call, made.given
        if weights is None:
            unit = torch.eye(one.keys, dtype=call.value.dtype, device=places.device).expand(*call.key.shape[:2], -1, -1)
            weights, _ = attention(*call[:2], unit, *call[3:5], cap=call.cap, sinks=call.sinks)
        keys = (_owners(places).view(-1, one.keys) % tokens)[places // one.queries]
        rows = weights.reshape(-1, one.keys)[places]
        given = rows.new_zeros(texts, tokens, heads, tokens).scatter_(-1, keys, rows).transpose(1, 2)
        query, key, value = (_by_token(each, places) for each in call[:3])
        nowhere = None if made.to_nowhere is None else _by_token(made.to_nowhere.unsqueeze(-1), places).squeeze(-1)
        return Numbers(AttentionCall(query, key, value, None, call.scale), given=given, to_nowhere=nowhere)

    return dataclasses.replace(
        one, queries=tokens, keys=tokens, numbers=between_all, by_head=by_head, places=places, reads=tuple
    )


def _by_token(rows: Float[Tensor, "*window_head query size"], places: Tensor) -> Float[Tensor, "text head token size"]:
    return rows.reshape(-1, rows.shape[-1])[places].transpose(1, 2)
