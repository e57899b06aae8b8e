"""What a run has measured, as one long table, and the comparison of two of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from normscope.analyses.registry import analyses

COLUMNS = ["table", "column", "row", "number", "text"]
METRICS = "(metrics)"


def measured(folder: Path) -> pd.DataFrame:
    """Every cell of the tables of a run's analyses, and its metrics.

    Args:
        folder: Of the run.

    Returns:
        A row for each cell, with `number` or `text`. Rows of tables are sorted by their names and counts, so that their
        order means nothing.
    """
    names = tuple(f"{name}_" for name in analyses())
    tables = {
        path.stem: pd.read_parquet(path)
        for path in sorted((folder / "tables").glob("*.parquet"))
        if path.stem.startswith(names)
    }
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    tables[METRICS] = pd.DataFrame(
        {"name": list(metrics), "value": [float("nan") if x is None else float(x) for x in metrics.values()]}
    )
    return pd.concat([_cells(name, table) for name, table in tables.items()], ignore_index=True)


def _cells(name: str, table: pd.DataFrame) -> pd.DataFrame:
    keys = [column for column in table if not pd.api.types.is_float_dtype(table[column])]
    ordered = table.sort_values(keys, key=lambda column: column.astype(str), kind="stable") if keys else table
    parts = []
    for column in ordered:
        values = ordered[column]
        is_number = pd.api.types.is_float_dtype(values)
        number = values.to_numpy(dtype=np.float64, na_value=np.nan) if is_number else np.full(len(values), np.nan)
        text = [""] * len(values) if is_number else [str(value) for value in values]
        rows = np.arange(len(values), dtype=np.int32)
        parts.append(pd.DataFrame({"table": name, "column": column, "row": rows, "number": number, "text": text}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


_BOUND, _ROUNDED = ("norms_correlation", "error_bound"), 1e-4
"""A bound on what ties may change, which depends on the rounding of every pair of numbers that fall into the same cell."""


def differences(kept: pd.DataFrame, now: pd.DataFrame, tolerance: float) -> list[str]:
    """What differs between two results.

    Args:
        kept: Results of an earlier version.
        now: Those of this one.
        tolerance: How far numbers may be apart, as a fraction of the largest value of their column.

    Returns:
        A line for each column that is missing, new, or different. A column that has another name is the one in its place:
        names are judged by the oracles.
    """
    before, after = (dict(iter(cells.groupby(["table", "column"], sort=False))) for cells in (kept, now))
    after = _with_kept_names(before, after)
    lines = [f"{table}.{column} is missing" for table, column in sorted(before.keys() - after.keys())]
    lines += [
        f"{table}.{column} is not among the golden results" for table, column in sorted(after.keys() - before.keys())
    ]
    for table, column in sorted(before.keys() & after.keys()):
        if (table, column) == _BOUND and tolerance >= _ROUNDED:
            continue
        difference = _difference(before[table, column], after[table, column], tolerance, squared=column == "std")
        if difference:
            lines.append(f"{table}.{column}: {difference}")
    return lines


def _with_kept_names(kept: dict[Any, pd.DataFrame], now: dict[Any, pd.DataFrame]) -> dict[Any, pd.DataFrame]:
    renamed = {}
    for table in {table: None for table, _ in now}:
        of_table = [[key for key in cells if key[0] == table] for cells in (kept, now)]
        lost, new = (
            [key for key in keys if key not in others] for keys, others in zip(of_table, (now, kept), strict=True)
        )
        if len(lost) == len(new):
            renamed.update(zip(new, lost, strict=True))
    return {renamed.get(key, key): cells for key, cells in now.items()}


def _difference(kept: pd.DataFrame, now: pd.DataFrame, tolerance: float, *, squared: bool) -> str:
    if len(kept) != len(now):
        return f"{len(kept)} rows, now {len(now)}"
    changed = [(a, b) for a, b in zip(kept["text"], now["text"], strict=True) if a != b]
    if len(changed) > tolerance * len(kept):  # rounding decides ties
        return f"{len(changed)} of {len(kept)} cells, the first {changed[0][0]!r}, now {changed[0][1]!r}"
    a, b = kept["number"].to_numpy(), now["number"].to_numpy()
    if (np.isnan(a) != np.isnan(b)).any():
        return "other cells are empty"
    if squared:  # sums give the square; the root of what rounding leaves of 0 is large
        a, b = a**2, b**2
    scale = np.nanmax(np.abs(a), initial=0.0, where=~np.isnan(a))
    apart = np.nan_to_num(np.abs(a - b)).max(initial=0.0)
    return f"differs by {apart / scale:.1e} of its largest value" if apart > tolerance * max(scale, 1e-12) else ""
