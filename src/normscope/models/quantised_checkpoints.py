"""Checkpoints whose weights were quantised before they were saved.

Their integers and scales are loaded as they are, and dequantised one layer at a time (`quantisation.py`). A scheme is accepted
only if its integers and scales define the numbers that the model computes with.
"""

from typing import Any

import torch
import transformers
from transformers import AutoModel, PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from normscope.errors import InputError, printable
from normscope.models.options import Quantization
from normscope.models.quantisation import check_bitsandbytes, check_dtype, import_package, with_dtype

_READABLE = "Int8WeightOnlyConfig"
"""torchao's scheme that quantises weights alone: a row's integers times the row's scale."""


def method_of(config: PretrainedConfig) -> str | None:
    """The package that quantised a checkpoint, as its config names it; None if its weights are not quantised."""
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    settings = _settings(stored)
    # Configs written by older versions of transformers do not name bitsandbytes.
    guessed = "bitsandbytes" if settings.get("load_in_8bit") or settings.get("load_in_4bit") else stored
    method = settings.get("quant_method") or guessed
    return str(getattr(method, "value", method))


def check_readable(config: PretrainedConfig) -> None:
    """Check that the numbers that quantised weights stand for can be computed.

    Raises:
        InputError: If a package other than torchao and bitsandbytes has quantised them.
    """
    method = method_of(config)
    if method not in (None, "torchao", "bitsandbytes"):
        raise _unreadable(method)


def stored_quantization(config: PretrainedConfig) -> Quantization | None:
    """How the weights of a checkpoint are quantised; None if they are not."""
    method = method_of(config)
    if method is None:
        return None
    settings = _settings(config.quantization_config)
    match method:
        case "torchao":
            scheme = _scheme(settings)
            if scheme != _READABLE:
                raise _unreadable(f"torchao's {scheme}")
            return Quantization.torchao_int8
        case "bitsandbytes" if settings.get("load_in_8bit"):
            return Quantization.bitsandbytes_8bit
        case "bitsandbytes" if settings.get("load_in_4bit"):
            return Quantization.bitsandbytes_4bit
    raise _unreadable(method)


def check_loadable(quantization: Quantization, name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Check that a quantised checkpoint can be loaded here.

    Args:
        quantization: How its weights are quantised.
        name: The model's name, for messages.
        dtype: The dtype in which the model computes.
        device: Where it runs.

    Raises:
        InputError: If it cannot; the message names the config key.
    """
    subject = f"model.name={name} (weights saved as {quantization})"
    check_dtype(dtype, subject)
    if quantization is Quantization.torchao_int8:
        import_package("torchao.quantization", subject)
    else:
        check_bitsandbytes(device, subject)


def class_of(config: PretrainedConfig, quantization: Quantization | None) -> Any:
    """The class of transformers that loads a checkpoint.

    Only the class that saved torchao's tensors finds them again, because the file names their modules relative to that class.
    """
    architectures = getattr(config, "architectures", None)
    if quantization is not Quantization.torchao_int8 or not architectures:
        return AutoModel
    return getattr(transformers, str(architectures[0]), AutoModel)


def compute_in(config: PretrainedConfig, dtype: torch.dtype) -> None:
    """Make four-bit layers compute in the dtype of this run, not in the one with which they were saved."""
    settings = config.quantization_config
    if isinstance(settings, dict) and settings.get("load_in_4bit"):
        settings["bnb_4bit_compute_dtype"] = str(dtype).removeprefix("torch.")


def set_dtype(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Make the quantised weights of a model stand for numbers of the dtype in which it runs.

    Otherwise they would be rounded to the dtype that the weights had before quantisation; the model itself does not round them.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, with_dtype(parameter, dtype))


def _settings(stored: object) -> dict[str, Any]:
    """A quantisation config as a dictionary; transformers replaces it with an object when it loads the model."""
    if isinstance(stored, dict):
        return stored
    return stored.to_dict() if hasattr(stored, "to_dict") else {}


def _scheme(settings: dict[str, Any]) -> str:
    """The name of torchao's class, or what stands in its place."""
    given = settings.get("quant_type")
    whole = given.get("default") if isinstance(given, dict) else given
    return str(whole.get("_type") if isinstance(whole, dict) else whole)


def _unreadable(scheme: str) -> InputError:
    return InputError(
        f"quantization_config in the model's config: expected bitsandbytes, or torchao's {_READABLE}, got "
        f"{printable(scheme, 60)}; set model.name to such a checkpoint, or to one in float32, float16 or bfloat16"
    )
