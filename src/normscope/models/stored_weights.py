"""The weights of a model as they are stored: quantised, or kept elsewhere while their module does not run.

All weights are read through this module. Only loading needs `quantisation` and `offloading`, which quantise and offload them.

A quantised model computes with the numbers that its integers and scales stand for, and so does the decomposition of its blocks.
The numbers are computed when a block is decomposed, one layer at a time: those of all layers would take the memory that
quantisation saves. torchao keeps a weight in its own type of tensor. bitsandbytes keeps integers in the parameter and scales
beside it; its 8-bit layers also round the vectors they multiply, so that their output is not exactly what their weights would
give.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers.modeling_utils import PreTrainedModel

_LARGEST_INT8 = 127


def weight_values(module: nn.Module) -> Tensor:
    """The weight of a module, or the numbers that a quantised one stands for.

    Args:
        module: A linear layer whose weight is on the device on which it runs.

    Returns:
        The weight as stored, (out, in) in a `Linear`; in the dtype of the scales if it is quantised.
    """
    weight: Any = module.weight
    if by_torchao(weight):
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
    return by_torchao(weight) or _by_bitsandbytes(weight)


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


def by_torchao(weight: Tensor) -> bool:
    """Whether torchao has quantised a weight."""
    return bool(is_traceable_wrapper_subclass(weight))


def _by_bitsandbytes(weight: Tensor) -> bool:
    return hasattr(weight, "SCB") or hasattr(weight, "quant_state")


def same_weight(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter that shares the memory of another, without its gradients.

    Layers of bitsandbytes change the attributes of their weights when they first run, so each of the two has its own.
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
    """The tensors that hold the values of a tensor: its integers and scales if torchao has quantised it, else itself."""
    if not by_torchao(tensor):
        return [tensor]
    subclass: Any = tensor
    names, _ = subclass.__tensor_flatten__()
    parts = [getattr(tensor, name) for name in names]
    return [stored for part in parts if part is not None for stored in stored_tensors(part)]


def is_offloaded(model: nn.Module) -> bool:
    """Whether some weights of a model are kept elsewhere while it does not run."""
    return any(parameter.device.type == "meta" for parameter in model.parameters())


@contextlib.contextmanager
def weights_present(module: nn.Module) -> Iterator[None]:
    """While the context is open, the weights of a module and its submodules are on the device on which it runs.

    Tensors that were read inside stay valid; the module's own attributes are `meta` tensors again afterwards.
    """
    with contextlib.ExitStack() as loaded:
        if is_offloaded(module):
            for part in module.modules():
                for hook in _offloading_hooks(part):
                    loaded.callback(hook.post_forward, part, None)
                    hook.pre_forward(part)
            if is_offloaded(module):
                raise RuntimeError(f"{type(module).__name__} has weights on the meta device that nothing loads")
        yield


def _offloading_hooks(module: nn.Module) -> list[Any]:
    """Hooks of accelerate that load a module's weights before it runs; `align_module_device` misses hooks in a sequence."""
    hook: Any = getattr(module, "_hf_hook", None)
    return [each for each in getattr(hook, "hooks", [hook]) if getattr(each, "offload", False)]


def offloaded_to(model: nn.Module) -> list[str]:
    """Where weights of a model are kept while it does not run, in words: CPU memory, disk, or names of accelerators."""
    places = [
        "disk" if tensor is None else "CPU memory" if tensor.device.type == "cpu" else str(tensor.device)
        for _, _, tensor in kept_elsewhere(model)
    ]
    return sorted(set(places), reverse=True)


def execution_device(model: nn.Module) -> torch.device:
    """The device on which a model runs, wherever its weights are."""
    for parameter in model.parameters():
        if parameter.device.type != "meta":
            return parameter.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next(device for device in devices if device is not None))


def kept_elsewhere(model: nn.Module) -> Iterator[tuple[dict[str, Tensor], str, Tensor | None]]:
    """The weights that are loaded when their module runs: dictionary, key, and the weight (None if it is on disk)."""
    for module in model.modules():
        for hook in _offloading_hooks(module):
            # A hook put on a single module by hand keeps its weights in a plain dictionary, without a prefix.
            weights = getattr(hook.weights_map, "dataset", hook.weights_map)
            prefix = getattr(hook.weights_map, "prefix", "")
            in_memory = getattr(weights, "state_dict", weights)  # those on disk are in no dictionary
            for name, _ in module.named_parameters(recurse=False):
                key = f"{prefix}{name}"
                yield in_memory, key, in_memory.get(key)
