"""Fused attention whose weights are held: a linear map of its values."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from normscope.maths.attention import AttentionCall, attention
from normscope.maths.attention_weights import AttentionWeights
from normscope.maths.masks import Mask, Visibility, mask_of


def fused_attention(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch kv_head key head_dim"],
    value: Float[Tensor, "batch kv_head key value_dim"],
    mask: Mask | None,
    scale: float,
    cap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
) -> Float[Tensor, "batch head query value_dim"]:
    """What attention returns, given an `AttentionCall`."""
    return HeldAttention(AttentionCall(query, key, value, mask, scale, cap, sinks)).output


class HeldAttention:
    """The weights of fused attention, which are never all in memory, and what it returns.

    Args:
        call: What attention is computed from.
    """

    def __init__(self, call: AttentionCall) -> None:
        query, key, value, mask, scale, cap, sinks = call.repeated()
        output, log_normaliser = attention(query, key, value, mask, scale, cap=cap, sinks=sinks)
        # A query that sees no key takes nothing; any other NaN is the model's, and must show.
        self._blind = (log_normaliser == -torch.inf).unsqueeze(-1)
        stored = output.masked_fill(self._blind, 0.0).transpose(1, 2).contiguous()  # as torch's fused attention does
        self.output: Float[Tensor, "batch head query value_dim"] = stored.transpose(1, 2)
        queries, keys = (torch.ones_like(each[:, 0, :, 0], dtype=torch.bool) for each in (query, key))
        self._alpha = AttentionWeights(
            query=query.to(log_normaliser.dtype),
            key=key.to(log_normaliser.dtype),
            log_normaliser=log_normaliser.masked_fill(self._blind.squeeze(-1), 0.0),
            # Whose keys are the queries' own tokens makes no difference to the weights.
            seen=Visibility(mask, queries, keys, is_cross_attention=True),
            scale=scale,
            cap=cap,
            sinks=sinks,
        )

    def transposed(
        self, gradient: Float[Tensor, "batch head query value_dim"]
    ) -> Float[Tensor, "batch head key value_dim"]:
        """The gradient with respect to the values."""
        found = gradient.new_zeros(*gradient.shape[:2], self._alpha.key.shape[2], gradient.shape[3])
        some_blind = bool(self._blind.any())
        for some, rows, keys, weights in self._alpha.tiles():  # none of causal attention's invisible half
            seeing = weights.masked_fill_(self._blind[some, :, rows], 0.0) if some_blind else weights
            found[some, :, keys] += seeing.to(gradient).transpose(-1, -2) @ gradient[some, :, rows]
        return found

    def stacked(
        self, values: Float[Tensor, "source batch head key value_dim"]
    ) -> Float[Tensor, "source batch head query value_dim"]:
        """The weighted sums of each source's values."""
        strips = [
            side_by_side(weights.masked_fill_(self._blind[:, :, rows], 0.0).to(values), values)
            for rows, weights in self._alpha.strips()
        ]
        return strips[0] if len(strips) == 1 else torch.cat(strips, dim=-2)


def side_by_side(
    weights: Float[Tensor, "*batch query key"], values: Float[Tensor, "source *batch key dimension"]
) -> Float[Tensor, "source *batch query dimension"]:
    """α v for every source. Side by side, all sources take one product per head."""
    sources, width = len(values), values.shape[-1]
    beside = values.movedim(0, -2).flatten(-2)
    return (weights @ beside).unflatten(-1, (sources, width)).movedim(-2, 0)


def named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `scaled_dot_product_attention`, by name."""
    parameters = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    return dict(zip(parameters, args, strict=False)) | dict(kwargs)


class FusedCalls:
    """Reads calls of `scaled_dot_product_attention`, and makes each mask a rule once for all layers of a pass."""

    def __init__(self) -> None:
        self._rules: dict[object, tuple[Tensor, Mask]] = {}

    def read(self, given: Mapping[str, Any]) -> AttentionCall | None:
        """What attention is computed from; None if its axes are not those of texts, heads, tokens and dimensions.

        Args:
            given: Arguments by name.
        """
        query, key, scale = given["query"], given["key"], given.get("scale")
        if query.ndim != 4:
            return None
        mask = Mask(causal=True) if given.get("is_causal") else self._rule(given.get("attn_mask"), query, key)
        return AttentionCall(query, key, given["value"], mask, query.shape[-1] ** -0.5 if scale is None else scale)

    def _rule(self, mask: Any, query: Tensor, key: Tensor) -> Mask | None:
        """A mask as a rule; transformers may have been handed one."""
        if mask is None or isinstance(getattr(mask, "rule", None), Mask):
            return getattr(mask, "rule", None)
        lengths = query.shape[2], key.shape[2]
        name = id(mask), lengths
        if name not in self._rules:
            whole = mask[(None,) * (4 - mask.ndim)].expand(len(query), -1, *lengths)
            self._rules[name] = mask, mask_of(whole, lengths)
        return self._rules[name][1]
