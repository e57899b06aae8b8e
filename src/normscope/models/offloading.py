"""Weights that are kept on other accelerators, in CPU memory or on disk, and loaded into a module only while that module runs.

A model runs on one device, and so does everything that is measured: other accelerators hold weights, from which they are copied
faster than from CPU memory.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.config.sizes import size_in_bytes
from normscope.errors import InputError
from normscope.models.options import MaxMemory


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
    """Hooks of accelerate that load a module's weights before it runs; `align_module_device` misses those in a sequence."""
    hook: Any = getattr(module, "_hf_hook", None)
    return [each for each in getattr(hook, "hooks", [hook]) if getattr(each, "offload", False)]


def offloaded_to(model: nn.Module) -> list[str]:
    """Where weights of a model are kept while it does not run, in words: CPU memory, disk, or names of accelerators."""
    places = [
        "disk" if tensor is None else "CPU memory" if tensor.device.type == "cpu" else str(tensor.device)
        for _, _, tensor in _kept_elsewhere(model)
    ]
    return sorted(set(places), reverse=True)


@contextlib.contextmanager
def accelerate_silenced() -> Iterator[None]:
    """Silence accelerate's remark that weights are offloaded: a run says where they are."""
    logger = logging.getLogger("accelerate.big_modeling")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def execution_device(model: nn.Module) -> torch.device:
    """The device on which a model runs, wherever its weights are."""
    for parameter in model.parameters():
        if parameter.device.type != "meta":
            return parameter.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next(device for device in devices if device is not None))


def memory_by_device(device: torch.device, limits: MaxMemory) -> dict[int | str, int]:
    """Bytes that weights may take on the device on which a model runs, and on the CPU, as accelerate expects them.

    Args:
        device: The device on which the model runs.
        limits: Sizes; a place without one may be filled as far as accelerate thinks right.

    Raises:
        InputError: If accelerate is not installed, a size is none, or there is one for an accelerator that is not used.
    """
    try:
        from accelerate.utils import get_max_memory
    except ImportError as error:
        raise InputError("device.map=auto needs accelerate: pip install accelerate") from error
    free: dict[int | str, int] = get_max_memory()

    def size(place: str, key: int | str) -> int:
        limit = getattr(limits, place)
        return free.get(key, 0) if limit is None else size_in_bytes(f"device.max_memory.{place}", limit)

    memory: dict[int | str, int] = {"cpu": size("cpu", "cpu")}
    if device.type == "cpu":
        if limits.accelerator is not None:
            raise InputError(
                f"device.max_memory.accelerator={limits.accelerator}: the model runs on the CPU; set only "
                "device.max_memory.cpu"
            )
        return memory
    key: int | str = device.type if device.type == "mps" else device.index or 0
    return {key: size("accelerator", key), **memory}


def device_share(local_rank: int, processes: int, devices: int) -> range:
    """The accelerators of one of the processes on a machine; all have equally many.

    Args:
        local_rank: The number of the process, from 0.
        processes: How many there are.
        devices: How many accelerators the machine shows.

    Raises:
        InputError: If they cannot be divided evenly.
    """
    if devices % processes:
        raise InputError(
            f"device.map=auto: expected a number of GPUs that {processes} processes can share equally, got {devices}; change "
            "--nproc-per-node or CUDA_VISIBLE_DEVICES"
        )
    each = devices // processes
    return range(local_rank * each, (local_rank + 1) * each)


def spare_memory(devices: range, limits: MaxMemory) -> dict[torch.device, int]:
    """Bytes that weights may take on each of the accelerators on which a process does not run, all but the first.

    Raises:
        InputError: If the size is none.
    """
    size = limits.accelerator
    limit = None if size is None else size_in_bytes("device.max_memory.accelerator", size)
    return {
        torch.device("cuda", index): int(torch.cuda.mem_get_info(index)[0] * _USABLE) if limit is None else limit
        for index in devices[1:]
    }


_USABLE = 0.9
"""The share of free memory that weights may take, the rest being CUDA's own: accelerate's, too."""


def keep_on(model: nn.Module, spare: Mapping[torch.device, int]) -> None:
    """Move weights that are kept in CPU memory to other devices, as many as fit, in the order of the modules.

    Args:
        model: A model whose weights accelerate has spread.
        spare: Bytes that weights may take on each device.
    """
    left = dict(spare)
    for in_memory, key, tensor in _kept_elsewhere(model):
        if tensor is None:
            continue
        device = next((place for place, size in left.items() if tensor.nbytes <= size), None)
        if device is not None:
            left[device] -= tensor.nbytes
            in_memory[key] = tensor.to(device)


def _kept_elsewhere(model: nn.Module) -> Iterator[tuple[dict[str, Tensor], str, Tensor | None]]:
    """The weights that are loaded when their module runs: in which dictionary, its key, and the weight; None on disk."""
    for module in model.modules():
        for hook in _offloading_hooks(module):
            # A hook put on a single module by hand keeps its weights in a plain dictionary, without a prefix.
            weights = getattr(hook.weights_map, "dataset", hook.weights_map)
            prefix = getattr(hook.weights_map, "prefix", "")
            in_memory = getattr(weights, "state_dict", weights)  # those on disk are in no dictionary
            for name, _ in module.named_parameters(recurse=False):
                key = f"{prefix}{name}"
                yield in_memory, key, in_memory.get(key)
