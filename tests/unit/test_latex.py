"""The papers' tables as LaTeX: their numbers, their order, and text that compiles whatever it contains."""

import dataclasses
import re
from collections.abc import Mapping

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.analyses.norms.paper_tables import _correlation as correlation_of_norms
from normscope.analyses.paper_tables import Column, PaperTable, category_order, paper_tables
from normscope.analyses.registry import analyses
from normscope.reporting.latex import bare, document, number, text


@dataclasses.dataclass
class Stored:
    tables: Mapping[str, pd.DataFrame] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("words", "latex"),
    [
        ("50% of a_b & c#d", r"50\% of a\_b \& c\#d"),
        ("‖αf(x)‖ and ‖f(x)‖, ρ = −0.5 ± 0.1", r"$\|\alpha f(x)\|$ and $\|f(x)\|$, $\rho$ = $-$0.5 $\pm$ 0.1"),
        ("the score q·k, from Cⱼ", r"the score $q \cdot k$, from $C_j$"),
        ("[CLS]", "{[}CLS{]}"),
        ("*", "{*}"),
        ("$x_{2}$", r"\$x\_\{2\}\$"),
        ("a\\b^c~d", r"a\textbackslash{}b\textasciicircum{}c\textasciitilde{}d"),
        ("<s> |", r"\textless{}s\textgreater{} \textbar{}"),
        ("-- ''", "-{}- '{}'"),
        ("Attn-W isn't", "Attn-W isn't"),
        ("Ġthe ▁the", r"\.{G}the \_the"),
        ("Größe, naïve, Łódź", r"Gr\"{o}\ss{}e, na\"{\i}ve, \L{}\'{o}d\'{z}"),
        ("é as two characters: e\u0301", r"\'{e} as two characters: \'{e}"),
        ("中", r"\normscopecharacter{中}{U+4E2D}"),
        ("a\x00b\nc", "a b c"),
    ],
)
def test_text_is_escaped(words, latex):
    assert text(words) == latex


KNOWN = re.compile(
    r"\\(?:textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|ldots|ss|ae|AE|oe|OE|o|O|l|L|i){}"
    r"|\\[`'^~=u.\"rHvc]\{(?:\\?[A-Za-z ])\}"
    r"|\\normscopecharacter\{.\}\{U\+[0-9A-F]{4,6}\}"
    r"|\\[&%$#_{}]"
    r"|\$(?:[-A-Za-z_(). \\|]|\\infty)*\$"
    r"|\{[\[\]*]\}"
    r"|\{\}"
    r"|~",
    re.DOTALL,
)


@given(st.text(max_size=60))
def test_any_text_leaves_nothing_that_tex_would_interpret(words):
    left = KNOWN.sub("", text(words))
    assert not re.search(r"[\\{}$&#%_^~\[\]*<>|]", left), left
    assert left.isascii()
    assert "\n" not in text(words)
    assert not re.search(r"--|``|''|[?!]`", left) or re.search("[–—“”‘’]", words)


@pytest.mark.parametrize(
    ("value", "digits", "written"),
    [
        (0.125, 2, "0.12"),
        (-0.345678, 3, "$-$0.346"),
        (-0.001, 2, "0.00"),
        (12345.6, 1, "12,345.6"),
        (-12345.6, 0, "$-$12,346"),
        (float("nan"), 2, "--"),
        (float("-inf"), 2, r"$-\infty$"),
    ],
)
def test_numbers_have_the_decimals_of_their_column(value, digits, written):
    assert number(value, digits) == written


TABLE = PaperTable(
    caption="Shares (%) of ‖f(x)‖.",
    columns=[Column("Key", text=True), Column("Pairs"), Column("ρ", 1)],
    rows=[["[CLS]", 1234567, -0.25], ["[CLS]", 3, None], ["*", 3, 1.0]],
    grouped=True,
)


def test_a_file_has_a_float_with_booktabs():
    assert document([("norms-x_y", TABLE)], "bert on\nwikipedia", "bert_base: 2 sequences.") == (
        "% bert on wikipedia. Needs \\usepackage{booktabs}.\n"
        "\\begin{table}[t]\n"
        "  \\centering\n"
        "  \\caption{Shares (\\%) of $\\|f(x)\\|$. bert\\_base: 2 sequences.}\n"
        "  \\label{tab:norms-x-y}\n"
        "  \\begin{tabular}{lrr}\n"
        "    \\toprule\n"
        "    Key & Pairs & $\\rho$ \\\\\n"
        "    \\midrule\n"
        "    {[}CLS{]} & 1,234,567 & $-$0.2 \\\\\n"
        "     & 3 & -- \\\\\n"
        "    \\addlinespace\n"
        "    {*} & 3 & 1.0 \\\\\n"
        "    \\bottomrule\n"
        "  \\end{tabular}\n"
        "\\end{table}\n"
    )


