"""Copies between the host and a device for which the host does not wait."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on another device. The host does not wait for a copy of what it holds: CUDA makes it from pinned memory."""
    if tensor.device.type != "cpu":
        return tensor.to(device)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
