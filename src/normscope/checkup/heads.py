"""Heads that add the same vector to every token, and pairs of heads of a layer that add the same."""

import itertools

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.models.blocks.block import AttentionBlock


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
        """One row per layer and head.

        `share`: how much of the variance over tokens of what the layer's heads add is this head's, Σ_t ‖o − mean o‖² divided by
        the sum of that over heads; NaN where no head varies. A head whose share is 0 adds the same vector to every token,
        as a bias does. `constant`: the share of ‖mean o‖² in the head's mean ‖o‖². `twin`: the head of the same layer whose
        deviations from its mean are most like this head's, and `correlation` their correlation over tokens and dimensions.
        """
        rows = []
        for layer in sorted(self._count):
            mean = self._sums[layer] / self._count[layer]
            moments = self._products[layer] / self._count[layer]
            covariance = moments - mean @ mean.T
            # Float64 keeps 16 digits of E‖o‖²: what is below is the rounding of a head that does not vary.
            variance = covariance.diagonal().clamp(min=0)
            variance = torch.where(variance > 1e-12 * moments.diagonal(), variance, 0.0)
            sizes = (variance[:, None] * variance).sqrt()
            correlations = torch.where(sizes > 0, covariance / sizes, 0.0).fill_diagonal_(-torch.inf)
            for head in range(len(mean)):
                twin = int(correlations[head].argmax())
                alone = len(mean) == 1
                size = moments[head, head]
                rows.append(
                    {
                        "layer": layer,
                        "head": head + 1,
                        "share": float(variance[head] / variance.sum()) if variance.sum() > 0 else float("nan"),
                        "constant": float(mean[head] @ mean[head] / size) if size > 0 else float("nan"),
                        "twin": pd.NA if alone else twin + 1,
                        "correlation": float("nan") if alone else float(correlations[head, twin]),
                    }
                )
        return pd.DataFrame(rows).astype({"twin": "Int64"})


def idle_heads(table: pd.DataFrame, share: float) -> list[tuple[int, int]]:
    """Layer and head of the heads whose share is below this part of an equal share of their layer's heads."""
    heads = table.groupby("layer")["head"].transform("count")
    few = table[table["share"] * heads < share]
    return list(zip(few["layer"].tolist(), few["head"].tolist(), strict=True))


def alike_heads(table: pd.DataFrame, correlation: float) -> list[tuple[int, int, int]]:
    """Layer and the two heads of each pair that correlates at least so much, as far as one of both is the other's twin."""
    close = table[table["correlation"] >= correlation]
    pairs = {
        (layer, min(pair), max(pair))
        for layer, *pair in zip(close["layer"], close["head"], close["twin"].astype(int), strict=True)
    }
    return sorted(pairs)


def head_names(places: list[tuple[int, int]]) -> str:
    """Heads by layer, in words: `layer 3: 1, 5; layer 4: 2`."""
    groups = itertools.groupby(places, key=lambda place: place[0])
    return "; ".join(f"layer {layer}: {', '.join(str(head) for _, head in own)}" for layer, own in groups)
