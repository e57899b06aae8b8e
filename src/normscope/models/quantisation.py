"""Weights in eight or four bits: how they are made, and the numbers that they stand for.

A quantised model computes with the numbers that its integers and scales stand for, and these are what its blocks are made of.
They are computed when a block is decomposed, one layer at a time: those of all layers would take the memory that quantisation
saves.

torchao keeps a weight in its own type of tensor. bitsandbytes keeps integers in the parameter and scales beside it; its
8-bit layers also round what they multiply, so that their output is not exactly what their weights would give.
"""

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import BitsAndBytesConfig
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normscope.errors import InputError
from normscope.models.options import Quantization

_LARGEST_INT8 = 127


def weight_values(module: nn.Module) -> Tensor:
    """The weight of a module, or the numbers that a quantised one stands for.

    Args:
        module: A linear layer, its weight on the device on which it runs.

    Returns:
        The weight as stored, (out, in) in a `Linear`; in the dtype of the scales if it is quantised.
    """
    weight: Any = module.weight
    if _by_torchao(weight):
        values: Tensor = weight.dequantize()
        return values
    if getattr(weight, "quant_state", None) is not None:
        functional: Any = importlib.import_module("bitsandbytes.functional")
        four_bits: Tensor = functional.dequantize_4bit(weight.data, weight.quant_state)
        return four_bits
    if weight.dtype is torch.int8:
        # The first pass moves the scales, the largest absolute value of each row, from the weight to the layer.
        scales = next(
            scales
            for scales in (getattr(weight, "SCB", None), getattr(getattr(module, "state", None), "SCB", None))
            if scales is not None
        )
        return weight.data * (scales.float() / _LARGEST_INT8).unsqueeze(1)
    assert isinstance(weight, Tensor)
    return weight


def is_quantised_weight(weight: Tensor) -> bool:
    """Whether a weight is stored as integers with scales, by torchao or bitsandbytes."""
    return _by_torchao(weight) or _by_bitsandbytes(weight)


def number_format(model: PreTrainedModel) -> str:
    """The dtype of a model in words, and whether some weights are quantised."""
    dtype = str(model.dtype).removeprefix("torch.")
    return f"{dtype} with quantised weights" if is_quantised(model) else dtype


def is_quantised(model: nn.Module) -> bool:
    """Whether some weights of a model are quantised."""
    return any(is_quantised_weight(parameter) for parameter in model.parameters())


def rounds_activations(model: nn.Module) -> bool:
    """Whether some layers of a model round the vectors that they multiply, as 8-bit layers of bitsandbytes do."""
    return any(parameter.dtype is torch.int8 and _by_bitsandbytes(parameter) for parameter in model.parameters())


def _by_torchao(weight: Tensor) -> bool:
    return bool(is_traceable_wrapper_subclass(weight))


def _by_bitsandbytes(weight: Tensor) -> bool:
    return hasattr(weight, "SCB") or hasattr(weight, "quant_state")


def same_weight(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter that shares the memory of another, without its gradients.

    Layers of bitsandbytes change the attributes of their weights when they first run, so the two have attributes of their own.
    """
    if not _by_bitsandbytes(parameter):
        return nn.Parameter(parameter.detach(), requires_grad=False)
    shared: nn.Parameter = torch.Tensor._make_subclass(type(parameter), parameter.data, False)
    vars(shared).update(vars(parameter))
    return shared


def quantisation_state(module: nn.Module) -> list[Any]:
    """What a layer of bitsandbytes holds beside its parameters: integers and scales, to be shared by its copies."""
    if not any(map(_by_bitsandbytes, module.parameters(recurse=False))):
        return []
    state = vars(module).get("state")
    tensors = [] if state is None else [part for part in vars(state).values() if isinstance(part, Tensor)]
    return [*tensors, *(part for part in (vars(module).get("quant_state"),) if part is not None)]


def stored_tensors(tensor: Tensor) -> list[Tensor]:
    """The tensors that hold the values of a tensor: integers and scales of one that torchao has quantised, else itself."""
    if not _by_torchao(tensor):
        return [tensor]
    subclass: Any = tensor
    names, _ = subclass.__tensor_flatten__()
    parts = [getattr(tensor, name) for name in names]
    return [stored for part in parts if part is not None for stored in stored_tensors(part)]


def bitsandbytes_config(quantization: Quantization, dtype: torch.dtype, device: torch.device) -> BitsAndBytesConfig:
    """How transformers is to load weights that bitsandbytes quantises.

    Args:
        quantization: In how many bits.
        dtype: What layers in four bits compute in.
        device: Where the model runs.

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
    """The parameter; if torchao has quantised it, its integers and scales stand for numbers of this dtype."""
    if not _by_torchao(parameter):
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

    Raises:
        InputError: If they cannot.
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
