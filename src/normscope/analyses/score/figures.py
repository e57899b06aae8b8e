"""The figures of the score analysis, described from its tables."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from normscope.analyses.ablations import MEAN, ZERO
from normscope.analyses.score.tables import means_by_layer
from normscope.data.categories import ALL
from normscope.results.axes import TOGETHER
from normscope.results.figures import Figure, HeatmapGrid, Lines, Profiles

# With more columns the panels become too small to read.
_DRAWN_DIMENSIONS = 6


def describe_figures(tables: Mapping[str, pd.DataFrame], outliers: list[int]) -> dict[str, Figure]:
    """Figures 4 and 5 of the paper, its Table 1 as a heatmap, the concentration of the spread, and the interventions."""
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
            y_label="mean Cⱼ",
            caption=(
                "Mean contribution Cⱼ of every dimension to q·k (before scaling and softmax) over all query–key pairs, in "
                "every head, one panel per layer. Labels mark the outlier dimensions where they stand out."
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
            values={str(j): f"j = {j}" for j in drawn},
            row="layer",
            column="head",
            diverging=True,
            value_label="mean Cⱼ",
            caption=(
                "Mean contribution Cⱼ of up to six outlier dimensions j by category of the key. If a category is more "
                "orange than the others in a head, the dimension favours its keys, on average over queries."
            ),
        )
    figures["concentration"] = Lines(
        table=means_by_layer(tables["concentration"])[["half", "ninety"]]
        .reset_index()
        .melt("layer", var_name="part", value_name="dimensions")
        .dropna(),
        x="layer",
        y="dimensions",
        series="part",
        series_titles={"half": "half of the spread", "ninety": "90% of it"},
        y_label="dimensions (mean over heads)",
        caption=(
            "Smallest number of dimensions that explains half and 90% of the spread of a query's scores over its keys. Heads "
            "whose dimensions never explain that much, because the key bias explains the rest, are left out."
        ),
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
        {"before": ("unchanged", "before"), "after": ("without the outliers", "after")},
        "without random dimensions",
        "Attention to each category (sum over its keys): unchanged, and without the outlier dimensions' part of the block's "
        "scores.",
        "A third line leaves out the part of as many random dimensions instead; its band covers 95% of the random choices. "
        "Where only removing the outliers moves the line, the attention depends on them.",
    )


def _ablation(table: pd.DataFrame) -> Lines:
    rows = table[(table["removed"] == TOGETHER) & (table["from_layer"] == table["from_layer"].min())]
    zero, mean = (rows[rows["value"] == value].reset_index(drop=True) for value in (ZERO, MEAN))
    return _compared(
        zero.assign(mean_after=mean["after"]),
        {
            "before": ("unchanged", "before"),
            ZERO: ("outliers set to zero", "after"),
            MEAN: ("outliers set to their mean", "mean_after"),
        },
        "random dimensions set to zero",
        "Attention to each category (sum over its keys) when the outlier dimensions of the residual stream are replaced "
        "wherever a block reads them, from the first chosen layer to the last layer of the model.",
        "The band is for as many random dimensions, set to zero; it covers 95% of the random choices.",
    )


def _compared(
    table: pd.DataFrame, lines: Mapping[str, tuple[str, str]], controls: str, caption: str, about_controls: str
) -> Lines:
    """Lines by layer, one panel per category.

    Args:
        table: One row per layer and category.
        lines: Titles and columns.
        controls: The title of the controls, which are changes of the column `before` with their interval, if there are any.
        caption: What the lines show.
        about_controls: What the controls show.
    """
    empty = pd.Series(np.nan, table.index)
    values = {name: (table[column], empty, empty) for name, (_, column) in lines.items()}
    titles = {name: title for name, (title, _) in lines.items()}
    if table["controls_mean"].notna().any():
        changes = (table[f"controls_{end}"] for end in ("mean", "low", "high"))
        alpha, low, high = (table["before"] + change for change in changes)
        values["controls"], titles["controls"] = (alpha, low, high), controls
        caption = f"{caption} {about_controls}"
    parts = [
        table[["layer", "category"]].assign(line=name, alpha=alpha, low=low, high=high)
        for name, (alpha, low, high) in values.items()
    ]
    return Lines(
        table=pd.concat(parts, ignore_index=True),
        x="layer",
        y="alpha",
        band=("low", "high"),
        series="line",
        series_titles=titles,
        panel="category",
        panel_titles={category: category for category in dict.fromkeys(table["category"])},
        y_label="α, summed over keys",
        sharey=True,
        caption=caption,
    )
