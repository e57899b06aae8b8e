"""The figures of the norms analysis, described from its tables."""

from collections.abc import Mapping, Sequence

import pandas as pd

from normscope.analyses.findings import Figure, HeatmapGrid, Lines, Scatter
from normscope.data.categories import ALL

MEASURES = {"alpha": "α: attention weight", "alpha_f": "‖αf(x)‖: weighted vector", "f": "‖f(x)‖: vector"}


def describe_figures(
    by_layer: pd.DataFrame,
    by_head: pd.DataFrame,
    head_shares: pd.DataFrame,
    per_key: pd.DataFrame,
    sample: pd.DataFrame,
    spectra: Mapping[str, pd.DataFrame],
) -> dict[str, Figure]:
    """Figures 3, 4 (and 10 to 12), 5 and 9 of K20, figure 2 of M24 and the expansion rates of K21, from the tables."""
    reported = list(dict.fromkeys(by_head["category"]))
    categories = [category for category in reported if category != ALL] or reported
    points = sample.assign(category=ALL) if categories == [ALL] else sample
    figures: dict[str, Figure] = {
        "by_layer": _by_layer(_rows_of(categories, by_layer[by_layer["measure"] != "share"])),
        "shares": _shares(_rows_of(categories, by_layer[by_layer["measure"] == "share"])),
        "head_shares": _head_shares(head_shares),
        "per_key": _per_key(_rows_of(categories, per_key)),
        "by_head": _by_head(_rows_of(categories, by_head)),
        "scatter": _scatter(_rows_of(categories, points), categories),
    }
    if spectra:
        figures["singular_values"] = _singular_values(spectra["singular_values"])
        figures["expansion"] = _expansion(spectra["expansion"])
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


def _per_key(table: pd.DataFrame) -> Lines:
    return Lines(
        table=table,
        x="layer",
        y="mean",
        series="category",
        series_titles=_titles(table),
        y_label="mean weight per key",
        caption=(
            "Attention weight from a query to a single key of each category: the mean over keys and heads, not the sum over "
            "the category's keys. A rare category may stand out here although its sum is small."
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


def _singular_values(table: pd.DataFrame) -> Lines:
    return Lines(
        table=table,
        x="index",
        y="value",
        series="head",
        panel="layer",
        x_label="rank of the singular value",
        y_label="singular value",
        log_y=True,
        sharey=True,
        floor=_floor(table),
        caption=(
            "Singular values of each head's map from x to f(x), one line per head. They depend only on the weights. Values "
            "below a thousandth of the largest are not shown."
        ),
    )


def _floor(values: pd.DataFrame) -> float | None:
    """A thousandth of the largest singular value. A map without full rank has values at rounding error's size."""
    largest = float(values["value"].max())
    return largest / 1000 if largest > 0 and float(values["value"].min()) < largest / 1000 else None


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
