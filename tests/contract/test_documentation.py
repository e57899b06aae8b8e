"""The documentation is complete: keys are described, pages build, commands compose, and nothing is loaded from elsewhere."""

import html
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from mkdocs.commands.build import build
from mkdocs.config import load_config

from normscope.analyses.registry import analyses
from normscope.cli.command_line import VIEWS, asked_of, attention_keys
from normscope.maths.mixing import Method
from normscope.reporting import viewing
from normscope.reporting.comparison import wandb_report
from normscope.results.run_tables import RUN_TABLES
from normscope.running.options import SCHEMA, check
from tests.contract.test_configs import PRESETS, ROOT, composed
from tests.end_to_end.browser import needs_browser, opened
from tests.end_to_end.shell import run_once
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS

PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
READMES = [ROOT / "README.md", *sorted((ROOT / "experiments").glob("*/README.md"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built strictly: a broken link or anchor, a page outside the navigation or a missing snippet fails."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        for event in config.plugins.events["startup"]:
            event(command="build", dirty=False)
        try:
            build(config)
        finally:
            for event in config.plugins.events["shutdown"]:
                event()
            logging.getLogger("mkdocs").handlers.clear()
    return folder


def text_of(page: Path) -> str:
    return html.unescape(page.read_text())


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        for tag in re.findall(r"<(?:script|link|img|iframe|source|video|audio|object|embed)\b[^>]*>", page.read_text()):
            assert not re.search(r"""(?:src|href|data|srcset)=["']?(?:https?:)?//""", tag), f"{page.name}: {tag}"
        assert 'class="mermaid"' not in page.read_text()  # its script would come from elsewhere
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.slow
def test_every_formula_is_mathml(site):
    for page in site.rglob("*.html"):
        assert "arithmatex" not in page.read_text(), f"{page.name} has a formula in TeX"
    assert "<mfrac>" in (site / "measures" / "mixing.html").read_text()


@pytest.mark.slow
def test_every_key_preset_table_column_and_family_is_on_its_page(site):
    pages = {name: text_of(site / "reference" / f"{name}.html") for name in ("keys", "tables", "models")}
    for key in SCHEMA.keys.values():
        assert f"<code>{key.name}</code>" in pages["keys"]
    for preset in PRESETS:
        if preset.parent.name != "hydra":
            assert f"<code>{preset.stem}</code>" in pages["keys"]
    tables = {
        f"{name}_{table}": info for name, one in analyses().items() for table, info in one.declared.tables.items()
    }
    for name, table in (tables | RUN_TABLES).items():
        assert f"<code>{name}</code>" in pages["tables"]
        for column, meaning in table.columns.items():
            assert f"<code>{column}</code>" in pages["tables"]
            assert re.sub(r"`[^`]*`", "", meaning).split(".")[0] in re.sub(r"<code>.*?</code>", "", pages["tables"])
    for name in [*FAMILY_CONFIGS, *STACK_CONFIGS]:
        assert f"<code>{name}</code>" in pages["models"]


@pytest.mark.slow
def test_the_gallery_has_every_figure_once(site):
    page = (site / "gallery.html").read_text()
    for picture in (ROOT / "docs" / "images").glob("*.png"):
        assert len(re.findall(rf'<img src="[^"]*/{picture.name}"', page)) == 1, picture.name


@pytest.mark.slow
def test_pages_lead_to_the_next_and_the_previous(site):
    page = (site / "tutorials" / "own-model.html").read_text()
    links = dict(re.findall(r'<a href="([^"]*)" class="md-footer__link md-footer__link--(prev|next)"', page))
    assert links == {"live.html": "prev", "own-text.html": "next"}


@pytest.mark.slow
@needs_browser
def test_search_works_in_a_folder(site):
    shown, console = opened(site / "index.html", "?q=outlier")
    assert not [line for line in console if "Failed" not in line and "error" in line.lower()]
    found = re.search(r'class="md-search-result__meta">\s*(\d+) matching documents', shown)
    assert found is not None
    assert int(found[1]) > 3
    assert re.search(r'href="[^"]*measures/outliers\.html', shown)


def test_every_measure_has_a_page_with_its_formula_and_a_picture():
    for name, info in analyses().items():
        page = ROOT / "docs" / "measures" / f"{name}.md"
        assert page.exists(), f"docs/measures/{name}.md is missing"
        text = page.read_text()
        assert "$$" in text, name
        # No treebank comes with the project from which a picture could be drawn.
        assert "![" in text or info.requires_annotation, name
        assert f"tables.md#{info.name}" in text, name


def commands() -> list[tuple[str, list[str]]]:
    """Every command of ours in a block of code, with the file that shows it."""
    shown = []
    for page in [*PAGES, *READMES]:
        for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.match(r"(normscope|python run\.py)(?= |$)", line)
                if command:
                    shown.append((page.name, shlex.split(line[command.end() :], comments=True)))
    return shown


@pytest.mark.parametrize(
    ("page", "words"), commands(), ids=lambda value: " ".join(value) if isinstance(value, list) else value
)
@pytest.mark.spread(3)
def test_every_command_composes(page, words, monkeypatch):
    assert page
    # A folder, runs and checkpoints of the reader's.
    if "--config-dir" in words or any(word.startswith("model.checkpoints=") for word in words):
        words = []
    asked, words = asked_of(words)
    if asked.command == "attention":
        _, words = attention_keys(words)
    if asked.command in VIEWS:  # their words are no overrides
        monkeypatch.setattr(viewing, "draw_again", lambda folder: folder)
        monkeypatch.setattr(viewing, "draw_paper", lambda folders, _: folders[0])
        monkeypatch.setattr(viewing, "_compared", lambda *_: (asked.runs[0], None))
        monkeypatch.setattr(viewing.runs, "read", lambda *_: ({}, []))
        monkeypatch.setattr(viewing, "verdict", lambda *_: [])
        monkeypatch.setattr(wandb_report, "uploaded", lambda *_: "address")
        assert viewing.command(asked) == asked.runs[0]
        return
    overrides = [word for word in words if word != "-m"]
    parsed = OverridesParser.create().parse_overrides(overrides)
    swept = [override for override in parsed if override.is_sweep_override()]
    assert bool(swept) == ("-m" in words)
    first = {override.input_line: override for override in swept}
    chosen = [
        f"{first[text].get_key_element()}={next(first[text].sweep_string_iterator())}" if text in first else text
        for text in overrides
    ]
    check(composed(*chosen))


@pytest.mark.slow
@pytest.mark.draws
@pytest.mark.parametrize(
    ("page", "heading"), [("guides/papers.md", "Figures"), ("tutorials/own-text.md", "Words instead of tokens")]
)
def test_the_commands_of_a_section_run_as_they_stand(page, heading, tmp_path):
    """In an empty folder, in the order of the section, on fewer texts if they are those of the sample corpus."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", (ROOT / "docs" / page).read_text(), re.M | re.S)
    every = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.M | re.S)
    blocks = [block for language, block in every if language in ("", "sh", "bash")]
    (tmp_path / "normscope").write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/run.py "$@" tracking=disabled\n')
    (tmp_path / "normscope").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    assert blocks
    for block in blocks:
        shown = re.sub(r"^(normscope (?!reproduce|.*dataset).*)$", r"\1 dataset.limit=8", block, flags=re.M)
        ran = subprocess.run(["bash", "-euc", shown], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, f"{block}\n{ran.stderr}"


def test_folders_of_runs_are_made_on_the_page_that_reads_them():
    for page in PAGES:
        text = page.read_text()
        assert not re.search(r"outputs/(?:multirun/)?[A-Z]", text), f"{page.name} has a placeholder for a folder"
        made = {folder for _, folder in re.findall(r"(output_dir=|--output |= \")(outputs/[a-z]+)", text)}
        read = set(re.findall(r"\b(outputs/[a-z]+)", re.sub(r"(output_dir=|--output |= \")outputs/", "", text)))
        read -= {"outputs/multirun"}  # which sweeps make
        read -= {"outputs/papers", "outputs/real"}  # which `make papers` and experiments/real_weights make
        assert read <= made, f"{page.name} reads folders that nothing on it makes"


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 180


@pytest.mark.slow
@pytest.mark.draws
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert " ".join(Method) in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "map.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("tutorials/python.md", 3),
        ("tutorials/live.md", 1),
        ("measures/attribution.md", 3),
        ("guides/attention.md", 2),
        ("guides/papers.md", 1),
        ("tutorials/own-text.md", 1),
    ],
)
def test_the_python_of_a_page_runs(page, number, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)
    assert len(blocks) >= number
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


@pytest.mark.slow
def test_the_tutorial_of_retrievers_says_what_its_code_prints(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "measures" / "similarity.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code, printed in re.findall(r"^```python\n(.*?)^```\n+(?:```\n(.*?)^```)?", page, re.M | re.S):
        exec(compile(code, "similarity.md", "exec"), names)
        shown = capsys.readouterr().out
        assert not printed or shown == printed
    words = names["found"].tables["words"].set_index("token")["total"]
    for word, total in re.findall(r"\*(\w+)\* (0\.\d\d) in", page):
        assert f"{words[word]:.2f}" == total


@pytest.mark.slow
def test_the_readme_says_what_the_first_run_says(tmp_path):
    readme = (ROOT / "README.md").read_text()
    outcome = run_once("tracking=disabled", f"output_dir={tmp_path}/run")
    assert outcome.status == 0, outcome.err
    printed = "\n".join(line.rstrip() for line in outcome.out.splitlines())
    (shown,) = re.findall(r"^```\n(How much of .*?)^```", readme, re.M | re.S)
    assert shown in printed
    assert shown in (ROOT / "docs" / "tutorials" / "first-run.md").read_text()
    table = pd.read_parquet(tmp_path / "run" / "tables" / "mixing_by_layer.parquet").set_index("method")
    ranges = []
    for method in (Method.ATTN_W, Method.ATTNRESLN_N):
        for is_cls in (False, True):
            rows = table.loc[method]
            ratios = 100 * rows["mean"][(rows["category"] == "cls") == is_cls]
            ranges.append((f"{ratios.min():.0f}", f"{ratios.max():.0f}"))
    claim = re.search(r"\*Mixing ratios: how much of a token's.*?\*", readme, re.S).group()
    assert re.findall(r"(\d+) (?:to|and) (\d+)%", claim) == ranges
    assert claim in (ROOT / "docs" / "measures" / "mixing.md").read_text()


def test_the_readme_asks_what_reports_open_with():
    """It need not have every analysis: the site's tables are made from the declarations."""
    rows = re.findall(r"^\| \[`(\w+)`\]\(docs/measures/(\w+)\.md\) \| (.*?) \|", (ROOT / "README.md").read_text(), re.M)
    assert rows
    for name, page, question in rows:
        assert (page, question) == (name, analyses()[name].question)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "measures/index.html"])
def test_pages_list_every_analysis(site, page):
    text = text_of(site / page)
    for name, info in analyses().items():
        assert re.search(rf'href="[^"]*\b{name}\.html">{re.escape(info.title)}</a>', text)
        assert info.question in text


def test_every_file_that_the_readme_links_to_exists():
    for readme in READMES:
        for target in re.findall(r"\]\(([^)#\s]+)", readme.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (readme.parent / target).exists(), f"{readme}: {target}"
