"""What the linear layers of a model read: how far the largest value is from the usual one, and in which dimensions."""

import math
from collections.abc import Callable

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.checkup.passes import LinearCall
from normscope.maths.massive import MASSIVE_RATIO


class LinearInputs:
    """Accumulates the magnitudes of the inputs of linear layers, text by text, as passes call it in place of them."""

    def __init__(self) -> None:
        self.largest: dict[str, Float[Tensor, " input"]] = {}
        """The largest |x| of each dimension over all texts, by linear layer."""
        self._medians: dict[str, list[float]] = {}
        self._layers: dict[str, int | None] = {}

    def __call__(self, call: LinearCall, own: Callable[[Tensor], Tensor]) -> Tensor:
        """Add the inputs of a call, and return its output as it is."""
        magnitudes = call.inputs.flatten(0, -2).abs()
        largest = magnitudes.amax(dim=0)
        before = self.largest.get(call.name)
        self.largest[call.name] = largest if before is None else torch.maximum(before, largest)
        self._medians.setdefault(call.name, []).append(float(magnitudes.float().median()))
        self._layers.setdefault(call.name, call.layer)
        return own(call.inputs)

    def table(self) -> pd.DataFrame:
        """One row per linear layer, the largest ratio first.

        `largest` is the largest |x| over texts, tokens and dimensions, `dimension` (from 0) where it is, `median` the mean over
        texts of the median |x| of a text, and `ratio` the one divided by the other. `massive`: whether that is at least 1,000,
        as it is of massive activations of the residual stream (`maths/massive`); how large they are makes no difference to
        rounding. A linear layer that several layers share has the number of the first.
        """
        rows = []
        for name, largest in self.largest.items():
            medians = self._medians[name]
            most, median = float(largest.max()), sum(medians) / len(medians)
            ratio = most / median if median > 0 else math.inf if most > 0 else 0.0
            rows.append(
                {
                    "module": name,
                    "layer": self._layers[name],
                    "largest": most,
                    "dimension": int(largest.argmax()),
                    "median": median,
                    "ratio": ratio,
                    "massive": ratio >= MASSIVE_RATIO,
                }
            )
        table = pd.DataFrame(rows).astype({"layer": "Int64"})
        return table.sort_values("ratio", ascending=False, kind="stable", ignore_index=True)
