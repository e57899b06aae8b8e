"""What the values of options must satisfy: annotations of their fields, which pydantic checks.

`tokens: Annotated[int, Field(ge=8, le=512)] = 64` is checked before a model is loaded, put into words by `config.keys`, and
violated by a generated test.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, StringConstraints

from normscope.errors import InputError


class Options:
    """Base class of the dataclasses of options.

    No text may be empty: that is not the same as null. `BlankText` is for white space that means something.
    """

    __pydantic_config__ = ConfigDict(
        extra="forbid",
        str_min_length=1,
        str_strip_whitespace=True,
        use_attribute_docstrings=True,
    )


@dataclasses.dataclass(frozen=True)
class Expected:
    """Annotation that says what a value should be, where its type and its range do not say it well enough."""

    words: str
    """As in a message: `one character`."""
    holds: Callable[[Any], object] = lambda _value: True

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return AfterValidator(self._checked).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(schema) | {"expected": self.words}

    def _checked(self, value: Any) -> Any:
        if not self.holds(value):
            raise ValueError
        return value


RUNS_CODE: Any = Field(json_schema_extra={"runs_code": True})
"""Annotation of a field whose value lets third-party code run: `Annotated[bool, RUNS_CODE]`. The config of an earlier run,
which may come from anyone, cannot set such a key; only the user can."""

OWN: Any = Field(json_schema_extra={"own": True})
"""Annotation of a field that decides where data go, or which files are read: `Annotated[Any, OWN]`. A `FilePath` has it
already. The user's own setting holds, whatever the config of an earlier run says."""

_LONGEST_NAME, _LONGEST_PATH = 255, 4095  # bytes, on every file system in use


def _path(text: str) -> str:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if len(str(path).encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in path.parts):
        raise ValueError(f"expected a path with names of at most {_LONGEST_NAME} bytes, {_LONGEST_PATH:,} in all")
    return text


Item = TypeVar("Item")


def _each_once(items: list[Item]) -> list[Item]:
    if len(set(items)) < len(items):
        raise ValueError("expected each item once")
    return items


Count = Annotated[int, Field(ge=1)]
AboveZero = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
RandomSets = Annotated[int, Field(ge=0), Expected("a number of random sets, 0 for none")]
Seed = Annotated[int, Field(ge=0, lt=2**63), Expected("a whole number from 0 to 2^63 − 1")]
PathText = Annotated[str, AfterValidator(_path), Expected("a path")]
FilePath = Annotated[PathText, OWN]
"""The path of a file that a run reads."""
BlankText = Annotated[str, StringConstraints(strip_whitespace=False)]
SomeOf = Annotated[list[Item], Field(min_length=1), AfterValidator(_each_once)]
"""A list of different items, at least one."""

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = rf"^(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})$"

MemorySize = Annotated[str, Field(pattern=_SIZE), Expected("a size such as 20GiB or 500MB")]


def size_in_bytes(key: str, size: str) -> int:
    """A size of memory, such as `20GiB` or `500MB`, in bytes."""
    match = re.match(_SIZE, size.strip())
    if match is None:
        raise InputError(f"{key}={size}: expected a size such as 20GiB or 500MB")
    return int(float(match[1]) * _UNITS[match[2]])
