"""Figures as interactive charts: Vega-Lite specifications that the page's script sizes, colours and shows.

Sizes and colours depend on the reader's window and on light or dark, so the specifications leave them open: `usermeta.across`
is the largest number of panels side by side, and what begins with `@` stands for the page's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import numpy as np
import pandas as pd

from normscope.analyses.findings import Dots, Figure, HeatmapGrid, HeatmapPanels, Lines, Profiles, Scatter, WordMaps
from normscope.reporting.drawing import medians
from normscope.reporting.figure_text import caption_of, profile_titles, with_token_names
from normscope.reporting.figures.lines import coincide
from normscope.reporting.figures.scatter import axis_range, counted_titles, is_logarithmic
from normscope.reporting.palette import CATEGORY_COLOURS, LINE_COLOURS, SHAPES

Spec = dict[str, Any]

_POINTS = 2_000
"""Points of a scatter plot that a page shows; more slow it down without showing more."""
_TEXT = "@text"
_DIGITS = ",.3r"
"""d3's format with three significant digits."""

_SMALLEST_PROFILE = (120, 100)
"""Width and height in pixels that the values of a panel of `Profiles` have at least."""
_LABEL = (22, 11)
"""Width and height in pixels of the number of a dimension."""
_HIGHEST = 24.0
"""How far from its value a label may be moved, in pixels."""

_PLAIN: Spec = {"interpolate": "rgb"}
"""Colours between two of the palette's are mixed as the explorer mixes them."""

_ZOOM: Spec = {
    "name": "zoom",
    "select": {"type": "interval", "zoom": "wheel![event.shiftKey]"},
    "bind": "scales",
}


def chart(figure: Figure) -> Spec:
    """A figure as a Vega-Lite specification without sizes."""
    figure = with_token_names(figure)
    match figure:
        case HeatmapPanels():
            spec = _heatmap_panels(figure)
        case HeatmapGrid():
            spec = _heatmap_grid(figure)
        case Lines():
            spec = _lines(figure)
        case Profiles():
            spec = _profiles(figure)
        case Scatter():
            spec = _scatter(figure)
        case Dots():
            spec = _dots(figure)
        case WordMaps():
            spec = _word_maps(figure)
        case _:
            assert_never(figure)
    return {"description": caption_of(figure)} | spec


def is_wide(figure: Figure) -> bool:
    """Whether a figure needs a row of the page for itself."""
    match figure:
        case HeatmapPanels():
            return len(figure.panel_titles) > 2
        case Lines():
            return figure.panel is not None and figure.table[figure.panel].nunique() > 2
        case Scatter() | Dots():
            return len(figure.panel_titles) > 2
    return True


def _columns(table: pd.DataFrame) -> Spec:
    """Data by column, which takes half the characters of data by row; the page's script turns it round."""
    columns: Spec = {}
    for name, values in table.items():
        if pd.api.types.is_float_dtype(values):
            columns[str(name)] = [None if not np.isfinite(value) else float(f"{value:.4g}") for value in values]
        else:
            columns[str(name)] = values.tolist()
    return {"columns": columns}


def _field(name: str, title: str, kind: str = "quantitative", **more: Any) -> Spec:
    return {"field": name, "type": kind, "title": title} | more


def _tooltip(*fields: tuple[str, str, str]) -> list[Spec]:
    """Names, titles and kinds of what a tooltip lists; `Q` is a number, `N` anything else."""
    return [
        _field(name, title, format=_DIGITS) if kind == "Q" else _field(name, title, "nominal")
        for name, title, kind in fields
    ]


