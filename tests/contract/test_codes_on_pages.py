"""Nobody reads the name of a column or a number, or the code of a value: pages and the terminal write it in words."""

import dataclasses
import html
import json
import re
import zlib
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest

from normscope.analyses.registry import analyses
from normscope.config.schema import plain
from normscope.models.options import ModelOptions
from normscope.reporting.comparison import in_terminal
from normscope.reporting.comparison.compare import compared
from normscope.reporting.comparison.page import comparison_page
from normscope.reporting.comparison.verdict import verdict
from normscope.reporting.options import Verbosity
from normscope.reporting.page.report import page
from normscope.reporting.published import COLUMNS, COMPARISON
from normscope.reporting.terminal import set_verbosity, show
from normscope.reporting.tracking import chart_title
from normscope.results.codes import SPECIAL_TOKENS, in_words
from normscope.results.measures import cell_title, families, metric_title
from normscope.results.parts import joined
from normscope.results.result import Result
from normscope.running.options import RunOptions
from normscope.streams import WIDTH
from tests.oracles.comparison import everything

CODE = re.compile(rf"\b[a-z0-9]+_[a-z0-9_]+\b|`|(?<![\w#\[])({'|'.join([*SPECIAL_TOKENS, 'alpha'])})(?![\w\]])")
"""Names with underscores, quoted names, and codes that look like words."""

PROGRAMS = re.compile(r"(?<![\w/])fast_align(?![\w/])")
"""Programs of others that are called so wherever they are written about, in Table 3 of Kobayashi et al. 2020 too."""

OWN = re.compile(r"<(script|style|pre|code)\b.*?</\1>", re.DOTALL)
"""What is no text, and what users type themselves: config and command."""
FILES = re.compile(r"\btables/\w+\.parquet\b")


def reported(name: str, part: Result) -> Result:
    config = plain(RunOptions(model=ModelOptions(name="x")))
    config["analysis"][name]["enabled"] = True
    config["recipe"]["paper"] = "kobayashi2020"
    facts = dict.fromkeys(("sequences", "tokens", "seconds", "verification_error"), 1)
    facts |= dict.fromkeys(("model", "dtype", "device", "finished", "command", "git_commit"), "x")
    facts["tokens_by_category"] = {"cls": 1, "other": 2}
    return dataclasses.replace(joined({name: part}, 2), facts=facts, config=config)


def read(content: str, of_texts: set[str]) -> list[str]:
    """Everything that people read on a page, but for the corpus's own texts."""
    packed = re.search(r'id="tables-data">(.*?)</script>', content, re.DOTALL)
    assert packed is not None
    body = OWN.sub("", content)
    texts = re.findall(r">([^<>]+)<", body) + [
        label for pair in re.findall(r'(?:aria-label|title)="([^"]*)"|placeholder="([^"]*)"', body) for label in pair
    ]
    for table in json.loads(zlib.decompress(b64decode(packed[1]))).values():
        texts.append(table["caption"])
        for column in table["columns"]:
            texts += [column["title"], column["about"]]
            texts += column["values"] if column["kind"] == "word" and column["name"] not in of_texts else []
    return [FILES.sub("", html.unescape(text)) for text in texts]


def codes(texts: Iterable[str]) -> dict[str, str]:
    """The codes in texts, each with the text that has it."""
    return {found[0]: text for text in texts if (found := CODE.search(PROGRAMS.sub("", text)))}


@pytest.fixture(scope="module", params=analyses())
def result(request) -> Result:
    """The results of an analysis, beside published numbers for all of them, and a table of which a paper has a row.

    No source has so many that the terminal prints the farthest only.
    """
    name = request.param
    result = reported(name, everything(name))
    rows = [
        (metric, metric_title(metric), value, value, 0.0, 1.0, True, "", "Table 1", f"Table {1 + place // 20}")
        for place, (metric, value) in enumerate(result.metrics.items())
    ]
    if name == "score":
        at = {"layer": 2, "dimension": 308, "category": "cls", "head": 1}
        rows.append(("score_contributions", cell_title("score_contributions", "mean", at), *rows[0][2:]))
    return dataclasses.replace(result, tables={**result.tables, COMPARISON: pd.DataFrame(rows, columns=list(COLUMNS))})


@pytest.mark.slow
@pytest.mark.draws
def test_no_page_shows_a_code(result):
    (name,) = result.analyses
    tables = analyses()[name].declared.tables.values()
    axes = {axis.name: axis for table in tables for axis in table.rows}
    of_corpus = {name for name, axis in axes.items() if axis.of_texts}
    free = {column for table in tables for column, kind in table.kinds.items() if kind == "text"} - axes.keys()
    shown = read(page(result), of_corpus | free)
    assert any("layer" in text for text in shown)
    assert codes(shown) == {}


@pytest.mark.slow
@pytest.mark.draws
def test_no_comparison_shows_a_code(result, capsys):
    other = dataclasses.replace(
        result,
        metrics={name: value + 1 for name, value in result.metrics.items()},
        config={**result.config, "model": {**result.config["model"], "name": "y"}},
    )
    comparison = compared({Path("0"): result, Path("1"): other}, [])
    assert codes(read(comparison_page(comparison), set())) == {}
    in_terminal.show(comparison)
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) > len(verdict(comparison))
    assert codes([printed]) == {}
    assert codes([in_terminal.line(result)]) == {}
    charts = families(result.curves)
    lines = [panel.title or panel.words for family in charts for panel in family.panels.values()]
    assert codes([*map(chart_title, charts), *lines]) == {}


@pytest.mark.slow
def test_the_terminal_shows_no_code_and_no_line_that_is_too_long(result, capsys):
    set_verbosity(Verbosity.normal)
    show(result)
    printed = capsys.readouterr()
    lines = [*printed.out.splitlines(), *printed.err.splitlines()]
    assert len(lines) > len(result.metrics)
    assert codes(line.removeprefix(f"{result.analyses[0]}: ") for line in lines) == {}
    assert {len(line): line for line in lines if len(line) > WIDTH} == {}


@pytest.mark.spread(4)
def test_every_number_has_a_name_of_its_own(result):
    titles = [metric_title(metric) for metric in result.metrics]
    assert len({*titles}) == len(titles)
    assert codes(titles) == {}


def test_codes_are_found():
    for text in ("attnresln_n", "of cls", "`f`", "a controls_mean", "alpha"):
        assert CODE.search(text), text
    for text in ("[CLS]", "α", "of all", "classes", "##cls", "weighted vectors (Attn-N)"):
        assert not CODE.search(text), text
    assert {*codes(["fast_align", "fast_align_reverse", "alignment/fast_align/aer", "fast_align of attn_n"])} == {
        "fast_align_reverse", "fast_align", "attn_n",
    }  # fmt: skip


def test_codes_are_written_in_words_and_texts_as_they_are():
    rows = pd.DataFrame({"layer": [1], "query_token": ["cls"], "key_token": ["a_b"], "category": ["same token"]})
    part = Result(tables={"amplified": rows.assign(before=0.1, after=0.2)})
    shown = read(page(reported("feedforward", part)), set())
    assert {"cls", "a_b", "query token"} <= {*shown}
    assert in_words("controls_mean") == "controls mean"
