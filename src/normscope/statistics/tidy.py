"""Tidy tables from tensors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from torch import Tensor

Labels = Sequence[Any] | np.ndarray | pd.api.extensions.ExtensionArray


def tidy(values: "Mapping[str, Tensor | np.ndarray]", **axes: Labels) -> pd.DataFrame:
    """A table with one row per element: first a column of labels for each axis, then a column for each tensor.

    Args:
        values: Tensors by column name. Each has one dimension per axis, in the order of `axes`, or broadcasts to that shape.
        axes: The labels along each axis, by column name. The columns have the labels' dtype.

    Returns:
        The rows in row-major order: the last axis varies fastest.

    Raises:
        ValueError: If a tensor does not broadcast to the shape of the axes.
    """
    shape = tuple(len(labels) for labels in axes.values())
    columns: dict[str, Any] = {}
    for axis, (name, labels) in enumerate(axes.items()):
        positions = np.arange(shape[axis]).reshape(-1, *(1 for _ in shape[axis + 1 :]))
        columns[name] = pd.Index(labels).take(np.broadcast_to(positions, shape).ravel())
    for name, tensor in values.items():
        array = tensor if isinstance(tensor, np.ndarray) else tensor.cpu().numpy()
        columns[name] = np.broadcast_to(array, shape).ravel()
    return pd.DataFrame(columns)
