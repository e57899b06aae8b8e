"""The figures of the norms analysis, described from its tables."""

import pandas as pd

from normscope.analyses.findings import Figure, HeatmapGrid, Lines, Scatter
from normscope.data.categories import ALL

MEASURES = {"alpha": "α: attention weight", "alpha_f": "‖αf(x)‖: weighted vector", "f": "‖f(x)‖: vector"}


def describe_figures(
    by_layer: pd.DataFrame,
    by_head: pd.DataFrame,
    per_key: pd.DataFrame,
    sample: pd.DataFrame,
    values: pd.DataFrame,
    rates: pd.DataFrame,
) -> dict[str, Figure]:
    """Figures 3, 4 (and 10 to 12), 5 and 9 of K20, figure 2 of M24 and the expansion rates of K21, from the tables."""
    shown = list(dict.fromkeys(by_head["category"]))
    parts = [category for category in shown if category != ALL] or shown
    titles = {category: category for category in parts}
    points = sample.assign(category=ALL) if parts == [ALL] else sample[sample["category"].isin(parts)]
    return {
        "by_layer": Lines(
            table=by_layer[by_layer["category"].isin(parts)],
            x="layer",
            y="sequence_mean",
            series="category",
            series_titles=titles,
            panel="measure",
            panel_titles=MEASURES,
            y_label="mean over heads",
            caption=(
                "What falls on the keys of each category: the weight α and the contribution ‖αf(x)‖, summed over the "
                "category's keys for each query, and the mean length ‖f(x)‖ of what they have to give."
            ),
        ),
        "per_key": Lines(
            table=per_key[per_key["category"].isin(parts)],
            x="layer",
            y="mean",
            series="category",
            series_titles=titles,
            y_label="mean weight per key",
            caption=(
                "Attention weight that a single key of each category gets from a query: the mean per key, over heads, not the "
                "sum over the category's keys. Rare categories stand out here although their sum is small."
            ),
        ),
        "by_head": HeatmapGrid(
            table=by_head[by_head["category"].isin(parts)],
            grid_row="category",
            values={"alpha": "α, summed over the keys", "f": "‖f(x)‖, mean"},
            row="layer",
            column="head",
            caption=(
                "Weight (left) and vector length (right) by layer and head. Where a category is dark on the left and light on "
                "the right, the heads look at tokens that have little to give."
            ),
        ),
        "scatter": Scatter(
            table=points,
            x="f",
            y="alpha",
            panel="category",
            panel_titles=titles,
            x_label="‖f(x)‖",
            y_label="α",
            log_y=True,
            caption=(
                "Weight against vector length, by category of the key, for a uniform sample of the pairs of a query and a key "
                "that it sees in all layers and heads: large weights go to short vectors where the cloud falls to the right."
            ),
        ),
        "singular_values": Lines(
            table=values,
            x="index",
            y="value",
            series="head",
            panel="layer",
            y_label="singular value",
            log_y=True,
            caption="Singular values of each head's map from x to f(x), one line per head; weights only.",
        ),
        "expansion": Lines(
            table=rates.melt("layer", var_name="map"),
            x="layer",
            y="value",
            series="map",
            series_titles={"rate": "without b_O", "rate_with_output_bias": "with b_O, as published"},
            y_label="expansion rate",
            caption="Root mean square singular value of the block's map from x to f(x): above 1 it lengthens vectors.",
        ),
    }
