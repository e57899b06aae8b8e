"""The tables and figures of papers: each names what an analysis returns, and pages show them in the paper's order."""

import dataclasses
import os
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd
import pytest
import yaml

from normscope.analyses.registry import analyses
from normscope.config.schema import plain
from normscope.errors import InputError
from normscope.reporting import exhibits as exhibits_module
from normscope.reporting.exhibits import Exhibit, differences, reproduction_of
from normscope.reporting.page.elements import table
from normscope.reporting.page.paper import Run, page_of_paper, sections_of_paper
from normscope.reporting.page.report import page
from normscope.reporting.published import COMPARISON, PAPERS, compare, printed, published
from normscope.results.declare import declared
from normscope.results.result import Result
from tests.contract.test_codes_on_pages import reported
from tests.contract.test_configs import ROOT, composed
from tests.end_to_end.shell import run_here
from tests.oracles.comparison import everything

LISTED = sorted(path.parent.name for path in Path(PAPERS).glob("*/exhibits.yaml"))
_CELLS = r"<t[dh](?: [^>]*)?>([^<]*)<"
EXHIBITS = [(paper, exhibit) for paper in LISTED for exhibit in reproduction_of(paper).exhibits]


def owner(name: str, separator: str) -> tuple[str, str]:
    """The analysis that a full name begins with, and the rest of the name."""
    return next(
        (analysis, name.removeprefix(f"{analysis}{separator}"))
        for analysis in analyses()
        if name.startswith(f"{analysis}{separator}")
    )


def test_the_three_papers_have_36_tables_figures_and_results():
    numbers = 0
    for _, exhibit in EXHIBITS:
        several = re.search(r"(\d+)–(\d+)", exhibit.exhibit)
        numbers += int(several[2]) - int(several[1]) + 1 if several else 1
    assert LISTED == ["kobayashi2020", "kobayashi2021", "maruta2024"]
    assert numbers == 36


@pytest.mark.spread(10)
@pytest.mark.parametrize(
    ("paper", "exhibit"), EXHIBITS, ids=lambda value: getattr(value, "exhibit", value).replace(" ", "_")
)
def test_an_exhibit_names_what_analyses_return(paper, exhibit):
    for name in exhibit.tables:
        analysis, table = owner(name, "_")
        assert table in analyses()[analysis].declared.tables, name
    for pattern in exhibit.figures:
        analysis, figure = owner(pattern, "_")
        assert any(fnmatch(name, figure) for name in everything(analysis).figures), pattern
    assert all(len(metrics) <= len(exhibit.columns) for metrics in exhibit.rows.values())
    form = {*exhibit.printed([]).stack().dropna()}
    for metric in form:
        assert declared(analyses()[owner(metric, "/")[0]].declared.metrics, owner(metric, "/")[1]), metric
    groups = [group for group in published(paper) if group["exhibit"] == exhibit.exhibit]
    # Other data of the same exhibit, which are no part of the paper's table, have numbers of their own.
    same = [group for group in groups if group["when"] == groups[0]["when"]]
    assert not form or {name for group in same for name in printed(group)} <= form
    assert exhibit.how(), f"{paper}, {exhibit.exhibit}: no command shows it"
    if exhibit.preset is not None:
        options = composed(f"experiment={exhibit.preset}")
        assert options.recipe.paper == paper
        chosen = {owner(name, "_")[0] for name in (*exhibit.tables, *exhibit.figures)}
        assert all(getattr(options.analysis, analysis).enabled for analysis in chosen), chosen
    program, *words = shlex.split(exhibit.how())
    assert program in ("normscope", "python")
    assert program == "normscope" or (ROOT / words[0]).is_file()


