"""The figures of the norms analysis, described from its tables."""

from collections.abc import Sequence

import pandas as pd

from normscope.data.categories import ALL
from normscope.results.figures import Figure, HeatmapGrid, Lines, Scatter

MEASURES = {"alpha": "α: attention weight", "alpha_f": "‖αf(x)‖: weighted vector", "f": "‖f(x)‖: vector"}


def describe_figures(
    by_layer: pd.DataFrame,
    by_head: pd.DataFrame,
    head_shares: pd.DataFrame,
    sample: pd.DataFrame,
    expansion: pd.DataFrame | None,
) -> dict[str, Figure]:
    """Figures 3, 4 (and 10 to 12) and 5 of K20, and the expansion rates of K21, from the tables."""
    reported = list(dict.fromkeys(by_head["category"]))
    categories = [category for category in reported if category != ALL] or reported
    points = sample.assign(category=ALL) if categories == [ALL] else sample
    figures: dict[str, Figure] = {
        "by_layer": _by_layer(_rows_of(categories, by_layer[by_layer["measure"] != "share"])),
        "shares": _shares(_rows_of(categories, by_layer[by_layer["measure"] == "share"])),
        "head_shares": _head_shares(head_shares),
        "by_head": _by_head(_rows_of(categories, by_head)),
        "scatter": _scatter(_rows_of(categories, points), categories),
    }
    if expansion is not None:
        figures["expansion"] = _expansion(expansion)
    return figures


def _rows_of(categories: Sequence[str], table: pd.DataFrame) -> pd.DataFrame:
    return table[table["category"].isin(categories)]


def _titles(table: pd.DataFrame) -> dict[str, str]:
    return {category: category for category in dict.fromkeys(table["category"])}


def _by_layer(table: pd.DataFrame) -> Lines:
    return Lines(
        table=table,
        x="layer",
        y="sequence_mean",
        series="category",
        series_titles=_titles(table),
        panel="measure",
        panel_titles=MEASURES,
        y_label="mean over heads",
        caption=(
            "Weight α and contribution ‖αf(x)‖ of each category, summed over its keys for each query, and the mean norm ‖f(x)‖ "
            "of its keys' vectors."
        ),
    )


def _shares(table: pd.DataFrame) -> Lines:
    return Lines(
        table=table.assign(sequence_mean=table["sequence_mean"] * 100),
        x="layer",
        y="sequence_mean",
        series="category",
        series_titles=_titles(table),
        y_label="share of the attention output (%)",
        caption=(
            "What the keys of each category contribute along the attention output, summed over heads. With the share of the "
            "output bias, which is not shown, the shares of a layer add up to 100%. Below 0%, a category's vectors point "
            "against the output."
        ),
    )


def _head_shares(table: pd.DataFrame) -> HeatmapGrid:
    return HeatmapGrid(
        table=table.assign(share=table["share"] * 100),
        values={"share": "share of the head"},
        row="layer",
        column="head",
        diverging=True,
        value_label="share of the attention output (%)",
        caption=(
            "What each head takes from all keys, along the attention output of its layer. The shares of a layer's heads add up "
            "to 100% less the share of the output bias. Heads below 0% write against the output of all heads."
        ),
    )


def _by_head(table: pd.DataFrame) -> HeatmapGrid:
    return HeatmapGrid(
        table=table,
        grid_row="category",
        values={"alpha": "α, summed over keys", "alpha_f": "‖αf(x)‖, summed over keys", "f": "‖f(x)‖, mean"},
        row="layer",
        column="head",
        caption=(
            "Weight α, norm of the weighted vector ‖αf(x)‖ and norm of the vector ‖f(x)‖ by layer and head. Where a category "
            "has large weights but short weighted vectors, the heads attend to tokens that contribute little."
        ),
    )


def _scatter(table: pd.DataFrame, categories: Sequence[str]) -> Scatter:
    counted = ""
    if table["category"].value_counts().nunique() > 1:  # panels of the same size have no number in their titles
        counted = " (n: number of pairs)"
    return Scatter(
        table=table,
        x="f",
        y="alpha",
        panel="category",
        panel_titles={category: category for category in categories},
        x_label="‖f(x)‖",
        y_label="α",
        log_y=True,
        trim=0.01,
        caption=(
            "Weight against vector norm by category of the key, for a uniform sample of the visible query–key pairs of all "
            f"layers and heads{counted}. Where the cloud falls to the right, large weights go to short vectors. The axes "
            "leave out at most 1% of each category's points at either end."
        ),
    )


def _expansion(rates: pd.DataFrame) -> Lines:
    return Lines(
        table=rates.melt("layer", var_name="map"),
        x="layer",
        y="value",
        series="map",
        series_titles={"rate": "without output bias", "rate_with_output_bias": "with output bias, as published"},
        y_label="expansion rate",
        caption=(
            "Root mean square singular value of the block's map from x to f(x). Above 1, the map lengthens vectors on average "
            "over all directions."
        ),
    )
