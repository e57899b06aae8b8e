"""Numbers and curves from the tables of an analysis, as its declaration says."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd

from normscope.results.declare import Axis, Declared, Rollup
from normscope.results.result import Result

_LAYER = "layer"


def roll_up(declared: Declared, tables: Mapping[str, pd.DataFrame]) -> Result:
    """A result with all numbers and curves that are declared as rolled up from the given tables, and nothing else.

    Args:
        declared: The declaration.
        tables: Tables by name. They may have more rows and columns than the declared ones. Without the columns that a name's
            placeholders stand for, nothing is rolled up.
    """
    return Result(metrics=metrics_of(declared, tables), curves=curves_of(declared, tables))


def metrics_of(declared: Declared, tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """The declared numbers. Those without a value (NaN) are left out."""
    metrics = {}
    for rollup, rows, column in _sources(declared.metrics, tables):
        for name, group in _groups(declared, rollup, rows):
            value = _reduced(rollup, group, column)
            if not math.isnan(value):
                metrics[name] = value
    return metrics


def curves_of(declared: Declared, tables: Mapping[str, pd.DataFrame]) -> "dict[str, pd.Series[float]]":
    """The declared curves, by layer. Layers without a value (NaN) are left out."""
    curves = {}
    for rollup, rows, column in _sources(declared.curves, tables):
        for name, group in _groups(declared, rollup, rows):
            values = {
                layer: _reduced(rollup, of_layer, column) for layer, of_layer in group.groupby(_LAYER, sort=False)
            }
            curve = pd.Series(values, dtype=float, name=column).rename_axis(_LAYER).dropna()
            if len(curve):
                curves[name] = curve
    return curves


def by_axes(name: str, metrics: Mapping[str, float]) -> dict[Any, float]:
    """The numbers that a name with placeholders stands for, by what the placeholders stand for.

    Args:
        name: `<method>/mean`, say.
        metrics: Numbers by name.

    Returns:
        By the one value, or by the tuple of values if there are several placeholders, in the order of the numbers.
    """
    pattern = Rollup(name, "").pattern
    found: dict[Any, float] = {}
    for key, value in metrics.items():
        match = pattern.fullmatch(key)
        if match is not None:
            found[match[1] if pattern.groups == 1 else match.groups()] = value
    return found


def _sources(
    rollups: Iterable[Rollup], tables: Mapping[str, pd.DataFrame]
) -> Iterator[tuple[Rollup, pd.DataFrame, str]]:
    """Rollups whose table is there and has their axes, with its rows that count and the column."""
    for rollup in rollups:
        table, _, column = rollup.of.partition(".")
        if table in tables and set(rollup.placeholders) <= set(tables[table]):
            yield rollup, _chosen(tables[table], rollup), column


def _chosen(rows: pd.DataFrame, rollup: Rollup) -> pd.DataFrame:
    for column, condition in rollup.where.items():
        rows = rows[condition(rows[column]) if callable(condition) else rows[column] == condition]
    return rows


def _groups(declared: Declared, rollup: Rollup, rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each declared name."""
    keys = rollup.placeholders
    if not keys:
        # Without rows, pandas reduces to 0 if it counts, and to NaN otherwise.
        if len(rows) or isinstance(rollup.how, str):
            yield rollup.name, rows
        return
    axes = {key: declared.axis(key) for key in keys}
    for values, group in rows.groupby(keys, sort=False, observed=True):
        yield rollup.filled({key: _name(axes[key], value) for key, value in zip(keys, values, strict=True)}), group


def _name(axis: Axis | None, value: object) -> str:
    return str(value) if axis is None else axis.names.get(value, str(value))


def _reduced(rollup: Rollup, rows: pd.DataFrame, column: str) -> float:
    value = getattr(rows[column], rollup.how)() if isinstance(rollup.how, str) else rollup.how(rows, column)
    return math.nan if pd.isna(value) else float(value)
