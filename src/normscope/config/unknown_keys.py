"""Refuses keys that are not in the schema."""

import dataclasses
import difflib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from normscope.config.schema import RunOptions
from normscope.errors import InputError

# A transformers config and user-defined categories: their keys are not in the schema.
FREE_FORM = ("model.architecture", "dataset.categories")


def refuse_unknown(config: DictConfig) -> None:
    """Refuse unknown keys set by `+key=value`, which bypasses the schema: they are typos.

    Raises:
        InputError: If there is an unknown key.
    """
    _refuse_unknown(config, _schema(), "")


def _refuse_unknown(config: DictConfig, known: Mapping[str, Any], prefix: str) -> None:
    for name in map(str, config):
        key = f"{prefix}{name}"
        if name not in known:
            raise InputError(f"unknown key {key}{suggestion(key)}")
        below, schema = config._get_node(name), known[name]
        if isinstance(below, DictConfig) and schema is not None and key not in FREE_FORM:
            _refuse_unknown(below, schema, f"{key}.")


def suggestion(key: str) -> str:
    """The end of a message that suggests the closest known key; empty if none is close."""
    close = difflib.get_close_matches(key, list(_keys(_schema())), n=1)
    return f"; did you mean {close[0]}?" if close else ""


@functools.cache
def _schema() -> Mapping[str, Any]:
    """All keys by name: sections with the keys in them, other keys with None."""
    return _names(RunOptions())


def _names(section: Any) -> dict[str, Any]:
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    return {name: _names(value) if dataclasses.is_dataclass(value) else None for name, value in values.items()}


def _keys(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, below in schema.items():
        yield f"{prefix}{name}"
        yield from _keys(below or {}, f"{prefix}{name}.")
