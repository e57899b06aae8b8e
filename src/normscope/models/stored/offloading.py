"""Where to keep weights that are loaded into a module only while it runs: other accelerators, CPU memory or disk.

The model and all measurements run on one device. Other accelerators only hold weights, which are copied from there faster than
from CPU memory.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from normscope.config.rules import size_in_bytes
from normscope.errors import InputError
from normscope.models.options import MaxMemory
from normscope.models.stored.stored_weights import kept_elsewhere


@contextlib.contextmanager
def accelerate_silenced() -> Iterator[None]:
    """Silence accelerate's remark that weights are offloaded: a run itself says where they are."""
    logger = logging.getLogger("accelerate.big_modeling")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def memory_by_device(device: torch.device, limits: MaxMemory) -> dict[int | str, int]:
    """Bytes that weights may take on the device on which a model runs, and on the CPU, in the form that accelerate expects.

    Args:
        device: The device on which the model runs.
        limits: Sizes; a place without one is filled as far as accelerate allows.

    Raises:
        InputError: If accelerate is not installed, a size is invalid, or one is given for an accelerator that is not used.
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


def spare_memory(devices: range, limits: MaxMemory) -> dict[torch.device, int]:
    """Bytes that weights may take on each of a process's accelerators but the first, on which the model runs.

    Raises:
        InputError: If the size is invalid.
    """
    size = limits.accelerator
    limit = None if size is None else size_in_bytes("device.max_memory.accelerator", size)
    return {
        torch.device("cuda", index): int(torch.cuda.mem_get_info(index)[0] * _USABLE) if limit is None else limit
        for index in devices[1:]
    }


_USABLE = 0.9
"""The fraction of free memory that weights may take, as in accelerate; the rest is left to CUDA."""


def keep_on(model: nn.Module, spare: Mapping[torch.device, int]) -> None:
    """Move weights that are kept in CPU memory to other devices, as many as fit, in the order of the modules.

    Args:
        model: A model whose weights accelerate has distributed.
        spare: Bytes that weights may take on each device.
    """
    left = dict(spare)
    for in_memory, key, tensor in kept_elsewhere(model):
        if tensor is None:
            continue
        device = next((place for place, size in left.items() if tensor.nbytes <= size), None)
        if device is not None:
            left[device] -= tensor.nbytes
            in_memory[key] = tensor.to(device)
