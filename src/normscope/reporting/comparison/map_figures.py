"""Heat maps of groups of runs beside those of the baseline, and their differences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from normscope.reporting.comparison.run_comparison import ends_of_scale
from normscope.reporting.page.sections import Measure
from normscope.results.codes import SPECIAL_TOKENS, panel_title
from normscope.results.declare import is_percentage, unitless
from normscope.results.figures import Heatmaps
from normscope.results.measures import heading

_LAYER = "layer"

_MOST = 4
"""Groups beside the baseline whose maps are legible next to each other."""


def maps_of_groups(cells: pd.DataFrame, baseline: str) -> list[Measure]:
    """Heat maps that the baseline and another group share: of each figure, a part for each quantity that the figure shows.

    Every part has the maps of all groups on one scale, and what each of the others has more or less than the baseline. If
    models differ in depth, each row is a layer of the deepest, beside the layers of the others at the same relative depth.

    Args:
        cells: The columns group, depth, figure, panel, row, column, value, row_title, column_title, value_title.
        baseline: The group that the others are compared with.
    """
    return [
        _part(own, baseline, str(figure), str(label))
        for (figure, label), own in _titled(cells).groupby(["figure", "value_title"], sort=False)
        if baseline in set(own["group"]) and own["group"].nunique() > 1
    ]


def merged_maps(cells: pd.DataFrame) -> list[Measure]:
    """Heat maps of one model whose layers several runs have measured: each map once, with the layers of all runs.

    Maps without an axis of layers are left out: each run's is of other layers.

    Args:
        cells: As for `maps_of_groups`; cells that several runs have are averaged.
    """
    with_layers = cells[(cells["row_title"] == _LAYER) | (cells["column_title"] == _LAYER)]
    return [
        _merged(own.assign(group=_MERGED), str(figure), str(label))
        for (figure, label), own in _titled(with_layers).groupby(["figure", "value_title"], sort=False)
    ]


_MERGED = "all runs"


def _merged(cells: pd.DataFrame, figure: str, label: str) -> Measure:
    keys = [name for name in cells.columns if name != "value"]
    cells = cells.groupby(keys, sort=False, dropna=False)["value"].mean().reset_index()
    maps, row, column = _maps(_without_quantity(cells, label), [_MERGED])
    drawn = _on_one_scale(
        maps.set_axis([""], axis="columns"), row, column, "Each layer is shown as measured by its own run.", label
    )
    return _measure(figure, label, [drawn], maps.set_axis([label], axis="columns"))


def _on_one_scale(maps: pd.DataFrame, row: str, column: str, caption: str, label: str) -> Heatmaps:
    """The maps of one quantity, whose columns are their titles."""
    low, high = ends_of_scale(maps)
    return Heatmaps(
        *_numbered(maps),
        row,
        column,
        caption,
        _panel_of(maps),
        diverging=low < 0,
        limits=(low, high),
        value_label=label,
    )


def _panel_of(maps: pd.DataFrame) -> str | None:
    """The column of panels; None if there is a single one."""
    return _PANEL if maps.index.get_level_values(_PANEL).nunique() > 1 else None


def _measure(figure: str, label: str, drawn: Sequence[Heatmaps], values: pd.DataFrame) -> Measure:
    """The figures of one quantity, with its values below them."""
    rows = values.reset_index(allow_duplicates=True).rename(columns={_PANEL: "panel"})
    return Measure(drawn, heading(figure.partition("/")[0], unitless(label)), rows)


def _titled(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells with special tokens named as papers do."""
    return cells.assign(
        **{axis: cells[axis].replace(dict(SPECIAL_TOKENS)) for axis in ("row", "column")},
        panel=cells["panel"].map(panel_title),
    )


def _without_quantity(cells: pd.DataFrame, label: str) -> pd.DataFrame:
    """The cells with panels whose titles do not repeat what all of them show."""
    return cells.assign(panel=cells["panel"].str.removeprefix(f"{label}, "))


def _part(cells: pd.DataFrame, baseline: str, figure: str, label: str) -> Measure:
    """The maps of one quantity, and their differences."""
    others = _chosen([name for name in cells["group"].unique() if name != baseline])
    cells = cells[cells["group"].isin([baseline, *others])]
    maps, row, column = _maps(_without_quantity(cells, label), [baseline, *others])
    differences = maps[others].sub(maps[baseline], axis=0).rename(columns=lambda name: f"{name} − {baseline}")
    said = "difference (percentage points)" if is_percentage(label) else f"difference in {label}"
    more = f"How much higher (orange) or lower (purple) than {baseline}."
    drawn = [
        _on_one_scale(maps, row, column, "All maps have one scale.", label),
        Heatmaps(*_numbered(differences), row, column, more, _panel_of(maps), diverging=True, value_label=said),
    ]
    return _measure(figure, label, drawn, pd.concat([maps, differences], axis=1))


_PANEL = "panel of the figure"


def _chosen(groups: Sequence[str]) -> list[str]:
    """As many groups as are legible, the first and the last among them."""
    places = np.linspace(0, len(groups) - 1, min(len(groups), _MOST)).round().astype(int)
    return [groups[place] for place in places]


def _maps(cells: pd.DataFrame, groups: Sequence[str]) -> tuple[pd.DataFrame, str, str]:
    """All cells (a row per panel, row and column, and a column per group), and the names of the maps' axes."""
    row, column = (str(cells[f"{axis}_title"].iloc[0]) for axis in ("row", "column"))
    cells = cells.assign(**{axis: as_numbers(cells[axis]) for axis in ("row", "column")})
    if row == _LAYER and cells["depth"].notna().all() and cells["depth"].nunique() > 1:
        cells = _at_the_depths_of_the_deepest(cells)
    cells = cells.rename(columns={"panel": _PANEL, "row": row, "column": column})
    names = [_PANEL, row, column]
    every = pd.MultiIndex.from_product([_ordered(cells[name]) for name in names], names=names)
    maps = cells.pivot(index=names, columns="group", values="value").reindex(every)[list(groups)]
    return maps.rename_axis(columns=None), row, column


def _at_the_depths_of_the_deepest(cells: pd.DataFrame) -> pd.DataFrame:
    """The layer of every model that is half-way through each layer of the deepest, under the number of the latter."""
    deepest = int(cells["depth"].max())
    layers = range(1, deepest + 1)
    places = pd.DataFrame(
        [
            (depth, (2 * layer - 1) * depth // (2 * deepest) + 1, layer)
            for depth in map(int, cells["depth"].unique())
            for layer in layers
        ],
        columns=["depth", "row", "shown"],
    )
    return cells.merge(places, on=["depth", "row"]).drop(columns="row").rename(columns={"shown": "row"})


def _numbered(maps: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """The table of a figure and the titles of its maps, whose columns have no group's name: that could be an axis's too."""
    names = [f"map {number}" for number in range(maps.shape[1])]
    return maps.set_axis(names, axis="columns").reset_index(), dict(zip(names, maps.columns, strict=True))


def as_numbers(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Values as integers if all of them are whole numbers."""
    return values.astype(int) if values.astype(str).str.isdecimal().all() else values


def _ordered(values: "pd.Series[Any]") -> list[Any]:
    """Numbers in increasing order; anything else in the order of the runs' own tables."""
    names = values.unique().tolist()
    return sorted(names) if pd.api.types.is_integer_dtype(values) else names
