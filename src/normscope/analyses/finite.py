"""The check that every analysis makes before it returns its part: no NaN, no infinity."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from normscope.errors import InputError


def require_finite(values: Tensor | np.ndarray, source: str, layers: Sequence[int] = ()) -> None:
    """Refuse values that are not finite, typically because float16 has overflowed.

    Args:
        values: The values to check. With `layers`, the first axis is the layer.
        source: What the values belong to, for the message. `{layer}` stands for the first layer that is not finite.
        layers: The layer numbers along the first axis.

    Raises:
        InputError: If a value is NaN or infinite.
    """
    finite = np.isfinite(values.cpu().numpy() if isinstance(values, Tensor) else values)
    if finite.all():
        return
    if layers:
        first = int(finite.reshape(len(layers), -1).all(axis=1).argmin())
        source = source.format(layer=layers[first])
    raise InputError(f"NaN or infinity in {source}; try device.dtype=float32")
