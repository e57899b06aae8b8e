"""Every key of a config as people read it: its type, default and meaning, from the dataclass at its root.

Types, defaults and meanings are in Markdown, for the documentation; `help_page` shows the same in a terminal.
"""

import ast
import dataclasses
import enum
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

from omegaconf import MISSING

from normscope.config.rules import listed


@dataclasses.dataclass(frozen=True)
class Key:
    """One config key."""

    name: str
    """As on the command line."""
    type: str
    default: str
    meaning: str
    """Empty if the schema does not document it."""


def keys_of(options: type, prefix: str = "") -> Iterator[Key]:
    """Every key of a dataclass and those below it, in the order of the fields."""
    meanings, types_ = field_docstrings(options), typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        name, kind = f"{prefix}{field.name}", types_[field.name]
        # Options of an analysis are instances of their dataclass, whatever the annotation.
        nested = type(default) if dataclasses.is_dataclass(default) else None
        if nested is not None:
            yield from keys_of(nested, f"{name}.")
            continue
        yield Key(name, _expected(field, kind), _default(default), meanings.get(field.name, ""))


def _expected(field: dataclasses.Field[Any], kind: Any) -> str:
    """The rules for a key's value, or its type if there are none."""
    rules = [rule.expected for rule in field.metadata.get("rules", ())]
    items = [rule.expected for rule in field.metadata.get("rules_of_items", ())]
    parts = [", ".join(rules)] if rules else [f"list, each item {', '.join(items)}"] if items else []
    if not parts:
        return _type(kind)
    return "; or ".join([*parts, *(["`null`"] if type(None) in typing.get_args(kind) else [])])


def field_docstrings(options: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass and its bases."""
    docstrings: dict[str, str] = {}
    for base in reversed(options.__mro__):
        if not dataclasses.is_dataclass(base) or base.__module__ == "types" or _is_generated(base):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except OSError:  # installed without its source
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                    docstrings[name] = inspect.cleandoc(docstring)
    return docstrings


def _is_generated(options: type) -> bool:
    """Whether a dataclass is built at run time, from the registry of analyses, so that no source file has its docstrings."""
    return options.__name__ == "AnalysisOptions"


def _type(kind: Any) -> str:
    if kind is Any:
        return "any"
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case types.UnionType | typing.Union:
            parts = [_type(argument) for argument in arguments if argument is not type(None)]
            return " or ".join([*parts, *(["`null`"] if type(None) in arguments else [])])
        case origin if origin is list:
            return f"list of {_type(arguments[0])}"
        case origin if origin is dict:
            return "mapping"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(_code(member.value) for member in kind)
    return {str: "text", int: "integer", float: "number", bool: "`true`, `false`"}[kind]


def _default(value: Any) -> str:
    if value == MISSING:
        return "required"
    if value is None:
        return _code("null")
    if isinstance(value, bool):
        return _code(str(value).lower())
    if isinstance(value, str) and value.startswith("${"):
        return f"that of {_code(value[2:-1])}"
    if isinstance(value, list | dict) and not value:
        return "none"
    if isinstance(value, list):
        return _code(listed(value))
    return _code(value)


def _code(text: object) -> str:
    return f"`{text}`"
