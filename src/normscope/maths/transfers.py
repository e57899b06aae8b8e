"""Copies to a device for which the host does not wait."""

import torch
from torch import Tensor


def host_waits(device: torch.device) -> bool:
    """Whether the host waits for a device when it reads a number from it."""
    return device.type != "cpu"


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on another device. The host does not wait if the tensor is in CPU memory: CUDA copies it from pinned memory."""
    if tensor.device.type != "cpu":
        return tensor.to(device)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