def test_characters_that_pdflatex_does_not_know_are_defined_once():
    table = dataclasses.replace(TABLE, rows=[["中文", 1, 1.0]])
    content = bare(table, "bert")
    assert content.count(r"\providecommand{\normscopecharacter}") == 1
    assert content.index(r"\providecommand") < content.index(r"\begin{tabular}")
    assert r"\normscopecharacter{中}{U+4E2D}\normscopecharacter{文}{U+6587}" in content
    assert r"\providecommand" not in bare(TABLE, "bert")


def test_categories_have_the_papers_order():
    assert category_order(["all", "other", "mine", "punctuation", "sep", "cls"]) == [
        *("cls", "sep", "punctuation", "mine", "other", "all")
    ]


RATIOS = {
    f"{method}/{name}": value
    for method, values in {"attn_w": (0.96, 0.999, 0.5), "attnresln_n": (0.188, 0.613, 0.013)}.items()
    for name, value in zip(("mean", "max", "min"), values, strict=True)
}


def test_mixing_ratios_are_in_per_cent_and_in_the_papers_order():
    table = paper_tables(analyses()["mixing"], Stored(metrics=dict(reversed(RATIOS.items()))))["ratios"]
    assert [row[0] for row in table.rows] == ["Attn-W", "AttnResLn-N"]
    assert table.rows[1][1:] == pytest.approx([18.8, 61.3, 1.3])
    assert dict(table.headline) == pytest.approx(
        {"Attn-W": 96.0, "AttnResLn-N": 18.8, "AttnResLn-N max": 61.3, "AttnResLn-N min": 1.3}
    )


def test_the_dispersion_names_its_heads_as_table_1_of_k20():
    summary = pd.DataFrame(
        {"row": ["max_cv", "min_cv", "average"], "layer": [2, 2, 0], "head": [4, 7, 0], "mean": [4.26, 4.0, 5.15],
         "std": [1.59, 0.5, 1.17], "cv": [0.37, 0.12, 0.22], "max": [12.66, 6.15, 9.0], "min": [0.96, 1.35, 1.0]}
    )  # fmt: skip
    metrics = {"f/mean": 5.15, "f/std": 1.17, "f/cv_mean": 0.22, "f/cv_max": 0.37, "f/cv_min": 0.12}
    tables = paper_tables(analyses()["norms"], Stored({"dispersion_summary": summary}, metrics))
    assert list(tables) == ["dispersion"]
    assert tables["dispersion"].rows[0] == ["Largest CV (layer 2, head 4)", 4.26, 1.59, 0.37, 12.66, 0.96]
    assert tables["dispersion"].rows[2] == ["Average", 5.15, 1.17, 0.22, 9.0, 1.0]
    assert tables["dispersion"].headline == {"μ": 5.15, "σ": 1.17, "CV": 0.22, "Largest CV": 0.37, "Smallest CV": 0.12}


def test_the_correlation_covers_all_layers_as_table_2_of_k20():
    table = pd.DataFrame(
        {"layer": [0, 0, 1], "category": ["other", "cls", "cls"], "spearman": [-0.06, -0.34, 0.9], "count": [7, 5, 1]}
    )
    built = paper_tables(analyses()["norms"], Stored({"correlation": table}))["correlation"]
    assert built.rows == [["[CLS]", 5, -0.34], ["other", 7, -0.06]]
    assert built.headline == {"[CLS]": -0.34, "other": -0.06}


def test_expansion_rates_end_with_their_mean():
    table = pd.DataFrame({"layer": [1, 2], "rate": [0.9, 0.7], "rate_with_output_bias": [1.0, 0.8]})
    metrics = {"expansion/mean": 0.8, "expansion_with_output_bias/mean": 0.9}
    built = paper_tables(analyses()["norms"], Stored({"expansion": table}, metrics))["expansion"]
    assert built.rows == [["1", 0.9, 1.0], ["2", 0.7, 0.8], ["Mean", 0.8, 0.9]]


def test_correlations_with_frequency_are_shown_with_and_without_special_tokens():
    metrics = {
        "spearman/f/with_specials": 0.75,
        "spearman/alpha/with_specials": -0.08,
        "spearman/alpha/without_specials": 0.1,
    }
    built = paper_tables(analyses()["frequency"], Stored(metrics=metrics))["correlation"]
    assert built.rows == [["α", -0.08, 0.1], ["‖f(x)‖", 0.75, None]]
    assert built.headline == {"α": -0.08, "‖f(x)‖": 0.75}


