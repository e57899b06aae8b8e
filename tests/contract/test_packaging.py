"""What the project installs, and what it says about itself, agree wherever they are written down."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.end_to_end.shell import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [*map(Requirement, lines)] for name, lines in PROJECT["optional-dependencies"].items()}
DEPENDENCIES = [*map(Requirement, PROJECT["dependencies"])]

# What other libraries import for us (CONTRIBUTING.md has the reasons), and what is data or a command.
NOT_IMPORTED = {"accelerate", "sacremoses", "sentencepiece"}
# Distributions whose name is not their module's.
MODULES = {"huggingface-hub": "huggingface_hub", "hydra-core": "hydra", "pyyaml": "yaml"}


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins.items()}


def _conda() -> Iterator[Requirement]:
    names = {"pytorch": "torch", "matplotlib-base": "matplotlib", "huggingface_hub": "huggingface-hub"}
    for line in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]:
        if isinstance(line, str):
            requirement = Requirement(line)
            requirement.name = names.get(requirement.name, requirement.name)
            yield requirement


def test_the_pinned_versions_are_those_that_conda_and_every_extra_allow():
    pins = _pins()
    conda = [requirement for requirement in _conda() if requirement.name not in ("python", "pip")]
    assert {requirement.name for requirement in conda} == {r.name for r in DEPENDENCIES} - {"syntok"}
    for requirement in (*conda, *DEPENDENCIES, *(each for extra in EXTRAS.values() for each in extra)):
        pinned = pins.get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement} is not in constraints.txt"
        assert requirement.specifier.contains(pinned), f"{requirement}: constraints.txt has {pinned}"


def test_every_import_is_a_dependency_and_every_dependency_is_imported():
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").split(".")[0])
    imported -= {*sys.stdlib_module_names, "normscope"}
    modules = {MODULES.get(requirement.name, requirement.name) for requirement in DEPENDENCIES}
    extras = {re.sub("-", "_", each.name) for name, extra in EXTRAS.items() if name != "dev" for each in extra}
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


@pytest.mark.parametrize("name", sorted(set(EXTRAS) - {"aligners"}))
def test_the_extras_are_installed_where_the_tests_run(name):
    for requirement in EXTRAS[name]:
        assert requirement.specifier.contains(metadata.version(requirement.name)), requirement