@pytest.mark.parametrize("paper", LISTED)
def test_published_numbers_are_of_exhibits_that_are_listed(paper):
    reproduction = reproduction_of(paper)
    names = [exhibit.exhibit for exhibit in reproduction.exhibits]
    assert len({*names}) == len(names)
    assert {group["exhibit"] for group in published(paper)} <= {*names}
    for preset, other in reproduction.offline.items():
        assert preset in reproduction.presets
        composed(f"experiment={other}")


@pytest.mark.parametrize("paper", sorted(path.parent.name for path in Path(PAPERS).glob("*/published.yaml")))
def test_published_numbers_have_an_exhibit_and_a_declared_name(paper):
    for group in published(paper):
        assert group["exhibit"]
        for name in group.get("values", {}):
            analysis, metric = owner(name, "/")
            assert declared(analyses()[analysis].declared.metrics, metric), name
        if "table" in group:
            analysis, table = owner(group["table"], "_")
            assert {group["column"], group["along"]} <= analyses()[analysis].declared.tables[table].columns.keys()


def test_every_preset_of_a_paper_shows_an_exhibit():
    for path in (ROOT / "conf/experiment").glob("*.yaml"):
        paper = (yaml.safe_load(path.read_text()).get("recipe") or {}).get("paper")
        assert paper not in LISTED or path.stem in reproduction_of(paper).presets, path.name


@pytest.fixture
def invented(monkeypatch, tmp_path) -> Path:
    """A paper of four exhibits, of which a run of `norms` shows three."""
    group = {"tolerance": 0.1, "when": {"model.name": "theirs", "dataset.name": "sample"}}
    groups = [
        group | {"source": "Nobody, Table 2", "exhibit": "Table 2", "values": {"norms/f/mean": 2.0}},
        group | {"source": "Nobody, section 3", "exhibit": "Section 3", "values": {"norms/x/cv_mean": 0.5}},
        group | {"source": "Nobody, Table 9", "exhibit": "Table 9", "values": {"mixing/attn_w/mean": 0.9}},
    ]
    listed = {
        "paper": "Nobody 2000",
        "needs": "Their model was never seen again.",
        "exhibits": [
            {"exhibit": "Figure 1", "title": "By layer", "preset": "nobody", "figures": ["norms_by_*"]},
            {"exhibit": "Table 2", "title": "Lengths", "preset": "nobody", "figures": ["norms_by_layer"]},
            {"exhibit": "Section 3", "title": "Spread", "preset": "nobody"},
            {"exhibit": "Table 9", "title": "Mixing", "command": "normscope experiment=kobayashi2021_mixing"},
        ],
    }
    (tmp_path / "nobody2000").mkdir()
    (tmp_path / "nobody2000/published.yaml").write_text(yaml.safe_dump(groups))
    (tmp_path / "nobody2000/exhibits.yaml").write_text(yaml.safe_dump(listed))
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets/nobody.yaml").write_text("# @package _global_\n# python run.py experiment=nobody\n")
    monkeypatch.setattr("normscope.reporting.published.PAPERS", tmp_path)
    monkeypatch.setattr(exhibits_module, "_PRESETS", tmp_path / "presets")
    return tmp_path


def of_nobody(model: str, preset: str = "nobody", dataset: str = "sample") -> Result:
    """What `norms` can return, as a run of a preset of the invented paper."""
    result = reported("norms", everything("norms"))
    config = plain(composed(f"model.name={model}", f"dataset.name={dataset}"))
    config["analysis"] = result.config["analysis"]
    config["recipe"] = {"name": preset, "paper": "nobody2000"}
    tables = {**result.tables, COMPARISON: compare("nobody2000", result.metrics, result.tables, config)}
    return dataclasses.replace(result, tables=tables, config=config, facts={**result.facts, "model": model})


