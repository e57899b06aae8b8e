"""The mixing ratio of every block, by five methods (Kobayashi et al. 2021)."""

import dataclasses
import itertools

import pandas as pd
import torch

from normscope.analyses.base import Analysis, AnalysisContext
from normscope.analyses.findings import Findings, HeatmapPanels, Lines
from normscope.analyses.finite import require_finite
from normscope.analyses.mixing.options import MIXING, MixingOptions
from normscope.analyses.mixing.sentences import sentences_of
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.maths.mixing import Method
from normscope.models.block import AttentionBlock
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.tidy import tidy

TITLES = {
    Method.ATTN_W: "Attn-W: weights",
    Method.ATTN_N: "Attn-N: vectors",
    Method.ATTNRES_W: "AttnRes-W: weights + residual",
    Method.ATTNRES_N: "AttnRes-N: vectors + residual",
    Method.ATTNRESLN_N: "AttnResLn-N: the attention block",
}


class MixingAnalysis(Analysis):
    """Mixing ratios by layer, method and token category."""

    info = MIXING

    def __init__(self, options: MixingOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        # `all` is always counted: the metrics cover all tokens, whichever categories are reported.
        categories = [*(category for category in context.categories if category != ALL), ALL]
        self._counted = dataclasses.replace(context, categories=categories)
        self._moments = GroupedMoments(len(context.layers), len(context.methods), len(categories))
        self.accumulators = {"moments": self._moments}

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the mixing ratios of a block's tokens."""
        values = torch.stack([block.mixing_ratios[method] for method in self.context.methods])
        self._moments.update(self.context.index(block.layer), values, self._counted.members(batch))

    def result(self) -> Findings:
        """Tables, figures and the summary of K21: mean, maximum and minimum over all tokens of all layers."""
        table = self._table()
        overall = table[table["category"] == ALL]
        shown = table[(table["count"] > 0) & table["category"].isin(self.context.categories)].reset_index(drop=True)
        grouped = overall.groupby("method", sort=False)
        # Every layer has the same tokens, so the mean over layers is the mean over all tokens.
        summary = pd.DataFrame(
            {"mean": grouped["mean"].mean(), "max": grouped["max"].max(), "min": grouped["min"].min()}
        )
        metrics = {
            f"{method}/{statistic}": float(summary.loc[method, statistic])
            for method, statistic in itertools.product(summary.index, summary.columns)
        }
        curves = {
            f"{method}/mean": rows.set_index("layer")["mean"] for method, rows in overall.groupby("method", sort=False)
        }
        return Findings(
            tables={"by_layer": shown},
            metrics=metrics,
            sentences=sentences_of(metrics),
            curves=curves,
            figures=self._figures(shown, overall),
            summary_digits=1,
            summary_caption="how much of a token's output vector comes from other tokens, by method",
            summary=(summary * 100).rename(columns=lambda name: f"{name} %"),
        )

    def _table(self) -> pd.DataFrame:
        moments = self._moments.compute()
        count = moments.count[:, None]
        require_finite(
            moments.mean.masked_fill(count == 0, 0.0), "the activations of layer {layer}", self.context.layers
        )
        return tidy(
            {
                "mean": moments.mean,
                "sequence_mean": moments.sequence_mean,
                "max": moments.maximum,
                "min": moments.minimum,
                "count": count,
            },
            layer=self.context.layers,
            method=[str(method) for method in self.context.methods],
            category=self._counted.categories,
        )

    @staticmethod
    def _figures(shown: pd.DataFrame, overall: pd.DataFrame) -> dict[str, HeatmapPanels | Lines]:
        def percent(table: pd.DataFrame) -> pd.DataFrame:
            return table.assign(mean=table["mean"] * 100)

        titles = {str(method): title for method, title in TITLES.items()}
        return {
            "heatmap": HeatmapPanels(
                table=percent(shown),
                panel="method",
                row="layer",
                column="category",
                value="mean",
                panel_titles=titles,
                value_label="mixing ratio (%)",
                limits=(0.0, 100.0),
                caption=(
                    "Share of a token's output vector that comes from other tokens, by layer (deepest at the top) and token "
                    "category. From left to right, each panel takes more of the block into account. Where the ratio is "
                    "low, tokens mostly preserve themselves."
                ),
            ),
            "by_layer": Lines(
                table=percent(overall),
                x="layer",
                y="mean",
                series="method",
                series_titles={
                    method: title for method, title in titles.items() if (overall["method"] == method).any()
                },
                y_label="mean mixing ratio (%)",
                limits=(0.0, 100.0),
                caption=(
                    "Mean mixing ratio over all tokens, by layer and method. The gaps between the lines show the effect of the "
                    "vectors, the residual connection and the layer normalisation."
                ),
            ),
        }
