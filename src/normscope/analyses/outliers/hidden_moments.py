"""Mean and spread of the hidden vectors, dimension by dimension, and which dimensions are outliers."""

import dataclasses

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.outliers.options import OutliersOptions
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.errors import InputError
from normscope.maths.outliers import deviation_scores, outlier_dimensions
from normscope.statistics.accumulator import accumulation_device
from normscope.statistics.mean import Mean


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenSummary:
    """What is known of the hidden vectors of layers 0 to L. Groups are token categories, the last of them all tokens."""

    mean: Float[Tensor, "layer group model"]
    deviation: Float[Tensor, "layer group model"]
    """Standard deviation over tokens, of the population."""
    count: Int[Tensor, "layer group"]
    scores: Float[Tensor, "layer model"]
    """How far each dimension's mean over all tokens lies from the other dimensions'."""
    is_outlier: Bool[Tensor, "layer model"]
    outliers: list[int]
    """The outlier dimensions of the model."""


class HiddenMoments:
    """Fills the accumulator of the hidden vectors and finds the outliers among their dimensions.

    Args:
        subject: What is looked at.
        categories: Token categories to tell apart; all tokens together are always a group, the last.

    Raises:
        InputError: If a dimension that was given is not one of the model's.
    """

    def __init__(self, context: AnalysisContext, categories: list[str]) -> None:
        self._options = context.options_of(OutliersOptions)
        self._counted = dataclasses.replace(context, categories=[*(c for c in categories if c != ALL), ALL])
        given = self._options.dimensions
        for dimension in given or ():
            if not 0 <= dimension < context.model:
                raise InputError(
                    f"analysis.outliers.dimensions={given}: expected dimensions from 0 to {context.model - 1} (this model's), "
                    f"got {dimension}"
                )
        self.categories = self._counted.categories
        self.accumulator = Mean(context.depth + 1, len(self.categories), 2, context.model)

    def update(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the hidden vectors of one batch in one layer, from 0."""
        device = accumulation_device(vectors.device)
        # Squares lose the digits of a spread that is small beside the mean: float64 has enough to lose.
        numbers = vectors.to(device).double().flatten(0, 1)
        members = self._counted.members(batch).to(device)
        weights = members.flatten(1).double()
        self.accumulator.update(
            layer, torch.stack([weights @ numbers, weights @ numbers.square()], dim=1), members.sum(dim=(1, 2))
        )

    def compute(self) -> HiddenSummary:
        """Means, spreads and outliers.

        Raises:
            InputError: If a hidden vector was not finite; the message names the layer.
        """
        found = self.accumulator.compute()
        mean, square = found.mean.unbind(dim=2)
        broken = ~torch.isfinite(mean[:, -1]).all(dim=-1)
        if broken.any():
            raise InputError(
                f"NaN or infinity in the hidden vectors of layer {int(broken.nonzero()[0])}; try device.dtype=float32"
            )
        scores = deviation_scores(mean[:, -1], self._options.criterion.value)
        is_outlier = scores.abs() > self._options.threshold
        given = self._options.dimensions
        return HiddenSummary(
            mean=mean,
            deviation=(square - mean.square()).clamp(min=0).sqrt(),
            count=found.count,
            scores=scores,
            is_outlier=is_outlier,
            outliers=outlier_dimensions(is_outlier, self._options.share) if given is None else sorted(set(given)),
        )

    @property
    def criterion(self) -> str:
        """What makes a dimension an outlier, in words."""
        if self._options.dimensions is not None:
            return "as given by analysis.outliers.dimensions"
        unit = {
            "sigma": "standard deviations from the mean",
            "mad": "median absolute deviations (× 1.4826) from the median",
        }
        return (
            f"mean more than {self._options.threshold:g} {unit[self._options.criterion.value]} of the layer's dimensions, in "
            f"at least {self._options.share:.0%} of layers 0 to {self._counted.depth}"
        )


def layer_rows(layers: list[int], dimensions: list[int], **columns: Tensor) -> pd.DataFrame:
    """A table with a row per layer and dimension, from tensors (layer, model)."""
    i, j = np.indices((len(layers), len(dimensions))).reshape(2, -1)
    chosen = {
        name: tensor[i, torch.tensor(dimensions, dtype=torch.int64)[j]].numpy() for name, tensor in columns.items()
    }
    return pd.DataFrame({"layer": np.array(layers)[i], "dimension": np.array(dimensions, dtype=int)[j], **chosen})
