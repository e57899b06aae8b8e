"""Imports point one way (CONTRIBUTING.md, 'Layout of the repository')."""

import ast
import functools
import graphlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from normscope.analyses.registry import analyses
from tests.source import parsed

SOURCE = Path(__file__).parents[2] / "src" / "normscope"

# Parts of the source, by the modules that belong to each; a module belongs to the first that matches. A module named nowhere
# here belongs to the package, or root module, that it is in.
PARTS = {
    # What analyses declare about themselves, and the options of each.
    "declarations": r"results\.(axes|codes|declare)"
    r"|analyses\.(info|papers|registry|declarations(\.\w+)?)",
    # The options of each room, with the rules for their values.
    "options": r"(data|models|reporting)\.options",
}

# What each part may import of ours besides itself, `errors`, `rounding`, `streams` and `untrusted`: parts, or modules below a
# prefix.
ALLOWED = {
    "errors": set(),
    "distribution": set(),
    "rounding": set(),
    "untrusted": set(),
    "streams": set(),
    "config": set(),
    "options": {"config"},
    "declarations": {"config", "maths.choices"},
    "maths": set(),
    "linear": {"maths"},
    "statistics": {"maths"},
    "data": {"options", "maths.tensors", "maths.partition"},
    "models": {"options", "config", "data", "distribution", "linear", "maths"},
    "results": {"config.calls", "declarations", "distribution", "statistics.tidy"},
    "analyses": {
        "attribution",
        "data",
        "declarations",
        "maths",
        "models.blocks.block",
        "models.observe.feed_forward",
        "models.facts",
        "models.load.interventions",
        "models.observe.reading",
        "models.blocks.grouped_block",
        "results",
        "statistics",
    },
    "attribution": {"linear", "maths", "models"},
    "alignment": {
        "analyses.base",
        "analyses.finite",
        "attribution.smooth_gradients",
        "data",
        "declarations",
        "maths",
        "models.blocks.block",
        "models.facts",
        "models.load.interventions",
        "results",
        "statistics",
    },
    "reporting": {
        "options",
        "config",
        "declarations",
        "distribution",
        "results",
        "statistics.intervals",
        "untrusted",
    },
    "translation": {"config", "data"},
    "running": {
        "options",
        "analyses.base",
        "config",
        "data",
        "declarations",
        "distribution",
        "maths",
        "models",
        "reporting",
        "results",
        "translation",
    },
    "api": {
        "options",
        "running.options",
        "attribution",
        "config",
        "data",
        "declarations",
        "maths",
        "models",
        "reporting.tracker",
        "results",
        "running.facts",
        "running.pipeline",
        "running.memory",
        "running.token_maps",
        "statistics.rank_correlation",
        "statistics.tidy",
    },
    "checkup": {
        "options",
        "data",
        "declarations",
        "linear.layer_calls",
        "maths",
        "models",
        "reporting.page",
        "results",
        "running.options",
        "running.pipeline",
        "running.progress",
        "statistics.intervals",
    },
    "cli": {
        "checkup.command",
        "declarations",
        "options",
        "config",
        "data.corpora",
        "distribution",
        "live",
        "reporting",
        "results",
        "running",
    },
    "live": {
        "api",
        "attribution.embeddings",
        "attribution.readouts",
        "config",
        "data.source_files",
        "declarations",
        "maths.choices",
        "models",
        "options",
        "reporting.page.explorer",
        "reporting.page.live_page",
        "reporting.page.report",
        "reporting.page.source_view",
        "results",
        "running.options",
        "running.progress",
    },
    "__main__": {"cli"},
    "testing": {
        "analyses.base",
        "declarations",
        "reporting",
        "results",
        "running",
        "__init__",
    },
    "__init__": {"api", "distribution", "live.notebook", "reporting.viewing", "results"},
}

