"""Attention without some dimensions, which are removed from the scores of single blocks or from the whole residual stream.

Both are measured on a sample of sequences and compared with random sets of dimensions of the same size: an effect that random
sets have as well says nothing about outliers.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.samples import batches_until_precise
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.maths.scores import part_of_keys
from normscope.models.block import AttentionBlock, TokenSelector
from normscope.models.interventions import Ablation, InterventionRunner, Loss
from normscope.results.axes import TOGETHER
from normscope.statistics.intervals import FEWEST
from normscope.statistics.precision import half_width, in_rounds, until_precise
from normscope.statistics.tidy import tidy

ALONE = 8
"""Largest number of outlier dimensions that are also removed one at a time. Hundreds would take hours and add little."""

_FEWEST_SEQUENCES = 8
"""Layers to start from are left out before a sample has fewer sequences than this."""

ZERO, MEAN = "zero", "mean"

CHANGES = ["change", "controls_mean", "controls_low", "controls_high"]
"""Columns of the change, and of the mean and 95% interval (percentiles) of the changes for random sets of the same size."""
_INTERVAL = (0.025, 0.975)


@dataclasses.dataclass(frozen=True)
class Removal:
    """A set of dimensions to remove."""

    name: str
    """The dimension, TOGETHER, or the empty string for a random set."""
    dimensions: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Removals:
    """The most prominent outlier dimensions one at a time, all of them together, and random sets of the same sizes."""

    outliers: list[Removal]
    controls: list[Removal]

    @classmethod
    def of(cls, outliers: Sequence[int], model: int, controls: int, seed: int, *, alone: bool = True) -> "Removals":
        """Draw the random sets from the dimensions that are not outliers.

        Args:
            outliers: The outlier dimensions, the most prominent first.
            model: Size of the hidden vectors.
            controls: Number of random sets of each size.
            seed: Seed of the draw.
            alone: Whether to draw random sets for single dimensions as well.
        """
        generator = np.random.default_rng(seed)
        others = np.setdiff1d(np.arange(model), outliers)
        together = tuple(sorted(outliers))
        sizes = sorted({1, len(outliers)} if alone else {len(outliers)})
        return cls(
            [Removal(str(j), (j,)) for j in sorted(outliers[:ALONE])] + [Removal(TOGETHER, together)],
            [
                Removal("", tuple(sorted(generator.choice(others, size=size, replace=False).tolist())))
                for size in sizes
                if size <= len(others)
                for _ in range(controls)
            ],
        )

    @property
    def all(self) -> list[Removal]:
        """The outlier dimensions, then the random sets."""
        return [*self.outliers, *self.controls]

    @property
    def together(self) -> tuple[int, ...]:
        """All outlier dimensions."""
        return self.outliers[-1].dimensions

    @cached_property
    def places(self) -> dict[tuple[int, ...], list[int]]:
        """The places in `all` of each set of dimensions: a lone outlier occurs twice, and random sets may."""
        places: dict[tuple[int, ...], list[int]] = {}
        for place, removal in enumerate(self.all):
            places.setdefault(removal.dimensions, []).append(place)
        return places

    @property
    def names(self) -> list[str]:
        """The names of `outliers`."""
        return [removal.name for removal in self.outliers]

    @property
    def dimensions(self) -> np.ndarray:
        """The dimensions of `outliers`, separated by spaces."""
        return np.array([" ".join(map(str, removal.dimensions)) for removal in self.outliers], dtype=object)

    def compare(self, changes: np.ndarray) -> dict[str, np.ndarray]:
        """The changes that the outliers' removals make, next to those that the random sets of the same size make.

        Args:
            changes: The changes, by removal (in the order of `all`) along the last axis.

        Returns:
            An array for each of the columns CHANGES, by outlier removal along the last axis. NaN where there are no random
            sets.
        """
        count = len(self.outliers)
        sizes = np.array([len(removal.dimensions) for removal in self.all])
        columns = {name: np.full((*changes.shape[:-1], count), np.nan) for name in CHANGES}
        columns["change"] = changes[..., :count]
        for number, size in enumerate(sizes[:count]):
            # Contiguous, so that every mean is summed in the same order, whatever the shape.
            controls = np.ascontiguousarray(changes[..., count:][..., sizes[count:] == size])
            if controls.shape[-1]:
                columns["controls_mean"][..., number] = controls.mean(axis=-1)
                low, high = np.quantile(controls, _INTERVAL, axis=-1)
                columns["controls_low"][..., number], columns["controls_high"][..., number] = low, high
        return columns


def remove_from_scores(
    runner: InterventionRunner,
    sample: Sequence[Int[Tensor, "kind _"]],
    context: AnalysisContext,
    removals: Removals,
    precision: float | None,
) -> pd.DataFrame:
    """Attention by category of the key with and without some dimensions' part of the scores, one block at a time.

    The softmax is computed again from scores − scale·Σ_j C_j: the queries stay the same, and x_j W_K[j] is subtracted from the
    keys. The change does not propagate to later layers.

    Args:
        sample: Sequences, as `InterventionRunner.batches` takes them.
        precision: The half-width of the intervals of `_Changes` at which the sample ends; None for the whole sample.

    Returns:
        Columns layer, removed, dimensions, category, before, after, CHANGES and sequences. Values are sums of α over the
        category's keys: means over queries and heads, then over sequences.
    """
    counted = _without_all(context)
    shares = torch.zeros(len(context.layers), len(counted.categories), 1 + len(removals.all), dtype=torch.float64)
    changes = _Changes()
    for batch in batches_until_precise(runner, sample, changes.half_width, precision, "interventions on single blocks"):
        members = counted.members(batch)

        def visit(block: AttentionBlock, members: Tensor = members) -> None:
            of_layer, before = shares[context.index(block.layer)], _shares(block, members)
            of_layer[:, 0] += before.sum(dim=0)
            for removal, places in removals.places.items():
                after = _shares(block, members, removal)
                for place in places:
                    of_layer[:, 1 + place] += after.sum(dim=0)
                if removal == removals.together:
                    changes.add(after - before)

        runner.observe(batch, visit)
        changes.end_batch()
    shares /= changes.sequences
    before = shares[..., :1].numpy()
    effects = removals.compare(shares[..., 1:].numpy() - before)
    table = tidy(
        {"dimensions": removals.dimensions, "before": before, "after": before + effects["change"], **effects},
        layer=context.layers,
        category=counted.categories,
        removed=removals.names,
    )
    order = ["layer", "removed", "dimensions", "category", "before", "after", *CHANGES]
    return _present(table[order]).assign(sequences=changes.sequences)


class _Changes:
    """The headline of a sample: how much the weight on each category changes without all outliers, a mean over layers.

    It is kept sequence by sequence.
    """

    def __init__(self) -> None:
        self._of_batch: list[Float[Tensor, "sequence group"]] = []
        self._every: list[Float[Tensor, "sequence group"]] = []

    def add(self, changes: Float[Tensor, "sequence group"]) -> None:
        """Add the changes in one layer."""
        self._of_batch.append(changes)

    def end_batch(self) -> None:
        """Every layer of a batch has been added."""
        self._every.append(torch.stack(self._of_batch).mean(dim=0))
        self._of_batch = []

    @property
    def sequences(self) -> int:
        """Number of sequences so far."""
        return sum(len(changes) for changes in self._every)

    def half_width(self) -> float:
        """Half the width of the widest interval of the mean changes."""
        return half_width(np.concatenate([changes.numpy() for changes in self._every]))


class PropagatedEffects(NamedTuple):
    """The effects of ablations of the residual stream on the rest of the model."""

    attention: pd.DataFrame
    """Columns from_layer, value (`zero` or `mean`), removed, dimensions, layer, category, before, after, CHANGES and sequences,
    as in `remove_from_scores`."""
    loss: pd.DataFrame
    """The same for the loss of masked or next tokens, without layer and category. Empty if it cannot be measured."""
    without_loss: str | None
    """Why the loss cannot be measured; None if it can."""
    reduced: str | None = None
    """What was left out, so that the work stayed within its budget; None if nothing was."""


class StreamAblations(NamedTuple):
    """Where the residual stream is ablated, and what replaces its values."""

    means: Float[Tensor, "layer model"]
    """Mean hidden vectors of layers 0 to L: the new values of the dimensions where `value` is `mean`. Layers whose mean is NaN
    keep their values."""
    starts: Sequence[int]
    """The layers to start from, each in turn."""
    tokens: TokenSelector | None = None
    """Which tokens to change in a layer; None for all."""

    def of(self, start: int, value: str, dimensions: Sequence[int]) -> Ablation:
        """The replacement of some dimensions from one layer to the last."""
        known = ~self.means.isnan().any(dim=-1)
        values = {
            layer: self.means[layer - 1, list(dimensions)] if value == MEAN else torch.zeros(len(dimensions))
            for layer in range(start, len(self.means))
            if known[layer - 1]
        }
        return Ablation(dimensions, values, self.tokens)


def ablate_residual_stream(
    runner: InterventionRunner,
    sample: Sequence[Int[Tensor, "kind _"]],
    context: AnalysisContext,
    removals: Removals,
    stream: StreamAblations,
    precision: float | None,
    budget: float | None,
) -> PropagatedEffects:
    """Attention and loss when dimensions are replaced wherever a layer reads them, from one layer to the last.

    A batch runs once unchanged, and once with each ablation, from the first layer that it changes.

    Args:
        sample: Sequences, as `InterventionRunner.batches` takes them.
        context: The context of the run. Every chosen layer is measured.
        removals: The dimensions to replace.
        stream: Where to replace them, and by what.
        precision: The half-width of the intervals of `_Changes`, with zeros from the first of the starts on, at which the
            sample ends; None for the whole sample.
        budget: The largest number of multiplications and additions; None for any. Without one, the work grows with the square
            of the number of layers: 30 layers took an hour for 16 short texts.
    """
    asked, counted = (len(sample), len(stream.starts)), _without_all(context)
    sample, stream = _within(budget, runner.operations_from, sample, stream, 2 * len(removals.places))
    before, outcomes, changes = _outcomes(runner, sample, counted, removals, stream, precision)
    attention, losses = [], []
    for start, value in itertools.product(stream.starts, (ZERO, MEAN)):
        after = [outcomes[start, value, removal.dimensions] for removal in removals.all]
        attention.append(_attention_effects(counted, before, after, removals, start, value))
        if before.loss is not None:
            losses.append(_loss_effects(before.loss, after, removals, start, value))
    of_loss = pd.concat(losses, ignore_index=True) if losses else pd.DataFrame()
    effects = _present(pd.concat(attention, ignore_index=True)).assign(sequences=changes.sequences)
    return PropagatedEffects(effects, of_loss, runner.without_loss, _reduced(asked, changes.sequences, sample, stream))


def _outcomes(
    runner: InterventionRunner,
    sample: Sequence[Int[Tensor, "kind _"]],
    counted: AnalysisContext,
    removals: Removals,
    stream: StreamAblations,
    precision: float | None,
) -> "tuple[_Outcome, dict[tuple[int, str, tuple[int, ...]], _Outcome], _Changes]":
    """What the model does unchanged and under each ablation, by start, value and dimensions; and the headline."""
    steps = list(itertools.product(stream.starts, (ZERO, MEAN), removals.places))
    headline = (stream.starts[0], ZERO, removals.together)
    before, outcomes, changes = _Outcome(counted), {step: _Outcome(counted) for step in steps}, _Changes()

    def ablate(batch: Batch) -> Iterator[None]:
        """One step for each ablation of a batch."""
        members = counted.members(batch)
        kept: dict[int, Tensor] = {}  # by layer

        def keep(block: AttentionBlock) -> None:
            kept[block.layer] = _shares(block, members)

        unchanged = runner.unchanged(batch, keep, stream.starts)
        of_unchanged = dict(kept)
        before.add(of_unchanged, unchanged.loss)
        for step in steps:
            kept.clear()
            loss = runner.ablated(unchanged, keep, stream.of(*step))
            outcomes[step].add(kept, loss)
            if step == headline:
                for layer, shares in kept.items():
                    changes.add(shares - of_unchanged[layer])
            yield
        changes.end_batch()

    parts = [runner.batches(part) for part in in_rounds(sample, precision)]
    batches = itertools.chain.from_iterable(until_precise(parts, changes.half_width, precision))
    passes = itertools.chain.from_iterable(map(ablate, batches))
    for _ in runner.progress(passes, len(steps) * sum(map(len, parts)), "ablations of the residual stream"):
        pass
    return before, outcomes, changes


def _within(
    budget: float | None,
    operations_from: Callable[[int], float],
    sample: Sequence[Int[Tensor, "kind _"]],
    stream: StreamAblations,
    ablations: int,
) -> tuple[Sequence[Int[Tensor, "kind _"]], StreamAblations]:
    """The sequences and the layers to start from whose ablations stay within a budget.

    First sequences are left out, then layers, evenly; the first layer and the fewest sequences of an interval stay.

    Args:
        operations_from: The operations per token of a pass from a layer on.
        ablations: Number of ablations from every start.
    """
    if budget is None:
        return sample, stream

    def cost(sequences: int, starts: Sequence[int]) -> float:
        tokens = sum(int((kinds[0] >= 0).sum()) for kinds in sample[:sequences])
        return tokens * ablations * sum(map(operations_from, starts))

    number, starts = len(sample), list(stream.starts)
    while number > _FEWEST_SEQUENCES and cost(number, starts) > budget:
        number -= 1
    while len(starts) > 1 and cost(number, starts) > budget:
        places = np.linspace(0, len(stream.starts) - 1, len(starts) - 1).round().astype(int)
        starts = [stream.starts[place] for place in places]
    while number > FEWEST and cost(number, starts) > budget:
        number -= 1
    return sample[:number], stream._replace(starts=starts)


def _reduced(
    asked: tuple[int, int], used: int, sample: Sequence[Int[Tensor, "kind _"]], stream: StreamAblations
) -> str | None:
    """What the budget left out; the sample may have ended early besides."""
    if asked == (len(sample), len(stream.starts)):
        return None
    layers = (
        "" if asked[1] == len(stream.starts) else f" and start from layers {', '.join(map(str, stream.starts))} alone"
    )
    return f"ablations of the residual stream use {used} of {asked[0]} sequences{layers}, to limit their time"


class _Outcome:
    """What the model does under one ablation, or without one."""

    def __init__(self, counted: AnalysisContext) -> None:
        self._counted = counted
        self._total = torch.zeros(len(counted.layers), len(counted.categories), dtype=torch.float64)
        self._sequences = self._predicted = 0
        self._lost = 0.0

    def add(self, shares: Mapping[int, Float[Tensor, "sequence group"]], loss: Loss | None) -> None:
        """Add a batch.

        Args:
            shares: By layer; layers before the ablation are left out.
        """
        for layer, of_layer in shares.items():
            self._total[self._counted.index(layer)] += of_layer.sum(dim=0)
        self._sequences += len(next(iter(shares.values())))
        if loss is not None:
            self._lost, self._predicted = self._lost + loss.total, self._predicted + loss.tokens

    @property
    def shares(self) -> Float[Tensor, "layer group"]:
        """Mean weight on each category."""
        return self._total / self._sequences

    @property
    def loss(self) -> float | None:
        """In nats per predicted token; None if nothing is predicted."""
        return self._lost / self._predicted if self._predicted else None


def _attention_effects(
    counted: AnalysisContext, before: _Outcome, after: Sequence[_Outcome], removals: Removals, start: int, value: str
) -> pd.DataFrame:
    shares = torch.stack([outcome.shares for outcome in after], dim=-1).numpy()
    unablated = before.shares.unsqueeze(-1).numpy()
    columns = {
        "dimensions": removals.dimensions[None, None],
        "before": unablated,
        "after": shares[..., : len(removals.outliers)],
        **removals.compare(shares - unablated),
    }
    table = tidy(
        {name: np.moveaxis(column, -1, 0) for name, column in columns.items()},
        from_layer=[start],
        value=[value],
        removed=removals.names,
        layer=counted.layers,
        category=counted.categories,
    )
    order = ["from_layer", "value", "removed", "dimensions", "layer", "category", "before", "after", *CHANGES]
    return table.loc[table["layer"] >= start, order]


def _loss_effects(before: float, after: Sequence[_Outcome], removals: Removals, start: int, value: str) -> pd.DataFrame:
    losses = np.array([outcome.loss for outcome in after], dtype=float)
    columns = {
        "dimensions": removals.dimensions,
        "before": np.array(before),
        "after": losses[: len(removals.outliers)],
        **removals.compare(losses - before),
    }
    return tidy(columns, from_layer=[start], value=[value], removed=removals.names)


def _shares(block: AttentionBlock, members: Tensor, without: Sequence[int] = ()) -> Float[Tensor, "sequence group"]:
    """α summed over the keys of each category: means over heads and queries.

    Subtracting Σ_{d∈without} x_d W_K[d] from every key removes exactly these dimensions' part of the scores.
    """
    part = part_of_keys(block.attention_inputs, block.parameters.key_weight, without) if without else None
    by_query = block.alpha.by_group(members, None if part is None else block.key_map(part)).mean(dim=1)
    token_mask = block.token_mask.to(by_query.dtype)
    by_sequence = torch.einsum("bqg,bq->bg", by_query, token_mask) / token_mask.sum(dim=-1, keepdim=True)
    return by_sequence.cpu().double()


def _without_all(context: AnalysisContext) -> AnalysisContext:
    """The context without the category `all`, whose attention is always 1."""
    return dataclasses.replace(context, categories=[category for category in context.categories if category != ALL])


def _present(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the categories that occur in the sample."""
    return table[table.groupby("category")["before"].transform("max") > 0].reset_index(drop=True)
