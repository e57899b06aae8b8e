"""The precision in which parts are added up and compared."""

from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device has no float64."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()