# What a newcomer may skip, and the only modules outside that import it: one for each, which loads it where a run needs it.
LEAVES = {
    "alignment": set(),  # its declaration names it
    "data.conversations": {"data.encoding", "data.rows", "models.load.text_batches"},
    "live.command": {"cli"},
    "live.notebook": {"__init__"},
    "models.stored.offloading": {"models.load.loading"},
    "reporting.comparison": {"cli", "cli.sweep", "reporting.viewing"},
    "translation": {"running.plan"},
}

# Who may know a library.
OWNERS = {
    "hydra": {"cli/__init__.py", "cli/command_line.py"},
    "wandb": {"reporting/weights_and_biases.py"},
    "starlette": {"live/server.py"},
    "uvicorn": {"live/server.py"},
    "matplotlib": {
        "reporting/drawing.py",
        "reporting/figure_text.py",
        "reporting/figures/coloured_text.py",
        "reporting/palette.py",
        *(
            f"reporting/figures/{kind}.py"
            for kind in (
                "dots",
                "heatmaps",
                "layout",
                "lines",
                "patch_maps",
                "profiles",
                "scatter",
                "sound_maps",
                "style",
                "word_maps",
            )
        ),
    },
}

# The rooms and modules of `models`, from the ground up; each may import those before it.
FLOORS = ("options", "stored", "probes", "blocks", "facts", "observe", "prove", "load")


def files(source: Path) -> list[Path]:
    return sorted(source.rglob("*.py"))


def name(path: Path, source: Path = SOURCE) -> str:
    return path.relative_to(source).as_posix()


def part(module: str, parts: Mapping[str, str]) -> str:
    """The part of the house that a module belongs to; its name is without the package's."""
    return next((part for part, pattern in parts.items() if re.fullmatch(pattern, module)), module.split(".")[0])


def module_of(path: Path, source: Path) -> str:
    """The module in a file, without the package's name."""
    module = ".".join(path.relative_to(source).with_suffix("").parts)
    return module if module == "__init__" else module.removesuffix(".__init__")


def imports(path: Path, source: Path) -> set[str]:
    """Names of the modules that a file imports; `from normscope import x` imports normscope.x where that is a module."""
    return _imports(path.read_text(), source)