@pytest.mark.usefixtures("invented")
def test_a_run_shows_a_papers_exhibits_in_order_beside_its_numbers():
    result = of_nobody("/models/mine")
    assert list(result.tables[COMPARISON]["exhibit"]) == ["Table 2", "Section 3"]
    sections = sections_of_paper([Run("this run", "", result)])
    assert [section.title for section in sections] == [
        *("The paper", "Figure 1", "Table 2", "Section 3", "Not shown here")
    ]
    first, figure, table, section, rest = sections
    assert "<code>model.name=mine</code> (the paper: <code>theirs</code>)" in first.content
    assert "dataset" not in first.content
    assert first.remarks == ["Their model was never seen again."]
    assert [measure.id for measure in figure.measures] == ["norms_by_layer", "norms_by_head"]
    assert not table.measures  # drawn above
    assert '<a href="#paper-figure-1">the figure of Figure 1</a>' in table.content
    cells = re.findall(_CELLS, section.content)
    ours = result.metrics["norms/x/cv_mean"]
    assert cells[:4] == ["measure", "published", "this run", "difference"]
    assert cells[4:6] == ["mean coefficient of variation of ‖x‖", "0.500"]
    assert float(cells[6]) == pytest.approx(ours, rel=0.01)
    assert float(cells[7].replace("−", "-")) == pytest.approx(ours - 0.5, abs=0.01)
    assert rest.content.count("<li>") == 1
    assert "<b>Table 9</b>. Mixing: <code>normscope experiment=kobayashi2021_mixing</code>" in rest.content


@pytest.mark.usefixtures("invented")
def test_the_papers_own_model_is_said_to_be_within_the_tolerance_or_not():
    (first, *_, section, _rest) = sections_of_paper([Run("this run", "", of_nobody("theirs"))])
    assert "the model and the data are the paper’s" in first.content
    within = abs(of_nobody("theirs").metrics["norms/x/cv_mean"] - 0.5) <= 0.1
    cells = re.findall(_CELLS, section.content)
    assert cells[4] == "within tolerance"
    assert cells[-1] == ("yes" if within else "no")


@pytest.mark.usefixtures("invented")
def test_the_page_of_a_paper_has_a_column_for_each_model_and_prefers_the_exhibits_preset():
    runs = [
        Run("a", "a/1/report.html", of_nobody("a", preset="another", dataset="other")),
        Run("b", "b/1/report.html", of_nobody("b")),
        Run("a", "a/2/report.html", of_nobody("a")),
    ]
    first, figure, *_, section, _rest = sections_of_paper(runs)
    assert first.content.count("<li>") == 2
    assert "dataset" not in first.content  # of the run that is not shown
    assert [measure.title for measure in figure.measures] == ["a", "a", "b", "b"]
    assert len({measure.id for measure in figure.measures}) == 4
    cells = re.findall(_CELLS, section.content)
    assert cells[:5] == ["measure", "published", "a", "b", "mean coefficient of variation of ‖x‖"]


def lines_of(section) -> list[list[str]]:
    """The cells of a section's first table, by rows."""
    return [re.findall(_CELLS, row) for row in re.findall(r"<tr>(.*?)</tr>", section.content.split("</table>")[0])]


