"""The page of all config keys, from the schema."""

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

from docs.hooks.markdown import code, table
from normscope.analyses.registry import analyses
from normscope.config.rules import listed
from normscope.running.options import RunOptions


@dataclasses.dataclass(frozen=True)
class Key:
    """One config key."""

    name: str
    """As on the command line."""
    type: str
    default: str
    meaning: str
    """Empty if the schema does not document it."""


def keys() -> list[Key]:
    """Every key of the config, section by section in the order of the schema."""
    return list(_keys(RunOptions, ""))


def page() -> str:
    """The page in Markdown."""
    sections: dict[str, list[Key]] = {"": []}
    for key in keys():
        sections.setdefault(_section(key.name), []).append(key)
    parts = [
        "# Config keys\n",
        "Every key that can be set on the command line (`normscope KEY=VALUE …`), in a preset, or in a file of your own. A key "
        "that does not exist or a value of the wrong type is an error before anything runs. This page is generated from the "
        "schema; `normscope --help` lists the main ones, and [Presets](presets.md) has the choices for whole groups.\n",
    ]
    for section, members in sections.items():
        parts.append(f"## {code(section) if section else 'The run'}\n")
        if section.startswith("analysis."):
            info = analyses()[section.removeprefix("analysis.")]
            parts.append(f"{info.title}: see [its tables](tables.md#{info.name}).\n")
        rows = [
            (code(key.name), key.type, key.default, key.meaning)
            for key in sorted(members, key=lambda key: key.name.count(".") > 1 + section.count("."))
        ]
        parts.append(table(("key", "expected", "default", "meaning"), rows))
    return "\n".join(parts)


def _section(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "analysis" else parts[0] if len(parts) > 1 else ""


def _keys(options: type, prefix: str) -> Iterator[Key]:
    meanings, types_ = field_docstrings(options), typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        name, kind = f"{prefix}{field.name}", types_[field.name]
        # Options of an analysis are instances of their dataclass, whatever the annotation.
        nested = type(default) if dataclasses.is_dataclass(default) else None
        if nested is not None:
            yield from _keys(nested, f"{name}.")
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
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
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
        return ", ".join(code(member.value) for member in kind)
    return {str: "text", int: "integer", float: "number", bool: "`true`, `false`"}[kind]


def _default(value: Any) -> str:
    if value == MISSING:
        return "required"
    if value is None:
        return code("null")
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, str) and value.startswith("${"):
        return f"that of {code(value[2:-1])}"
    if isinstance(value, list | dict) and not value:
        return "none"
    if isinstance(value, list):
        return code(listed(value))
    return code(value)
