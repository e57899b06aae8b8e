"""Activations of the residual stream: their magnitudes, norms by position, and the massive ones."""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.finite import require_finite
from normscope.data.batching import Batch
from normscope.maths.magnitude import magnitudes, massive_activations, token_sizes
from normscope.statistics.accumulator import Accumulator
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.mean import Mean
from normscope.statistics.tidy import tidy

PLACES = 4
"""Positions whose norms are reported alone; later ones are averaged."""

_MEASURES = ("max_abs", "kurtosis", "beyond_6_sigma")


class ResidualStream:
    """Accumulates statistics of the hidden vectors of layers 0 to L.

    Args:
        context: The context of the run.
    """

    def __init__(self, context: AnalysisContext) -> None:
        self._context = context
        layers = context.depth + 1
        self._magnitudes = Mean(layers, 1, len(_MEASURES))
        self._norms = Mean(layers, PLACES + 1)
        # Layer, dimension, position (from 0) and token of each massive activation; its value, median and ratio.
        self._massive = KeyedMeans(4, 3)
        # Hidden vectors of the tokens that carry massive activations.
        self._carriers = Mean(layers, 1, context.model)
        self.accumulators: dict[str, Accumulator] = {
            "magnitudes": self._magnitudes,
            "norms": self._norms,
            "massive": self._massive,
            "carriers": self._carriers,
        }

    def update(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the hidden vectors of a batch in one layer (0: the embedding output)."""
        mask = batch.token_mask
        sizes = token_sizes(vectors)
        totals = magnitudes(vectors, mask, sizes).sum(dim=0)
        self._magnitudes.update(layer, totals[None], torch.tensor([batch.sequences]))
        norms = sizes.norm.masked_fill(~mask, 0)
        totals, counts = (_by_place(values.sum(dim=0)) for values in (norms, mask.long()))
        self._norms.update(layer, totals, counts)
        massive = massive_activations(vectors, mask, sizes)
        if len(massive.places):
            self._add_massive(layer, vectors, batch, massive.places, massive.medians)

    def _add_massive(self, layer: int, vectors: Tensor, batch: Batch, places: Tensor, medians: Tensor) -> None:
        row, token, dimension = places.unbind(dim=1)
        values, median = vectors[row, token, dimension].double(), medians[row].double()
        keys = torch.stack([torch.full_like(row, layer), dimension, token, batch.input_ids[row, token]], dim=1)
        self._massive.update(keys, torch.stack([values, median, values.abs() / median], dim=1))
        carriers = places[:, :2].unique(dim=0)
        chosen = vectors[carriers[:, 0], carriers[:, 1]]
        self._carriers.update(layer, chosen.double().sum(dim=0)[None], torch.tensor([len(chosen)]))

    def carriers(self) -> Float[Tensor, "layer model"]:
        """Mean hidden vectors of the tokens that carry massive activations, layer by layer; NaN where none does."""
        state = self._carriers.state_dict()
        return (state["total"] / state["count"].unsqueeze(-1))[:, 0]

    def massive(self) -> pd.DataFrame:
        """The table `massive`."""
        state = self._massive.state_dict()
        keys, count = state["keys"].numpy(), state["count"].numpy()
        value, median, ratio = (state["total"].numpy() / count[:, None]).T if len(count) else np.zeros((3, 0))
        return pd.DataFrame(
            {
                "layer": keys[:, 0],
                "dimension": keys[:, 1],
                "position": keys[:, 2] + 1,
                "token": np.array([self._context.token(int(token)) for token in keys[:, 3]], dtype=object),
                "value": value,
                "median": median,
                "ratio": ratio,
                "sequences": count,
            }
        )

    def magnitude(self) -> pd.DataFrame:
        """The table `magnitude`."""
        means = self._magnitudes.compute().mean[:, 0]
        require_finite(means, "the hidden vectors of layer {layer}", range(len(means)))
        columns = dict(zip(_MEASURES, means.unbind(dim=-1), strict=True))
        return tidy(columns, layer=range(len(means)))

    def norms(self) -> pd.DataFrame:
        """The table `norms`: positions that occur."""
        norms = self._norms.compute()
        positions = [*map(str, range(1, PLACES + 1)), f"{PLACES + 1} or later"]
        table = tidy({"norm": norms.mean, "count": norms.count}, layer=range(len(norms.mean)), position=positions)
        return table[table["count"] > 0].reset_index(drop=True)


def _by_place(values: Tensor) -> Tensor:
    """Sums by position: the first ones alone, the others together."""
    padded = torch.nn.functional.pad(values, (0, max(0, PLACES + 1 - len(values))))
    return torch.cat([padded[:PLACES], padded[PLACES:].sum()[None]])