def test_numbers_that_a_paper_prints_as_a_table_are_its_rows_and_columns(invented):
    listed = yaml.safe_load((invented / "nobody2000/exhibits.yaml").read_text())
    rows = {"of f": ["norms/f/mean", "norms/f/cv_mean"], "of x": [None, "norms/x/cv_mean"]}
    listed["exhibits"][2] |= {"columns": ["mean", "CV"], "rows": rows}
    (invented / "nobody2000/exhibits.yaml").write_text(yaml.safe_dump(listed, sort_keys=False))
    groups = yaml.safe_load((invented / "nobody2000/published.yaml").read_text())
    groups[1]["values"] = {"norms/x/cv_mean": 0.5, "norms/f/mean": 1234.0}
    again = groups[1] | {"source": "Nobody, notebook", "values": {"norms/x/cv_mean": 0.123}}
    other = groups[1] | {"source": "Nobody, section 3, more", "values": {"norms/f/cv_mean": 0.25}}
    (invented / "nobody2000/published.yaml").write_text(yaml.safe_dump([*groups, again, other]))
    a, b = of_nobody("a"), of_nobody("theirs")
    section = sections_of_paper([Run("a", "", a), Run("b", "", b)])[3]
    mean, of_f, of_x = (a.metrics[name] for name in ("norms/f/mean", "norms/f/cv_mean", "norms/x/cv_mean"))
    assert lines_of(section) == [
        ["", " ", "mean", "CV"],
        ["of f", "published", "1,234", "0.25"],
        ["", "a", f"{mean:.0f}", f"{of_f:.3f}"],
        ["", "b", f"{mean:.0f}", f"{of_f:.3f}"],
        ["of x", "published", "", "0.50"],
        ["", "published′", "", "0.123"],
        ["", "a", "", f"{of_x:.3f}"],
        ["", "b", "", f"{of_x:.3f}"],
    ]
    assert "published: Nobody, section 3; published′: Nobody, notebook; b: " in section.content
    assert "of 4 within tolerance" in section.content
    assert section.content.count("<table") == 1


@pytest.mark.spread(1)
@pytest.mark.parametrize("same", [True, False])
def test_a_table_of_places_is_printed_beside_our_own_unless_the_weights_have_these_places(same):
    """Table 1 of Maruta & Matsuzaki: 24 rows of 12 heads."""
    *_, group = published("maruta2024")
    *_, exhibit = (one for one in reproduction_of("maruta2024").exhibits if one.exhibit == "Table 1")
    result = reported("score", everything("score"))
    cells = [
        {**row["at"], "head": head, "mean": value + 0.2, "lower": 0.0, "upper": 0.0}
        for row in group["rows"]
        for head, value in enumerate(row["values"], start=1)
    ]
    digest = group["weights"][0] if same else "0" * 64
    config = plain(composed("experiment=maruta2024", "model.name=x", "dataset=stsb", "dataset.path=dev.csv"))
    tables = {**result.tables, "score_contributions": pd.DataFrame(cells)}
    tables[COMPARISON] = compare("maruta2024", {}, tables, config, digest)
    result = dataclasses.replace(
        result, tables=tables, config=config, facts={**result.facts, "files_sha256": digest, "model": "x"}
    )
    section = next(one for one in sections_of_paper([Run("this run", "", result)]) if one.title == exhibit.exhibit)
    head, *lines = lines_of(section)
    assert head == [
        "layer",
        "dimension",
        "category",
        *([" "] if same else []),
        *(f"head {number}" for number in range(1, 13)),
    ]
    printed_lines = lines[::2] if same else lines
    assert len(printed_lines) == 24
    published_line = ["published"] if same else []
    assert printed_lines[0][: 5 + same] == ["2", "308", "[CLS]", *published_line, "11.9", "21.9"]
    assert printed_lines[5][3 : 5 + same] == [*published_line, "0.1", "0.1"]
    assert not same or lines[1][:6] == ["", "", "", "this run", "12.1", "22.1"]
    assert ("288 of 288 within tolerance" in section.content) is same
    assert ("places in the paper’s weights" in section.content) is not same
    assert section.content.count("<table") == (1 if same else 2)  # our own dimensions


@pytest.mark.usefixtures("invented")
def test_runs_of_two_papers_have_no_page():
    other = of_nobody("a")
    other = dataclasses.replace(other, config={**other.config, "recipe": {"name": None, "paper": None}})
    with pytest.raises(
        InputError, match=r"expected runs of the presets of one paper, got recipe.paper=None and nobody2000"
    ):
        page_of_paper({Path("1"): of_nobody("a"), Path("2"): other}, Path())


