"""Options as plain values, nested and flat."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

INCIDENTAL = (
    *("resume", "reproduce"),
    *("output_dir", "verbosity", "tracking", "report", "figures", "checkpoint", "recipe"),
)
"""Keys that no number depends on: where results go, and how they are shown. Only they may change when a run is resumed or
reproduced, and they do not distinguish runs."""


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config with dotted keys, as on the command line."""
    dotted: dict[str, Any] = {}
    for key, value in config.items():
        dotted |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return dotted


def nested(key: str, value: Any) -> dict[str, Any]:
    """A config with one key: the opposite of `flat`."""
    above, _, last = key.rpartition(".")
    return nested(above, {last: value}) if above else {last: value}


def plain(options: Any) -> dict[str, Any]:
    """A config, or a group of one, as strings, numbers, lists and dicts, ready for any file format."""

    def simplified(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return {field.name: simplified(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, dict):
            return {key: simplified(item) for key, item in value.items()}
        if isinstance(value, list):
            return [simplified(item) for item in value]
        return str(value) if isinstance(value, enum.Enum) else value

    content: dict[str, Any] = simplified(options)
    return content
