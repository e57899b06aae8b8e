"""Regular files of a bounded size, and mappings of plain data from JSON and YAML in them."""

import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from normscope.errors import InputError, one_line, printable

MIB = 2**20

LONGEST_NAME = 1000
"""Bytes of a file that holds a name."""

LONGEST_TEXT = 16 * MIB
"""Bytes of a file that holds a text for one call."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file. Anything else is refused: reading from a pipe could wait for ever, and a device has no end.

    Raises:
        InputError: If it cannot be opened or read.
    """
    try:
        # Opening a pipe that nobody writes to would wait as well.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise InputError(f"{path}: expected a file, got a device or pipe")
            yield stream
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> InputError:
    """The error for a file that cannot be read, with the reason."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
    return InputError(f"{path}: cannot be read: {reason}")


def text(path: Path, most: int) -> str:
    """The text of a file in UTF-8 of at most `most` bytes.

    Raises:
        InputError: If it cannot be read, or is something else.
    """
    with opened(path) as stream:
        return read(stream, path, most).decode()


def text_in(path: Path, where: str) -> str:
    """The text that somebody has written into a file in UTF-8, without the line break that it ends with.

    Args:
        where: What names the file, for errors.

    Raises:
        InputError: If it cannot be read, or is something else.
    """
    try:
        return without_line_break(text(path, LONGEST_TEXT))
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: expected a text in UTF-8: {one_line(error)}") from error


def without_line_break(written: str) -> str:
    """A text without the line break that it ends with."""
    return written.removesuffix("\n").removesuffix("\r")


def read(stream: BinaryIO, path: Path, most: int) -> bytes:
    """What a stream holds, at most `most` bytes. No more memory is taken than it has.

    Raises:
        InputError: If it holds more.
    """
    parts, left = [], most
    while part := stream.read(min(left + 1, MIB)):
        left -= len(part)
        if left < 0:
            raise InputError(f"{path}: expected at most {most / MIB:g} MiB")
        parts.append(part)
    return b"".join(parts)


LARGEST = 1e300
"""Numbers are smaller: sums of many stay finite, and none takes long to write."""

LARGEST_WHOLE = 2**63
"""Whole numbers that we read are smaller: tables hold 64 bits. In the files of others, some stand for infinity."""

_DEEPEST = 50
_TOO_DEEP = f"expected lists and mappings nested at most {_DEEPEST} deep"
_LONGEST = 1_000_000
"""Characters of a text."""
_HALF_A_SIGN = re.compile("[\ud800-\udfff]")


def json_mapping(path: Path, most: int) -> dict[str, Any]:
    """The object in a JSON file of at most `most` bytes: plain data, with finite numbers.

    Raises:
        InputError: If it cannot be read, or holds something else.
    """
    content = text(path, most)
    try:
        return parsed_json(content, finite=True)
    except ValueError as error:
        raise InputError(f"{path}: {one_line(error)}") from error


def json_value(path: Path, most: int) -> Any:
    """Whatever a JSON file of others holds in at most `most` bytes: plain data, whose numbers may stand for infinity.

    Raises:
        InputError: If it cannot be read, or holds something else.
    """
    content = text(path, most)
    try:
        value = _loaded(content)
        _check_plain(value, (), finite=False, whole=LARGEST)
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


def _check_plain(value: object, place: tuple[object, ...], *, finite: bool, whole: float = LARGEST_WHOLE) -> None:
    """Check that a value is made of mappings, lists, texts and numbers, none of them out of bounds."""
    _check_depth(len(place))
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int):
                raise ValueError(f"expected names as keys, got {shown(key)}")
            _check_plain(key, ("a key",), finite=finite, whole=whole)
            _check_plain(item, (*place, key), finite=finite, whole=whole)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_plain(item, (*place, number), finite=finite, whole=whole)
    elif value is not None:
        problem = _problem(value, finite=finite, whole=whole)
        if problem:
            raise ValueError(f"{printable('.'.join(map(str, place)), 99)}: {problem}")


def _problem(value: object, *, finite: bool, whole: float) -> str:
    """What is wrong with a single value; empty if nothing is."""
    match value:
        case str() if len(value) > _LONGEST:
            return f"expected a text of at most {_LONGEST:,} characters, got {len(value):,}"
        case str() if _HALF_A_SIGN.search(value):
            return "expected valid Unicode, got a lone surrogate"
        case float() if not math.isfinite(value):
            return "expected a finite number" if finite else ""
        case int() | float() if abs(value) >= (whole if isinstance(value, int) else LARGEST):
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


def is_file(path: str | Path) -> bool:
    """Whether there is a file of a name, which may be any text."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # longer than any name, or with a character that no name has
        return False
