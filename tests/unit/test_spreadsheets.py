"""CSV files in which no spreadsheet finds a formula."""

import csv
import io
import re
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest

from normscope.results import table_files
from normscope.results.result import Result
from normscope.results.table_files import as_csv

FORMULAS = ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "\0=1", "=cmd|' /C calc'!A0", '=1,"2"', "-", "-0.5"]
HARMLESS = ["fox", "a=b", "'=1", " =1", "1-2", "−1", "", '"', "a,b"]


@pytest.mark.parametrize("text", [*FORMULAS, *HARMLESS])
def test_text_is_text_in_cells_and_headers(text):
    header, row = csv.reader(io.StringIO(as_csv(pd.DataFrame({text: [text], "n": [1]})), newline=""))
    expected = f"'{text}" if text in FORMULAS else text
    assert (header, row) == ([expected, "n"], [expected, "1"])


def test_numbers_stay_numbers():
    numbers = {
        "float": [-0.1, 1 / 3, np.nan],
        "integer": [-1, 0, 2**53],
        "missing": pd.array([-1, None, 3], "Int64"),
        "bool": [True, False, True],
    }
    table = pd.DataFrame(numbers)
    assert as_csv(table) == table.to_csv(index=False)
    mixed = pd.DataFrame({"value": [-1, "-1", None]}, dtype=object)
    assert as_csv(mixed).splitlines() == ["value", "-1", "'-1", '""']


def test_only_the_csv_of_a_run_is_changed(tmp_path):
    table = pd.DataFrame({"token": FORMULAS, "value": np.linspace(-1, 1, len(FORMULAS))})
    Result({"tokens": table}).save(tmp_path)
    path = tmp_path / "tables" / "tokens.parquet"
    pd.testing.assert_frame_equal(pd.read_parquet(path), table)
    with path.with_suffix(".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["token"] for row in rows] == [f"'{token}" for token in FORMULAS]
    assert [float(row["value"]) for row in rows] == table["value"].tolist()


def test_whatever_writes_csv_writes_it_so():
    """The history of a training, which is read again, holds only names of our own."""
    source = files("normscope")
    writers = {path.name for path in source.rglob("*.py") if "to_csv(" in path.read_text()}
    assert writers == {"table_files.py", "training.py"}
    scripts = source.joinpath("reporting/page")
    assert [path.name for path in scripts.glob("*.js") if "'\"\"'" in path.read_text()] == ["dom.js"]
    in_pages = re.search(r"replace\(/\^(\[.+?\])/, \"'\$&\"\)", scripts.joinpath("dom.js").read_text())
    assert in_pages is not None
    assert in_pages[1] == table_files._FORMULA.pattern
