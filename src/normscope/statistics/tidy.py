"""Tensors to tidy tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor


def tidy(values: Mapping[str, Tensor | np.ndarray], **axes: Sequence[Any]) -> pd.DataFrame:
    """A table with one row per element: a column per axis with its labels, then a column per tensor.

    Args:
        values: Tensors by the names of their columns, each of the shape that the axes have, or one that broadcasts to it.
        axes: The labels along each axis, by the names of their columns, in the order of the tensors' axes.

    Returns:
        Rows in row-major order: the last axis varies fastest.

    Raises:
        ValueError: If a tensor does not have the shape of the axes.
    """
    shape = tuple(len(labels) for labels in axes.values())
    positions = np.indices(shape).reshape(len(shape), -1)
    columns: dict[str, Any] = {
        name: pd.Series(list(labels)).take(position).to_numpy()
        for (name, labels), position in zip(axes.items(), positions, strict=True)
    }
    for name, tensor in values.items():
        array = tensor.cpu().numpy() if isinstance(tensor, Tensor) else tensor
        columns[name] = np.broadcast_to(array, shape).ravel()
    return pd.DataFrame(columns)