def test_contributions_have_the_layers_of_table_1_of_m24_and_the_largest_dimensions():
    rows = [
        {
            "layer": layer,
            "dimension": dimension,
            "category": category,
            "head_1": -float(dimension),
            "head_2": float(layer),
        }
        for layer in range(1, 13)
        for dimension in (1, 20, 30, 40)
        for category in ("other", "cls", "all")
    ]
    built = paper_tables(analyses()["score"], Stored({"by_category": pd.DataFrame(rows)}))["contributions"]
    assert [row[0] for row in built.rows[::2]] == [
        f"Layer {layer}, dim. {dimension}" for layer in (2, 6, 12) for dimension in (20, 30, 40)
    ]
    assert built.rows[:2] == [
        ["Layer 2, dim. 20", "[CLS]", -20.0, 2.0],
        ["Layer 2, dim. 20", "other", -20.0, 2.0],
    ]
    assert [column.header for column in built.columns] == ["Dimension", "Key", "1", "2"]


def test_error_rates_are_followed_by_other_aligners():
    metrics = {
        "attn_n/awo/layer_mean/aer": 0.616, "attn_n/awo/best_layer/aer": 0.283, "attn_n/awo/best_layer/layer": 5.0,
        "attn_n/awo/best_layer/precision": 0.7, "attn_n/awo/best_layer/recall": 0.8,
        "fast_align/aer": 0.284, "fast_align/precision": 0.71, "fast_align/recall": 0.61,
    }  # fmt: skip
    built = paper_tables(analyses()["alignment"], Stored(metrics=metrics))["error_rates"]
    expected = [
        ["Vector norms ‖αf(x)‖", "with output, mean over layers", 61.6, None, None],
        ["Vector norms ‖αf(x)‖", "with output, best layer (5)", 28.3, 70.0, 80.0],
        ["Other aligners", "fast_align", 28.4, 71.0, 61.0],
    ]
    for row, wanted in zip(built.rows, expected, strict=True):
        assert row[:2] == wanted[:2]
        assert [None if cell is None else round(cell, 9) for cell in row[2:]] == wanted[2:]
    assert dict(built.headline) == pytest.approx({"‖αf(x)‖ with output, mean": 61.6, "‖αf(x)‖ with output, best": 28.3})


def test_amplified_pairs_are_the_first_three_of_each_layer():
    pairs = pd.DataFrame(
        {"layer": [1] * 4 + [2], "query_token": ["a", "b", "c", "d", "x" * 50], "key_token": "k", "category": "other",
         "before": 0.1, "after": [0.5, 0.4, 0.3, 0.2, 0.9]}
    )  # fmt: skip
    built = paper_tables(analyses()["feedforward"], Stored({"amplified": pairs}))["amplified"]
    assert [row[:2] for row in built.rows] == [["1", "a"], ["1", "b"], ["1", "c"], ["2", "x" * 23 + "…"]]
    assert built.rows[0][4:] == [10.0, 50.0]


@pytest.mark.parametrize("name", analyses())
def test_results_without_a_papers_numbers_have_no_tables(name):
    assert paper_tables(analyses()[name], Stored()) == {}


LABELS = [f"sentence-transformers/all-MiniLM-L6-v2 · seed {seed}" for seed in range(6)]


def test_headers_that_would_make_a_table_wider_than_a_page_are_turned():
    few, many = (
        dataclasses.replace(
            TABLE,
            columns=[Column("Metric", text=True), *(Column(label) for label in LABELS[:count])],
            rows=[["mixing/attn_w/mean", *[0.25] * count]],
        )
        for count in (1, 6)
    )
    assert "box{" not in bare(few, "bert")
    assert r"\rotatebox" not in bare(TABLE, "bert")
    content = bare(many, "bert")
    assert content.startswith("% bert. Needs \\usepackage{booktabs,graphicx}.\n")
    assert r"Metric & \rotatebox{90}{sentence-transformers/all-MiniLM-L6-v2 $\cdot$ seed 0} & " in content
    assert r"\resizebox" not in content, "turned headers are enough"


def test_a_table_that_is_still_wider_than_a_page_is_made_smaller():
    wide = dataclasses.replace(
        TABLE,
        columns=[Column(label, text=True) for label in LABELS],
        rows=[["a long cell that nobody can turn"] * 6],
    )
    lines = document([("wide", wide)], "bert").splitlines()
    assert r"\begin{table*}[t]" in lines
    assert lines.index(r"  \resizebox{\linewidth}{!}{%") < lines.index(r"    \begin{tabular}{llllll}")
    assert lines[-2] == "  }"


def test_a_table_wider_than_a_column_takes_both():
    table = dataclasses.replace(TABLE, rows=[["a first cell as long as a half of a page is wide", 1, 0.5]])
    assert r"\begin{table*}" in document([("x", table)], "bert")
    assert r"\small" not in document([("x", table)], "bert")


def test_a_correlation_of_one_pair_is_left_out():
    table = pd.DataFrame(
        {"category": ["all", "other"], "layer": [0, 0], "spearman": pd.array([0.5, pd.NA], "Float64"), "count": [9, 1]}
    )
    made = correlation_of_norms(table)
    assert made is not None
    assert {row[0]: row[2] for row in made.rows} == {"other": None, "all tokens": 0.5}
    assert list(made.headline.values()) == [0.5]
    assert correlation_of_norms(table.iloc[1:]) is None
