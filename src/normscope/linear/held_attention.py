"""Attention weights that are held, and recomputed where they are needed; those of fused attention never all at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_STRIP = 256
"""Queries whose weights are computed together."""


class HeldAttention:
    """The weights of a call of fused attention.

    Args:
        query: Queries, as the model passes them.
        key: Keys, one head for each head of queries.
        mask: True where a query sees a key, or a term that is added to the scores.
        causal: Whether queries do not see later keys.
        scale: Factor on q·k; one over the root of the dimension by default.
    """

    def __init__(
        self,
        query: Float[Tensor, "*batch query head_dim"],
        key: Float[Tensor, "*#batch key head_dim"],
        mask: Tensor | None,
        *,
        causal: bool,
        scale: float | None,
    ) -> None:
        self._query, self._key, self._mask, self._causal = query, key, mask, causal
        self._scale = query.shape[-1] ** -0.5 if scale is None else scale

    def strips(self) -> Iterator[tuple[slice, Float[Tensor, "*batch strip key"]]]:
        """The weights of some queries at a time."""
        queries, keys = self._query.shape[-2], self._key.shape[-2]
        for start in range(0, queries, _STRIP):
            rows = slice(start, min(start + _STRIP, queries))
            scores = (self._query[..., rows, :] * self._scale) @ self._key.transpose(-1, -2)
            if self._mask is not None:
                mask = self._mask if self._mask.shape[-2] == 1 else self._mask[..., rows, :]
                scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype is torch.bool else scores.add_(mask)
            if self._causal:
                later = torch.ones(len(scores[0, 0]), keys, dtype=torch.bool, device=scores.device).triu(1 + start)
                scores.masked_fill_(later, -torch.inf)
            # A query that sees no key takes nothing; any other NaN is the model's, and must show.
            blind = scores.amax(dim=-1, keepdim=True) == -torch.inf
            yield rows, scores.softmax(dim=-1).masked_fill_(blind, 0.0)

    def transposed(self, gradient: Float[Tensor, "*batch query dimension"]) -> Float[Tensor, "*batch key dimension"]:
        """The gradient with respect to the values."""
        parts = [weights.transpose(-1, -2) @ gradient[..., rows, :] for rows, weights in self.strips()]
        return sum(parts[1:], parts[0])

    def stacked(
        self, values: Float[Tensor, "source *batch key dimension"]
    ) -> Float[Tensor, "source *batch query dimension"]:
        """The weighted sums of each source's values."""
        strips = [side_by_side(weights, values) for _, weights in self.strips()]
        return strips[0] if len(strips) == 1 else torch.cat(strips, dim=-2)


def side_by_side(
    weights: Float[Tensor, "*batch query key"], values: Float[Tensor, "source *batch key dimension"]
) -> Float[Tensor, "source *batch query dimension"]:
    """α v for every source. Side by side, all sources take one product per head."""
    sources, width = len(values), values.shape[-1]
    beside = values.movedim(0, -2).flatten(-2)
    return (weights @ beside).unflatten(-1, (sources, width)).movedim(-2, 0)


def by_head(
    name: str, args: Sequence[Any], place: int, texts: int | None, change: Callable[[Tensor], Tensor]
) -> Tensor:
    """Change the values that attention adds up, presented with the axes (text, head, key, dimension) for every model.

    Args:
        name: The function that multiplies weights and values.
        args: Its arguments.
        place: The index of the values among them.
        texts: Number of texts.
        change: Returns what replaces the values.

    Returns:
        The values for the function; unchanged if it is not attention by heads.
    """
    values: Tensor = args[place]
    if name == "einsum":
        terms = args[0].replace(" ", "").split("->")[0].split(",")
        of_weights, of_values = terms[2 - place], terms[place - 1]
        shared = [axis for axis in of_weights if axis in of_values]
        keys = [axis for axis in shared if axis not in args[0].split("->")[1]]
        rest = [axis for axis in of_values if axis not in shared]
        if len(shared) != 3 or len(keys) != 1 or len(rest) != 1:
            return values
        order = [of_values.index(axis) for axis in (*(axis for axis in shared if axis not in keys), *keys, *rest)]
        changed = change(values.permute(order))
        return changed.permute([order.index(axis) for axis in range(4)])
    if place != 1 or len(args) != 2 or values.ndim != args[0].ndim or args[0].shape[-1] != values.shape[-2]:
        return values
    if values.ndim == 4:
        return change(values.expand(*args[0].shape[:2], -1, -1))
    if values.ndim == 3 and texts is not None and len(values) % texts == 0:
        return change(values.unflatten(0, (texts, -1))).flatten(0, 1)
    return values
