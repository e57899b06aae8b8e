"""Tables in lines that fit into a terminal."""

import re

import numpy as np
import pandas as pd
import pytest

from normscope.results.findings import Summary
from normscope.results.text_table import text_table


def test_a_table_that_fits_has_one_line_for_its_headings():
    table = pd.DataFrame(
        {"mean %": [1.234, -0.001], "tokens": [1234, 5]}, index=pd.Index(["cls", "all"], name="category")
    )
    assert text_table(table, 1, 80).splitlines() == [
        "category  mean %  tokens",
        "cls          1.2   1,234",
        "all          0.0       5",
    ]


def test_headings_take_as_few_lines_as_make_the_table_fit():
    table = pd.DataFrame({"found by the best head": [1.0], "chance": [-2.0]}, index=["weights"])
    shown = {width: text_table(table, 1, width).splitlines() for width in (39, 38, 28)}
    assert shown[39] == ["         found by the best head  chance", "weights                     1.0    −2.0"]
    assert shown[38] == ["         found by the", "            best head  chance", "weights           1.0    −2.0"]
    assert shown[28] == [
        "         found by",
        "         the best",
        "             head  chance",
        "weights       1.0    −2.0",
    ]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_columns_that_do_not_fit_are_counted(width):
    table = pd.DataFrame(np.ones((2, 30)), columns=[f"dimension {place}" for place in range(30)])
    *lines, last = text_table(table, 2, width).splitlines()
    assert max(map(len, lines)) <= width
    shown = lines[-1].count("1.00")
    assert last == f"({30 - shown} more columns do not fit)"
    assert text_table(table.iloc[:, :shown], 2, width).splitlines() == lines


def test_long_labels_and_texts_take_several_lines():
    table = pd.DataFrame({"value": [1.0], "differs in": ["model, dataset, mask_fraction, layers and level"]})
    table.index = ["mixing ratio (attention block, AttnResLn-N)"]
    assert text_table(table, 1, 80).splitlines() == [
        "                                value                             differs in",
        "mixing ratio (attention block,    1.0  model, dataset, mask_fraction, layers",
        "AttnResLn-N)                                                       and level",
    ]


def test_long_words_are_cut_in_the_middle_as_far_as_the_columns_need():
    table = pd.DataFrame({"value": [1.0]}, index=["a" * 60 + "b" * 60])
    assert text_table(table, 1, 80).splitlines() == [" " * 75 + "value", "a" * 36 + "…" + "b" * 36 + "    1.0"]
    narrow = text_table(table.assign(**{f"column{place}": 1.0 for place in range(9)}), 1, 80).splitlines()
    label = narrow[1].split()[0]
    assert len(label) >= 24
    assert label.replace("…", "") == "a" * (len(label) // 2) + "b" * ((len(label) - 1) // 2)
    assert max(map(len, narrow)) <= 80
    assert narrow[-1].endswith(" more columns do not fit)")


def test_missing_values_are_blank():
    table = pd.DataFrame(
        {"a": [np.nan, 1.0], "b": pd.array([None, 2], "Int64"), "c": [None, "text"]},
        index=pd.Index([1, 2], name="layer"),
    )
    assert text_table(table, 1, 80).splitlines() == ["layer    a  b     c", "1", "2      1.0  2  text"]


def test_rows_and_columns_are_both_named():
    table = pd.DataFrame(
        [[0.5]], index=pd.Index(["cls"], name="first text"), columns=pd.Index(["sep"], name="second text")
    )
    assert text_table(table, 1, 80).splitlines() == [
        "first text ↓, second text →  sep",
        "cls                          0.5",
    ]


def test_levels_of_labels_stand_together():
    table = pd.DataFrame(
        {("a", "b"): [1.0]}, index=pd.MultiIndex.from_tuples([("text", True)], names=["inputs", "bos"])
    )
    assert text_table(table, 1, 80).splitlines() == ["inputs, bos  a, b", "text, True    1.0"]


def test_a_table_without_columns_has_its_labels():
    assert text_table(pd.DataFrame(index=["cls"]), 1, 80).split() == ["cls"]


def test_summaries_show_the_same_in_the_terminal_and_in_notebooks():
    """Whatever the cells are; text is escaped, and a column without values is left out."""
    table = pd.DataFrame({"norm": [-1234.5, np.nan], "tokens": [1234, 2], "head": ["<b>", "1.2"], "none": np.nan})
    summary = Summary(table.rename_axis("layer"), digits=1)
    assert str(summary).splitlines() == [
        "layer     norm  tokens  head",
        "0      −1234.5   1,234   <b>",
        "1                    2   1.2",
    ]
    cells = re.findall(r"<td>(.*?)</td>", summary._repr_html_())
    assert cells == ["−1234.5", "1,234", "&lt;b&gt;", "", "2", "1.2"]
