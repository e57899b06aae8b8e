"""Heat maps of groups of runs beside those of the baseline, and their differences, for the page's script."""

from typing import Any

import pandas as pd

from normscope.analyses.paper_tables import SPECIAL_TOKENS
from normscope.analyses.registry import analyses


def heatmap_data(cells: pd.DataFrame, baseline: str) -> dict[str, Any]:
    """Heat maps that the baseline and another group share, by figure.

    Args:
        cells: The columns group, figure, panel, row, column, value, row_title, column_title, value_title.
        baseline: The group that the others are compared with.
    """
    figures: dict[str, Any] = {}
    cells = cells.assign(**{axis: cells[axis].replace(dict(SPECIAL_TOKENS)) for axis in ("row", "column")})
    for name, of_figure in cells.groupby("figure", sort=False):
        groups = of_figure["group"].unique()
        if baseline not in groups or len(groups) < 2:
            continue
        own = of_figure[of_figure["group"] == baseline]
        first = of_figure.iloc[0]
        labels = own["value_title"].unique()
        owner = str(name).partition("/")[0]
        title = analyses()[owner].title if owner in analyses() else owner
        figures[str(name)] = {
            "title": title if len(labels) > 1 or _unitless(labels[0]) in title.lower() else f"{title}: {labels[0]}",
            "row": first["row_title"],
            "column": first["column_title"],
            "rows": _ordered(of_figure["row"]),
            "columns": _ordered(of_figure["column"]),
            "panels": {
                str(panel): {str(group): _values(rows) for group, rows in of_panel.groupby("group", sort=False)}
                for panel, of_panel in of_figure.groupby("panel", sort=False)
            },
        }
    return figures


def _unitless(label: str) -> str:
    return label.partition(" (")[0]


def _ordered(values: "pd.Series[str]") -> list[str]:
    """Numbers in increasing order; anything else in the order of the runs' own tables."""
    names = list(dict.fromkeys(values))
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _values(rows: pd.DataFrame) -> dict[str, Any]:
    return {
        "row": rows["row"].tolist(),
        "column": rows["column"].tolist(),
        "value": [None if pd.isna(value) else float(f"{value:.6g}") for value in rows["value"]],
    }
