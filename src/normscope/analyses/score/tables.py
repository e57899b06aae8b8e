"""Tables of the score analysis."""

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd

from normscope.analyses.base import AnalysisContext
from normscope.analyses.categories import category_name
from normscope.results.axes import TOGETHER
from normscope.statistics.mean import MeanSummary
from normscope.statistics.tidy import Labels, tidy


class ScoreReport:
    """The tables of the score analysis.

    Args:
        contributions: Means over query–key pairs (layer, category, head, dimension). The last axis ends with the contribution
            of b_K and the score itself.
        spread: Means over queries (layer, 1, head, dimension). The last axis ends with the share of b_K and the variance, to
            which everything before it adds up.
        outliers: The outlier dimensions.
    """

    def __init__(
        self, context: AnalysisContext, contributions: MeanSummary, spread: MeanSummary, outliers: list[int]
    ) -> None:
        self._context, self._contributions, self._spread, self._outliers = context, contributions, spread, outliers

    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables except those of the interventions."""
        mean = self._contributions.mean.numpy()[..., :-2]
        contributions = self._by_head({"mean": mean}, dimension=range(mean.shape[-1]))
        ranking, concentration = self._spread_tables()
        return {
            "contributions": contributions,
            "by_category": self._by_category(contributions),
            "totals": self._totals(),
            "spread": ranking,
            "concentration": concentration,
        }

    @staticmethod
    def summary(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        """By layer: how few dimensions explain the scores, and attention to one category with and without the outliers."""
        table = means_by_layer(tables["concentration"]).rename(
            columns={
                "half": "dimensions for 50%",
                "ninety": "dimensions for 90%",
                "outliers": "outlier dimensions' share",
                "key_bias": "b_K's share",
            }
        )
        if "intervention" in tables:
            together = _together(tables["intervention"])
            for category in together["category"].unique()[:1]:  # [CLS] where there is one
                by_layer = together[together["category"] == category].set_index("layer")
                table[f"α on {category_name(category)}"] = by_layer["before"]
                table["without outlier dimensions"] = by_layer["after"]
                table["without random dimensions"] = by_layer["before"] + by_layer["controls_mean"]
        return table

    def _by_head(self, values: Mapping[str, np.ndarray], **axes: Labels) -> pd.DataFrame:
        """One row per layer, head, category and further axis. Categories that never occurred are left out.

        Args:
            values: Arrays with axes layer, category, head (or 1) and the further axes.
            axes: Labels of the further axes.
        """
        present = self._contributions.count.any(dim=0).numpy()
        names = list(itertools.compress(self._context.categories, present))
        table = tidy(
            {name: array[:, present].swapaxes(1, 2) for name, array in values.items()},
            layer=self._context.layers,
            head=range(1, self._context.heads + 1),
            # There are hundreds of thousands of rows: strings would take more memory than the numbers.
            category=pd.Categorical(names, categories=names),
            **axes,
        )
        return self._context.with_heads(table)

    def _by_category(self, contributions: pd.DataFrame) -> pd.DataFrame:
        """Contributions of the outlier dimensions with one column per head, as in Table 1 of the paper."""
        chosen = contributions[contributions["dimension"].isin(self._outliers)]
        wide = chosen.pivot_table(
            index=["layer", "dimension", "category"], columns="head", values="mean", observed=True, sort=False
        )
        wide.columns = pd.Index([f"head_{head}" for head in wide.columns], dtype=object)
        return wide.reset_index().sort_values(["layer", "dimension"], kind="stable", ignore_index=True)

    def _totals(self) -> pd.DataFrame:
        """Mean scores and the two parts that they are sums of."""
        mean, count = self._contributions.mean.numpy(), self._contributions.count.numpy()
        return self._by_head(
            {
                "contributions": mean[..., :-2].sum(axis=-1),
                "key_bias": mean[..., -2],
                "score": mean[..., -1],
                "pairs": count[:, :, None],
            }
        )

    def _spread_tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Each dimension's share of the spread, largest first, and how many of the shares make up half and 90% of it.

        Shares are missing for heads without any spread, where each query gives all its keys the same score.
        """
        spread = self._spread.mean[:, 0].numpy()
        variance = spread[..., -1]
        shares = np.full_like(spread[..., :-1], np.nan)
        np.divide(spread[..., :-1], variance[..., None], out=shares, where=variance[..., None] > 0)
        shares, key_bias = shares[..., :-1], shares[..., -1]
        order = np.argsort(-shares, axis=-1, kind="stable")
        ranked = np.take_along_axis(shares, order, axis=-1)
        cumulative = ranked.cumsum(axis=-1)
        axes = {"layer": self._context.layers, "head": range(1, self._context.heads + 1)}
        ranking = tidy(
            {"dimension": order, "share": ranked, "cumulative": cumulative},
            **axes,
            rank=range(1, order.shape[-1] + 1),
        )
        first = pd.array(order[..., 0].ravel(), dtype="Int64")
        first[~(variance > 0).ravel()] = pd.NA
        concentration = tidy({"variance": variance}, **axes).assign(
            half=_needed(cumulative, 0.5),
            ninety=_needed(cumulative, 0.9),
            outliers=np.where(variance > 0, shares[..., self._outliers].sum(axis=-1), np.nan).ravel(),
            key_bias=key_bias.ravel(),
            first=first,
            first_share=ranked[..., 0].ravel(),
        )
        return self._context.with_heads(ranking), self._context.with_heads(concentration)


def _together(table: pd.DataFrame) -> pd.DataFrame:
    """The rows where all outlier dimensions are removed together."""
    return table[table["removed"] == TOGETHER]


def means_by_layer(concentration: pd.DataFrame) -> pd.DataFrame:
    """Means over the heads of a layer that have a value; NaN where none has."""
    columns = ["half", "ninety", "outliers", "key_bias"]
    return concentration.astype(dict.fromkeys(columns, float)).groupby("layer")[columns].mean()


def _needed(cumulative: np.ndarray, share: float) -> pd.arrays.IntegerArray:
    """Smallest number of dimensions whose shares add up to `share`, for each head; missing if all of them fall short."""
    reached = cumulative >= share - 1e-12
    needed = pd.array((reached.argmax(axis=-1) + 1).ravel(), dtype="Int64")
    needed[~reached.any(axis=-1).ravel()] = pd.NA
    return needed
