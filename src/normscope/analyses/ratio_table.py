"""Mixing ratios by layer, method and token category: the accumulators and tables of every analysis that reports them."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.finite import require_finite
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.results.rollups import by_axes
from normscope.statistics.accumulator import accumulation_device
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.sequence_totals import SequenceTotals
from normscope.statistics.tidy import tidy

SEQUENCES = 10_000
"""Sequences whose means are kept, so that comparisons of runs can resample them."""


class RatioTable:
    """Mean, extremes and count of the ratios of each method, over the tokens of each category."""

    def __init__(self, methods: Sequence[str], context: AnalysisContext) -> None:
        # `all` is always counted: the metrics cover all tokens, whichever categories are reported.
        categories = [*(category for category in context.categories if category != ALL), ALL]
        self._counted = dataclasses.replace(context, categories=categories)
        self._methods = methods
        self.moments = GroupedMoments(len(context.layers), len(methods), len(categories))
        self.sequences = SequenceTotals(SEQUENCES, len(methods))
        """Both are the state, for the analysis's `accumulators`."""

    def update(self, layer: int, ratios: Sequence[Float[Tensor, "batch token"]], batch: Batch) -> None:
        """Add the ratios of one layer's tokens, one tensor per method."""
        stacked = torch.stack(list(ratios))
        self.moments.update(self._counted.index(layer), stacked, self._counted.members(batch))
        values = stacked.to(accumulation_device(stacked.device)).double()
        mask = batch.token_mask.to(values.device)
        self.sequences.update(batch.fingerprints, torch.where(mask, values, 0.0).sum(dim=-1), mask.sum(dim=-1))

    def by_sequence(self, methods: Collection[str]) -> pd.DataFrame:
        """Means over the tokens and layers of single sequences, by the names of the metrics that average them.

        Args:
            methods: The methods to return.

        Returns:
            The columns sequence, count (of tokens), and `<method>/mean` for each method.
        """
        totals, layers = self.sequences.compute(), len(self._counted.layers)
        columns = {"sequence": totals.sequences.numpy(), "count": (totals.counts // layers).numpy()}
        for place, method in enumerate(self._methods):
            if method in methods:
                columns[f"{method}/mean"] = totals.means[:, place].numpy()
        return pd.DataFrame(columns)

    def compute(self) -> pd.DataFrame:
        """One row per layer, method and category (`all` included): mean, sequence_mean, max, min, count.

        Raises:
            InputError: If the activations of a layer are not finite.
        """
        moments, layers = self.moments.compute(), self._counted.layers
        count = moments.count[:, None]
        require_finite(moments.mean.masked_fill(count == 0, 0.0), "the activations of layer {layer}", layers)
        return tidy(
            {
                "mean": moments.mean,
                "sequence_mean": moments.sequence_mean,
                "max": moments.maximum,
                "min": moments.minimum,
                "count": count,
            },
            layer=layers,
            method=self._methods,
            category=self._counted.categories,
        )


def overall_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows over all tokens."""
    return table[table["category"] == ALL]


def reported_rows(table: pd.DataFrame, categories: Sequence[str]) -> pd.DataFrame:
    """The rows of the given categories that have tokens."""
    return table[(table["count"] > 0) & table["category"].isin(categories)].reset_index(drop=True)


def percentages(metrics: Mapping[str, float]) -> pd.DataFrame:
    """Mean, maximum and minimum of each method over all tokens of all layers, for the terminal."""
    table = pd.DataFrame({f"{how} %": by_axes(f"<method>/{how}", metrics) for how in ("mean", "max", "min")}) * 100
    return table.rename_axis("method")
