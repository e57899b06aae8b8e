"""PEFT adapters, merged into the weights that they adapt before anything is observed."""

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
    """The folder of that name, if it holds an adapter and no model."""
    folder = Path(name).expanduser()
    holds_adapter = (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()
    return folder if holds_adapter else None


def adapted_model(folder: Path) -> str:
    """Name or folder of the model that an adapter was trained on.

    Raises:
        InputError: If the adapter does not say.
    """
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"model.name={folder}: its {ADAPTER_CONFIG} cannot be read: {one_line(error)}") from error
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(name, str) or not name:
        raise InputError(f"model.name={folder}: its {ADAPTER_CONFIG} names no base_model_name_or_path")
    return name


def merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model with an adapter's changes in its weights.

    Adapters are trained on models with a head; what they keep for the base model is taken, what they keep for the head is not.

    Raises:
        InputError: If peft is not installed, or the adapter does not fit the model.
    """
    try:
        from peft import PeftConfig, PeftModel
        from peft.utils import set_peft_model_state_dict
    except ImportError as error:
        raise InputError(f"model.name={folder} is a PEFT adapter: pip install 'normscope[peft]'") from error
    weights = folder / ADAPTER_WEIGHTS
    if not weights.is_file():
        raise InputError(f"model.name={folder}: no {ADAPTER_WEIGHTS} there; adapters are read from safetensors only")
    config = _config(PeftConfig, folder)
    config.inference_mode, config.task_type, config.modules_to_save = False, None, None
    inside = f"base_model.model.{model.base_model_prefix}."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by a name that is going to change
            adapted = PeftModel(model, config)
        state = {name.replace(inside, "base_model.model.", 1): value for name, value in load_file(weights).items()}
        layers = {
            name: value for name, value in state.items() if ".lora_" in name or ".ia3_" in name or ".vera_" in name
        }
        outcome: Any = set_peft_model_state_dict(adapted, layers)
    except Exception as error:  # peft checks little of a config before it uses it
        raise InputError(f"model.name={folder}: the adapter does not fit its model: {one_line(error)}") from error
    missing = [name for name in outcome.missing_keys if config.peft_type.lower() in name.lower()]
    wrong = [*outcome.unexpected_keys, *missing]
    if wrong or not layers:
        what = wrong[0] if wrong else "it holds no tensors of a kind that can be merged"
        raise InputError(f"model.name={folder}: the adapter does not fit its model: {what}")
    merged_model = adapted.merge_and_unload()
    assert isinstance(merged_model, PreTrainedModel)
    return merged_model


def _config(kind: Any, folder: Path) -> Any:
    try:
        return kind.from_pretrained(str(folder))
    except Exception as error:  # a file of somebody else's, read by code of somebody else's
        raise InputError(f"model.name={folder}: its {ADAPTER_CONFIG} cannot be used: {one_line(error)}") from error
