"""Builds configs from `model.architecture`, and refuses keys that the family does not have."""

import contextlib
import dataclasses
import difflib
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, configuration_utils, masking_utils
from transformers import modeling_rope_utils as rope

from normscope.errors import InputError, one_line

_TOKENIZER_KEYS = frozenset({"cls_token_id", "sep_token_id", "mask_token_id", "unk_token_id", "tokenizer_class"})
"""Keys about the tokenizer, which the config of any family may have."""


@contextlib.contextmanager
def silent_warnings() -> Iterator[None]:
    """Silence transformers' warnings about a config's values: an invalid one is an error with a line of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def config_from_architecture(architecture: Mapping[str, Any]) -> PretrainedConfig:
    """The config that `model.architecture` describes.

    Raises:
        InputError: If it has no model_type, or a key or value that the family does not accept.
    """
    settings = dict(architecture)
    if "model_type" not in settings:
        raise InputError(
            "model.architecture has no model_type; expected a transformers config, with model_type: bert, for example"
        )
    model_type = settings.pop("model_type")
    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        _refuse_unknown_keys(model_type, settings)
    try:
        with silent_warnings():
            return AutoConfig.for_model(model_type, **settings)
    except Exception as error:  # config classes raise many types
        raise InputError(f"model.architecture is not a valid transformers config: {one_line(error)}") from error


def _refuse_unknown_keys(model_type: str, settings: Mapping[str, Any]) -> None:
    config_class = CONFIG_MAPPING[model_type]
    declared = (
        {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map) | _TOKENIZER_KEYS
    )
    for key in settings:
        if key not in declared and not _is_read(config_class, key):
            raise _unknown(f"model.architecture.{key}: {model_type} has no such key", key, declared)
    positions = settings.get("rope_parameters") or settings.get("rope_scaling")
    if isinstance(positions, Mapping):
        known = {*rope.RopeParameters.__annotations__, "type"}
        # One mapping for all layers, or one for each type of layer.
        for parameters in [value for value in positions.values() if isinstance(value, Mapping)] or [positions]:
            for key in parameters:
                if key not in known:
                    raise _unknown(f"model.architecture: rope_parameters has no key {key}", str(key), known)


def _is_read(config_class: type[PretrainedConfig], key: str) -> bool:
    """Whether transformers reads a key that the config class does not declare, which happens in some families."""
    pattern = re.compile(rf"config\.{re.escape(str(key))}\b|[\"']{re.escape(str(key))}[\"']")
    family = config_class.__module__
    modules: list[ModuleType] = [configuration_utils, masking_utils, rope]
    modules += [importlib.import_module(name) for name in (family, family.replace("configuration_", "modeling_"))]
    return any(pattern.search(inspect.getsource(module)) for module in modules)


def _unknown(message: str, key: str, known: set[str]) -> InputError:
    close = difflib.get_close_matches(str(key), known, n=1)
    return InputError(f"{message}; did you mean {close[0]}?" if close else message)
