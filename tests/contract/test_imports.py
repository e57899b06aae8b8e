"""Imports point one way (CONTRIBUTING.md, 'Architecture')."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "normscope"

# What each package, and each module outside them, may import of ours, besides itself and `errors`.
ALLOWED = {
    "__init__": {"decomposition"},
    "errors": set(),
    "analysis_options": set(),
    "network": set(),
    "signals": set(),
    "schema": {"analysis_options"},
    "checks": {"analysis_options", "maths.symmetrisation", "schema"},
    "tracking_environment": {"checks", "reporting.terminal", "schema"},
    "given_texts": {"data", "models.loaded", "schema"},
    "earlier_runs": {"schema"},
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
    "arguments": set(),
    "reporting": {"analyses.findings", "arguments", "schema"},
    "accounts": {"data", "models", "reporting", "schema"},
    "checkpoints": {"analyses.analysis", "data.batching", "reporting.run_folder"},
    "processes": {"analyses.analysis", "checkpoints", "data", "schema"},
    "laboratory": {"analyses.laboratory", "data", "models", "reporting.terminal"},
    "observation": {
        "analyses.analysis",
        "checkpoints",
        "data",
        "models",
        "reporting.terminal",
        "signals",
        "statistics",
    },
    "exploration": {"checks", "data", "maths", "models", "reporting.explorer", "schema"},
    "decomposition": {
        "analyses.findings",
        "data",
        "exploration",
        "given_texts",
        "maths",
        "models",
        "reporting.figures",
        "schema",
    },
    "link_scores": {"arguments", "data", "maths"},
    "preparation": {
        "accounts",
        "analyses",
        "analysis_options",
        "checkpoints",
        "checks",
        "data",
        "exploration",
        "models",
        "processes",
        "reporting.terminal",
        "schema",
        "translation",
    },
    "publication": {"accounts", "analyses.findings", "exploration", "preparation", "reporting", "schema"},
    "pipeline": {
        "accounts",
        "analyses.findings",
        "checkpoints",
        "checks",
        "laboratory",
        "models.loaded",
        "observation",
        "preparation",
        "processes",
        "publication",
        "reporting",
        "schema",
        "signals",
        "tracking_environment",
    },
    "unknown_keys": {"schema"},
    "command_line": {
        "checks",
        "data.sources",
        "earlier_runs",
        "pipeline",
        "reporting",
        "schema",
        "signals",
        "unknown_keys",
    },
}

# Who may know a library.
OWNERS = {
    "hydra": {"schema.py", "command_line.py"},
    "wandb": {"reporting/tracking.py"},
    "matplotlib": {"reporting/figures.py", "reporting/figure_text.py", "reporting/palette.py"},
}


def files(source: Path) -> list[Path]:
    return sorted(source.rglob("*.py"))


def name(path: Path, source: Path = SOURCE) -> str:
    return path.relative_to(source).as_posix()


def unit(path: Path, source: Path) -> str:
    """The package, or the module outside the packages, that a file belongs to."""
    return path.relative_to(source).with_suffix("").parts[0]


def imports(path: Path, source: Path) -> set[str]:
    """Names of the modules that a file imports; `from normscope import x` imports normscope.x where that is a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                place = source.parent.joinpath(*module.split("."), alias.name)
                is_module = place.with_suffix(".py").exists() or (place / "__init__.py").exists()
                found.add(f"{module}.{alias.name}" if is_module else module)
    return found


def violations(source: Path, allowed: dict[str, set[str]]) -> Iterator[str]:
    """Imports against the arrows in a source tree: 'file: module'."""
    for path in files(source):
        for module in imports(path, source):
            if module.startswith("."):
                yield f"{name(path, source)}: {module} (imports are absolute)"
            elif module.split(".")[0] == source.name:
                target = module.removeprefix(source.name).removeprefix(".") or "__init__"
                own = unit(path, source)
                may = allowed.get(own, set()) | {own, "errors"}
                if not any(target == prefix or target.startswith(f"{prefix}.") for prefix in may):
                    yield f"{name(path, source)}: {module}"


def libraries(path: Path, source: Path = SOURCE) -> set[str]:
    return {module.split(".")[0] for module in imports(path, source)}


def knows_an_architecture(source: Path) -> set[str]:
    return {name(path, source) for path in files(source) if "model_type" in path.read_text()}


