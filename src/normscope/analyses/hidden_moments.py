"""Mean and spread of the hidden vectors, dimension by dimension, and which dimensions are outliers."""

import dataclasses
import enum
import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.declarations.outliers import OutliersOptions
from normscope.analyses.finite import require_finite
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.errors import InputError
from normscope.maths.outliers import deviation_scores, outlier_dimensions
from normscope.maths.tensors import cached_rows, lanes
from normscope.rounding import enumeration
from normscope.statistics.accumulator import accumulation_device
from normscope.statistics.mean import Mean


class Origin(enum.Enum):
    """Where the outlier dimensions of a model come from."""

    detected = enum.auto()
    given = enum.auto()
    """By hand."""
    known = enum.auto()
    """From a paper about the same weights."""


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenSummary:
    """Statistics of the hidden vectors of layers 0 to L. Groups are token categories; the last group is all tokens."""

    mean: Float[Tensor, "layer group model"]
    deviation: Float[Tensor, "layer group model"]
    """Standard deviation over tokens, of the population."""
    count: Int[Tensor, "layer group"]
    scores: Float[Tensor, "layer model"]
    """How far the mean of each dimension over all tokens is from those of the other dimensions."""
    is_outlier: Bool[Tensor, "layer model"]
    outliers: list[int]
    """The outlier dimensions of the model."""


class HiddenMoments:
    """Accumulates the moments of the hidden vectors and finds the outlier dimensions.

    Args:
        categories: Token categories to keep apart. The last group is always all tokens.

    Raises:
        InputError: If the dimensions that are set have one that the model does not have, or known ones come without the
            weights that have them.
    """

    def __init__(self, context: AnalysisContext, categories: list[str]) -> None:
        self._options = context.options_of(OutliersOptions)
        self.categories = [*(category for category in categories if category != ALL), ALL]
        # Sums over all categories are shared by the analyses, and cost hardly more than those over a few.
        self._counted = dataclasses.replace(
            context, categories=list(dict.fromkeys([*context.categories, *self.categories]))
        )
        self._rows = [self._counted.categories.index(category) for category in self.categories]
        self.origin = _origin(self._options, context.files_sha256)
        key = "known" if self.origin is Origin.known else "dimensions"
        self._set: list[int] | None = None if self.origin is Origin.detected else getattr(self._options, key)
        for dimension in self._set or ():
            if not 0 <= dimension < context.model:
                raise InputError(
                    f"analysis.outliers.{key}={self._set}: expected dimensions from 0 to {context.model - 1} (this model's), "
                    f"got {dimension}"
                )
        self.accumulator = Mean(context.depth + 1, len(self.categories), 2, context.model)

    def update(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the hidden vectors of a batch in one layer (0: the embedding output)."""
        members = self._counted.members(batch)
        sums = batch.once(("hidden vectors", layer, *self._counted.categories), lambda: _sums(vectors, members))
        counts = members.sum(dim=(1, 2)).to(sums.device)
        self.accumulator.update(layer, *(torch.stack([values[row] for row in self._rows]) for values in (sums, counts)))

    def compute(self) -> HiddenSummary:
        """Means, standard deviations and outlier dimensions.

        Raises:
            InputError: If a hidden vector is not finite; the message names the layer.
        """
        moments = self.accumulator.compute()
        mean, square = moments.mean.unbind(dim=2)
        require_finite(mean[:, -1], "the hidden vectors of layer {layer}", range(len(mean)))
        scores = deviation_scores(mean[:, -1], self._options.criterion.value)
        is_outlier = scores.abs() > self._options.threshold
        outliers = outlier_dimensions(is_outlier, self._options.share) if self._set is None else self._set
        return HiddenSummary(
            mean=mean,
            deviation=(square - mean.square()).clamp(min=0).sqrt(),
            count=moments.count,
            scores=scores,
            is_outlier=is_outlier,
            outliers=sorted(set(outliers)),
        )

    @property
    def _fewest(self) -> int:
        """In how many of layers 0 to L a dimension must be an outlier."""
        layers = self._counted.depth + 1
        return next(count for count in range(1, layers + 1) if count / layers >= self._options.share)

    @property
    def criterion(self) -> str:
        """The definition of an outlier dimension, in words."""
        if self.origin is Origin.given:
            return "those of analysis.outliers.dimensions"
        if self.origin is Origin.known:
            named = enumeration([str(dimension) for dimension in sorted(self._set or ())])
            return f"{named}, which are known for these weights (analysis.outliers.known)"
        unit = {
            "sigma": "standard deviations from the mean",
            "mad": "median absolute deviations (× 1.4826) from the median",
        }
        return (
            f"mean more than {self._options.threshold:g} {unit[self._options.criterion.value]} of the layer's dimensions, in "
            f"at least {self._fewest} of the {self._counted.depth + 1} layers"
        )


def _origin(options: OutliersOptions, files_sha256: str | None) -> Origin:
    if options.dimensions is not None:
        return Origin.given
    if (options.known is None) != (options.known_for is None):
        given, missing = ("known", "known_for") if options.known_for is None else ("known_for", "known")
        value = ",".join(map(str, getattr(options, given)))
        raise InputError(
            f"analysis.outliers.{given}=[{value}]: expected analysis.outliers.{missing} beside it, got null"
        )
    return Origin.known if files_sha256 in (options.known_for or ()) else Origin.detected


def _sums(
    vectors: Float[Tensor, "batch token model"], members: Bool[Tensor, "group batch token"]
) -> Float[Tensor, "group 2 model"]:
    """Σ x and Σ x² over the tokens of each group."""
    device = accumulation_device(vectors.device)
    rows, weights = vectors.flatten(0, 1).to(device), members.flatten(1).to(device).double()
    parts = math.gcd(len(rows), lanes(device))
    pieces = cached_rows(rows.unflatten(0, (parts, -1)).transpose(0, 1))
    weights = weights.unflatten(1, (parts, -1)).transpose(0, 1)
    sums = weights.new_zeros(parts, len(members), 2 * rows.shape[-1])
    # Used again for every piece, so that it stays in the cache.
    powers = weights.new_empty(parts, len(pieces[0]), 2, rows.shape[-1])
    for piece, some in zip(pieces, weights.split([len(piece) for piece in pieces], dim=2), strict=True):
        # E[x²] − E[x]² cancels where the deviation is small compared to the mean: float64 has digits to spare.
        of_piece = powers[:, : len(piece)]
        numbers, squares = of_piece.unbind(dim=2)
        torch.square(numbers.copy_(piece.transpose(0, 1)), out=squares)
        sums.baddbmm_(some, of_piece.flatten(2))
    return sums.sum(dim=0).unflatten(1, (2, -1))
