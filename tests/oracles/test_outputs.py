"""Every table, column, metric and curve that an analysis returns is described, and nothing else is."""

import io
import re
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.registry import analyses
from normscope.reporting.published import COLUMNS
from normscope.results.axes import DIMENSION, HEAD, LAYER
from normscope.results.declare import Table
from normscope.results.maps import MEASURES, TokenMap, write_maps
from normscope.results.parts import tidy_curves, tidy_sequences
from normscope.results.run_tables import MAPS, RUN_TABLES
from normscope.results.text_table import text_table
from tests.oracles.comparison import everything


@pytest.mark.parametrize("name", analyses())
def test_what_an_analysis_publishes_is_described(name):
    findings, outputs = everything(name), analyses()[name].declared
    metrics, curves = ({one.name: one.meaning for one in group} for group in (outputs.metrics, outputs.curves))
    assert_described(findings.metrics, metrics)
    assert_described(findings.curves, curves)
    assert findings.tables.keys() - {"sequences"} == outputs.tables.keys()
    for table, info in outputs.tables.items():
        assert_described(findings.tables[table].columns, info.columns)
        assert_kinds(findings.tables[table], info)
    assert_readable(metrics | curves)
    for info in outputs.tables.values():
        assert_readable(info.columns)


@pytest.mark.parametrize("name", analyses())
def test_what_an_analysis_prints_fits_into_a_terminal(name):
    """No column is left out, and no method or measure is called by its code."""
    for summary in everything(name).summaries.values():
        assert summary.caption
        lines = text_table(summary.table, summary.digits, 80).splitlines()
        assert max(map(len, lines)) <= 80
        assert "not fit" not in lines[-1]
        shown = " ".join(lines) + summary.caption
        assert not re.search(r"attn\w*_|atb\w*_|_n\b|\b(alpha\w*|awo|awi)\b", shown), shown


def assert_kinds(rows: pd.DataFrame, table: Table) -> None:
    """Columns hold what was declared, and no two rows have the same place on the axes."""
    for name, column in rows.items():
        kind = table.kinds.get(name, "number")
        values = column.dropna()
        if kind == "text":
            assert values.map(lambda value: isinstance(value, str)).all(), name
        elif kind == "truth":
            assert column.dtype == bool, name
        else:
            assert pd.api.types.is_numeric_dtype(column) or values.empty, name
        if kind == "whole":
            assert (values.astype(float) % 1 == 0).all(), name
    assert not (table.key and rows.duplicated(list(table.key)).any()), table.row


def assert_described(published: Iterable[str], described: Mapping[str, str]) -> None:
    """Every name has one description, and every description a name."""
    names = set(published)
    patterns = {
        name: re.sub(r"<\w+>", r"[^/]+", re.escape(name).replace(r"\<", "<").replace(r"\>", ">")) for name in described
    }
    exact = names & described.keys()
    unused = described.keys() - exact
    for name in names - exact:
        matching = [pattern for pattern in patterns if "<" in pattern and re.fullmatch(patterns[pattern], name)]
        assert matching, f"{name} is not described"
        unused -= set(matching)
    assert not unused, f"{sorted(unused)} are described but not published"


def assert_readable(described: Mapping[str, str]) -> None:
    """Descriptions are sentences."""
    for name, text in described.items():
        assert text[0].isupper() or not text[0].islower() or text[0] in "αρβγ", name
        assert text.endswith("."), name


ROW = (
    "layer",
    "head",
    "category",
    "dimension",
    "method",
    "measure",
    "step",
    "bias",
    "relation",
    "direction",
    "position",
)
"""Columns that a table has one row for each value of, if the description of its rows names them."""


@pytest.mark.parametrize("name", analyses())
def test_descriptions_belong_to_their_columns(name):
    shared = {axis.meaning: {axis.name} for axis in (LAYER, HEAD, DIMENSION)}
    for table, info in analyses()[name].declared.tables.items():
        named = {word.strip() for word in re.split(",| and ", info.row)}
        assert named & set(ROW) <= set(info.columns), (table, info.row)
        for column, text in info.columns.items():
            assert column in shared.get(text, {column}), (table, column)


def test_the_check_notices_what_is_missing_and_what_is_too_much():
    assert_described(["a/mean", "b/mean", "count"], {"<name>/mean": "", "count": ""})
    with pytest.raises(AssertionError, match="a/max is not described"):
        assert_described(["a/max"], {"<name>/mean": ""})
    with pytest.raises(AssertionError, match="x/y/mean is not described"):
        assert_described(["x/y/mean"], {"<name>/mean": ""})
    with pytest.raises(AssertionError, match="described but not published"):
        assert_described(["count"], {"count": "", "<name>/mean": ""})


def test_the_tables_of_every_run_are_described():
    token_map = TokenMap(
        title="a b",
        queries=("a", "b"),
        keys=("a", "b"),
        layers=(1,),
        maps={name: np.ones((1, 2, 2)) for name in MEASURES},
        head_maps={"attn_w": np.ones((1, 3, 2, 2))},
        norms=np.ones((1, 3, 2)),
    )
    tables = {
        "curves": list(tidy_curves({"mean": pd.Series([0.5], index=[1])}, 2)),
        "sequences": list(tidy_sequences(pd.DataFrame())),
        "comparison": list(COLUMNS),
    }
    assert {name: list(info.columns) for name, info in RUN_TABLES.items()} == tables
    write_maps(file := io.BytesIO(), [token_map], {})
    assert list(MAPS.columns) == list(pd.read_parquet(file))
