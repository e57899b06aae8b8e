"""Heads that add the same vector to every token, and pairs of heads of a layer that add the same."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.models.blocks.block import AttentionBlock

IDLE = 0.1
"""A head is said to do nothing if its share is less than this part of an equal share of its layer's heads."""
ALIKE = 0.9
"""Heads are said to do the same if what they add correlates at least so much."""


class HeadOutputs:
    """Accumulates, for each block, how what heads add to the residual stream varies over tokens, and varies together."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._sums: dict[int, Float[Tensor, "head model"]] = {}
        self._products: dict[int, Float[Tensor, "head head"]] = {}

    def update(self, block: AttentionBlock) -> None:
        """Add a block: Σ o and Σ ⟨o, o'⟩ of what its heads add to each token, o = Σ_j α_ij f(x_j)."""
        values = block.gated(block.weights.to(block.value) @ block.value)
        outputs = torch.einsum("bhqd,hdm->bqhm", values, block.parameters.output_weight)
        tokens = outputs[block.token_mask].double().cpu()
        own = self._sums, self._products
        new = tokens.sum(dim=0), torch.einsum("thm,tgm->hg", tokens, tokens)
        for kept, sums in zip(own, new, strict=True):
            kept[block.layer] = kept.get(block.layer, torch.zeros_like(sums)) + sums
        self._count[block.layer] = self._count.get(block.layer, 0) + len(tokens)

    def table(self) -> pd.DataFrame:
        """One row per layer and head: see `results.checkup_tables.HEADS`."""
        return pd.concat([self._of_layer(layer) for layer in sorted(self._count)], ignore_index=True)

    def _of_layer(self, layer: int) -> pd.DataFrame:
        mean = self._sums[layer] / self._count[layer]
        moments = self._products[layer] / self._count[layer]
        covariance, sizes = moments - mean @ mean.T, moments.diagonal()
        # Float64 keeps 16 digits of E‖o‖²: what is below is the rounding of a head that does not vary.
        variance = covariance.diagonal().clamp(min=0)
        variance = torch.where(variance > 1e-12 * sizes, variance, 0.0)
        scales = (variance[:, None] * variance).sqrt()
        correlations = torch.where(scales > 0, covariance / scales, 0.0).fill_diagonal_(-torch.inf)
        closest, twin = correlations.max(dim=1)
        alone = len(mean) == 1
        return pd.DataFrame(
            {
                "layer": layer,
                "head": range(1, len(mean) + 1),
                "share": (variance / variance.sum()).numpy(),
                "constant": (mean.square().sum(dim=1) / sizes).numpy(),
                "twin": pd.array([pd.NA] if alone else (twin + 1).tolist(), dtype="Int64"),
                "correlation": [float("nan")] if alone else closest.tolist(),
            }
        )


def idle_heads(table: pd.DataFrame, share: float = IDLE) -> list[dict[str, int]]:
    """Layer and head of the heads whose share is below this part of an equal share of their layer's heads."""
    heads = table.groupby("layer")["head"].transform("count")
    few = table[table["share"] * heads < share]
    return [
        {"layer": layer, "head": head} for layer, head in zip(few["layer"].tolist(), few["head"].tolist(), strict=True)
    ]


def alike_heads(table: pd.DataFrame, correlation: float = ALIKE) -> list[dict[str, Any]]:
    """Layer and the two heads of each pair that correlates at least so much, as far as one of both is the other's twin."""
    close = table[table["correlation"] >= correlation]
    pairs = {
        (layer, *sorted(pair))
        for layer, *pair in zip(close["layer"], close["head"], close["twin"].astype(int), strict=True)
    }
    return [{"layer": layer, "heads": pair} for layer, *pair in sorted(pairs)]


def head_names(heads: Sequence[Mapping[str, int]]) -> str:
    """Heads by layer, in words: `layer 3: 1, 5; layer 4: 2`."""
    groups = itertools.groupby(heads, key=lambda each: each["layer"])
    return "; ".join(f"layer {layer}: {', '.join(str(each['head']) for each in own)}" for layer, own in groups)
