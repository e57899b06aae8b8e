"""Attention without some dimensions, which are removed from the scores of single blocks or from the whole residual stream.

Both are measured on a sample of sequences and compared with random sets of dimensions of the same size: an effect that random
sets have as well says nothing about outliers.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.maths.scores import part_of_keys
from normscope.models.block import AttentionBlock, TokenSelector
from normscope.models.interventions import Ablation, InterventionRunner
from normscope.results.axes import TOGETHER
from normscope.statistics.tidy import tidy

ALONE = 8
"""Largest number of outlier dimensions that are also removed one at a time. Hundreds would take hours and add little."""

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


class Removals(NamedTuple):
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
    runner: InterventionRunner, batches: Sequence[Batch], context: AnalysisContext, removals: Removals
) -> pd.DataFrame:
    """Attention by category of the key with and without some dimensions' part of the scores, one block at a time.

    The softmax is computed again from scores − scale·Σ_j C_j: the queries stay the same, and x_j W_K[j] is subtracted from the
    keys. The change does not propagate to later layers.

    Returns:
        Columns layer, removed, dimensions, category, before, after and CHANGES. Values are sums of α over the category's keys:
        means over queries and heads, then over sequences.
    """
    counted = _without_all(context)
    shares = torch.zeros(len(context.layers), len(counted.categories), 1 + len(removals.all), dtype=torch.float64)
    for batch in runner.progress(batches, len(batches), "interventions on single blocks"):
        members = counted.members(batch)

        def visit(block: AttentionBlock, members: Tensor = members) -> None:
            layer = context.index(block.layer)
            shares[layer, :, 0] += _shares(block, members)
            for number, removal in enumerate(removals.all, start=1):
                shares[layer, :, number] += _shares(block, members, removal.dimensions)

        runner.observe(batch, visit)
    shares /= sum(batch.sequences for batch in batches)
    before = shares[..., :1].numpy()
    changes = removals.compare(shares[..., 1:].numpy() - before)
    table = tidy(
        {"dimensions": removals.dimensions, "before": before, "after": before + changes["change"], **changes},
        layer=context.layers,
        category=counted.categories,
        removed=removals.names,
    )
    return _present(table[["layer", "removed", "dimensions", "category", "before", "after", *CHANGES]])


class PropagatedEffects(NamedTuple):
    """The effects of ablations of the residual stream on the rest of the model."""

    attention: pd.DataFrame
    """Columns from_layer, value (`zero` or `mean`), removed, dimensions, layer, category, before, after and CHANGES, as in
    `remove_from_scores`."""
    loss: pd.DataFrame
    """The same for the loss of masked or next tokens, without layer and category. Empty if it cannot be measured."""
    without_loss: str | None
    """Why the loss cannot be measured; None if it can."""


def ablate_residual_stream(
    runner: InterventionRunner,
    batches: Sequence[Batch],
    context: AnalysisContext,
    removals: Removals,
    means: Float[Tensor, "layer model"],
    *,
    starts: Sequence[int] | None = None,
    tokens: TokenSelector | None = None,
) -> PropagatedEffects:
    """Attention and loss when dimensions are replaced wherever a layer reads them, from one layer to the last.

    Args:
        batches: The sequences to run it on.
        context: The context of the run. Every chosen layer is measured.
        removals: The dimensions to replace.
        means: Mean hidden vectors of layers 0 to L: the new values of the dimensions where `value` is `mean`. Layers whose
            mean is NaN keep their values.
        starts: First ablated layers, each in turn; None for every chosen layer.
        tokens: Which tokens to change in a layer; None for all.
    """
    counted = _without_all(context)
    before = _measure(runner, batches, counted, None)
    steps = list(itertools.product(context.layers if starts is None else starts, (ZERO, MEAN), removals.all))
    known = ~means.isnan().any(dim=-1)
    outcomes: dict[tuple[int, str], list[_Outcome]] = {}
    for start, value, removal in runner.progress(steps, len(steps), "ablations of the residual stream"):
        dimensions = list(removal.dimensions)
        values = {
            layer: means[layer - 1, dimensions] if value == MEAN else torch.zeros(len(dimensions))
            for layer in range(start, context.depth + 1)
            if known[layer - 1]
        }
        outcome = _measure(runner, batches, counted, Ablation(dimensions, values, tokens))
        outcomes.setdefault((start, value), []).append(outcome)
    attention = pd.concat(
        [
            _attention_effects(counted, before, after, removals, start, value)
            for (start, value), after in outcomes.items()
        ],
        ignore_index=True,
    )
    losses = [
        _loss_effects(before.loss, after, removals, start, value)
        for (start, value), after in outcomes.items()
        if before.loss is not None
    ]
    loss = pd.concat(losses, ignore_index=True) if losses else pd.DataFrame()
    return PropagatedEffects(_present(attention), loss, runner.without_loss)


class _Outcome(NamedTuple):
    shares: Float[Tensor, "layer group"]
    loss: float | None


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


def _measure(
    runner: InterventionRunner, batches: Sequence[Batch], counted: AnalysisContext, ablation: Ablation | None
) -> _Outcome:
    shares = torch.zeros(len(counted.layers), len(counted.categories), dtype=torch.float64)
    loss, tokens = 0.0, 0
    for batch in batches:
        members = counted.members(batch)

        def visit(block: AttentionBlock, members: Tensor = members) -> None:
            if ablation is None or block.layer >= min(ablation.values):  # earlier layers are unchanged
                shares[counted.index(block.layer)] += _shares(block, members)

        runner.observe(batch, visit, ablation)
        if runner.predicts is not None:
            lost, predicted = runner.token_loss(batch, ablation)
            loss, tokens = loss + lost, tokens + predicted
    return _Outcome(shares / sum(batch.sequences for batch in batches), loss / tokens if tokens else None)


def _shares(block: AttentionBlock, members: Tensor, without: Sequence[int] = ()) -> Float[Tensor, " group"]:
    """α summed over the keys of each category: means over heads and queries, summed over the sequences of the batch.

    Subtracting Σ_{d∈without} x_d W_K[d] from every key removes exactly these dimensions' part of the scores.
    """
    part = part_of_keys(block.attention_inputs, block.parameters.key_weight, without) if without else None
    by_query = block.alpha.by_group(members, None if part is None else block.key_map(part)).mean(dim=1)
    token_mask = block.token_mask.to(by_query.dtype)
    by_sequence = torch.einsum("bqg,bq->bg", by_query, token_mask) / token_mask.sum(dim=-1, keepdim=True)
    return by_sequence.cpu().double().sum(dim=0)


def _without_all(context: AnalysisContext) -> AnalysisContext:
    """The context without the category `all`, whose attention is always 1."""
    return dataclasses.replace(context, categories=[category for category in context.categories if category != ALL])


def _present(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the categories that occur in the sample."""
    return table[table.groupby("category")["before"].transform("max") > 0].reset_index(drop=True)
