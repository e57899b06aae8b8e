"""Imports point one way (CONTRIBUTING.md, 'Architecture')."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "normscope"
FILES = sorted(SOURCE.rglob("*.py"))

# What each package may import of ours, beside itself and `errors`.
ALLOWED = {
    "maths": set(),
    "statistics": {"maths"},
    "models": {"maths", "schema", "network"},
    "data": {"schema", "network", "analysis_options", "maths.symmetrisation"},
    "translation": {"data"},
    "analyses": {
        "maths",
        "statistics",
        "models.block",
        "data.batching",
        "data.categories",
        "data.frequency",
        "data.gold",
        "data.links",
        "analysis_options",
    },
    "reporting": {"analyses.findings", "schema"},
}

# Who may know a library.
OWNERS = {
    "hydra": {"schema.py", "command_line.py"},
    "wandb": {"reporting/tracking.py"},
    "matplotlib": {"reporting/figures.py", "reporting/figure_text.py", "reporting/palette.py"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
    return found


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_arrows(path):
    package = path.relative_to(SOURCE).parts[0]
    if package not in ALLOWED:
        return
    for module in imports(path):
        if not module.startswith("normscope."):
            continue
        target = module.removeprefix("normscope.")
        allowed = ALLOWED[package] | {package, "errors"}
        assert any(target == prefix or target.startswith(prefix + ".") for prefix in allowed), f"{name(path)}: {module}"


@pytest.mark.parametrize("library", OWNERS)
def test_libraries_have_owners(library):
    users = {name(path) for path in FILES if any(module.split(".")[0] == library for module in imports(path))}
    assert users == OWNERS[library]


def test_maths_imports_torch_alone():
    for path in (SOURCE / "maths").glob("*.py"):
        outside = {module.split(".")[0] for module in imports(path)} - {"normscope", "torch", "jaxtyping"}
        assert outside <= {"enum", "typing", "math", "dataclasses", "collections", "functools"}, path


def test_analyses_know_no_model_library():
    for path in (SOURCE / "analyses").glob("*.py"):
        assert not {module.split(".")[0] for module in imports(path)} & {"transformers", "datasets", "wandb", "hydra"}


def test_only_models_knows_an_architecture():
    for path in FILES:
        if "models" not in path.parts:
            assert "model_type" not in path.read_text(), path


def test_files_hold_one_idea():
    long = {name(path): lines for path in FILES if (lines := len(path.read_text().splitlines())) > 300}
    assert not long