def _heatmap_panels(figure: HeatmapPanels) -> Spec:
    titles = figure.panel_titles
    table = figure.table[figure.table[figure.panel].isin(list(titles))]
    rows = pd.DataFrame(
        {
            "panel": table[figure.panel].astype(str).map({str(key): title for key, title in titles.items()}),
            "row": table[figure.row],
            "column": table[figure.column].astype(str),
            "value": table[figure.value],
        }
    )
    rows = _completed(rows, ["panel", "row", "column"])
    shown = [title for title in titles.values() if (rows["panel"] == title).any()]
    low, high = figure.limits
    colour = _field("value", figure.value_label, scale=_PLAIN | {"domain": list(figure.limits)}, legend=_ramp())
    return {
        "usermeta": {
            # Cells narrower than their numbers are not legible.
            "across": max(1, min(len(shown), _MOST_COLUMNS // int(rows["column"].nunique()))),
            "narrow": 2,
            "cell": 24,
            "rows": int(rows["row"].nunique()),
            "rowLetters": _letters(rows["row"]),
            "columnLetters": [len(column) for column in rows["column"].unique()],
        },
        "data": _columns(rows),
        "facet": {"field": "panel", "type": "nominal", "sort": shown, "title": None},
        "resolve": {"axis": {"x": "independent"}},  # no axis below an empty place of the last row
        "spec": {
            "encoding": {
                "x": _field(
                    "column",
                    "",
                    "nominal",
                    sort=None,
                    axis={"title": None, "labelAngle": -40},
                ),
                "y": _field("row", figure.row, "ordinal", sort="descending"),
                "tooltip": _tooltip(
                    ("row", figure.row, "N"), ("column", figure.column, "N"), ("value", figure.value_label, "Q")
                ),
            },
            "layer": [
                *_rectangles(rows, {"color": colour}),
                _numbers(".0f", f"(datum.value - {low}) / {high - low}"),
            ],
        },
    }


def _completed(rows: pd.DataFrame, axes: list[str]) -> pd.DataFrame:
    """All cells of heat maps; those that the table does not have are without a value."""
    cells = pd.MultiIndex.from_product([rows[axis].unique() for axis in axes], names=axes)
    return rows.set_index(axes).reindex(cells).reset_index()


def _rectangles(rows: pd.DataFrame, encoding: Spec) -> list[Spec]:
    """The layers of a heat map: its cells, and those without a value in a grey that is not the colour of zero."""
    cells: Spec = {"mark": "rect", "encoding": encoding}
    if rows["value"].notna().all():
        return [cells]
    missing = {"transform": [{"filter": "!isValid(datum.value)"}], "mark": {"type": "rect", "color": "@missing"}}
    return [missing, {"transform": [{"filter": "isValid(datum.value)"}]} | cells]


def _letters(labels: "pd.Series[Any]") -> int:
    """Characters of the longest label."""
    return int(labels.astype(str).str.len().max())


_MOST_COLUMNS = 45
"""Columns of cells with numbers that are legible side by side."""

_GRID_HEIGHT = 84
"""Height of a small heat map in pixels, unless its cells would become too small or too large."""

_SMALL: Spec = {"labelFontSize": 9, "labelOverlap": True, "ticks": False}


def _ramp(**more: Any) -> Spec:
    return {"gradientThickness": 9, "direction": "horizontal"} | more


def _heatmap_grid(figure: HeatmapGrid) -> Spec:
    table = figure.table
    extreme = float(table[list(figure.values)].abs().to_numpy().max())
    legend = _ramp(gradientLength=120, title=figure.value_label or None, titleLimit=300)
    # Words keep their order, and are turned so that they do not overlap.
    words = any(isinstance(column, str) for column in table[figure.column])
    order: Spec = {"axis": _SMALL | {"labelAngle": 0}}
    if words:
        order = {"axis": _SMALL | {"labelAngle": -40, "labelOverlap": False}, "sort": None}
    maps = []
    for value, title in figure.values.items():
        # From 0, as in the figures on disk: Vega would start at the smallest value, and equal values would be half dark.
        most = float(table[value].max())
        scale = _PLAIN | {"domain": list(figure.limits or (0.0, most if most > 0 else 1.0))}
        if figure.diverging:
            scale = _PLAIN | {"domain": [-extreme, extreme], "range": "diverging"}
        axes = [axis for axis in (figure.grid_row, figure.row, figure.column) if axis is not None]
        rows = _completed(table[axes].assign(value=table[value]), axes)
        cells = {
            "layer": _rectangles(rows, {"color": _field("value", "", scale=scale, legend=legend)}),
            "encoding": {
                "x": _field(figure.column, figure.column, "ordinal", **order),
                "y": _field(figure.row, figure.row, "ordinal", sort="descending", axis=_SMALL),
                "tooltip": _tooltip(*((name, name, "N") for name in axes), ("value", title, "Q")),
            },
        }
        maps.append({"data": _columns(rows), "title": title} | _in_rows(cells, figure))
    return {
        "usermeta": {
            "across": len(maps),
            "narrow": 1,
            "cell": max(9, min(14, _GRID_HEIGHT // int(table[figure.row].nunique()))),
            "rows": int(table[figure.row].nunique()),
            "letters": 0 if figure.grid_row is None else _letters(table[figure.grid_row]),
            "rowLetters": _letters(table[figure.row]),
            "columns": int(table[figure.column].nunique()),
        },
        "concat": maps,
        "resolve": {"scale": {"color": "shared" if figure.diverging or figure.limits else "independent"}},
    }


def _in_rows(cells: Spec, figure: HeatmapGrid) -> Spec:
    """A heat map for each row of panels, with the titles of the rows beside them; a single row has none."""
    if figure.grid_row is None:
        return cells
    row = {
        "field": figure.grid_row,
        "type": "nominal",
        "title": None,
        "sort": [title for title, _ in figure.rows_of_panels()],
        "header": {"labelAngle": 0, "labelAlign": "left", "labelFontSize": 11},
    }
    return {"facet": {"row": row}, "spec": cells}


def _lines(figure: Lines) -> Spec:
    titles = figure.series_titles
    names = [figure.x, figure.y, figure.series, *(figure.band or ()), *([figure.panel] if figure.panel else [])]
    rows = figure.table[names].copy()
    series = rows[figure.series]
    rows[figure.series] = series.map(dict(titles)) if titles else series.astype(str)
    rows = rows.dropna(subset=[figure.series])
    if figure.log_y:  # Vega would draw zeros anywhere
        rows[figure.y] = rows[figure.y].where(rows[figure.y] > 0)
    whole = bool((rows[figure.x] % 1 == 0).all())
    axis: Spec = {"grid": False} | ({"tickMinStep": 1, "format": "d"} if whole else {})
    encoding: Spec = {
        "x": _field(
            figure.x, figure.x_label or figure.x, scale={"zero": False, "nice": False, "padding": 8}, axis=axis
        ),
        "y": _field(figure.y, figure.y_label, scale=_y_scale(figure)),
        "tooltip": _tooltip(
            (figure.series, figure.series, "N"), (figure.x, figure.x, "N"), (figure.y, figure.y_label, "Q")
        ),
    }
    layers = _plain_lines(figure) if titles is None else _titled_lines(figure, titles, set(series))
    layers[0]["params"] = [*layers[0].get("params", []), _zoom(figure.panel is None or figure.sharey)]
    spec = _panelled({"encoding": encoding, "layer": layers}, rows, figure.panel, figure.panel_titles)
    spec["usermeta"]["letters"] = max(map(len, (titles or {}).values()), default=0)
    return _shared_y(spec) if figure.panel is not None and figure.sharey else spec


def _y_scale(figure: Lines) -> Spec:
    """The range of a line plot: as given; else from zero, or on a logarithmic axis from the smallest value."""
    if figure.log_y:
        return {"type": "log", "nice": False, "padding": 8}
    return {"domain": list(figure.limits)} if figure.limits else {}


def _shared_y(spec: Spec) -> Spec:
    """Panels with one y-axis for all, which the axis of each repeats."""
    return spec | {"resolve": {"scale": {"y": "shared"}, "axis": {"x": "independent", "y": "independent"}}}


def _zoom(both: bool) -> Spec:
    """Shift and wheel zoom, dragging moves. Panels with y-axes of their own share x alone."""
    return _ZOOM if both else _ZOOM | {"select": {**_ZOOM["select"], "encodings": ["x"]}}


def _plain_lines(figure: Lines) -> list[Spec]:
    return [
        {
            "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.55, "color": LINE_COLOURS[0]},
            "encoding": {"detail": {"field": figure.series, "type": "nominal"}},
        }
    ]


def _titled_lines(figure: Lines, titles: Mapping[Any, str], present: set[Any]) -> list[Spec]:
    """Lines with markers and a legend that toggles them."""
    keys = [key for key in titles if key in present]
    shown = [titles[key] for key in keys]
    palette, shapes = series_style(keys)
    legend = {"title": None, "symbolType": "stroke"}
    colour = _field(
        figure.series,
        "",
        "nominal",
        scale={"domain": shown, "range": palette},
        legend=legend | {"symbolType": "circle"},
    )
    faded = {"condition": {"param": "series", "value": 1}, "value": 0.08}
    chosen = {
        "name": "series",
        "select": {"type": "point", "fields": [figure.series], "toggle": "true"},
        "bind": "legend",
    }
    shape = _field(figure.series, "", "nominal", scale={"domain": shown, "range": shapes}, legend={"title": None})
    layers: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"color": colour, "opacity": faded}},
        {
            "mark": {"type": "point", "filled": True, "size": 55},
            "encoding": {"color": colour, "opacity": faded, "shape": shape},
        },
    ]
    if coincide(figure):
        layers = [
            _widened(layer, figure.series, title, (len(shown) - 1 - at) / max(1, len(shown) - 1))
            for at, title in enumerate(shown)
            for layer in layers
        ]
    layers[0]["params"] = [chosen]
    if figure.band is not None:
        low, high = figure.band
        bounds = {"y": _field(low, figure.y_label), "y2": {"field": high}, "tooltip": None}
        band = {"mark": {"type": "area", "opacity": 0.18}, "encoding": {"color": colour, **bounds}}
        layers.insert(1, band)
    return layers


def _widened(layer: Spec, series: str, title: str, extra: float) -> Spec:
    """The part of a layer that draws one of several lines that lie on each other.

    The first is the widest (`extra` is 1), and shows on both sides of the last.
    """
    filtered = {"transform": [{"filter": {"field": series, "equal": title}}]}
    wide: Spec = {}
    if extra and layer["mark"]["type"] == "line":
        wide = {"strokeWidth": 2 + 6 * extra, "strokeOpacity": 0.5}
    elif extra:
        wide = {"size": 55 + 130 * extra, "fillOpacity": 0.5}
    return layer | filtered | {"mark": layer["mark"] | wide}


def series_style(keys: Sequence[Any]) -> tuple[list[str], list[str]]:
    """Colours and markers of series. A category of tokens has the same ones in every figure."""
    named = [key if key in CATEGORY_COLOURS else None for key in keys]
    if any(named):
        spare = [colour for colour in LINE_COLOURS if colour not in CATEGORY_COLOURS.values()]
        colours = [CATEGORY_COLOURS[key] if key else spare.pop(0) if spare else _TEXT for key in named]
        order = list(CATEGORY_COLOURS)
        numbers = [order.index(key) if key else len(order) for key in named]
    else:
        colours = [LINE_COLOURS[number % len(LINE_COLOURS)] for number in range(len(keys))]
        numbers = list(range(len(keys)))
    return [_TEXT if colour == "#000000" else colour for colour in colours], [
        SHAPES[at % len(SHAPES)] for at in numbers
    ]


def _panelled(unit: Spec, rows: pd.DataFrame, panel: str | None, titles: Mapping[Any, str] | None) -> Spec:
    """One chart, or one per panel with scales of its own."""
    if panel is None:
        return {"usermeta": {"across": 1}, "data": _columns(rows)} | unit
    keys = [key for key in titles or sorted(rows[panel].unique()) if (rows[panel] == key).any()]
    named = {key: (titles or {}).get(key, f"{panel} {key}") for key in keys}
    rows = rows[rows[panel].isin(keys)].assign(panel=lambda table: table[panel].map(named))
    return {
        "usermeta": {"across": 2 if len(keys) == 4 else min(3, len(keys))},
        "data": _columns(rows.drop(columns=panel) if panel != "panel" else rows),
        "facet": {"field": "panel", "type": "nominal", "sort": list(named.values()), "title": None},
        "spec": unit,
        "resolve": {"scale": {"y": "independent"}, "axis": {"x": "independent"}},
    }


def _profiles(figure: Profiles) -> Spec:
    """The values of every dimension; with several series, their range, which shows the same outline with less."""
    values = figure.table.groupby([figure.panel, figure.x])[figure.y]
    rows = pd.DataFrame({"low": values.min(), "high": values.max()}).reset_index()
    rows["value"] = rows["high"].where(rows["high"].abs() >= rows["low"].abs(), rows["low"])
    labels = figure.labels()
    named = set(zip(labels[figure.panel], labels[figure.x], strict=True))
    places = zip(rows[figure.panel], rows[figure.x], strict=True)
    rows["label"] = [str(int(place[1])) if place in named else "" for place in places]
    lifts = _lifts(rows, figure)
    rows["label"] = rows["label"].where(lifts <= _HIGHEST, "")  # pointing at the value still tells its dimension
    rows["lift"] = lifts.clip(upper=_HIGHEST)
    title = figure.y_label if figure.series is None else f"{figure.y_label}, furthest {figure.series}"
    rows["base"] = 0 if figure.series is None else rows["low"].clip(upper=0)
    rows["top"] = rows["value"] if figure.series is None else rows["high"].clip(lower=0)
    first = ~rows.duplicated(figure.panel)
    for at, name in enumerate(("least", "most")):
        rows[name] = rows[figure.panel].map({panel: ends[at] for panel, ends in figure.ranges().items()}).where(first)
    tooltip = _tooltip((figure.x, figure.x, "N"), ("value", title, "Q"))
    room = {"padding": 14 + float(rows.loc[rows["label"] != "", "lift"].max() if named else 0)}  # for labels, in pixels
    unit: Spec = {
        "encoding": {
            "x": _field(figure.x, figure.x, axis={"grid": False, "format": "d"}, scale={"nice": False}),
            "tooltip": tooltip,
        },
        "layer": [
            {
                "params": [_zoom(both=False)],
                "mark": {"type": "rule", "color": LINE_COLOURS[0], "strokeWidth": 1},
                "encoding": {"y": _field("base", figure.y_label, scale=room), "y2": {"field": "top"}},
            },
            # Not drawn: facets cannot be given ranges of their own otherwise.
            {
                "transform": [{"filter": "isValid(datum.least)"}],
                "mark": {"type": "rule", "opacity": 0},
                "encoding": {
                    "y": _field("least", figure.y_label, scale=room),
                    "y2": {"field": "most"},
                    "tooltip": None,
                },
            },
        ],
    }
    if figure.labelled:
        label: Spec = {
            "type": "text",
            "dy": {"expr": "datum.value < 0 ? 9 + datum.lift : -7 - datum.lift"},
            "fontSize": 10,
        }
        # Of the ground's colour around the digits, so that they can be read above lines.
        halo: Spec = {"stroke": "@ground", "strokeWidth": 3, "strokeJoin": "round", "color": "@ground"}
        unit["layer"] += (
            {
                "transform": [{"filter": "datum.label != ''"}],
                "mark": label | colours,
                "encoding": {"y": _field("value", figure.y_label, scale=room), "text": _field("label", "", "nominal")},
            }
            for colours in (halo, {"color": "@mark"})
        )
    return _panelled(unit, rows.drop(columns=["low", "high"]), figure.panel, profile_titles(figure))


def _lifts(rows: pd.DataFrame, figure: Profiles) -> "pd.Series[float]":
    """By how many pixels each label is moved away from its value so that no two touch in a panel of the smallest size."""
    lifts = pd.Series(0.0, index=rows.index)
    across = _SMALLEST_PROFILE[0] / max(1, rows[figure.x].max() - rows[figure.x].min())
    for panel, (least, most) in figure.ranges().items():
        labelled = rows[(rows[figure.panel] == panel) & (rows["label"] != "")]
        up = _SMALLEST_PROFILE[1] / ((most - least) or 1.0)
        placed: list[tuple[float, float]] = []
        for at in labelled["value"].abs().sort_values(ascending=False).index:
            side = 1 if labelled["value"][at] >= 0 else -1
            x, y = labelled[figure.x][at] * across, labelled["value"][at] * up
            while any(
                abs(x - other_x) < _LABEL[0] and abs(y + side * lifts[at] - other_y) < _LABEL[1]
                for other_x, other_y in placed
            ):
                lifts[at] += 1
            placed.append((x, y + side * lifts[at]))
    return lifts


def _scatter(figure: Scatter) -> Spec:
    titles = counted_titles(figure)
    panels = list(titles)
    table = figure.table[figure.table[figure.panel].isin(panels)]
    step = max(1, -(-len(table) // _POINTS))
    points = table.groupby(figure.panel, sort=False, observed=True).nth(slice(None, None, step))[
        [figure.x, figure.y, figure.panel]
    ]
    parts = [points.assign(kind="point")]
    if figure.medians:
        parts += [
            medians(rows, figure).assign(kind="median", **{figure.panel: panel})
            for panel, rows in table.groupby(figure.panel, sort=False, observed=True)
            if len(rows) > 20
        ]
    if not figure.sharey:
        parts += [_range_of(figure, panel) for panel in panels]
    scales = _scatter_scales(figure, panels)
    unit: Spec = {
        "encoding": {
            "x": _field(figure.x, figure.x_label, scale=scales["x"], axis={"grid": False}),
            "y": _field(
                figure.y,
                figure.y_label,
                scale=scales["y"],
                axis={"labelExpr": _POWERS} if is_logarithmic(figure, figure.y) else {},
            ),
            "tooltip": _tooltip((figure.x, figure.x_label, "Q"), (figure.y, figure.y_label, "Q")),
        },
        "layer": [
            {
                "params": [_zoom(figure.sharey)],
                "transform": [{"filter": "datum.kind == 'point'"}],
                "mark": {
                    "type": "circle",
                    "clip": figure.trim > 0,
                    "size": 14 if len(points) > 300 else 40,
                    "opacity": 0.55,
                    "color": LINE_COLOURS[0],
                },
                "encoding": _colours_of_categories(titles),
            },
        ],
    }
    if not figure.sharey:
        unit["layer"].append(
            {"transform": [{"filter": "datum.kind == 'range'"}], "mark": {"type": "circle", "size": 0}}
        )
    if figure.medians:
        line = {"type": "line", "clip": figure.trim > 0, "strokeWidth": 2, "color": LINE_COLOURS[3]}
        unit["layer"].append({"transform": [{"filter": "datum.kind == 'median'"}], "mark": line})
    rows = pd.concat(parts, ignore_index=True).sort_values(figure.x, kind="stable")
    spec = _panelled(unit, rows, figure.panel, titles)
    spec["usermeta"]["across"] = min(4, len(panels))
    spec["resolve"] = {"scale": {"y": "shared" if figure.sharey else "independent"}, "axis": {"x": "independent"}}
    return spec


def _colours_of_categories(titles: Mapping[str, str]) -> Spec:
    """The colours of points by panel, if panels are categories of tokens."""
    if not set(titles) <= set(CATEGORY_COLOURS):
        return {}
    scale = {"domain": list(titles.values()), "range": series_style(list(titles))[0]}
    return {"color": _field("panel", "", "nominal", scale=scale, legend=None)}


_DIGIT = "['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹']"
_EXPONENT = "abs(round(log(datum.value) / LN10))"
_POWERS = (
    "datum.value >= 0.001 && datum.value < 100000 ? format(datum.value, '~g') : "
    f"'10' + (datum.value < 1 ? '⁻' : '') + ({_EXPONENT} < 10 ? '' : {_DIGIT}[floor({_EXPONENT} / 10)]) + "
    f"{_DIGIT}[{_EXPONENT} % 10]"
)
"""Labels of a logarithmic axis: powers of ten where decimals would be long."""


def _scatter_scales(figure: Scatter, panels: Sequence[str]) -> dict[str, Spec]:
    """The scales of a scatter plot, with the ranges that it has in print."""
    scales: dict[str, Spec] = {}
    for axis, column in (("x", figure.x), ("y", figure.y)):
        scales[axis] = {"type": "log"} if is_logarithmic(figure, column) else {"zero": False}
        scales[axis] |= {"nice": False, "padding": 0}
        if axis == "x" or figure.sharey:
            scales[axis]["domain"] = list(axis_range(figure, column, panels))
    return scales


def _range_of(figure: Scatter, panel: str) -> pd.DataFrame:
    """Points that are not drawn, at the ends of the y-axis of a panel: facets cannot be given domains of their own."""
    x = axis_range(figure, figure.x, list(figure.panel_titles))[0]
    ends = axis_range(figure, figure.y, [panel])
    return pd.DataFrame({figure.panel: panel, figure.x: x, figure.y: ends, "kind": "range"})


def _dots(figure: Dots) -> Spec:
    """Dots with intervals; rows keep the table's order."""
    rows = pd.DataFrame(
        {
            "panel": figure.table[figure.panel].map(dict(figure.panel_titles)),
            "row": [figure.row_titles.get(name, str(name)) for name in figure.table[figure.row]],
            "value": figure.table[figure.value],
        }
    )
    fields = [("row", "", "N"), ("value", figure.value_label, "Q")]
    if figure.interval is not None:
        rows["low"], rows["high"] = (figure.table[end] for end in figure.interval)
        fields += [("low", "95% from", "Q"), ("high", "to", "Q")]
    number = _field("value", figure.value_label, scale={"zero": figure.reference == 0.0})
    layer: list[Spec] = []
    if figure.reference is not None:
        line = {"type": "rule", "color": LINE_COLOURS[3]}
        layer.append({"mark": line, "encoding": {"x": {"datum": figure.reference}, "y": None, "tooltip": None}})
    if figure.interval is not None:
        ends = {"x": _field("low", figure.value_label), "x2": {"field": "high"}}
        layer.append({"mark": {"type": "rule", "strokeWidth": 2, "color": LINE_COLOURS[0]}, "encoding": ends})
    dot = {"type": "point", "filled": True, "size": 55, "color": LINE_COLOURS[0]}
    layer.append({"mark": dot, "encoding": {"x": number}})
    order = list(dict.fromkeys(rows["row"]))
    unit: Spec = {
        "encoding": {"y": _field("row", "", "nominal", sort=order, axis={"title": None}), "tooltip": _tooltip(*fields)},
        "layer": layer,
    }
    spec = _panelled(unit, rows, "panel", {title: title for title in figure.panel_titles.values()})
    spec["usermeta"] |= {"across": len(figure.panel_titles), "rows": len(order), "rowLetters": _letters(rows["row"])}
    return spec


def _word_maps(figure: WordMaps) -> Spec:
    """Word-by-word maps; a frame marks the links of people."""
    table = figure.table[figure.table[figure.panel].isin(list(figure.panel_titles))]
    rows = pd.DataFrame(
        {
            "panel": table[figure.panel].map(dict(figure.panel_titles)),
            "row": table[figure.row],
            "column": table[figure.column],
            # Two words of a sentence may be the same, so that axes count them.
            "row_word": table[figure.row].astype(str) + " " + table[figure.row_label].astype(str),
            "column_word": table[figure.column].astype(str) + " " + table[figure.column_label].astype(str),
            "value": table[figure.value],
            "frame": table[figure.frame].fillna("").astype(str),
        }
    )
    scale = _PLAIN | {"domainMin": 0}
    if figure.largest is not None:
        scale = _PLAIN | {"domain": [-figure.largest, figure.largest], "range": "diverging"}
    word = {
        "labelExpr": "slice(datum.label, indexof(datum.label, ' ') + 1)",
        "title": None,
        "labelLimit": 90,
        "labelFontSize": 10,
        "labelOverlap": "greedy",
    }
    outline = {"type": "rect", "filled": False, "stroke": LINE_COLOURS[3], "strokeWidth": 1.5}
    return {
        "usermeta": {
            "across": len(figure.panel_titles),
            "cell": 12 if figure.digits is None else 44,
            "words": int(rows["column"].nunique()),
            "rows": int(rows["row"].nunique()),
            "rowLetters": _letters(table[figure.row_label]),
        },
        "data": _columns(rows),
        "facet": {"field": "panel", "type": "nominal", "sort": list(figure.panel_titles.values()), "title": None},
        "spec": {
            "encoding": {
                "x": _field("column_word", "", "nominal", sort={"field": "column"}, axis=word | {"labelAngle": -60}),
                "y": _field("row_word", "", "nominal", sort={"field": "row"}, axis=word),
                "tooltip": _tooltip(("row_word", "row", "N"), ("column_word", "column", "N"), ("value", "value", "Q")),
            },
            "layer": [
                {
                    "mark": "rect",
                    "encoding": {"color": _field("value", "", scale=scale, legend=None)},
                },
                # Of a rectangle, dashes are a property, not a channel.
                *(
                    {"transform": [{"filter": f"datum.frame == '{frame}'"}], "mark": outline | {"strokeDash": dash}}
                    for frame, dash in (("sure", [1, 0]), ("possible", [3, 2]))
                ),
                *_cell_numbers(figure),
            ],
        },
        "resolve": {"scale": {"color": "independent"}},
    }


def _cell_numbers(figure: WordMaps) -> list[Spec]:
    """A layer with the value of each cell, if they are written."""
    if figure.digits is None:
        return []
    largest = figure.largest or float(figure.table[figure.value].max())
    return [_numbers(f".{figure.digits}f", f"abs(datum.value) / {largest}")]


def _numbers(digits: str, share: str) -> Spec:
    """The layer with the values of cells, whose colour goes by their share of the scale.

    The further from the start of the scale, the darker the cell on a light page, and the lighter on a dark one.
    """
    return {
        "transform": [{"filter": "isValid(datum.value)"}],
        "mark": {"type": "text", "fontSize": 10},
        "encoding": {
            "text": _field("value", "", format=digits),
            "color": {"condition": {"test": f"{share} > @switch", "value": "@on-much"}, "value": "@on-little"},
        },
    }
