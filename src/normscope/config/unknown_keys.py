"""Refuses keys that are not in the schema."""

import difflib
from typing import Any

from omegaconf import DictConfig, OmegaConf

from normscope.config.schema import RunOptions
from normscope.errors import InputError

# A transformers config and user-defined categories: their keys are not in the schema.
FREE_FORM = ("model.architecture", "dataset.categories")


def refuse_unknown(config: DictConfig, known: DictConfig, prefix: str = "") -> None:
    """Refuse unknown keys set by `+key=value`, which bypasses the schema: they are typos.

    Raises:
        InputError: If there is an unknown key.
    """
    for name in map(str, config):
        if name not in known.keys():  # noqa: SIM118 - `in` does not see keys without a value
            raise InputError(f"unknown key {prefix}{name}{suggestion(f'{prefix}{name}')}")
        below, schema = config._get_node(name), known._get_node(name)
        if isinstance(below, DictConfig) and isinstance(schema, DictConfig) and f"{prefix}{name}" not in FREE_FORM:
            refuse_unknown(below, schema, f"{prefix}{name}.")


def suggestion(key: str) -> str:
    """The end of a message that suggests the closest known key; empty if none is close."""
    known = _keys(OmegaConf.structured(RunOptions))
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _keys(node: Any, prefix: str = "") -> list[str]:
    keys = []
    for name in node:
        keys.append(prefix + name)
        if OmegaConf.is_dict(node._get_node(name)) and node._get_node(name)._value() is not None:
            keys += _keys(node._get_node(name), f"{prefix}{name}.")
    return keys
