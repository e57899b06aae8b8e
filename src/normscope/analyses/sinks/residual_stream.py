"""Activations of the residual stream: their magnitudes, norms by position, and the massive ones."""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.finite import require_finite
from normscope.analyses.sinks.massive import MassiveSearch
from normscope.data.batching import Batch
from normscope.maths.magnitude import magnitudes, token_sizes
from normscope.statistics.accumulator import Accumulator
from normscope.statistics.mean import Mean
from normscope.statistics.tidy import tidy

PLACES = 4
"""Positions whose norms are reported alone; later ones are averaged."""

_MEASURES = ("max_abs", "kurtosis", "beyond_6_sigma")


class ResidualStream:
    """Accumulates statistics of the hidden vectors of layers 0 to L."""

    def __init__(self, context: AnalysisContext) -> None:
        self._context = context
        layers = context.depth + 1
        self._magnitudes = Mean(layers, 1, len(_MEASURES))
        self._norms = Mean(layers, PLACES + 1)
        self.massive = MassiveSearch(context)
        self.accumulators: dict[str, Accumulator] = {
            "magnitudes": self._magnitudes,
            "norms": self._norms,
            **self.massive.accumulators,
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
        self.massive.update(layer, vectors, batch, sizes)

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
