"""Every table, column, metric and curve that an analysis publishes is described, and nothing else is."""

import dataclasses
import functools
import io
import re
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.declarations.alignment import AlignmentOptions
from normscope.analyses.declarations.attribution import AttributionOptions
from normscope.analyses.declarations.feedforward import FeedForwardOptions
from normscope.analyses.declarations.frequency import FrequencyOptions
from normscope.analyses.declarations.mixing import MixingOptions
from normscope.analyses.declarations.norms import NormsOptions
from normscope.analyses.declarations.outliers import OutliersOptions
from normscope.analyses.declarations.score import ScoreOptions
from normscope.analyses.declarations.similarity import SimilarityOptions
from normscope.analyses.declarations.sinks import SinksOptions
from normscope.analyses.declarations.syntax import SyntaxOptions
from normscope.analyses.frequency import FREQUENCIES
from normscope.analyses.registry import analyses
from normscope.analyses.samples import PAIRS
from normscope.analyses.syntax import TREEBANK
from normscope.data.examples import Example
from normscope.data.token_frequencies import TokenFrequencies
from normscope.reporting.published import COLUMNS
from normscope.results.axes import DIMENSION, HEAD, LAYER
from normscope.results.declare import Table
from normscope.results.maps import MEASURES, TokenMap, write_maps
from normscope.results.parts import tidy_curves, tidy_heatmaps, tidy_sequences
from normscope.results.result import Result
from normscope.results.run_tables import MAPS, RUN_TABLES
from normscope.results.text_table import text_table
from tests.oracles import (
    frequency_oracle,
    similarity_oracle,
    specimens,
    syntax_oracle,
    test_alignment_published,
)

CHOSEN = OutliersOptions(dimensions=[2, 7])


_bert = functools.cache(specimens.bert)


@functools.cache
def everything(name: str) -> Result:
    """Everything that an analysis can publish, on a tiny model. Tests share it, and change nothing in it."""
    bert = _bert()
    categories = [*bert.names, "all"]
    match name:
        case "mixing":
            return bert.findings(name, MixingOptions(), [1, 2], categories)
        case "feedforward":
            return bert.findings(name, FeedForwardOptions(seed=0), [1, 2], categories)
        case "attribution":
            texts = bert.findings(name, AttributionOptions(seed=0, orders=1), [1, 2], categories)
            both = specimens.translations()
            pairs = [Example(*text, row=row) for row, text in enumerate(both.texts, start=1)]
            translated = both.findings(name, AttributionOptions(seed=0), [1, 2], ["all"], resources={PAIRS: pairs})
            return dataclasses.replace(
                texts,
                tables={**texts.tables, **translated.tables},
                metrics={**texts.metrics, **translated.metrics},
            )
        case "norms":
            return bert.findings(name, NormsOptions(seed=0), [1, 2], categories)
        case "frequency":
            resources = {FREQUENCIES: TokenFrequencies(*frequency_oracle.counted(bert, []))}
            return bert.findings(name, FrequencyOptions(seed=0), [1, 2], categories, resources=resources)
        case "outliers":
            return bert.findings(name, CHOSEN, [1, 2], categories, options=[CHOSEN])
        case "score":
            options = ScoreOptions(seed=0, controls=1)
            return bert.findings(name, options, [1, 2], categories, options=[CHOSEN])
        case "similarity":
            pairs = similarity_oracle.PairSpecimen.of(bert)
            pairs = dataclasses.replace(pairs, ranked=[(1, 1), (1, 2), (0, 0), (2, 1), (1, 3)])
            return pairs.published(SimilarityOptions(), categories)
        case "syntax":
            resources = {TREEBANK: syntax_oracle.treebank()}
            return syntax_oracle.annotated(bert).findings(
                name, SyntaxOptions(), [1, 2], categories, resources=resources
            )
        case "sinks":
            options = SinksOptions(length=6, controls=1, seed=0)
            return specimens.massive().findings(name, options, [1, 2], ["other", "first"])
        case "alignment":
            given = test_alignment_published
            return given.findings(AlignmentOptions(), given.BASELINES, given.LAYERS)
    raise AssertionError(f"no example of what {name} publishes")


@pytest.mark.parametrize("name", analyses())
def test_what_an_analysis_publishes_is_described(name):
    findings, outputs = everything(name), analyses()[name].published
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
    for table, info in analyses()[name].published.tables.items():
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
        "heatmaps": list(tidy_heatmaps({})),
        "comparison": list(COLUMNS),
    }
    assert {name: list(info.columns) for name, info in RUN_TABLES.items()} == tables
    write_maps(file := io.BytesIO(), [token_map], {})
    assert list(MAPS.columns) == list(pd.read_parquet(file))
