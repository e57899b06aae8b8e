"""What it costs to round the weights and inputs of linear layers, all of them or those of one layer of the model."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.checkup.passes import LinearCall, Outcome, Passes
from normscope.data.batching import Batch
from normscope.maths.quantisation import NumberFormat, rounded_inputs, rounded_weights
from normscope.statistics.intervals import interval_over_texts
from normscope.streams import Progress


@dataclasses.dataclass(frozen=True)
class SkipList:
    """What is not rounded."""

    modules: Collection[str] = ()
    """Names of linear layers."""
    dimensions: Sequence[int] = ()
    """Dimensions, in the inputs of all linear layers that read as many as the hidden vectors have."""


class Rounding:
    """Rounds linear layers, as passes call it in place of them.

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
        self._skipped, self._layer = skipped, layer
        self._weights: dict[str, Tensor] = {}

    def __call__(self, call: LinearCall, own: Callable[[Tensor], Tensor]) -> Tensor:
        """The output of a linear layer, of rounded inputs and weights; the bias stays as it is."""
        elsewhere = self._layer is not None and call.layer != self._layer
        if elsewhere or call.name in self._skipped.modules or call.name not in self._largest:
            return own(call.inputs)
        size = call.inputs.shape[-1]
        dimensions = self._skipped.dimensions if size == self._width else ()
        kept = torch.tensor(dimensions, dtype=torch.int64, device=call.inputs.device)
        inputs = rounded_inputs(call.inputs, self._target, kept, self._largest[call.name])
        weight = call.module.weight
        assert isinstance(weight, Tensor)
        before = weight.data
        if call.name not in self._weights:
            rows = isinstance(call.module, torch.nn.Linear)
            new = rounded_weights(before if rows else before.T, self._target, kept)
            self._weights[call.name] = new if rows else new.T
        weight.data = self._weights[call.name]
        try:
            return own(inputs)
        finally:
            weight.data = before


def distance(vectors: Float[Tensor, "batch token model"], before: Float[Tensor, "batch token model"]) -> float:
    """‖x̂ − x‖ / ‖x‖ of the last hidden vectors: a mean over tokens."""
    lengths = before.double().norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    return float(((vectors.double() - before.double()).norm(dim=-1) / lengths).mean())


def costs(
    passes: Passes,
    batches: Sequence[Batch],
    variants: Mapping[str, Callable[[], Rounding]],
    before: Sequence[Outcome],
    progress: Progress,
) -> pd.DataFrame:
    """What each variant of a model costs on some texts: a row for each, with intervals over texts.

    Args:
        passes: Runs the model.
        batches: The texts, a batch each.
        variants: What makes each kind of rounding, by name; a rounding keeps a copy of the weights that it rounds.
        before: What the unchanged model makes of the texts.
        progress: Shows how far it is.
    """
    steps = list(variants.items())
    rows = []
    for name, make in progress(steps, len(steps), "what rounding costs"):
        rounding = make()
        after = [passes.run(batch, rounding) for batch in batches]
        rows.append({"rounded": name} | summary_of(before, after))
    return pd.DataFrame(rows)


def costs_by_layer(
    passes: Passes,
    batches: Sequence[Batch],
    layers: Sequence[int],
    rounding: Callable[[NumberFormat, int], Rounding],
    progress: Progress,
) -> pd.DataFrame:
    """What it costs to round one layer: a row for each layer and format.

    Args:
        passes: Runs the model.
        batches: The texts, a batch each.
        layers: The layers, from 1.
        rounding: Returns what rounds a layer to a format.
        progress: Shows how far it is.
    """
    partial = passes.runner.model.facts.in_modules
    kept = [dict[int, object]() for _ in batches]
    before = [passes.run(batch, outputs=own if partial else None) for batch, own in zip(batches, kept, strict=True)]
    steps = [(layer, target) for layer in layers for target in NumberFormat]
    rows = []
    for layer, target in progress(steps, len(steps), "what rounding costs by layer"):
        around = rounding(target, layer)
        start = layer if partial else 1
        after = [
            passes.run(batch, around, start=start, outputs=own if partial else None)
            for batch, own in zip(batches, kept, strict=True)
        ]
        rows.append({"layer": layer, "format": str(target)} | summary_of(before, after))
    return pd.DataFrame(rows)


def summary_of(before: Sequence[Outcome], after: Sequence[Outcome]) -> dict[str, float]:
    """`distance` and the loss before and after, means over texts; the 95% intervals of the distance and the loss's change.

    Losses are missing (NaN) without a head.
    """
    distances = interval_over_texts([distance(a.vectors, b.vectors) for b, a in zip(before, after, strict=True)])
    row = {"change": distances.mean, "change_low": distances.low, "change_high": distances.high}
    losses = np.array([[b.loss, a.loss] for b, a in zip(before, after, strict=True) if None not in (b.loss, a.loss)])
    if not len(losses):
        return row | dict.fromkeys(("loss_before", "loss", "loss_change", "loss_low", "loss_high"), float("nan"))
    change = interval_over_texts(losses[:, 1] - losses[:, 0])
    return row | {
        "loss_before": float(losses[:, 0].mean()),
        "loss": float(losses[:, 1].mean()),
        "loss_change": change.mean,
        "loss_low": change.low,
        "loss_high": change.high,
    }
