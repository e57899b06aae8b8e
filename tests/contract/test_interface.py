"""The Python interface: its names and signatures are those of `interface.txt`."""

import enum
import functools
import inspect
import pkgutil
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path

import normscope
import normscope.api
from normscope.analyses import base, info
from normscope.results import declare, figures
from normscope.results.findings import Sentence, Summary

SNAPSHOT = Path(__file__).parent / "interface.txt"
"""Public names with their signatures; `python -m tests.contract.test_interface` rewrites the file."""

PLUG_INS = {
    "normscope.analyses.base": [base.Analysis, base.AnalysisContext, base.Requirements],
    "normscope.analyses.info": [info.AnalysisConfig, info.AnalysisInfo],
    "normscope.results.declare": [declare.Axis, declare.Column, declare.Declared, declare.Rollup, declare.Table],
    "normscope.results.figures": [value for value in vars(figures).values() if inspect.isclass(value)],
    "normscope.results.findings": [Sentence, Summary],
}
"""What packages with an analysis of their own import."""


def interface() -> str:
    """Every public name on a line, with its signature, and the members of classes below it."""
    lines = []
    for name in dir(normscope):
        if not name.startswith("__"):
            lines += _described(f"normscope.{name}", getattr(normscope, name))
    for module, classes in PLUG_INS.items():
        for one in classes:
            if one.__module__ == module:
                lines += _described(f"{module}.{one.__name__}", one)
    return "\n".join(lines) + "\n"


def test_help_lists_every_name_on_three_screens():
    """Each with the first sentence that it has of its own, or the beginning of it."""
    text = pydoc.render_doc(normscope, renderer=pydoc.plaintext)
    assert len(text.splitlines()) <= 150
    names = {name for name in dir(normscope) if not name.startswith("__")}
    listed = dict(re.findall(r"^ {8}(\w+) +(\S.*)$", text, re.MULTILINE))
    assert listed.keys() == names
    for name in names:
        first = inspect.getdoc(getattr(normscope, name)).partition("\n")[0]
        assert first.startswith(listed[name]), name
    assert "InputError: If" in pydoc.render_doc(normscope.decompose, renderer=pydoc.plaintext)


def test_type_checkers_find_what_completion_lists():
    exported = re.findall(r"^    from .* import (\w+) as \1$", Path(normscope.__file__).read_text(), re.MULTILINE)
    assert dir(normscope) == sorted({*exported, "read", "__version__"})


def _described(name: str, value: object) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}"
        return
    if issubclass(value, enum.Enum):
        yield f"{name}: {', '.join(value.__members__)}"
        return
    yield f"class {name}{_signature(value)}"
    for member in _members(value):
        own = inspect.getattr_static(value, member)
        if isinstance(own, property | functools.cached_property):
            function = own.fget if isinstance(own, property) else own.func
            yield f"    {member}: {_plain(inspect.signature(function).return_annotation)}"
        elif callable(own) or isinstance(own, classmethod | staticmethod):
            yield f"    {member}{_signature(getattr(value, member))}"


def _members(kind: type) -> list[str]:
    """Public members that are ours, inherited ones included, and the operators that are defined here."""
    found = {
        member: None
        for owner in reversed(kind.__mro__)
        if owner.__module__.startswith("normscope")
        for member in vars(owner)
        if not member.startswith("_") or member in ("__getitem__", "__iter__", "__len__", "__add__")
    }
    return list(found)


def _signature(function: object) -> str:
    try:
        return _plain(inspect.signature(function))  # type: ignore[arg-type]
    except ValueError:
        return "(…)"


def _plain(value: object) -> str:
    """Annotations as a reader writes them, in every version of Python."""
    text = value.__name__ if isinstance(value, type) else str(value)
    text = re.sub(r"<class '([^']+)'>", r"\1", text)
    text = re.sub(r"<factory>|<function .*? at 0x[0-9a-f]+>", "…", text)
    text = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", text)
    text = re.sub(r"[\w.]*Annotated\[(\w+), FieldInfo\(.*?\)\]", r"\1", text)  # what a value must be is not its type
    text = re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", text)
    text = re.sub(r"Optional\[(\w+)\]", r"\1 | None", text)
    text = re.sub(r"Union\[([^][]+)\]", lambda union: union[1].replace(", ", " | ").replace("NoneType", "None"), text)
    return text.replace("'", '"')


def test_public_names_and_signatures_are_those_of_the_snapshot():
    assert interface() == SNAPSHOT.read_text(), "if this is meant: python -m tests.contract.test_interface"


def test_no_submodule_has_the_name_of_a_public_function():
    """Importing `normscope.x` would put the module in the place of the function x."""
    modules = {
        module.name for package in (normscope, normscope.api) for module in pkgutil.iter_modules(package.__path__)
    }
    assert modules, "no submodules were found"
    assert not modules & {*dir(normscope), *normscope.api.__all__}


if __name__ == "__main__":
    SNAPSHOT.write_text(interface())
