"""Nobody reads the name of a column or the code of a value on a page: what stands for something is written in words."""

import dataclasses
import html
import json
import re
import zlib
from base64 import b64decode

import pandas as pd
import pytest

from normscope.analyses.registry import analyses
from normscope.config.schema import plain
from normscope.models.options import ModelOptions
from normscope.reporting.page.report import page
from normscope.results.codes import SPECIAL_TOKENS, in_words
from normscope.results.parts import joined
from normscope.results.result import Result
from normscope.running.options import RunOptions
from tests.oracles.test_outputs import everything

CODE = re.compile(rf"\b[a-z0-9]+_[a-z0-9_]+\b|`|(?<![\w#\[])({'|'.join([*SPECIAL_TOKENS, 'alpha'])})(?![\w\]])")
"""Names with underscores, quoted names, and codes that look like words."""

OWN = re.compile(r"<(script|style|pre)\b.*?</\1>", re.DOTALL)
"""What is no text, and what users type themselves: config and command."""
FILES = re.compile(r"\btables/\w+\.parquet\b")


def reported(name: str, part: Result) -> Result:
    config = plain(RunOptions(model=ModelOptions(name="x")))
    config["analysis"][name]["enabled"] = True
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


@pytest.mark.slow
@pytest.mark.draws
@pytest.mark.parametrize("name", analyses())
def test_no_page_shows_a_code(name):
    result = reported(name, everything(name))
    tables = analyses()[name].published.tables.values()
    axes = {axis.name: axis for table in tables for axis in table.rows}
    of_corpus = {name for name, axis in axes.items() if axis.of_texts}
    free = {column for table in tables for column, kind in table.kinds.items() if kind == "text"} - axes.keys()
    shown = read(page(result), of_corpus | free)
    assert any("layer" in text for text in shown)
    assert {found[0]: text for text in shown if (found := CODE.search(text))} == {}


def test_codes_are_found():
    for text in ("attnresln_n", "of cls", "`f`", "a controls_mean", "alpha"):
        assert CODE.search(text), text
    for text in ("[CLS]", "α", "of all", "classes", "##cls", "Attn-N: vectors"):
        assert not CODE.search(text), text


def test_codes_are_written_in_words_and_texts_as_they_are():
    rows = pd.DataFrame({"layer": [1], "query_token": ["cls"], "key_token": ["a_b"], "category": ["same token"]})
    part = Result(tables={"amplified": rows.assign(before=0.1, after=0.2)})
    shown = read(page(reported("feedforward", part)), set())
    assert {"cls", "a_b", "query token"} <= {*shown}
    assert in_words("controls_mean") == "controls mean"
