"""Copies between the host and a device for which the host does not wait."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor in CPU memory, copied to a device behind the work that is queued there.

    Only from pinned memory does the copy not wait for that work.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