@functools.cache
def _imports(text: str, source: Path) -> set[str]:
    found = set()
    for node in running(parsed(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                place = source.parent.joinpath(*module.split("."), alias.name)
                is_module = place.with_suffix(".py").exists() or (place / "__init__.py").exists()
                found.add(f"{module}.{alias.name}" if is_module else module)
    return found


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module but those that only type checkers see."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from running(child)


def violations(source: Path, allowed: Mapping[str, set[str]], parts: Mapping[str, str]) -> Iterator[str]:
    """Imports against the arrows in a source tree: 'file: module'."""
    for path in files(source):
        own = part(module_of(path, source), parts)
        may = allowed.get(own, set()) | {own, "errors", "rounding", "streams", "untrusted"}
        for module in imports(path, source):
            if module.startswith("."):
                yield f"{name(path, source)}: {module} (imports are absolute)"
            elif module.split(".")[0] == source.name:
                target = module.removeprefix(source.name).removeprefix(".") or "__init__"
                below = any(target == prefix or target.startswith(f"{prefix}.") for prefix in may - parts.keys())
                belongs = part(target, parts)
                if not (belongs in may or (below and belongs not in parts)):
                    yield f"{name(path, source)}: {module}"


def unused(source: Path, allowed: Mapping[str, set[str]], parts: Mapping[str, str]) -> Iterator[str]:
    """Arrows that no import needs, because nothing has that name or nobody imports it: 'part: target'."""
    imported: dict[str, set[str]] = {own: set() for own in allowed}
    for path in files(source):
        ours = (module for module in imports(path, source) if module.split(".")[0] == source.name)
        targets = {module.removeprefix(source.name).removeprefix(".") or "__init__" for module in ours}
        imported[part(module_of(path, source), parts)] |= targets
    for own, targets in allowed.items():
        packages = {part(module, parts) for module in imported[own]}
        for target in targets - packages:
            if not any(below(module, target) for module in imported[own] if part(module, parts) not in parts):
                yield f"{own}: {target}"


def libraries(path: Path, source: Path = SOURCE) -> set[str]:
    return {module.split(".")[0] for module in imports(path, source)}


def knows_an_architecture(source: Path) -> set[str]:
    return {name(path, source) for path in files(source) if "model_type" in path.read_text()}


def test_no_file_imports_itself_through_others():
    """Not even inside functions, or for type checkers alone: whoever reads a file can read first what it builds on."""
    modules = {module_of(path, SOURCE): path for path in files(SOURCE)}
    graph = {module: {*imported_anywhere(path)} & modules.keys() - {module} for module, path in modules.items()}
    graphlib.TopologicalSorter(graph).prepare()


def imported_anywhere(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield f"{node.module}.{alias.name}".removeprefix(f"{SOURCE.name}.")
            yield node.module.removeprefix(f"{SOURCE.name}.")


@pytest.mark.spread(1)
@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_has_one_place_that_loads_it(leaf):
    importing = set()
    for path in files(SOURCE):
        module = module_of(path, SOURCE)
        if not below(module, leaf) and any(below(imported, f"normscope.{leaf}") for imported in imports(path, SOURCE)):
            importing.add(module)
    assert importing == LEAVES[leaf]


def below(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_modules_that_are_named_in_strings_exist():
    modules = {f"normscope.{module_of(path, SOURCE)}" for path in files(SOURCE)}
    packages = {module.rpartition(".")[0] for module in modules}
    for path in files(SOURCE):
        strings = (node.value for node in ast.walk(parsed(path.read_text())) if isinstance(node, ast.Constant))
        named = {text.partition(":")[0] for text in strings if re.fullmatch(r"normscope(\.\w+){2,}(:\w+)?", str(text))}
        assert not named - modules - packages, name(path)


def test_imports_follow_the_arrows():
    assert list(violations(SOURCE, ALLOWED, PARTS)) == []


def test_every_arrow_is_used():
    assert list(unused(SOURCE, ALLOWED, PARTS)) == []


def test_the_rooms_of_models_point_down():
    for path in files(SOURCE / "models"):
        own = module_of(path, SOURCE).split(".")[1:2]
        above = FLOORS[FLOORS.index(own[0]) + 1 :] if own else FLOORS
        assert not [each for each in imports(path, SOURCE) for room in above if below(each, f"normscope.models.{room}")]


def test_every_module_has_its_arrows():
    assert {part(module_of(path, SOURCE), PARTS) for path in files(SOURCE)} == set(ALLOWED)


def test_the_arrows_make_no_circle():
    arrows = {source: {part(target, PARTS) for target in targets} for source, targets in ALLOWED.items()}
    assert len(list(graphlib.TopologicalSorter(arrows).static_order())) == len(ALLOWED)


def test_no_analysis_is_named_outside_its_own_package():
    """Only the registry names analyses; their AnalysisInfo tells the rest of the program what it needs to know."""
    for path in files(SOURCE):
        if path.relative_to(SOURCE).parts[0] in ("analyses", "alignment"):
            continue
        nodes = [*ast.walk(parsed(path.read_text()))]
        options = {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_analysis(node.value)}
        strings = {node.value for node in nodes if isinstance(node, ast.Constant)}
        if path.name == "axes.py":
            strings -= {"outliers"}  # the dimensions that are removed together
        if path.name in ("explorer.py", "maps.py"):
            strings -= {"norms"}  # ‖f(x)‖ in the page's data
        if path.parent.name == "api" or path.parent == SOURCE:
            strings -= {"similarity"}  # the function
        keys = {
            text
            for text in strings
            if isinstance(text, str) and re.search(rf"\banalysis\.({'|'.join(analyses())})\b", text)
        }
        assert not (options | strings) & set(analyses()) | keys, name(path)


def _is_analysis(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "analysis"


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
        "models/blocks/block.py": "from normscope.maths.norms import pair_norms",
    }.items():
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_text(text)
    return source


ARROWS = {"__init__": {"pipeline"}, "maths": set(), "models": {"maths.norms"}, "pipeline": {"maths", "models"}}


def test_a_tree_that_follows_the_arrows_passes(tree):
    assert list(violations(tree, ARROWS, {})) == []


@pytest.mark.parametrize(
    "arrow", ["maths: models", "models: maths.nothing", "models: pipeline", "pipeline: maths.norms.factors"]
)
def test_a_planted_arrow_is_found(tree, arrow):
    own, _, target = arrow.partition(": ")
    arrows = ARROWS | {"errors": set()}
    assert list(unused(tree, arrows, {})) == []
    assert list(unused(tree, arrows | {own: arrows[own] | {target}}, {})) == [arrow]


@pytest.mark.parametrize(
    ("file", "line", "module"),
    [
        ("maths/norms.py", "from normscope.models.blocks.block import Block", "normscope.models.blocks.block"),
        ("maths/norms.py", "from normscope import errors, pipeline", "normscope.pipeline"),
        ("maths/norms.py", "import normscope.pipeline as p", "normscope.pipeline"),
        ("maths/norms.py", "from normscope import load", "normscope"),
        ("maths/norms.py", "def late():\n    from normscope import pipeline", "normscope.pipeline"),
        ("maths/norms.py", "from ..models import block", "..models"),
        ("models/blocks/block.py", "from normscope.maths import norms_of_something_else", "normscope.maths"),
        ("models/blocks/block.py", "import normscope.mathsomething", "normscope.mathsomething"),
        ("errors.py", "import normscope.maths.norms", "normscope.maths.norms"),
        ("new.py", "import normscope.maths.norms", "normscope.maths.norms"),
    ],
)
def test_a_planted_violation_is_found(tree, file, line, module):
    with (tree / file).open("a") as text:
        text.write(f"\n{line}\n")
    (found,) = violations(tree, ARROWS, {})
    assert found.removesuffix(" (imports are absolute)") == f"{file}: {module}"


def test_a_planted_library_or_architecture_is_found(tree):
    (tree / "maths/norms.py").write_text("def late():\n    from wandb.sdk import wandb_run\n    return 'model_type'\n")
    assert libraries(tree / "maths/norms.py", tree) == {"wandb"}
    assert knows_an_architecture(tree) == {"maths/norms.py"}


@pytest.mark.parametrize("library", OWNERS)
def test_libraries_have_owners(library):
    assert {name(path) for path in files(SOURCE) if library in libraries(path)} == OWNERS[library]


def test_maths_imports_torch_alone():
    standard = {"abc", "enum", "itertools", "typing", "math", "dataclasses", "collections", "functools"}
    for path in files(SOURCE / "maths"):
        assert libraries(path) <= {"normscope", "torch", "jaxtyping"} | standard, path


def test_analyses_know_no_model_library():
    for path in files(SOURCE / "analyses"):
        assert not libraries(path) & {"transformers", "datasets", "wandb", "hydra"}, path


def test_only_models_knows_an_architecture():
    assert {file.split("/")[0] for file in knows_an_architecture(SOURCE)} == {"models"}


def test_functions_are_short():
    """Complexity and statements are the linter's. The example in a docstring does not count."""
    for path in files(SOURCE):
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                _, _, example = (ast.get_docstring(node) or "").partition("\n\nExamples:\n")
                lines = (node.end_lineno or 0) - node.lineno + 1
                lines -= len(example.split("\n\n")[0].splitlines()) + 2 if example else 0
                assert lines <= 60, f"{name(path)}: {node.name} has {lines} lines"
