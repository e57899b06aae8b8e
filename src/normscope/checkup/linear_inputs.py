"""What the linear layers of a model read: how far the largest value is from the usual one, and in which dimensions."""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.checkup.passes import LinearCall
from normscope.maths.massive import MASSIVE_RATIO


class LinearInputs:
    """Accumulates the magnitudes of the inputs of linear layers, text by text."""

    def __init__(self) -> None:
        self.largest: dict[str, Float[Tensor, " input"]] = {}
        """The largest |x| of each dimension over all texts, by linear layer."""
        self._medians: dict[str, list[float]] = {}
        self._layers: dict[str, int | None] = {}

    def __call__(self, call: LinearCall) -> tuple[Tensor, Tensor]:
        """Add the inputs of a call, which stays as it is."""
        magnitudes = call.inputs.flatten(0, -2).abs()
        largest = magnitudes.amax(dim=0)
        before = self.largest.get(call.name)
        self.largest[call.name] = largest if before is None else torch.maximum(before, largest)
        above = magnitudes[magnitudes > 0]  # a ReLU leaves mostly zeros, which every format has
        self._medians.setdefault(call.name, []).append(float(above.float().median()) if len(above) else 0.0)
        self._layers.setdefault(call.name, call.layer)
        return call.inputs, call.weight

    def table(self) -> pd.DataFrame:
        """One row per linear layer, the largest ratio first: see `results.checkup_tables.LINEAR_INPUTS`."""
        table = pd.DataFrame(
            {
                "module": list(self.largest),
                "layer": pd.array([self._layers[name] for name in self.largest], dtype="Int64"),
                "largest": [float(largest.max()) for largest in self.largest.values()],
                "dimension": [int(largest.argmax()) for largest in self.largest.values()],
                "median": [float(np.mean(self._medians[name])) for name in self.largest],
            }
        )
        ratio = (table["largest"] / table["median"]).fillna(0.0)  # a layer that reads nothing but zeros
        table = table.assign(ratio=ratio, massive=ratio >= MASSIVE_RATIO)
        return table.sort_values("ratio", ascending=False, kind="stable", ignore_index=True)
