"""Arguments of Python functions: pydantic checks them against their annotations, and one line says which is wrong."""

import dataclasses
import enum
import functools
import inspect
import itertools
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
)
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypeAliasType

from normscope.config.keys import in_words
from normscope.config.rules import Expected
from normscope.config.schema import suggestion
from normscope.errors import InputError, describe_type, printable

F = TypeVar("F", bound=Callable[..., Any])
Item = TypeVar("Item")
Member = TypeVar("Member", bound=enum.StrEnum)


def checked(target: F) -> F:
    """A function, or a class, that raises InputError for an argument that does not fit its annotation.

    Types are strict: True is no number, and bytes are no list. It gets arguments as pydantic returns them: NumPy's numbers as
    Python's, and `Several` as a list.
    """
    if isinstance(target, type):
        target.__init__ = checked(target.__init__)  # type: ignore[misc]
        return target
    signature = inspect.signature(target)

    @functools.cache
    def adapters() -> Mapping[str, TypeAdapter[Any]]:
        hints = typing.get_type_hints(target, include_extras=True)
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = [name for name, each in signature.parameters.items() if each.kind not in several and name in hints]
        return {name: TypeAdapter(hints[name], config=_STRICT) for name in named}

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            unknown = [name for name in kwargs if name not in signature.parameters]
            hint = suggestion(unknown[0], signature.parameters) if unknown else ""
            raise TypeError(f"{target.__qualname__}() {error}{hint}") from None
        for name, adapter in adapters().items():
            if name in given.arguments:
                given.arguments[name] = _fitting(name, given.arguments[name], adapter)
        return target(*given.args, **given.kwargs)

    return typing.cast(F, call)


_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


def _fitting(name: str, value: object, adapter: TypeAdapter[Any]) -> Any:
    try:
        return adapter.validate_python(_plain(value))
    except ValidationError as error:
        wrong = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    if reason := str(wrong.get("ctx", {}).get("error", "")):
        raise InputError(f"{name}={_shown(wrong['input'])}: {reason}")
    expected = in_words(adapter.json_schema(schema_generator=_InPython))
    is_item = isinstance(wrong["loc"][-1] if wrong["loc"] else None, int) and wrong["type"] != "missing"
    item = f"{_shown(wrong['input'])} in " if is_item else ""
    raise InputError(f"{name}: expected {expected}, got {item}{_shown(value)}")


def _plain(value: object) -> object:
    """NumPy's numbers as Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _shown(value: object) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return printable(repr(value), 80) if plain else describe_type(value)


class _InPython(GenerateJsonSchema):
    """What is expected in the words of Python, instead of those of config files."""

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        match schema:
            case {"type": "is-instance", "cls": kind}:
                return {"expected": f"a {kind.__name__}"}
            case {"type": "tuple", "items_schema": items}:
                return {"expected": f"a tuple of {len(items)}"}
            case {"type": "nullable", "schema": inner}:
                return {"anyOf": [self.generate_inner(inner), {"type": "null", "expected": "None"}]}
            case {"type": name} if name in _WORDS:
                return {"expected": _WORDS[name]}
        return dict(super().generate_inner(schema))

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        return {"expected": f"a {schema['cls'].__name__}"}


_WORDS = {"str": "a str", "bool": "True or False", "dict": "a dict with names as keys", "callable": "a function"}


@dataclasses.dataclass(frozen=True)
class Instance:
    """Annotation of an argument that must be an instance of a class. Whatever reads it checks its contents."""

    words: str
    """As in a message."""
    kinds: tuple[Any, ...] = ()
    """Any of these; by default, the class that is annotated."""
    others: tuple[Any, ...] = ()
    """None of these."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        kinds = self.kinds or source
        fits = Expected(self.words, lambda value: isinstance(value, kinds) and not isinstance(value, self.others))
        return handler.generate_schema(Annotated[Any, fits])


class _Listed:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        items: Any = list[typing.get_args(source)]  # type: ignore[misc]
        short = Field(max_length=_MOST, fail_fast=True)
        return handler.generate_schema(Annotated[items, short, BeforeValidator(_listed)])


def _listed(value: object) -> object:
    match value:
        case str():
            return [value]
        case Iterable() if not isinstance(value, bytes | Mapping):
            return [_plain(each) for each in itertools.islice(value, _MOST + 1)]
    return value


_MOST = 1_000_000
"""Items; an iterator may have no end."""


class _OneOf:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        kind, _ = typing.get_args(source)
        words = f"one of {', '.join(kind)}"

        def member(value: str) -> enum.StrEnum:
            if value not in list(kind):
                raise ValueError(f"expected {words}")
            return kind(value)

        return handler.generate_schema(Annotated[str, AfterValidator(member), Expected(words)])


Several = TypeAliasType("Several", Annotated[Iterable[Item], _Listed()], type_params=(Item,))
"""A list, an array or any other iterable of items, which is read once. A single str counts as a list of one."""

Choice = TypeAliasType("Choice", Annotated[Member | str, _OneOf()], type_params=(Member,))
"""A member of an enum, or its value."""
