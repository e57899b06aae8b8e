"""Configs made of `model.architecture`, whose keys must be keys of the family."""

import dataclasses
import difflib
import importlib
import inspect
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, configuration_utils, masking_utils
from transformers import modeling_rope_utils as rope

from normscope.errors import InputError, one_line

_OF_EVERY_FAMILY = frozenset({"cls_token_id", "sep_token_id", "mask_token_id", "unk_token_id", "tokenizer_class"})
"""What checkpoints say of their tokenizers, whatever the family."""


def configured(architecture: Mapping[str, Any]) -> PretrainedConfig:
    """The config that `model.architecture` describes.

    Raises:
        InputError: If it names no family, or a key or value that the family does not know.
    """
    shapes = dict(architecture)
    if "model_type" not in shapes:
        raise InputError(
            "model.architecture has no model_type: expected a transformers config, model_type: bert for instance"
        )
    model_type = shapes.pop("model_type")
    if isinstance(model_type, str) and model_type in CONFIG_MAPPING:
        _refuse_unknown_keys(model_type, shapes)
    try:
        return AutoConfig.for_model(model_type, **shapes)
    except Exception as error:  # config classes check their values in many ways
        raise InputError(f"model.architecture is no transformers config: {one_line(error)}") from error


def _refuse_unknown_keys(model_type: str, shapes: Mapping[str, Any]) -> None:
    config_class = CONFIG_MAPPING[model_type]
    declared = (
        {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map) | _OF_EVERY_FAMILY
    )
    for key in shapes:
        if key not in declared and not _read(config_class, key):
            raise _unknown(f"model.architecture.{key}: {model_type} has no such key", key, declared)
    positions = shapes.get("rope_parameters") or shapes.get("rope_scaling")
    if isinstance(positions, Mapping):
        known = {*rope.RopeParameters.__annotations__, "type"}
        for of_layers in [value for value in positions.values() if isinstance(value, Mapping)] or [positions]:
            for key in of_layers:
                if key not in known:
                    raise _unknown(f"model.architecture: rope_parameters has no key {key}", str(key), known)


def _read(config_class: type[PretrainedConfig], key: str) -> bool:
    """Whether transformers reads a key that the config class does not declare, as some families do."""
    pattern = re.compile(rf"config\.{re.escape(str(key))}\b|[\"']{re.escape(str(key))}[\"']")
    family = config_class.__module__
    modules: list[ModuleType] = [configuration_utils, masking_utils, rope]
    modules += [importlib.import_module(name) for name in (family, family.replace("configuration_", "modeling_"))]
    return any(pattern.search(inspect.getsource(module)) for module in modules)


def _unknown(message: str, key: str, known: set[str]) -> InputError:
    close = difflib.get_close_matches(str(key), known, n=1)
    return InputError(f"{message}" + (f"; did you mean {close[0]}?" if close else ""))
