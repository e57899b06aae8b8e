"""Tables as files: Parquet whose metadata says what the columns mean, and CSV for people."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from normscope.analyses.registry import analyses
from normscope.results.parquet import write_parquet
from normscope.results.run_tables import RUN_TABLES, metadata, tables_of
from normscope.results.spreadsheets import as_csv
from normscope.untrusted.tables import Columns, table
from normscope.untrusted.writing import new_file, write_file

CSV_ROWS = 20_000
"""Longer tables are written as Parquet alone."""

_LEAST = {"curves": {"layer": 0, "depth": 0}, "sequences": {"count": 1}, "heatmaps": {}}
_COLUMNS = {
    name: Columns(RUN_TABLES[name].kinds, key=RUN_TABLES[name].key, least=least) for name, least in _LEAST.items()
}
"""The tables that comparisons of runs rely on."""


def write_table(folder: Path, name: str, rows: pd.DataFrame, identity: Mapping[str, object]) -> None:
    """Write a table into the folder `tables` of a run.

    Args:
        folder: The folder of the run.
        name: Name of the table.
        rows: The table.
        identity: What distinguishes the run from others.
    """
    with new_file(folder, f"tables/{name}.parquet") as stream:
        write_parquet(stream, rows, metadata(name, rows.columns, identity))
    if len(rows) <= CSV_ROWS:
        write_file(folder, f"tables/{name}.csv", as_csv(rows).encode())


def read_table(name: str, path: Path) -> pd.DataFrame:
    """Read what `write_table` has written.

    Raises:
        InputError: If the file is damaged, or holds something else.
    """
    rows = table(path, _COLUMNS.get(name))
    declared = tables_of(analyses().values()).get(name)
    kinds = {} if declared is None else declared.kinds
    # Whole numbers are not decimal numbers because some are missing.
    missing = [
        column
        for column in map(str, rows)
        if kinds.get(column) == "whole" and rows[column].dtype == float and (rows[column].dropna() % 1 == 0).all()
    ]
    return rows.astype(dict.fromkeys(missing, "Int64"))
