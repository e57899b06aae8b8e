"""Every key of a config: what is expected of its value, its default and its meaning, from the dataclasses of options."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import MISSING
from pydantic import TypeAdapter

from normscope.errors import printable


@dataclasses.dataclass(frozen=True)
class Key:
    """One config key."""

    name: str
    """As on the command line."""
    expected: str
    """What its value should be, in words: `a whole number of at least 1, or null`."""
    default: Any
    meaning: str
    """In Markdown; empty if no docstring says it."""
    runs_code: bool
    """Whether it lets third-party code run; see `RUNS_CODE`."""
    own: bool
    """Whether it decides where data go, or which files are read; see `OWN`."""

    @property
    def shown_default(self) -> str:
        """The default as a reader sees it."""
        if self.default == MISSING:
            return "required"
        if isinstance(self.default, str) and self.default.startswith("${"):
            return f"that of {self.default[2:-1]}"
        return "none" if self.default in ([], {}) else shown(self.default)


@functools.cache
def adapter(options: type) -> TypeAdapter[Any]:
    """What checks the values of a dataclass of options."""
    return TypeAdapter(options)


@functools.cache
def keys_of(options: type) -> Mapping[str, Key]:
    """Every key of a dataclass and those below it by name, in the order of the fields."""
    schema = adapter(options).json_schema()
    # The class has the defaults of its fields, but for those that a factory makes.
    section = options if schema.get("required") else options()
    return {key.name: key for key in _keys(schema, schema.get("$defs", {}), section, "")}


def _keys(schema: Mapping[str, Any], named: Mapping[str, Any], section: Any, prefix: str) -> Iterator[Key]:
    for name, field in schema["properties"].items():
        default = getattr(section, name, MISSING)
        if dataclasses.is_dataclass(default):
            yield from _keys(_of_name(field, named), named, default, f"{prefix}{name}.")
        else:
            # A meaning that an enum has as well is written there alone.
            meaning = field.get("description") or ("$ref" in field and _of_name(field, named).get("description")) or ""
            runs_code, own = (_marked(mark, field, schema) for mark in ("runs_code", "own"))
            yield Key(f"{prefix}{name}", _words(field, named), default, meaning, runs_code, own)


def _marked(mark: str, field: Mapping[str, Any], section: Mapping[str, Any]) -> bool:
    """Whether a field, a type that it may have, or its section as a whole has a mark."""
    return any(mark in each for each in (field, *field.get("anyOf", ()), section))


def _of_name(schema: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = named[schema["$ref"].rpartition("/")[2]]
    return found


def in_words(schema: Mapping[str, Any]) -> str:
    """What a JSON Schema expects."""
    return _words(schema, schema.get("$defs", {}))


def _words(schema: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    match schema:
        case {"format": "path"}:
            return "a Path"
        case {"expected": words}:
            return str(words)
        case {"$ref": _}:
            return _words(_of_name(schema, named), named)
        case {"anyOf": [*others, {"type": "null", **null}]}:
            return f"{_words({'anyOf': others}, named)}, or {null.get('expected', 'null')}"
        case {"anyOf": parts}:
            *others, last = dict.fromkeys(_words(part, named) for part in parts)
            return " or ".join(filter(None, (", ".join(others), last)))
        case {"enum": values}:
            return f"one of {', '.join(map(str, values))}"
        case {"const": value}:
            return str(value)
        case {"type": "array", "items": items}:
            fewest = "one or more " if "minItems" in schema else ""
            return f"a list of {fewest}items, each {_words(items, named)}"
        case {"type": "string", "minLength": fewest, "maxLength": most}:
            return f"text of {fewest} to {most} characters"
        case {"type": "string", "maxLength": most}:
            return f"text of at most {most:,} characters"
        case {"type": "integer" | "number"}:
            return f"a {'whole ' if schema['type'] == 'integer' else ''}number{_range(schema)}"
    named_types = {"boolean": "true or false", "string": "text", "object": "values by name"}
    return named_types.get(str(schema.get("type")), "any value")


def _range(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"minimum": low, "maximum": high}:
            return f" from {low:,} to {high:,}"
        case {"minimum": low, "exclusiveMaximum": high}:
            return f" from {low:,} to below {high:,}"
        case {"exclusiveMinimum": low, "exclusiveMaximum": high}:
            return f" above {low:,} and below {high:,}"
        case {"minimum": low}:
            return f" of at least {low:,}"
        case {"exclusiveMinimum": low}:
            return f" above {low:,}"
    return ""


def shown(value: Any) -> str:
    """A value as on the command line."""
    match value:
        case None | bool():
            return "null" if value is None else str(value).lower()
        case dict():
            return f"{{{','.join(f'{name}:{shown(each)}' for name, each in value.items())}}}"
        case list():
            return f"[{','.join(map(shown, value))}]"
        case str() if value != value.strip() or not value:
            return printable(repr(value), 300)
    return printable(str(value), 300)
