"""What it costs to round the weights and inputs of linear layers, all of them or those of one layer of the model."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.checkup.passes import LinearCall, Passes, Returned
from normscope.data.batching import Batch
from normscope.maths.quantisation import NumberFormat, rounded
from normscope.models.observe.layer_outputs import LayerOutput, LayerOutputs
from normscope.statistics.intervals import Interval, interval_over_texts
from normscope.streams import Progress


@dataclasses.dataclass(frozen=True)
class SkipList:
    """What is not rounded."""

    modules: Collection[str] = ()
    """Names of linear layers."""
    dimensions: Sequence[int] = ()
    """Dimensions, in the inputs of all linear layers that read as many as the hidden vectors have."""


class Rounding:
    """Rounds the inputs and weights of linear layers. It keeps a copy of the weights that it rounds.

    Args:
        target: The format.
        largest: The largest |x| of each input dimension in other texts, by linear layer. One that is not listed was not called
            with these texts, and is left alone.
        width: Number of dimensions of hidden vectors.
        skipped: What is not rounded.
        layer: The only layer of the model in which anything is rounded; None for all.
    """

    def __init__(
        self,
        target: NumberFormat,
        largest: Mapping[str, Float[Tensor, " input"]],
        width: int,
        skipped: SkipList = SkipList(),
        layer: int | None = None,
    ) -> None:
        self._target, self._largest, self._width = target, largest, width
        self._skipped, self.layer = skipped, layer
        self._weights: dict[str, Tensor] = {}

    def __call__(self, call: LinearCall) -> tuple[Tensor, Tensor]:
        """The rounded inputs and weights of a linear layer; its bias stays as it is."""
        elsewhere = self.layer is not None and call.layer != self.layer
        if elsewhere or call.name in self._skipped.modules or call.name not in self._largest:
            return call.inputs, call.weight
        dimensions = self._skipped.dimensions if call.inputs.shape[-1] == self._width else ()
        kept = torch.tensor(dimensions, dtype=torch.int64, device=call.inputs.device)
        if call.name not in self._weights:
            self._weights[call.name] = rounded(call.weight, self._target, kept)
        return rounded(call.inputs, self._target, kept, self._largest[call.name]), self._weights[call.name]


def distance(vectors: Float[Tensor, "batch token model"], before: Float[Tensor, "batch token model"]) -> float:
    """‖x̂ − x‖ / ‖x‖ of the last hidden vectors: a mean over tokens."""
    lengths = before.double().norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    return float(((vectors.double() - before.double()).norm(dim=-1) / lengths).mean())


def costs(
    passes: Passes,
    batches: Sequence[Batch],
    variants: Sequence[tuple[Mapping[str, Any], Callable[[], Rounding]]],
    progress: Progress,
    what: str,
) -> pd.DataFrame:
    """What each variant of a model costs on some texts: a row for each.

    Args:
        passes: Runs the model.
        batches: The texts, a batch each.
        variants: The values of a row's axes, and what makes the rounding.
        progress: Shows how far it is.
        what: What it is doing, in words.
    """
    texts = [(batch, dict[int, Any].fromkeys(range(1, passes.runner.model.layers))) for batch in batches]
    before = [passes.run(batch, outputs=LayerOutputs(kept)) for batch, kept in texts]
    rows = []
    for axes, make in progress(variants, len(variants), what):
        rounding = make()
        first = (rounding.layer or 1) - 1  # the last layer that has returned the same before
        after = [passes.run(batch, rounding, _after(first, kept)) for batch, kept in texts]
        rows.append({**axes, **summary_of(before, after)})
    return pd.DataFrame(rows)


def _after(layer: int, kept: Mapping[int, Any]) -> LayerOutputs | None:
    return None if kept.get(layer) is None else LayerOutputs(after=LayerOutput(layer, kept[layer]))


def summary_of(before: Sequence[Returned], after: Sequence[Returned]) -> dict[str, float]:
    """`distance` and the loss before and after, means over texts; the 95% intervals of the distance and the loss's change.

    Losses are missing (NaN) without a head.
    """
    pairs = list(zip(before, after, strict=True))
    change = interval_over_texts([distance(then.vectors, first.vectors) for first, then in pairs])
    losses = np.array([(one.loss, other.loss) for one, other in pairs if None not in (one.loss, other.loss)])
    nothing = [np.nan] * 2, Interval(*[np.nan] * 3)
    means, of_loss = (losses.mean(axis=0), interval_over_texts(losses @ [-1, 1])) if len(losses) else nothing
    row = dict(zip(("change", "change_low", "change_high"), change, strict=True))
    row |= dict(zip(("loss_before", "loss"), map(float, means), strict=True))
    return row | dict(zip(("loss_change", "loss_low", "loss_high"), of_loss, strict=True))
