"""Outlier dimensions: hidden dimensions whose mean is far from those of the others (Maruta & Matsuzaki 2024, section 2)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.outliers.hidden_moments import HiddenMoments, HiddenSummary
from normscope.analyses.outliers.options import OUTLIERS, OutliersOptions
from normscope.analyses.outliers.sentences import sentences_of
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.models.model_info import ModelInfo
from normscope.results.figures import Figure, Lines, Profiles
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.statistics.tidy import tidy


class OutliersAnalysis(Analysis):
    """Mean of the hidden vectors by layer and dimension, the outlier dimensions, and their values by token category."""

    info = OUTLIERS

    def __init__(self, options: OutliersOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._moments = HiddenMoments(context, list(context.categories))
        self.accumulators = {"moments": self._moments.accumulator}

    @classmethod
    def requirements(cls, _options: OutliersOptions, _model: ModelInfo) -> Requirements:
        """Hidden vectors."""
        return Requirements(hidden=True)

    def update_hidden(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the hidden vectors of one layer."""
        self._moments.update(layer, vectors, batch)

    def result(self) -> Result:
        """The tables, and figures 1 and 3 of the paper."""
        summary = self._moments.compute()
        outliers = summary.outliers
        layers = range(self.context.depth + 1)
        dimensions = tidy(
            {
                "mean": summary.mean[:, -1],
                "std": summary.deviation[:, -1],
                "score": summary.scores,
                "is_outlier": summary.is_outlier,
            },
            layer=layers,
            dimension=range(self.context.model),
        )
        share = summary.is_outlier.double().mean(dim=0)
        by_category = self._by_category(summary, layers)
        norms = self._norms(outliers)
        tables = {
            "dimensions": dimensions,
            "by_category": by_category,
            "layernorm": norms,
            "model": pd.DataFrame(
                {
                    "dimension": outliers,
                    "share_of_layers": share[outliers].numpy(),
                    "largest_score": summary.scores[:, outliers].abs().amax(dim=0).numpy(),
                }
            ),
        }
        chosen = {"dimensions": dimensions[dimensions["dimension"].isin(outliers)]}
        rolled = roll_up(self.info.published, tables | chosen)
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics, given=self.options.dimensions is not None),
            curves=rolled.curves,
            figures=self._figures(dimensions, by_category, norms, outliers),
            summaries={
                self.info.name: Summary(
                    _summary(dimensions, outliers),
                    caption="number of outlier dimensions after each layer (0: of the embeddings), and the mean over all "
                    "tokens of each dimension that is one in many layers",
                )
            },
            notes=[f"outlier dimensions: {self._moments.criterion}"],
        )

    def _by_category(self, summary: HiddenSummary, layers: Sequence[int]) -> pd.DataFrame:
        table = tidy(
            {
                "mean": summary.mean[..., summary.outliers].transpose(1, 2),
                "std": summary.deviation[..., summary.outliers].transpose(1, 2),
                "count": summary.count[:, None],
            },
            layer=layers,
            dimension=np.array(summary.outliers, dtype=int),
            category=self._moments.categories,
        )
        reported = table["category"].isin(self.context.categories) & (table["count"] > 0)
        return table[reported].reset_index(drop=True)

    def _norms(self, outliers: list[int]) -> pd.DataFrame:
        """γ and β in the outlier dimensions, next to the medians over all dimensions."""
        rows = []
        for layer, norm in self.context.hidden_norms.items():
            weight = norm.weight.cpu().double()
            bias = torch.zeros_like(weight) if norm.bias is None else norm.bias.cpu().double()
            medians = float(weight.abs().quantile(0.5)), float(bias.abs().quantile(0.5))
            rows += [(layer, j, float(weight[j]), float(bias[j]), *medians) for j in outliers]
        return pd.DataFrame(
            rows, columns=["layer", "dimension", "weight", "bias", "median_abs_weight", "median_abs_bias"]
        )

    def _figures(
        self, dimensions: pd.DataFrame, by_category: pd.DataFrame, norms: pd.DataFrame, outliers: list[int]
    ) -> dict[str, Figure]:
        figures: dict[str, Figure] = {
            "dimensions": Profiles(
                table=dimensions,
                panel="layer",
                x="dimension",
                y="mean",
                labelled=outliers,
                y_label="mean over tokens",
                caption=(
                    "Mean of every dimension of the hidden vectors over all tokens, one panel per layer (0: the embedding "
                    f"output). Labels mark the outlier dimensions ({self._moments.criterion}) where they stand out."
                ),
            )
        }
        titles = {dimension: f"dimension {dimension}" for dimension in outliers}
        shown = [c for c in dict.fromkeys(by_category["category"]) if c != ALL] or [ALL]
        if outliers and len(by_category):
            figures["by_category"] = Lines(
                table=by_category.assign(
                    low=by_category["mean"] - by_category["std"], high=by_category["mean"] + by_category["std"]
                ),
                x="layer",
                y="mean",
                band=("low", "high"),
                series="category",
                series_titles={category: category for category in shown},
                panel="dimension",
                panel_titles=titles,
                y_label="value",
                caption=(
                    "Value of the outlier dimensions by layer and token category: mean ± one standard deviation over tokens. "
                    "Where a category stands apart, the dimension separates its keys from the others."
                ),
            )
        if len(norms):
            figures["layernorm"] = Lines(
                table=norms.rename(columns={"weight": "γ", "bias": "β"}).melt(
                    ["layer", "dimension"], ["γ", "β"], var_name="part", value_name="value"
                ),
                x="layer",
                y="value",
                series="part",
                series_titles={"γ": "γ, the weight", "β": "β, the bias"},
                panel="dimension",
                panel_titles=titles,
                y_label="parameter",
                caption=(
                    "Weight γ and bias β of the layer normalisation that outputs each layer's hidden vectors, in the outlier "
                    "dimensions. A β far from zero shifts every token's vector."
                ),
            )
        return figures


def _summary(dimensions: pd.DataFrame, outliers: list[int]) -> pd.DataFrame:
    counts = dimensions.groupby("layer")["is_outlier"].sum().rename("outliers").to_frame()
    if not outliers:
        return counts
    means = dimensions[dimensions["dimension"].isin(outliers)].pivot(index="layer", columns="dimension", values="mean")
    means.columns = pd.Index([f"dimension {dimension}" for dimension in means.columns])
    return counts.join(means)
