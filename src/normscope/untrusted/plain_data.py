"""Mappings of plain data from JSON and YAML: lists, texts, numbers, booleans and nothing else."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from normscope.errors import InputError, one_line, printable
from normscope.untrusted.files import text

LARGEST = 1e300
"""Numbers are smaller: sums of many stay finite, and none takes long to write."""

_DEEPEST = 50
_TOO_DEEP = f"expected lists and mappings nested at most {_DEEPEST} deep"
_LONGEST = 1_000_000
"""Characters of a text."""
_HALF_A_SIGN = re.compile("[\ud800-\udfff]")


def json_mapping(path: Path, most: int, *, finite: bool = True) -> dict[str, Any]:
    """The object in a JSON file of at most `most` bytes: plain data.

    Args:
        finite: Whether every number must be finite.

    Raises:
        InputError: If it cannot be read, or holds something else.
    """
    content = text(path, most)
    try:
        return parsed_json(content, finite=finite)
    except ValueError as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def json_value(path: Path, most: int) -> Any:
    """Whatever a JSON file of at most `most` bytes holds: plain data.

    Raises:
        InputError: If it cannot be read, or holds something else.
    """
    content = text(path, most)
    try:
        value = _loaded(content)
        _check_plain(value, (), finite=False)
    except ValueError as error:
        raise InputError(f"{path}: {one_line(error)}") from error
    return value


def parsed_json(content: str, *, finite: bool) -> dict[str, Any]:
    """The object in a text of JSON: plain data.

    Args:
        content: The text.
        finite: Whether every number must be finite. JSON has no others, but Python writes them.

    Raises:
        ValueError: If it is something else.
    """
    return _mapping(_loaded(content), finite=finite)


def _loaded(content: str) -> Any:
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def yaml_mapping(path: Path, most: int) -> dict[str, Any]:
    """The mapping in a YAML file of at most `most` bytes: plain data, without tags and aliases.

    Ten lines of aliases stand for more lists than any memory holds, and an alias within its own list has no end. Nothing that
    normscope writes has any.

    Raises:
        InputError: If it cannot be read, or holds something else.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content, depth = text(path, most), 0
    try:
        for event in yaml.parse(content, Loader=loader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
                raise ValueError("expected plain data, got an alias or a tag")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            _check_depth(depth)
        return _mapping(yaml.load(content, Loader=loader), finite=False)
    except (ValueError, OverflowError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def _mapping(value: object, *, finite: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping, got {shown(value)}")
    _check_plain(value, (), finite=finite)
    return value


def _check_plain(value: object, place: tuple[object, ...], *, finite: bool) -> None:
    """Check that a value is made of mappings, lists, texts and numbers, none of them out of bounds."""
    _check_depth(len(place))
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int):
                raise ValueError(f"expected names as keys, got {shown(key)}")
            _check_plain(key, ("a key",), finite=finite)
            _check_plain(item, (*place, key), finite=finite)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_plain(item, (*place, number), finite=finite)
    elif value is not None:
        problem = _problem(value, finite=finite)
        if problem:
            raise ValueError(f"{printable('.'.join(map(str, place)), 99)}: {problem}")


def _problem(value: object, *, finite: bool) -> str:
    """What is wrong with a single value; empty if nothing is."""
    match value:
        case str() if len(value) > _LONGEST:
            return f"expected a text of at most {_LONGEST:,} characters, got {len(value):,}"
        case str() if _HALF_A_SIGN.search(value):
            return "expected valid Unicode, got a lone surrogate"
        case float() if not math.isfinite(value):
            return "expected a finite number" if finite else ""
        case int() | float() if abs(value) >= LARGEST:
            return "expected a smaller number"
        case str() | int() | float():
            return ""
    return f"expected plain data, got {shown(value)}"


def _check_depth(depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(_TOO_DEEP)


Kind = Literal["a text", "a whole number", "a number", "a mapping", "a list"]

_TYPES: dict[Kind, Any] = {
    "a text": str,
    "a whole number": int,
    "a number": int | float,
    "a mapping": dict,
    "a list": list,
}


def require(path: Path, values: Mapping[str, Any], key: str, kind: Kind, *, optional: bool = False) -> None:
    """Check a value of a file. Whole numbers count something: they are not negative, and have 64 bits.

    Args:
        path: The file, for messages.
        values: What it holds, or a part of it.
        key: The key of the value.
        kind: What it must be.
        optional: Whether it may be missing or null.

    Raises:
        InputError: If it is something else.
    """
    value = values.get(key)
    if value is None and optional:
        return
    is_kind = isinstance(value, _TYPES[kind]) and not isinstance(value, bool)
    if not is_kind or (isinstance(value, int) and kind == "a whole number" and not 0 <= value < 2**63):
        raise InputError(f"{path}: expected {kind} for {printable(key, 99)}, got {shown(value)}")


def shown(value: object) -> str:
    """A value of a file in a message."""
    # An integer may have more digits than Python writes.
    return printable(type(value).__name__ if isinstance(value, int) and abs(value) >= LARGEST else repr(value), 60)
