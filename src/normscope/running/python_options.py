"""The config of a run that Python code describes, typed and resolved as one from the command line is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from normscope.config.composition import explain
from normscope.errors import InputError
from normscope.running.options import SCHEMA, RunOptions


def run_options(settings: Mapping[str, Any]) -> RunOptions:
    """The config with these values, and its defaults for the rest.

    Args:
        settings: Nested mappings, as in a config file. Paths may be `Path` objects.

    Raises:
        InputError: If a key is unknown or a value has the wrong type; the message names the key.
    """
    try:
        options = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunOptions), _plain(settings)))
    except OmegaConfBaseException as error:
        raise InputError(explain(error, SCHEMA)) from error
    except RecursionError as error:
        raise InputError("expected values as in a config file, got a list that contains itself") from error
    assert isinstance(options, RunOptions)
    return options


def _plain(value: Any) -> Any:
    """The value with lists for tuples and strings for paths."""
    match value:
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple() | range():
            return [_plain(item) for item in value]
        case Path():
            return str(value)
        case _:
            return value
