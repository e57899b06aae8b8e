"""Outlier dimensions: which are they? (Maruta & Matsuzaki 2024, section 2)

They are the hidden dimensions whose mean over all tokens is far from those of the others, in many layers.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.outliers import OUTLIERS, OutlierCriterion, OutliersOptions
from normscope.analyses.hidden_moments import HiddenMoments, HiddenSummary, Origin
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.models.facts import ModelFacts
from normscope.results.figures import Figure, Lines, Profiles
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import brief_share, compared, counted, enumeration, numbered
from normscope.statistics.tidy import tidy

_PRINTED = 10
"""Most outlier dimensions in the terminal: with a low threshold, there may be hundreds."""

_UNITS = {OutlierCriterion.sigma: "standard deviations", OutlierCriterion.mad: "median absolute deviations"}


class OutliersAnalysis(Analysis):
    """Mean of the hidden vectors by layer and dimension, the outlier dimensions, and their values by token category."""

    info = OUTLIERS

    def __init__(self, options: OutliersOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._moments = HiddenMoments(context, list(context.categories))
        self.accumulators = {"moments": self._moments.accumulator}

    @classmethod
    def requirements(cls, _options: OutliersOptions, _facts: ModelFacts) -> Requirements:
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
        places = {j: numbered(np.flatnonzero(summary.is_outlier[:, j].numpy()).tolist()) for j in outliers}
        share = summary.is_outlier.double().mean(dim=0)
        by_category = self._by_category(summary, layers)
        tables = {
            "model": pd.DataFrame(
                {
                    "dimension": outliers,
                    "layers": list(places.values()),
                    "share_of_layers": share[outliers].numpy(),
                    "largest_score": summary.scores[:, outliers].abs().amax(dim=0).numpy(),
                }
            ),
            "dimensions": dimensions,
            "by_category": by_category,
        }
        chosen = {"dimensions": dimensions[dimensions["dimension"].isin(outliers)]}
        rolled = roll_up(self.info.declared, tables | chosen)
        metrics = {**rolled.metrics} | shares_of_length(summary.mean[:, -1].numpy(), outliers)
        return Result(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(
                metrics,
                layers=places,
                origin=self._moments.origin,
            ),
            curves=rolled.curves,
            figures=self._figures(dimensions, by_category, outliers, _together(metrics)),
            summaries={self.info.name: self._summary(tables["model"])},
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

    def _figures(
        self, dimensions: pd.DataFrame, by_category: pd.DataFrame, outliers: Sequence[int], together: str
    ) -> dict[str, Figure]:
        detected = self._moments.origin is Origin.detected
        where = "in the layers in which they are outliers" if detected else "where they can be seen"
        figures: dict[str, Figure] = {
            "dimensions": Profiles(
                table=dimensions,
                panel="layer",
                x="dimension",
                y="mean",
                labelled=outliers,
                marked="is_outlier" if detected else None,
                y_label="mean over tokens",
                caption=(
                    "Mean of every dimension of the hidden vectors over all tokens, one panel per layer (0: the embedding "
                    f"output). Labels mark the outlier dimensions ({self._moments.criterion}) {where}.{together}"
                ),
            )
        }
        if outliers and len(by_category):
            shown = [c for c in dict.fromkeys(by_category["category"]) if c != ALL] or [ALL]
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
                panel_titles={dimension: f"dimension {dimension}" for dimension in outliers},
                y_label="value",
                caption=(
                    "Value of the outlier dimensions by layer and token category: mean ± one standard deviation over tokens. "
                    "Where a category stands apart, the dimension separates its keys from the others."
                ),
            )
        return figures

    def _summary(self, model: pd.DataFrame) -> Summary:
        """The outlier dimensions, the most prominent first."""
        titles = {"layers": "layers", "largest_score": "largest distance"}
        ranked = model.sort_values("largest_score", ascending=False, kind="stable").set_index("dimension")
        table = ranked[list(titles)][:_PRINTED]
        listed = f"the {_PRINTED} most prominent of {len(model)}" if len(model) > _PRINTED else "the"
        caption = (
            f"{listed} outlier dimensions: those of layers 0 to {self.context.depth} in which each is an outlier, and the "
            f"largest distance of its mean from the other means, in {_UNITS[OutlierCriterion(self.options.criterion)]}"
        )
        return Summary(table.rename(columns=titles), digits=1, caption=caption)


def shares_of_length(mean: Float[np.ndarray, "layer model"], outliers: Sequence[int]) -> dict[str, float]:
    """How many of the dimensions are outlier dimensions, and how much of the mean vector's squared length lies in them.

    Args:
        mean: The mean hidden vectors over all tokens. Layers in which all of it is 0 are left out.
        outliers: The outlier dimensions.
    """
    squares = np.square(mean)
    whole = squares.sum(axis=1)
    shares = squares[whole > 0][:, list(outliers)].sum(axis=1) / whole[whole > 0]
    found = {"share_of_dimensions": len(outliers) / mean.shape[1]}
    return found | ({"share_of_length": float(shares.mean())} if len(shares) else {})


def _together(metrics: Mapping[str, float]) -> str:
    """How much of the mean vector lies in the outlier dimensions, after a sentence; nothing without any."""
    if not metrics.get("count") or "share_of_length" not in metrics:
        return ""
    few, much = compared(brief_share, metrics["share_of_dimensions"], metrics["share_of_length"])
    together = "The one outlier dimension makes up" if metrics["count"] == 1 else "Together, they make up"
    return (
        f" {together} {few} of the dimensions and {much} of the squared length of the mean hidden vector, on average over "
        "layers."
    )


_SET = {Origin.given: "set by hand", Origin.known: "known for these weights"}


def sentences_of(
    metrics: Mapping[str, float], *, layers: Mapping[int, str] | None = None, origin: Origin = Origin.detected
) -> list[Sentence]:
    """The outlier dimensions, the layers in which they are outliers, and how much of the mean hidden vector lies in them.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        layers: The layers in which each outlier dimension of the model is an outlier, as `0–4, 6`.
        origin: Where the dimensions come from.
    """
    if not layers:
        detected = "no hidden dimension is an outlier in enough layers"
        text = f"The model has no outlier dimensions: {'no dimension is set' if origin in _SET else detected}."
        return [Sentence(text, figure="dimensions", table="dimensions")]
    places = {dimension: _place(where) for dimension, where in layers.items()}
    dimensions = counted(len(layers), "outlier dimension")
    start = f"The model has {dimensions}"
    if origin in _SET:
        start = f"{dimensions} {'is' if len(places) == 1 else 'are'} {_SET[origin]}"
        first = next(iter(places))
        places[first] = f"an outlier {places[first]}"
    named = enumeration([f"{dimension} ({place})" for dimension, place in places.items()])
    effect = metrics.get("share_of_length", 0.0) - metrics.get("share_of_dimensions", 0.0)
    return [Sentence(f"{start}: {named}.{_together(metrics)}", figure="dimensions", table="model", effect=effect)]


def _place(layers: str) -> str:
    if not layers:
        return "in no layer"
    return f"in layer{'' if layers.isdecimal() else 's'} {layers}"
