"""PEFT adapters, merged into the weights of their model before it is observed."""

import json
import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def adapter_folder(name: str) -> Path | None:
    """The folder with this name, if it contains an adapter but no model; else None."""
    folder = Path(name).expanduser()
    is_adapter = (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()
    return folder if is_adapter else None


def base_model_name(folder: Path) -> str:
    """Name or folder of the model that an adapter was trained on.

    Raises:
        InputError: If the adapter does not name it.
    """
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"model.name={folder}: its {ADAPTER_CONFIG} cannot be read: {one_line(error)}") from error
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(name, str) or not name:
        raise InputError(f"model.name={folder}: expected base_model_name_or_path in its {ADAPTER_CONFIG}, got {name!r}")
    return name


def merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge an adapter into the weights of its model.

    Adapters are trained on models with a head; their changes to the head are left out.

    Args:
        model: The base model.
        folder: The adapter's folder.

    Raises:
        InputError: If peft is not installed, or the adapter does not fit the model.
    """
    try:
        from peft import PeftConfig, PeftModel
        from peft.utils import set_peft_model_state_dict
    except ImportError as error:
        raise InputError(f"model.name={folder} is a PEFT adapter, which needs peft; run `pip install peft`") from error
    weights = folder / ADAPTER_WEIGHTS
    if not weights.is_file():
        raise InputError(f"model.name={folder}: expected {ADAPTER_WEIGHTS}; adapters are read from safetensors only")
    config = _config(PeftConfig, folder)
    config.inference_mode, config.task_type, config.modules_to_save = False, None, None
    inside = f"base_model.model.{model.base_model_prefix}."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses a deprecated attribute of transformers
            adapted = PeftModel(model, config)
        state = {name.replace(inside, "base_model.model.", 1): value for name, value in load_file(weights).items()}
        layers = {
            name: value for name, value in state.items() if ".lora_" in name or ".ia3_" in name or ".vera_" in name
        }
        outcome: Any = set_peft_model_state_dict(adapted, layers)
    except Exception as error:  # peft hardly validates configs, so bad ones fail anywhere
        raise InputError(f"model.name={folder}: the adapter does not fit its model: {one_line(error)}") from error
    missing = [name for name in outcome.missing_keys if config.peft_type.lower() in name.lower()]
    wrong = [*outcome.unexpected_keys, *missing]
    if wrong or not layers:
        reason = f"tensor {wrong[0]} is missing or unknown" if wrong else "it has no LoRA, IA3 or VeRA tensors to merge"
        raise InputError(f"model.name={folder}: the adapter does not fit its model: {reason}")
    merged_model = adapted.merge_and_unload()
    assert isinstance(merged_model, PreTrainedModel)
    return merged_model


def _config(config_class: Any, folder: Path) -> Any:
    try:
        return config_class.from_pretrained(str(folder))
    except Exception as error:  # a foreign file, parsed by a library: it may raise anything
        raise InputError(f"model.name={folder}: its {ADAPTER_CONFIG} cannot be used: {one_line(error)}") from error
