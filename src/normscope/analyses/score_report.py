"""Tables, metrics and figures of the score analysis."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from normscope.analyses.analysis import Subject
from normscope.analyses.findings import Figure, HeatmapGrid, Lines, Profiles
from normscope.analyses.interventions import MEAN, TOGETHER, ZERO
from normscope.data.categories import ALL
from normscope.statistics.pooled import PooledSummary

# A picture with more columns than these is not read.
_DRAWN_DIMENSIONS = 6


class ScoreReport:
    """Says what the accumulators of the score analysis amount to.

    Args:
        subject: What was looked at.
        contributions: Means over pairs (layer, category, head, dimension; the last two: what b_K adds, and the score).
        spread: Means over queries (layer, 1, head, dimension; the last: the variance that they add up to).
        outliers: The outlier dimensions.
    """

    def __init__(
        self, subject: Subject, contributions: PooledSummary, spread: PooledSummary, outliers: list[int]
    ) -> None:
        self._subject, self._contributions, self._spread, self._outliers = subject, contributions, spread, outliers

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
        """Means over layers and heads, and what removing the outliers does to each category."""
        concentration = tables["concentration"]
        metrics = {
            "dimensions_for_half/mean": float(concentration["half"].mean()),
            "dimensions_for_90_percent/mean": float(concentration["ninety"].mean()),
            "share_of_outliers/mean": float(concentration["outliers"].mean()),
        }
        if "intervention" in tables:
            together = tables["intervention"].query("removed == @TOGETHER").groupby("category")
            for column in ("before", "after", "change", "controls_mean"):
                means = together[column].mean().dropna()
                metrics |= {f"intervention/{category}/{column}": float(value) for category, value in means.items()}
        if "ablation_loss" in tables:
            loss = tables["ablation_loss"].query("removed == @TOGETHER")
            first = loss[loss["from_layer"] == loss["from_layer"].min()]
            metrics |= {
                f"ablation/{row.value}/loss_{column}": float(getattr(row, column))
                for row in first.itertuples()
                for column in ("before", "after")
            }
        return metrics

    @staticmethod
    def curves(tables: Mapping[str, pd.DataFrame]) -> dict[str, "pd.Series[float]"]:
        """By layer, means over heads."""
        by_layer = tables["concentration"].groupby("layer")[["half", "ninety", "outliers"]].mean()
        names = {
            "half": "dimensions_for_half",
            "ninety": "dimensions_for_90_percent",
            "outliers": "share_of_outliers",
        }
        return {name: by_layer[column] for column, name in names.items()}

    @staticmethod
    def summary(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        """Per layer: how few dimensions decide, and the attention to each category with and without the outliers."""
        table = (
            tables["concentration"]
            .groupby("layer")[["half", "ninety", "outliers"]]
            .mean()
            .rename(columns={"half": "dims for 50 %", "ninety": "dims for 90 %", "outliers": "outliers' share"})
        )
        if "intervention" in tables:
            together = tables["intervention"].query("removed == @TOGETHER")
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
        names = [self._subject.categories[index] for index in present.tolist()]
        return pd.DataFrame(
            {
                "layer": np.array(self._subject.layers)[layer],
                "head": head + 1,
                # Hundreds of thousands of rows: a word each would weigh more than the numbers.
                "category": pd.Categorical.from_codes(category.astype(np.int8), categories=pd.Index(names)),
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
            int(count[self._subject.index(layer), self._subject.categories.index(category)])
            for layer, category in zip(table["layer"], table["category"], strict=True)
        ]
        return table

    def _shares(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Shares of the spread, largest first, and how many of them make half and 90 % of it."""
        spread = self._spread.mean[:, 0].numpy()
        variance = spread[..., -1]
        shares = spread[..., :-1] / variance[..., None]
        order = np.argsort(-shares, axis=-1, kind="stable")
        ranked = np.take_along_axis(shares, order, axis=-1)
        cumulative = ranked.cumsum(axis=-1)
        layer, head, rank = np.indices(ranked.shape).reshape(3, -1)
        layers = np.array(self._subject.layers)
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
        concentration = pd.DataFrame(
            {
                "layer": layers[layer],
                "head": head + 1,
                "variance": variance.ravel(),
                "half": _needed(cumulative, 0.5).ravel(),
                "ninety": _needed(cumulative, 0.9).ravel(),
                "outliers": shares[..., self._outliers].sum(axis=-1).ravel(),
                "first": order[..., 0].ravel(),
                "first_share": ranked[..., 0].ravel(),
            }
        )
        return ranking, concentration