def test_a_paper_without_a_list_has_the_exhibits_of_its_numbers(invented):
    (invented / "nobody2000/exhibits.yaml").unlink()
    assert reproduction_of("nobody2000").exhibits == [
        Exhibit("Table 2", "Nobody, Table 2"),
        Exhibit("Section 3", "Nobody, section 3"),
        Exhibit("Table 9", "Nobody, Table 9"),
    ]


def test_what_differs_is_told_by_the_conditions_that_a_run_comes_closest_to():
    run = Result(config=plain(composed("experiment=kobayashi2021_mixing", "dataset.name=sst2")))
    assert differences("kobayashi2021", ["Mixing ratios"], run) == {"dataset.name": ("sst2", ["wikipedia"])}
    assert differences("kobayashi2021", ["Mixing ratios of other models"], run) == {}
    both = differences("kobayashi2021", ["Mixing ratios", "Section 4.3"], run)
    assert both == {"dataset.name": ("sst2", ["wikipedia"]), "dataset.mask_fraction": (0.12, [0.0])}


@pytest.mark.parametrize(("digest", "said"), [("0" * 64, True), ("1" * 64, False), (None, True)])
def test_numbers_of_places_in_weights_are_of_these_weights(invented, digest, said):
    groups = yaml.safe_load((invented / "nobody2000/published.yaml").read_text())
    groups[1] |= {"weights": ["1" * 64], "when": {}}
    (invented / "nobody2000/published.yaml").write_text(yaml.safe_dump(groups))
    result = of_nobody("mine")
    result = dataclasses.replace(result, facts={**result.facts, "files_sha256": digest})
    found = differences("nobody2000", ["Section 3"], result)
    assert found == ({"model.name": ("mine", ["its own weights"])} if said else {})


@pytest.mark.reports
def test_a_figure_of_the_paper_is_drawn_once_and_findings_lead_to_it(invented):
    listed = invented / "nobody2000/exhibits.yaml"
    listed.write_text(listed.read_text().replace("norms_by_*", "norms_shares"))
    content = page(of_nobody("mine"))
    assert content.count('<figure id="norms_shares">') == 1
    assert 'href="#norms_shares"' in content
    assert content.index('id="paper"') < content.index('id="paper-figure-1"') < content.index('id="findings"')


@pytest.mark.usefixtures("invented")
@pytest.mark.reports
def test_page_of_several_runs(capsys, monkeypatch, tmp_path):
    for name in ("a", "b"):
        of_nobody(name).save(tmp_path / name)
    output = tmp_path / "new" / "paper.html"
    outcome = run_here(capsys, monkeypatch, "page", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(output))
    assert (outcome.status, outcome.out) == (0, f"{output}\n"), outcome.err
    content = output.read_text()
    assert "<h1>Nobody 2000</h1>" in content
    assert "repeated with a and b" in content
    assert f'href="{os.path.join("..", "a", "report.html")}#' not in content  # the exhibits have no tables
    assert content.count("<figure id=") == 4
    empty = run_here(capsys, monkeypatch, "page", str(tmp_path / "a"), str(tmp_path / "nothing"))
    assert (empty.status, empty.err.count("\n")) == (2, 1)


@pytest.mark.usefixtures("invented")
def test_a_comparison_of_an_earlier_version_has_no_exhibits():
    result = of_nobody("mine")
    old = result.tables[COMPARISON].drop(columns="exhibit")
    result = dataclasses.replace(result, tables={**result.tables, COMPARISON: old}, figures={})
    assert isinstance(old, pd.DataFrame)
    assert [section.title for section in sections_of_paper([Run("this run", "", result)])] == [
        "The paper",
        "Not shown here",
    ]


def test_counts_in_a_column_of_other_numbers_keep_their_digits():
    shown = table(pd.DataFrame({"x": [17_443_296.0, 17_443_296.5, -0.34, 12.0, float("inf")]}), "")
    assert re.findall(r"<td>([^<]*)</td>", shown) == ["17,443,296", "1.74×10⁷", "−0.340", "12.0", "∞"]
