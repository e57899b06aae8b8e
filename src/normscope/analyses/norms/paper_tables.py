"""The tables of Kobayashi et al. 2020, and the expansion rates of Kobayashi et al. 2021, that the norms analysis reproduces."""

from collections.abc import Mapping

import pandas as pd

from normscope.analyses.paper_tables import CATEGORY_NAMES, Cell, Column, PaperTable, Results, category_order

_EXTREMES = {"max_cv": "Largest CV", "min_cv": "Smallest CV", "average": "Average"}


def paper_tables(results: Results) -> dict[str, PaperTable]:
    """Tables 1, 4 and 2 of K20, and the expansion rates."""
    built = {
        "dispersion": _dispersion(results, "dispersion_summary", "‖f(x)‖", "f", "heads"),
        "input_dispersion": _dispersion(results, "input_dispersion_summary", "‖x‖", "x", "layers"),
        "correlation": _correlation(results.tables.get("correlation")),
        "expansion": _expansion(results.tables.get("expansion"), results.metrics),
    }
    return {name: table for name, table in built.items() if table is not None}


def _dispersion(results: Results, name: str, norm: str, prefix: str, over: str) -> PaperTable | None:
    table, metrics = results.tables.get(name), results.metrics
    if table is None:
        return None
    where = {"layer": "layer", "head": "head"}
    rows: list[list[Cell]] = []
    for row in table.to_dict("records"):
        place = ", ".join(f"{word} {row[column]}" for column, word in where.items() if row.get(column))
        title = _EXTREMES[row["row"]] + (f" ({place})" if place else "")
        rows.append([title, *(float(row[column]) for column in ("mean", "std", "cv", "max", "min"))])
    names = {"μ": "mean", "σ": "std", "CV": "cv_mean", "Largest CV": "cv_max", "Smallest CV": "cv_min"}
    return PaperTable(
        caption=(
            f"Mean (μ), standard deviation (σ), coefficient of variation (CV), maximum and minimum of {norm} over all tokens: "
            f"where it varies most and least, and averaged over {over}."
        ),
        columns=[Column("", text=True), *(Column(header) for header in ("μ", "σ", "CV", "Max", "Min"))],
        rows=rows,
        headline={header: metrics[f"{prefix}/{key}"] for header, key in names.items() if f"{prefix}/{key}" in metrics},
        headline_caption=(
            f"Coefficient of variation (CV) of {norm} over all tokens: averaged over {over}, largest and smallest."
            if f"{prefix}/mean" not in metrics
            else f"Mean (μ), standard deviation (σ) and coefficient of variation (CV) of {norm} over all tokens, averaged over "
            f"{over}, and the largest and smallest CV."
        ),
    )


def _correlation(table: pd.DataFrame | None) -> PaperTable | None:
    if table is None:
        return None
    rows = table[table["layer"] == 0].set_index("category")
    if rows.empty:
        return None
    categories = category_order([str(category) for category in rows.index])
    names = {category: CATEGORY_NAMES.get(category, category) for category in categories}
    counts = rows["count"]
    values = {category: float(value) for category, value in rows["spearman"].dropna().items()}  # undefined for one pair
    if not values:
        return None
    caption = "Spearman's ρ between the attention weight α and the norm ‖f(x)‖ over all heads, queries and visible keys"
    return PaperTable(
        caption=f"{caption}, by category of the key.",
        columns=[Column("Key", text=True), Column("Pairs"), Column("Spearman's ρ")],
        rows=[[names[category], int(counts[category]), values.get(category)] for category in categories],
        headline={names[category]: values[category] for category in categories if category in values},
        headline_caption=f"{caption}, by category of the key.",
    )


def _expansion(table: pd.DataFrame | None, metrics: Mapping[str, float]) -> PaperTable | None:
    names = {
        "Without output bias": ("rate", "expansion/mean"),
        "With output bias": ("rate_with_output_bias", "expansion_with_output_bias/mean"),
    }
    if table is None or any(mean not in metrics for _, mean in names.values()):
        return None
    means = {header: metrics[mean] for header, (_, mean) in names.items()}
    columns = [column for column, _ in names.values()]
    rows: list[list[Cell]] = [
        [str(layer), *map(float, values)] for layer, *values in table[["layer", *columns]].itertuples(index=False)
    ]
    caption = "Expansion rate: the root mean square singular value of the attention block's map f"
    return PaperTable(
        caption=f"{caption}, by layer.",
        columns=[Column("Layer", text=True), *(Column(header, 3) for header in names)],
        rows=[*rows, ["Mean", *means.values()]],
        headline=means,
        headline_caption=f"{caption}, averaged over layers.",
        headline_digits=3,
    )