def describe_figures(tables: Mapping[str, pd.DataFrame], outliers: list[int]) -> dict[str, Figure]:
    """Figures 4 and 5 of the paper, its Table 1 as a picture, the ranking, and the causal test at a glance."""
    contributions = tables["contributions"]
    everything = contributions[contributions["category"] == ALL]
    figures: dict[str, Figure] = {}
    if len(everything):
        figures["contributions"] = Profiles(
            table=everything,
            panel="layer",
            x="dimension",
            y="mean",
            series="head",
            labelled=outliers,
            y_label="mean C_j",
            caption=(
                "Mean contribution C_j of every dimension to q·k over all query–key pairs, one line per head, one panel per "
                "layer, before scaling and softmax. Labelled: the outlier dimensions."
            ),
        )
    by_category = contributions[contributions["dimension"].isin(outliers) & (contributions["category"] != ALL)]
    strongest = by_category["mean"].abs().groupby(by_category["dimension"]).max().nlargest(_DRAWN_DIMENSIONS)
    drawn = sorted(strongest.index)
    if len(by_category):
        wide = by_category.pivot_table(
            index=["layer", "head", "category"], columns="dimension", values="mean", observed=True, sort=False
        ).reset_index()
        figures["by_category"] = HeatmapGrid(
            table=wide.rename(columns={j: str(j) for j in drawn}),
            grid_row="category",
            values={str(j): f"dimension {j}" for j in drawn},
            row="layer",
            column="head",
            diverging=True,
            caption=(
                "Mean contribution C_j of the outlier dimensions (at most six) by category of the key. A category "
                "that is redder than the others in a head is favoured by that dimension, whatever the query."
            ),
        )
    figures["concentration"] = Lines(
        table=tables["concentration"]
        .groupby("layer")[["half", "ninety"]]
        .mean()
        .reset_index()
        .melt("layer", var_name="part", value_name="dimensions"),
        x="layer",
        y="dimensions",
        series="part",
        series_titles={"half": "half of the spread", "ninety": "90 %"},
        y_label="dimensions (mean over heads)",
        caption="Smallest number of dimensions that explains half, and 90 %, of the spread of a query's scores over its keys.",
    )
    if "intervention" in tables and len(tables["intervention"]):
        figures["intervention"] = _intervention(tables["intervention"])
    if "ablation" in tables and len(tables["ablation"]):
        figures["ablation"] = _ablation(tables["ablation"])
    return figures


def _intervention(table: pd.DataFrame) -> Lines:
    together = table[table["removed"] == TOGETHER]
    return _compared(
        together,
        {"before": ("before", None), "after": ("after", None), "controls": ("controls_mean", "before")},
        {"before": "as it is", "after": "without the outliers", "controls": "without random dimensions (95 %)"},
        "Attention to the keys of each category (sum over its keys) as it is, without the outlier dimensions' part of the "
        "block's scores, and without that of as many random dimensions. Where only the first removal moves the line, the "
        "outliers carry it.",
    )


def _ablation(table: pd.DataFrame) -> Lines:
    chosen = table[(table["removed"] == TOGETHER) & (table["from_layer"] == table["from_layer"].min())]
    zero, mean = (chosen[chosen["value"] == value].reset_index(drop=True) for value in (ZERO, MEAN))
    return _compared(
        zero.assign(mean_after=mean["after"]),
        {
            "before": ("before", None),
            ZERO: ("after", None),
            MEAN: ("mean_after", None),
            "controls": ("controls_mean", "before"),
        },
        {
            "before": "as it is",
            ZERO: "outliers set to zero",
            MEAN: "outliers set to their mean",
            "controls": "random dimensions set to zero (95 %)",
        },
        "Attention to the keys of each category (sum over its keys) when dimensions of the residual stream are replaced "
        "wherever a block reads it, from the first of the chosen layers to the end of the model.",
    )


def _compared(
    table: pd.DataFrame, lines: Mapping[str, tuple[str, str | None]], titles: Mapping[str, str], caption: str
) -> Lines:
    """Lines by layer, one panel per category; a line is a column, added to another where there is one (with its interval)."""
    parts = []
    for name, (column, base) in lines.items():
        start = 0.0 if base is None else table[base]
        parts.append(
            table[["layer", "category"]].assign(
                line=name,
                alpha=start + table[column],
                low=np.nan if base is None else start + table["controls_low"],
                high=np.nan if base is None else start + table["controls_high"],
            )
        )
    return Lines(
        table=pd.concat(parts, ignore_index=True),
        x="layer",
        y="alpha",
        band=("low", "high"),
        series="line",
        series_titles=titles,
        panel="category",
        panel_titles={category: category for category in dict.fromkeys(table["category"])},
        y_label="attention weight",
        caption=caption,
    )


def _needed(cumulative: np.ndarray, share: float) -> np.ndarray:
    """How many of the largest shares reach a share of the whole."""
    return (cumulative >= share - 1e-12).argmax(axis=-1) + 1
