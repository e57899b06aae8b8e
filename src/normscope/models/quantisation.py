"""Weights in eight or four bits: how they are made, and how much memory they take."""

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normscope.errors import InputError
from normscope.models.options import Quantization
from normscope.models.stored_weights import by_torchao


def bitsandbytes_config(quantization: Quantization, dtype: torch.dtype, device: torch.device) -> BitsAndBytesConfig:
    """Tells transformers how to load weights that bitsandbytes quantises.

    Args:
        quantization: Whether in eight or four bits.
        dtype: The dtype in which four-bit layers compute.

    Raises:
        InputError: If the device is not CUDA, or bitsandbytes is not installed.
    """
    subject = f"model.quantization={quantization}"
    check_dtype(dtype, subject)
    check_bitsandbytes(
        device, subject, f"; set model.quantization={Quantization.torchao_int8}, which runs on any device"
    )
    if quantization is Quantization.bitsandbytes_8bit:
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def quantise_to_int8(model: PreTrainedModel, device: torch.device) -> None:
    """Quantise the weights of a model's linear layers, row by row, with torchao. Each layer is moved to a device first.

    Raises:
        InputError: If torchao is not installed, the model is in float64, or it has no linear layers.
    """
    subject = f"model.quantization={Quantization.torchao_int8}"
    check_dtype(model.dtype, subject)
    torchao: Any = import_package("torchao.quantization", subject)
    if not any(_is_linear(module) for module in model.modules()):
        raise InputError(
            f"{subject}: expected a model with linear layers, got {model.config.model_type}, whose "
            "projections are of another kind; leave out model.quantization"
        )
    torchao.quantize_(
        model, torchao.Int8WeightOnlyConfig(), filter_fn=lambda module, _path: _is_linear(module), device=device
    )


def with_dtype(parameter: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    """The parameter; if torchao has quantised it, one that stands for numbers of this dtype."""
    if not by_torchao(parameter):
        return parameter
    subclass: Any = parameter.data
    names, attributes = subclass.__tensor_flatten__()
    stored = {name: getattr(subclass, name) for name in names}
    whole = type(subclass).__tensor_unflatten__(stored, attributes | {"dtype": dtype}, None, None)
    return nn.Parameter(whole, requires_grad=False)


def quantised_bytes(module: nn.Module, quantization: Quantization) -> int | None:
    """The size of a module's weight once it is quantised, scales included; None if it stays as it is."""
    by_torchao = quantization is Quantization.torchao_int8
    if not (_is_linear(module) or (isinstance(module, Conv1D) and not by_torchao)):
        return None
    weight = module.weight
    assert isinstance(weight, Tensor)
    match quantization:
        case Quantization.torchao_int8:
            return weight.numel() + weight.shape[0] * 5  # a scale in float32 and a zero point in int8
        case Quantization.bitsandbytes_8bit:
            return weight.numel() + weight.shape[0] * 4
        case Quantization.bitsandbytes_4bit:
            return weight.numel() // 2 + weight.numel() // _NF4_BLOCK * 4


_NF4_BLOCK = 64
"""Weights of four bits that share a scale in float32."""


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear


def check_dtype(dtype: torch.dtype, subject: str) -> None:
    """Check that quantised weights can stand for numbers of a dtype.

    Args:
        dtype: The dtype in which the model computes.
        subject: What asks for quantised weights, for messages.
    """
    if dtype is torch.float64:
        raise InputError(f"device.dtype=float64: expected bfloat16, float16 or float32 with {subject}")


def check_bitsandbytes(device: torch.device, subject: str, advice: str = "") -> None:
    """Check that bitsandbytes can run on a device; the other arguments are for messages.

    Raises:
        InputError: If the device is not CUDA, or bitsandbytes is not installed.
    """
    if device.type != "cuda":
        raise InputError(f"{subject}: expected a CUDA device, got {device}{advice}")
    import_package("bitsandbytes", subject)


def import_package(name: str, subject: str) -> Any:
    """Import a module of an optional package.

    Raises:
        InputError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f"{subject} needs {package}: pip install {package}") from error
