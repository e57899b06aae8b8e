"""Table 1 of Maruta & Matsuzaki 2024."""

from normscope.analyses.paper_tables import CATEGORY_NAMES, Cell, Column, PaperTable, Results, category_order

_LAYERS = 3
_DIMENSIONS = 3
"""A page holds no more; the tidy table has every layer and every outlier dimension."""


def paper_tables(results: Results) -> dict[str, PaperTable]:
    """Contributions of the outlier dimensions by head and category of the key."""
    table = results.tables.get("by_category")
    if table is None:
        return {}
    heads = [column for column in table if str(column).startswith("head_")]
    categories = [c for c in category_order(table["category"].astype(str).unique().tolist()) if c != "all"]
    rows: list[list[Cell]] = []
    for layer in _chosen_layers(sorted(table["layer"].unique().tolist())):
        of_layer = table[table["layer"] == layer]
        largest = of_layer.set_index("dimension")[heads].abs().groupby(level=0).max().max(axis=1).nlargest(_DIMENSIONS)
        for dimension in sorted(largest.index.tolist()):
            of_dimension = of_layer[of_layer["dimension"] == dimension].set_index("category")[heads]
            for category in categories:
                if category in of_dimension.index:
                    name = CATEGORY_NAMES.get(category, category)
                    values = of_dimension.loc[category].tolist()
                    rows.append([f"Layer {layer}, dim. {dimension}", name, *map(float, values)])
    if not rows:
        return {}
    contributions = PaperTable(
        caption=(
            "Mean contribution Cⱼ of outlier dimensions to the score q·k, by category of the key and head. Shown are the "
            f"dimensions with the largest contributions, at most {_DIMENSIONS} in each layer."
        ),
        columns=[
            Column("Dimension", text=True),
            Column("Key", text=True),
            *(Column(str(column).removeprefix("head_"), 1) for column in heads),
        ],
        rows=rows,
        grouped=True,
        wide=True,
    )
    return {"contributions": contributions}


def _chosen_layers(layers: list[int]) -> list[int]:
    """An early, the middle and the last layer: 2, 6 and 12 of 12, as in the paper."""
    if len(layers) <= _LAYERS:
        return layers
    return [layers[1], layers[(len(layers) - 1) // 2], layers[-1]]
