"""Whatever an analysis can return has a name, and every name is known to its oracle.

The comparisons in the oracles' files fail on a name that no oracle has. These tests are for names that stand in the source but
are published under conditions that no comparison meets.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import normscope
from normscope.analyses.registry import analyses
from tests.oracles.comparison import oracle

SOURCE, ORACLES = Path(normscope.__path__[0]), Path(__file__).parent

FILES = {name: [SOURCE / "analyses" / f"{name}.py"] for name in analyses()} | {
    "alignment": [
        SOURCE / "alignment" / "analysis.py",
        SOURCE / "alignment" / "links.py",
        SOURCE / "alignment" / "speech.py",
    ],
    "norms": [SOURCE / "analyses" / "norms.py", SOURCE / "analyses" / "returned_norms.py"],
    "attribution": [SOURCE / "analyses" / f"{name}.py" for name in ("attribution", "faithfulness", "translated_words")],
}
"""Where each analysis names what it publishes."""

OF_OTHER_INPUTS = {"norms": "test_norms_of_images.py", "alignment": "test_sounds.py"}
"""The tests of what is published of images or sounds alone."""


def test_every_analysis_has_an_oracle():
    assert {f"{name}_oracle" for name in analyses()} == {path.stem for path in ORACLES.glob("*_oracle.py")}


@pytest.mark.parametrize("name", analyses())
def test_every_name_is_known_to_the_oracle(name):
    paths = [*ORACLES.glob(f"{name}_*.py"), ORACLES / "comparison.py"]
    paths += [ORACLES.parent / "contract" / OF_OTHER_INPUTS[name]] if name in OF_OTHER_INPUTS else []
    known = "".join(path.read_text() for path in paths)
    inside = getattr(oracle(name), "INSIDE", set())
    for module in FILES[name]:
        for text in _names(ast.parse(module.read_text())):
            assert text.strip("/ ") in known or text in inside, f"{module}: no oracle knows {text!r}"


def _names(tree: ast.AST) -> Iterator[str]:
    """Keys of dictionaries but the accumulators', texts in lists, and names of columns that are assigned."""
    accumulators = {
        key
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and "self.accumulators" in ast.unparse(node).split("=")[0]
        for key in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in accumulators:
            continue
        match node:
            case ast.Dict():
                yield from (text for key in node.keys if key is not None for text in _texts(key))
            case ast.DictComp():
                yield from _texts(node.key)
            case ast.List():
                yield from (text for element in node.elts for text in _texts(element))
            case ast.Subscript(ctx=ast.Store()):
                yield from _texts(node.slice)
            case ast.Call(func=ast.Attribute(attr="assign")):
                yield from (keyword.arg for keyword in node.keywords if keyword.arg is not None)


def _texts(node: ast.AST) -> Iterator[str]:
    """A text, or the fixed parts of one, as far as they have a letter."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and any(map(str.isalpha, part.value)):
            yield part.value.strip("/")
