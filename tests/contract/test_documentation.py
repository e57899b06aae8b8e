"""The documentation is complete: keys are described, pages build, commands compose, and nothing is loaded from elsewhere."""

import html
import logging
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs.hooks.config_keys import keys
from normscope.analyses.registry import analyses
from normscope.maths.mixing import Method
from normscope.reporting.run_tables import RUN_TABLES
from normscope.running.options import check
from tests.contract.test_configs import PRESETS, ROOT, composed
from tests.end_to_end.shell import run_once
from tests.tiny import FAMILY_CONFIGS, STACK_CONFIGS

PAGES = sorted(path for path in (ROOT / "docs").rglob("*.md"))
READMES = [ROOT / "README.md", *sorted((ROOT / "experiments").glob("*/README.md"))]


@pytest.mark.parametrize("key", keys(), ids=lambda key: key.name)
def test_every_key_is_described(key):
    assert re.match(r"[A-Z`]", key.meaning), f"{key.name} has no description below it in the schema"
    assert key.meaning.endswith((".", ".)")), key.name


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
    pages = {name: text_of(site / "reference" / f"{name}.html") for name in ("keys", "presets", "tables", "models")}
    for key in keys():
        assert f"<code>{key.name}</code>" in pages["keys"]
    for preset in PRESETS:
        if preset.parent.name != "hydra":
            assert f"<code>{preset.stem}</code>" in pages["presets"]
    tables = {
        f"{name}_{table}": info for name, one in analyses().items() for table, info in one.published.tables.items()
    }
    for name, table in (tables | RUN_TABLES).items():
        assert f"<code>{name}</code>" in pages["tables"]
        for column, meaning in table.columns.items():
            assert f"<code>{column}</code>" in pages["tables"]
            assert re.sub(r"`[^`]*`", "", meaning).split(".")[0] in re.sub(r"<code>.*?</code>", "", pages["tables"])
    for name in [*FAMILY_CONFIGS, *STACK_CONFIGS]:
        assert f"<code>{name}</code>" in pages["models"]


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
@pytest.mark.spread(18)
def test_every_command_composes(page, words):
    assert page
    # A folder, runs and checkpoints of the reader's.
    if (
        "--config-dir" in words
        or words[:1] == ["merge"]
        or any(word.startswith("model.checkpoints=") for word in words)
    ):
        words = []
    if words[:1] == ["explain"]:  # its text may be anything
        words = words[2:]
    words = words[1:] if words[:1] == ["serve"] else words
    overrides = [word for word in words if word not in ("-m", "--help", "prepare")]
    parsed = OverridesParser.create().parse_overrides(overrides)
    swept = [override for override in parsed if override.is_sweep_override()]
    assert bool(swept) == ("-m" in words)
    first = {override.input_line: override for override in swept}
    chosen = [
        f"{first[text].get_key_element()}={next(first[text].sweep_string_iterator())}" if text in first else text
        for text in overrides
    ]
    check(composed(*chosen))


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 180


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.split()[:6] == ["method", *Method]
    assert (tmp_path / "map.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", ["tutorials/python.md", "measures/attribution.md"])
@pytest.mark.spread(1)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)
    assert len(blocks) > 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


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
    for page in ("index.md", "measures/mixing.md"):
        assert claim in (ROOT / "docs" / page).read_text()


def test_every_file_that_the_readme_links_to_exists():
    for readme in READMES:
        for target in re.findall(r"\]\(([^)#\s]+)", readme.read_text()):
            if not target.startswith(("http:", "https:")):
                assert (readme.parent / target).exists(), f"{readme}: {target}"
