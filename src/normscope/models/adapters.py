"""PEFT adapters, merged into the weights of their model before it is observed: from files, or in memory."""

import sys
import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, one_line
from normscope.models.files import check_readable
from normscope.untrusted.files import MIB
from normscope.untrusted.plain_data import json_mapping

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
    check_readable(folder, f"model.name={folder}")
    try:
        config = json_mapping(folder / ADAPTER_CONFIG, MIB)
    except InputError as error:
        raise InputError(f"model.name={folder}: its {ADAPTER_CONFIG} cannot be read: {error}") from error
    name = config.get("base_model_name_or_path")
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


def without_peft(model: object) -> object:
    """The transformers model inside a PEFT model, with its adapted layers; anything else as it is.

    Raises:
        InputError: If the PEFT model adds tokens or prefixes to every input, which cannot be merged into weights.
    """
    if type(model).__module__.partition(".")[0] != "peft":
        return model
    from peft import PeftModel, PromptLearningConfig

    if not isinstance(model, PeftModel):
        return model
    config = model.active_peft_config
    if isinstance(config, PromptLearningConfig):
        raise InputError(
            f"model: expected an adapter that can be merged into weights, such as LoRA, got {_kind(config)}, which "
            "adds to every input; pass model.get_base_model() to observe the model without it"
        )
    return model.get_base_model()


def _kind(config: Any) -> str:
    return str(getattr(config.peft_type, "value", config.peft_type))


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers that PEFT has replaced, by their paths; those inside others are left out."""
    if "peft" not in sys.modules:
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    layers: dict[str, Any] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in layers)
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) and not inside:
            layers[name] = module
    return layers


def merge_active_adapters(model: nn.Module) -> None:
    """Replace every adapted layer by a plain one with the weights that its active adapters make, in place.

    Raises:
        InputError: If an adapter cannot be merged.
    """
    for name, layer in adapted_layers(model).items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that there is nothing to merge, for example
                plain = _merged(layer)
        except Exception as error:  # adapters that cannot be merged raise many types
            raise InputError(
                f"model: the adapter of {name} cannot be merged into its weights: {one_line(error)}"
            ) from error
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, plain)


def _merged(layer: Any) -> nn.Module:
    """The plain layer inside an adapted one, with the active adapters merged into it."""
    if hasattr(layer, "unload_and_optionally_merge_module"):
        if layer.disable_adapters:
            return layer.original_module
        return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
    if not layer.disable_adapters:
        layer.merge()
    elif layer.merged:
        layer.unmerge()
    return layer.get_base_layer()


def _config(config_class: Any, folder: Path) -> Any:
    try:
        return config_class.from_pretrained(str(folder))
    except Exception as error:  # a foreign file, parsed by a library: it may raise anything
        raise InputError(f"model.name={folder}: its {ADAPTER_CONFIG} cannot be used: {one_line(error)}") from error
