"""Tables and metrics of the score analysis."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from normscope.analyses.base import AnalysisContext
from normscope.analyses.score.ablations import TOGETHER
from normscope.statistics.mean import MeanSummary


class ScoreReport:
    """Says what the accumulators of the score analysis amount to.

    Args:
        subject: What was looked at.
        contributions: Means over pairs (layer, category, head, dimension; the last two: what b_K adds, and the score).
        spread: Means over queries (layer, 1, head, dimension; the last two: what b_K adds, and the variance that they all add
            up to).
        outliers: The outlier dimensions.
    """

    def __init__(
        self, context: AnalysisContext, contributions: MeanSummary, spread: MeanSummary, outliers: list[int]
    ) -> None:
        self._context, self._contributions, self._spread, self._outliers = context, contributions, spread, outliers

    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables but those of the causal test."""
        contributions = self._table(self._contributions.mean[..., :-2].numpy())
        shares, concentration = self._shares()
        return {
            "contributions": contributions,
            "by_category": self._by_category(contributions),
            "totals": self._totals(),
            "spread": shares,
            "concentration": concentration,
        }

    @staticmethod
    def metrics(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
        """Means over layers and heads, as far as heads have them, and what removing the outliers does to each category."""
        concentration = tables["concentration"]
        spread = concentration[concentration["variance"] > 0]
        averages = {
            "dimensions_for_half/mean": spread["half"].mean(),
            "dimensions_for_90_percent/mean": spread["ninety"].mean(),
            "share_of_outliers/mean": spread["outliers"].mean(),
            "share_of_key_bias/mean": spread["key_bias"].mean(),
            "heads_below_half/share": spread["half"].isna().mean(),
            "heads_below_90_percent/share": spread["ninety"].isna().mean(),
        }
        metrics = {name: float(value) for name, value in averages.items() if pd.notna(value)}
        if "intervention" in tables:
            together = _together(tables["intervention"]).groupby("category")
            for column in ("before", "after", "change", "controls_mean"):
                means = together[column].mean().dropna()
                metrics |= {f"intervention/{category}/{column}": float(value) for category, value in means.items()}
        if "ablation_loss" in tables:
            loss = _together(tables["ablation_loss"])
            first = loss[loss["from_layer"] == loss["from_layer"].min()]
            metrics |= {
                f"ablation/{row.value}/loss_{column}": float(getattr(row, column))
                for row in first.itertuples()
                for column in ("before", "after")
            }
        return metrics

    @staticmethod
    def curves(tables: Mapping[str, pd.DataFrame]) -> dict[str, "pd.Series[float]"]:
        """By layer, means over the heads that have them."""
        by_layer = means_by_layer(tables["concentration"])
        names = {
            "half": "dimensions_for_half",
            "ninety": "dimensions_for_90_percent",
            "outliers": "share_of_outliers",
            "key_bias": "share_of_key_bias",
        }
        return {name: by_layer[column].dropna() for column, name in names.items()}

    @staticmethod
    def summary(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        """Per layer: how few dimensions decide, and the attention to each category with and without the outliers."""
        table = means_by_layer(tables["concentration"]).rename(
            columns={
                "half": "dims for 50 %",
                "ninety": "dims for 90 %",
                "outliers": "outliers' share",
                "key_bias": "b_K's share",
            }
        )
        if "intervention" in tables:
            together = _together(tables["intervention"])
            for category in together["category"].unique()[:1]:  # [CLS] where there is one
                by_layer = together[together["category"] == category].set_index("layer")
                table[f"α {category}"] = by_layer["before"]
                table["without"] = by_layer["after"]
                table["random"] = by_layer["before"] + by_layer["controls_mean"]
        return table

    def _table(self, values: np.ndarray) -> pd.DataFrame:
        """One row per layer, head, category and dimension; categories that never occurred are left out."""
        present = np.flatnonzero(self._contributions.count.numpy().any(axis=0))
        by_head = values[:, present].transpose(0, 2, 1, 3)
        layer, head, category, dimension = np.indices(by_head.shape).reshape(4, -1)
        names = [self._context.categories[index] for index in present.tolist()]
        return pd.DataFrame(
            {
                "layer": np.array(self._context.layers)[layer],
                "head": head + 1,
                # Hundreds of thousands of rows: a word each would weigh more than the numbers.
                "category": pd.Categorical.from_codes(category, categories=pd.Index(names)),
                "dimension": dimension,
                "mean": by_head.ravel(),
            }
        )

    def _by_category(self, contributions: pd.DataFrame) -> pd.DataFrame:
        """The outlier dimensions with a column per head, as the paper's Table 1."""
        chosen = contributions[contributions["dimension"].isin(self._outliers)]
        wide = chosen.pivot_table(
            index=["layer", "dimension", "category"], columns="head", values="mean", observed=True, sort=False
        )
        wide.columns = pd.Index([f"head_{head}" for head in wide.columns], dtype=object)
        return wide.reset_index().sort_values(["layer", "dimension"], kind="stable", ignore_index=True)

    def _totals(self) -> pd.DataFrame:
        """Mean scores, and of what they are sums."""
        mean = self._contributions.mean.numpy()
        parts = np.stack([mean[..., :-2].sum(axis=-1), mean[..., -2], mean[..., -1]], axis=-1)
        wide = self._table(parts).pivot_table(
            index=["layer", "head", "category"], columns="dimension", values="mean", observed=True, sort=False
        )
        wide.columns = pd.Index(["contributions", "key_bias", "score"])
        count = self._contributions.count.numpy()
        table = wide.reset_index()
        table["pairs"] = [
            int(count[self._context.index(layer), self._context.categories.index(category)])
            for layer, category in zip(table["layer"], table["category"], strict=True)
        ]
        return table

    def _shares(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Shares of the spread, largest first, and how many of them make half and 90 % of it.

        Where all scores of a head's queries agree there is no spread, and what would be a share of it is missing.
        """
        spread = self._spread.mean[:, 0].numpy()
        variance = spread[..., -1]
        shares = np.full_like(spread[..., :-1], np.nan)
        np.divide(spread[..., :-1], variance[..., None], out=shares, where=variance[..., None] > 0)
        shares, key_bias = shares[..., :-1], shares[..., -1]
        order = np.argsort(-shares, axis=-1, kind="stable")
        ranked = np.take_along_axis(shares, order, axis=-1)
        cumulative = ranked.cumsum(axis=-1)
        layer, head, rank = np.indices(ranked.shape).reshape(3, -1)
        layers = np.array(self._context.layers)
        ranking = pd.DataFrame(
            {
                "layer": layers[layer],
                "head": head + 1,
                "rank": rank + 1,
                "dimension": order.ravel(),
                "share": ranked.ravel(),
                "cumulative": cumulative.ravel(),
            }
        )
        layer, head = np.indices(variance.shape).reshape(2, -1)
        first = pd.array(order[..., 0].ravel(), dtype="Int64")
        first[~(variance > 0).ravel()] = pd.NA
        concentration = pd.DataFrame(
            {
                "layer": layers[layer],
                "head": head + 1,
                "variance": variance.ravel(),
                "half": _needed(cumulative, 0.5),
                "ninety": _needed(cumulative, 0.9),
                "outliers": np.where(variance > 0, shares[..., self._outliers].sum(axis=-1), np.nan).ravel(),
                "key_bias": key_bias.ravel(),
                "first": first,
                "first_share": ranked[..., 0].ravel(),
            }
        )
        return ranking, concentration


def _together(table: pd.DataFrame) -> pd.DataFrame:
    """The rows in which all outlier dimensions are removed at once."""
    return table[table["removed"] == TOGETHER]


def means_by_layer(concentration: pd.DataFrame) -> pd.DataFrame:
    """Means over the heads of a layer that have a value; NaN where none has."""
    columns = ["half", "ninety", "outliers", "key_bias"]
    return concentration.astype(dict.fromkeys(columns, float)).groupby("layer")[columns].mean()


def _needed(cumulative: np.ndarray, share: float) -> pd.arrays.IntegerArray:
    """How many of the largest shares reach a share of the whole, head by head; missing where all together do not."""
    reached = cumulative >= share - 1e-12
    needed = pd.array((reached.argmax(axis=-1) + 1).ravel(), dtype="Int64")
    needed[~reached.any(axis=-1).ravel()] = pd.NA
    return needed
