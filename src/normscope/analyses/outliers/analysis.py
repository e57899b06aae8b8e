"""Outlier dimensions: hidden dimensions whose mean stands far from the others' (Maruta & Matsuzaki 2024, section 2)."""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.findings import Figure, Findings, Lines, Profiles
from normscope.analyses.outliers.hidden_moments import HiddenMoments, HiddenSummary, layer_rows
from normscope.analyses.outliers.options import OUTLIERS, OutliersOptions
from normscope.analyses.outliers.sentences import sentences_of
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.models.model_info import ModelInfo


class OutliersAnalysis(Analysis):
    """Mean of the hidden vectors per layer and dimension, the outliers among the dimensions, and their value by category."""

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

    def result(self) -> Findings:
        """Tables and figures 1 and 3 of the paper."""
        found = self._moments.compute()
        layers = list(range(self.context.depth + 1))
        every = layer_rows(
            layers,
            list(range(self.context.model)),
            mean=found.mean[:, -1],
            std=found.deviation[:, -1],
            score=found.scores,
            is_outlier=found.is_outlier,
        )
        share = found.is_outlier.double().mean(dim=0)
        by_category = self._by_category(found, layers)
        norms = self._norms(found.outliers)
        overall = by_category[by_category["category"] == ALL] if ALL in self.context.categories else every
        curves = {
            f"mean/{dimension}": rows.set_index("layer")["mean"]
            for dimension, rows in overall[overall["dimension"].isin(found.outliers)].groupby("dimension")
        }
        names = ", ".join(map(str, found.outliers)) or "none"
        metrics = {
            "count": float(len(found.outliers)),
            **{f"{dimension}/share_of_layers": float(share[dimension]) for dimension in found.outliers},
        }
        return Findings(
            tables={
                "dimensions": every,
                "by_category": by_category,
                "layernorm": norms,
                "model": pd.DataFrame(
                    {
                        "dimension": found.outliers,
                        "share_of_layers": share[found.outliers].numpy(),
                        "largest_score": found.scores[:, found.outliers].abs().amax(dim=0).numpy(),
                    }
                ),
            },
            metrics=metrics,
            sentences=sentences_of(metrics),
            curves=curves,
            figures=self._figures(every, by_category, norms, found.outliers),
            summary=_summary(every, found.outliers),
            notes=[f"outlier dimensions: {names} ({self._moments.criterion})"],
        )

    def _by_category(self, found: HiddenSummary, layers: list[int]) -> pd.DataFrame:
        parts = [
            layer_rows(layers, found.outliers, mean=found.mean[:, group], std=found.deviation[:, group]).assign(
                category=category, count=int(found.count[0, group])
            )
            for group, category in enumerate(self._moments.categories)
            if category in self.context.categories and found.count[0, group]
        ]
        table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
        columns = ["layer", "dimension", "category", "mean", "std", "count"]
        return table.reindex(columns=columns).sort_values(["layer", "dimension"], kind="stable", ignore_index=True)

    def _norms(self, outliers: list[int]) -> pd.DataFrame:
        """γ and β that make the outlier dimensions, beside what other dimensions have."""
        rows = []
        for layer, norm in self.context.hidden_norms.items():
            weight = norm.weight.cpu().double()
            bias = torch.zeros_like(weight) if norm.bias is None else norm.bias.cpu().double()
            middle = float(weight.abs().quantile(0.5)), float(bias.abs().quantile(0.5))
            rows += [(layer, j, float(weight[j]), float(bias[j]), *middle) for j in outliers]
        return pd.DataFrame(
            rows, columns=["layer", "dimension", "weight", "bias", "median_abs_weight", "median_abs_bias"]
        )

    def _figures(
        self, every: pd.DataFrame, by_category: pd.DataFrame, norms: pd.DataFrame, outliers: list[int]
    ) -> dict[str, Figure]:
        figures: dict[str, Figure] = {
            "dimensions": Profiles(
                table=every,
                panel="layer",
                x="dimension",
                y="mean",
                labelled=outliers,
                y_label="mean over tokens",
                caption=(
                    "Mean over all tokens of every dimension of the hidden vectors, one panel per layer (0 is the embedding "
                    f"output). Labelled: the outlier dimensions ({self._moments.criterion})."
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
                    "Value of the outlier dimensions by layer and token category: the mean over tokens, and one standard "
                    "deviation to both sides. Where a category stands apart, the dimension tells its keys from the others."
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
                    "Weight γ and bias β of the layer normalisation that makes each layer's hidden vectors, in the outlier "
                    "dimensions: a β far from zero is there whatever the token."
                ),
            )
        return figures


def _summary(every: pd.DataFrame, outliers: list[int]) -> pd.DataFrame:
    chosen = every[every["dimension"].isin(outliers)]
    table = chosen.pivot_table(index="layer", columns="dimension", values="mean")
    table.columns = pd.Index([f"mean of {dimension}" for dimension in table.columns])
    table.insert(0, "outliers of the layer", every.groupby("layer")["is_outlier"].sum().astype(int))
    return (
        table if len(chosen) else every.groupby("layer")["is_outlier"].sum().rename("outliers of the layer").to_frame()
    )
