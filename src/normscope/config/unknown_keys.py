"""Keys that the schema does not know."""

import difflib
from typing import Any

from omegaconf import DictConfig, OmegaConf

from normscope.config.schema import RunOptions
from normscope.errors import InputError

# A transformers config, and categories that users name: keys that are not ours to know.
USERS_OWN = ("model.architecture", "dataset.categories")


def refuse_unknown(config: DictConfig, known: DictConfig, prefix: str = "") -> None:
    """`+key=value` gets past the schema; a key that it does not know is a typo all the same.

    Raises:
        InputError: If there is one.
    """
    for name in map(str, config):
        if name not in known.keys():  # noqa: SIM118 - `in` does not see keys without a value
            raise InputError(f"unknown key {prefix}{name}{suggestion(f'{prefix}{name}')}")
        below, schema = config._get_node(name), known._get_node(name)
        if isinstance(below, DictConfig) and isinstance(schema, DictConfig) and f"{prefix}{name}" not in USERS_OWN:
            refuse_unknown(below, schema, f"{prefix}{name}.")


def suggestion(key: str) -> str:
    """The known key that a misspelled one is closest to, as the end of a message; empty if none is close."""
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