def test_imports_follow_the_arrows():
    assert list(violations(SOURCE, ALLOWED)) == []


def test_every_module_has_its_arrows():
    assert {unit(path, SOURCE) for path in files(SOURCE)} == set(ALLOWED)


def test_the_arrows_make_no_circle():
    arrows = {source: {target.split(".")[0] for target in targets} for source, targets in ALLOWED.items()}
    assert len(list(graphlib.TopologicalSorter(arrows).static_order())) == len(ALLOWED)


@pytest.fixture
def tree(tmp_path) -> Path:
    """A small source tree in a checkout whose folders have the names of packages."""
    source = tmp_path / "models" / "maths" / "src" / "normscope"
    for file, text in {
        "__init__.py": "def load(): from normscope import pipeline",
        "errors.py": "",
        "pipeline.py": "import normscope.maths.norms\nfrom normscope.models import block",
        "maths/__init__.py": "",
        "maths/norms.py": "import torch\nfrom normscope.errors import InputError\nfrom normscope.maths import norms",
        "models/__init__.py": "",
        "models/block.py": "from normscope.maths.norms import pair_norms",
    }.items():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_text(text)
    return source


ARROWS = {"__init__": {"pipeline"}, "maths": set(), "models": {"maths.norms"}, "pipeline": {"maths", "models"}}


def test_a_tree_that_follows_the_arrows_passes(tree):
    assert list(violations(tree, ARROWS)) == []


@pytest.mark.parametrize(
    ("file", "line", "module"),
    [
        ("maths/norms.py", "from normscope.models.block import Block", "normscope.models.block"),
        ("maths/norms.py", "from normscope import models", "normscope.models"),
        ("maths/norms.py", "from normscope import errors, pipeline", "normscope.running.pipeline"),
        ("maths/norms.py", "import normscope.running.pipeline as p", "normscope.running.pipeline"),
        ("maths/norms.py", "import normscope", "normscope"),
        ("maths/norms.py", "from normscope import load", "normscope"),
        ("maths/norms.py", "def late():\n    from normscope import pipeline", "normscope.running.pipeline"),
        ("maths/norms.py", "from ..models import block", "..models"),
        ("models/block.py", "from normscope.maths import norms_of_something_else", "normscope.maths"),
        ("models/block.py", "import normscope.mathsomething", "normscope.mathsomething"),
        ("errors.py", "from normscope import pipeline", "normscope.running.pipeline"),
        ("errors.py", "import normscope.maths.norms", "normscope.maths.norms"),
        ("pipeline.py", "import normscope", "normscope"),
        ("new.py", "import normscope.maths.norms", "normscope.maths.norms"),
    ],
)
def test_a_planted_violation_is_found(tree, file, line, module):
    with (tree / file).open("a") as text:
        text.write(f"\n{line}\n")
    (found,) = violations(tree, ARROWS)
    assert found.removesuffix(" (imports are absolute)") == f"{file}: {module}"


def test_a_planted_library_or_architecture_is_found(tree):
    (tree / "maths/norms.py").write_text("def late():\n    from wandb.sdk import wandb_run\n    return 'model_type'\n")
    assert libraries(tree / "maths/norms.py", tree) == {"wandb"}
    assert knows_an_architecture(tree) == {"maths/norms.py"}


@pytest.mark.parametrize("library", OWNERS)
def test_libraries_have_owners(library):
    assert {name(path) for path in files(SOURCE) if library in libraries(path)} == OWNERS[library]


def test_maths_imports_torch_alone():
    standard = {"enum", "typing", "math", "dataclasses", "collections", "functools"}
    for path in files(SOURCE / "maths"):
        assert libraries(path) <= {"normscope", "torch", "jaxtyping"} | standard, path


def test_analyses_know_no_model_library():
    for path in files(SOURCE / "analyses"):
        assert not libraries(path) & {"transformers", "datasets", "wandb", "hydra"}, path


def test_only_models_knows_an_architecture():
    assert {file.split("/")[0] for file in knows_an_architecture(SOURCE)} == {"models"}


def test_files_hold_one_idea():
    long = {name(path): lines for path in files(SOURCE) if (lines := len(path.read_text().splitlines())) > 300}
    assert not long
