"""Heat maps of groups of runs beside those of the baseline, and their differences, for the page's script."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from normscope.analyses.categories import SPECIAL_TOKENS
from normscope.analyses.registry import analyses
from normscope.reporting.comparison.curve_families import is_percentage, unitless

_LAYER = "layer"


def heatmap_data(cells: pd.DataFrame, baseline: str) -> dict[str, Any]:
    """Heat maps that the baseline and another group share, by figure, and their differences.

    Layers of models of different depth are compared by relative depth: layer l of L fills the map from (l − 1)/L to l/L, and
    what is there in the baseline is subtracted. Every map has all cells; those that a model does not have are empty.

    Args:
        cells: The columns group, depth, figure, panel, row, column, value, row_title, column_title, value_title.
        baseline: The group that the others are compared with.
    """
    figures: dict[str, Any] = {}
    cells = cells.assign(
        **{axis: cells[axis].replace(dict(SPECIAL_TOKENS)) for axis in ("row", "column")},
        panel=cells["panel"].map(_panel_title),
    )
    for name, of_figure in cells.groupby("figure", sort=False):
        groups = of_figure["group"].unique()
        if baseline not in groups or len(groups) < 2:
            continue
        labels = of_figure.loc[of_figure["group"] == baseline, "value_title"].unique()
        owner = str(name).partition("/")[0]
        title = analyses()[owner].title if owner in analyses() else owner
        first = of_figure.iloc[0]
        depths = of_figure["depth"]
        by_depth = bool(first["row_title"] == _LAYER and depths.notna().all() and depths.nunique() > 1)
        figures[str(name)] = {
            "title": title
            if len(labels) > 1 or unitless(labels[0]) in title.lower()
            else f"{title}: {unitless(labels[0])}",
            "row": first["row_title"],
            "column": first["column_title"],
            "byDepth": by_depth,
            "rows": _ordered(of_figure["row"]),
            "columns": _ordered(of_figure["column"]),
            "panels": {
                str(panel): _panel(of_panel, baseline, by_depth=by_depth)
                for panel, of_panel in of_figure.groupby("panel", sort=False)
            },
        }
    return figures


def _panel_title(panel: str) -> str:
    """The title of a panel, with the category that may end it as papers write it: `α, summed over keys, [CLS]`."""
    start, comma, category = panel.rpartition(", ")
    return f"{start}{comma}{SPECIAL_TOKENS.get(category, category)}"


def _panel(cells: pd.DataFrame, baseline: str, *, by_depth: bool) -> dict[str, Any]:
    """The maps of a panel and their differences from the baseline's, by group."""
    label = str(cells["value_title"].iloc[0])
    rows, columns = (_ordered(cells[axis]) for axis in ("row", "column"))
    maps = {}
    for group, own in cells.groupby("group", sort=False):
        layers = range(1, int(own["depth"].iloc[0]) + 1) if by_depth else ()
        values = own.pivot(index="row", columns="column", values="value")
        values = values.reindex(index=list(map(str, layers)) or rows, columns=columns)
        maps[str(group)] = values.rename_axis(index="row")
    differences = {
        group: _difference(own, maps[baseline], by_depth=by_depth)
        for group, own in maps.items()
        if baseline in maps and group != baseline
    }
    if by_depth:
        maps = {group: _placed(own) for group, own in maps.items()}
    return {
        "label": label,
        "difference": "difference (percentage points)" if is_percentage(label) else f"difference in {label}",
        "maps": {group: _cells(own) for group, own in maps.items()},
        "differences": {group: _cells(own) for group, own in differences.items()},
    }


def _placed(values: pd.DataFrame) -> pd.DataFrame:
    """The map of all layers of a model, each at its relative depth: the index is row, from, to."""
    depth = len(values)
    return values.set_index(_places([(f"{at + 1} of {depth}", at, at + 1) for at in range(depth)], depth))


def _difference(own: pd.DataFrame, base: pd.DataFrame, *, by_depth: bool) -> pd.DataFrame:
    """A map minus another: row by row, or by relative depth, with a row wherever a layer of either begins."""
    if not by_depth:
        return own - base
    # In units in which every layer of both models begins at a whole number.
    deep = math.lcm(len(own), len(base))
    starts = sorted({*range(0, deep, deep // len(own)), *range(0, deep, deep // len(base))})
    layers = [(start * len(own) // deep, start * len(base) // deep) for start in starts]
    rows = [
        (f"{one + 1} of {len(own)} − {other + 1} of {len(base)}", start, end)
        for (one, other), start, end in zip(layers, starts, [*starts[1:], deep], strict=True)
    ]
    values = own.to_numpy()[[one for one, _ in layers]] - base.to_numpy()[[other for _, other in layers]]
    return pd.DataFrame(values, index=_places(rows, deep), columns=own.columns)


def _places(rows: Sequence[tuple[str, int, int]], parts: int) -> pd.MultiIndex:
    """Names of rows, and where each begins and ends in so many equal parts of the model."""
    return pd.MultiIndex.from_tuples(
        [(name, start / parts, end / parts) for name, start, end in rows], names=["row", "from", "to"]
    )


def _ordered(values: "pd.Series[str]") -> list[str]:
    """Numbers in increasing order; anything else in the order of the runs' own tables."""
    names = list(dict.fromkeys(values))
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _cells(values: pd.DataFrame) -> dict[str, Any]:
    """All cells by column, for the page: row, column, value (None where there is none) and, by depth, from and to."""
    places = [str(name) for name in values.index.names]
    tidy = values.reset_index().melt(id_vars=places, var_name="column")
    numbers = {
        name: [None if pd.isna(value) else float(f"{value:.6g}") for value in tidy[name]]
        for name in ("from", "to", "value")
        if name in tidy
    }
    return {"row": tidy["row"].tolist(), "column": tidy["column"].tolist()} | numbers
