"""What attention does without some dimensions: taken out of one block's scores, or out of the whole residual stream.

Both are measured on a sample of sequences, and beside random sets of dimensions of the same size: a number that random sets
reach as well says nothing about outliers.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.models.block import AttentionBlock
from normscope.models.interventions import Ablation, InterventionRunner

TOGETHER = "outliers"
"""Name of the removal of all outlier dimensions at once."""

ALONE = 8
"""So many outlier dimensions are removed alone at most: hundreds of them would take hours and say little."""

ZERO, MEAN = "zero", "mean"

CONTROL_COLUMNS = ["controls_mean", "controls_low", "controls_high"]
_INTERVAL = (0.025, 0.975)


@dataclasses.dataclass(frozen=True)
class Removal:
    """Some dimensions that are taken away."""

    name: str
    """A dimension, TOGETHER, or the empty string for a random set."""
    dimensions: tuple[int, ...]


class Removals(NamedTuple):
    """The outlier dimensions, each of the most prominent alone and all together, and random sets of their sizes."""

    outliers: list[Removal]
    controls: list[Removal]

    @classmethod
    def of(cls, outliers: Sequence[int], model: int, controls: int, seed: int, *, alone: bool = True) -> "Removals":
        """Draw the controls among the dimensions that are no outliers.

        Args:
            outliers: The outlier dimensions, the most prominent first.
            model: Size of the hidden vectors.
            controls: Random sets of each size.
            seed: Seed of the draw.
            alone: Whether there are controls for single dimensions as well.
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


def block_alone(
    runner: InterventionRunner, batches: Sequence[Batch], context: AnalysisContext, removals: Removals
) -> pd.DataFrame:
    """Attention by category of the key with and without the removals' part of the scores, each block by itself.

    scores − scale·Σ_j C_j, softmax again: the same queries over keys from which x_j W_K[j] is taken away. Nothing is
    propagated.

    Returns:
        Columns layer, removed, dimensions, category, before, after, change and CONTROL_COLUMNS (of the change). Numbers are
        sums of α over the category's keys: means over queries and heads, then over sequences.
    """
    everything = [*removals.outliers, *removals.controls]
    counted = _categories(context)
    shares = torch.zeros(len(everything) + 1, len(context.layers), len(counted.categories), dtype=torch.float64)
    for batch in runner.progress(batches, len(batches), "interventions on single blocks"):
        members = counted.members(batch)

        def visit(block: AttentionBlock, members: Tensor = members) -> None:
            layer = context.index(block.layer)
            shares[0, layer] += _shares(block, members)
            for number, removal in enumerate(everything, start=1):
                shares[number, layer] += _shares(block, members, removal.dimensions)

        runner.observe(batch, visit)
    shares /= sum(batch.sequences for batch in batches)
    rows = []
    for (i, layer), (c, category) in itertools.product(enumerate(context.layers), enumerate(counted.categories)):
        changes = {removal: float(shares[n, i, c] - shares[0, i, c]) for n, removal in enumerate(everything, start=1)}
        for removal in removals.outliers:
            before = float(shares[0, i, c])
            after = before + changes[removal]
            rows.append((layer, *_name(removal), category, before, after, *_beside(removal, changes, removals)))
    columns = ["layer", "removed", "dimensions", "category", "before", "after", "change", *CONTROL_COLUMNS]
    return _present(pd.DataFrame(rows, columns=columns))


class Propagated(NamedTuple):
    """What ablations of the residual stream do to the rest of the model."""

    attention: pd.DataFrame
    """Columns from_layer, value (`zero` or `mean`), removed, dimensions, layer, category, before, after, change and
    CONTROL_COLUMNS, as in `block_alone`."""
    loss: pd.DataFrame
    """The same without layer and category, of the masked-token loss; empty if the model predicts no tokens."""


def propagated(
    runner: InterventionRunner,
    batches: Sequence[Batch],
    context: AnalysisContext,
    removals: Removals,
    means: Float[Tensor, "layer model"],
) -> Propagated:
    """Attention and masked-token loss when dimensions are replaced wherever a layer reads them, from one layer on to the end.

    Args:
        laboratory: Runs the model.
        batches: What it is run on.
        subject: What is looked at; its layers are those from which dimensions are replaced, and those that are measured.
        removals: Which dimensions.
        means: Mean hidden vectors of layers 0 to L, which `mean` puts in the place of the dimensions' values.
    """
    everything = [*removals.outliers, *removals.controls]
    counted = _categories(context)
    before = _measure(runner, batches, counted, None)
    steps = list(itertools.product(context.layers, (ZERO, MEAN), everything))
    attention, losses = [], []
    outcomes: dict[tuple[int, str], dict[Removal, _Outcome]] = {}
    for start, value, removal in runner.progress(steps, len(steps), "ablations of the residual stream"):
        dimensions = list(removal.dimensions)
        values = {
            layer: means[layer - 1, dimensions] if value == MEAN else torch.zeros(len(dimensions))
            for layer in range(start, context.depth + 1)
        }
        outcomes.setdefault((start, value), {})[removal] = _measure(
            runner, batches, counted, Ablation(dimensions, values)
        )
    for (start, value), after in outcomes.items():
        for removal in removals.outliers:
            where = (start, value, *_name(removal))
            for (i, layer), (c, category) in itertools.product(
                enumerate(context.layers), enumerate(counted.categories)
            ):
                if layer >= start:
                    now, then = float(after[removal].shares[i, c]), float(before.shares[i, c])
                    changes = {other: float(outcome.shares[i, c]) - then for other, outcome in after.items()}
                    attention.append((*where, layer, category, then, now, *_beside(removal, changes, removals)))
            if before.loss is not None:
                changes = {other: (outcome.loss or 0.0) - before.loss for other, outcome in after.items()}
                losses.append((*where, before.loss, after[removal].loss, *_beside(removal, changes, removals)))
    what = ["from_layer", "value", "removed", "dimensions"]
    numbers = ["before", "after", "change", *CONTROL_COLUMNS]
    return Propagated(
        _present(pd.DataFrame(attention, columns=[*what, "layer", "category", *numbers])),
        pd.DataFrame(losses, columns=[*what, *numbers]),
    )


class _Outcome(NamedTuple):
    shares: Float[Tensor, "layer group"]
    loss: float | None


def _measure(
    runner: InterventionRunner, batches: Sequence[Batch], counted: AnalysisContext, ablation: Ablation | None
) -> _Outcome:
    shares = torch.zeros(len(counted.layers), len(counted.categories), dtype=torch.float64)
    loss, tokens = 0.0, 0
    for batch in batches:
        members = counted.members(batch)

        def visit(block: AttentionBlock, members: Tensor = members) -> None:
            if ablation is None or block.layer >= min(ablation.values):  # nothing has changed before
                shares[counted.index(block.layer)] += _shares(block, members)

        runner.observe(batch, visit, ablation)
        if runner.predicts_masked_tokens:
            lost, masked = runner.masked_token_loss(batch, ablation)
            loss, tokens = loss + lost, tokens + masked
    return _Outcome(shares / sum(batch.sequences for batch in batches), loss / tokens if tokens else None)


def _shares(block: AttentionBlock, members: Tensor, without: Sequence[int] = ()) -> Float[Tensor, " group"]:
    """Σ over a category's keys of α: mean over real queries and heads, summed over the sequences of a batch."""
    by_query = block.weight_of_groups(members, without).mean(dim=1)
    token_mask = block.token_mask.to(by_query.dtype)
    by_sequence = torch.einsum("bqg,bq->bg", by_query, token_mask) / token_mask.sum(dim=-1, keepdim=True)
    return by_sequence.cpu().double().sum(dim=0)


def _categories(context: AnalysisContext) -> AnalysisContext:
    # All keys together always get 1.
    return dataclasses.replace(context, categories=[category for category in context.categories if category != ALL])


def _name(removal: Removal) -> tuple[str, str]:
    return removal.name, " ".join(map(str, removal.dimensions))


def _beside(removal: Removal, changes: Mapping[Removal, float], removals: Removals) -> tuple[float, ...]:
    """The change, and the mean and 95 % interval (percentiles) of the changes of random sets of the same size."""
    size = len(removal.dimensions)
    random = [changes[control] for control in removals.controls if len(control.dimensions) == size]
    if not random:
        return changes[removal], np.nan, np.nan, np.nan
    low, high = np.quantile(random, _INTERVAL)
    return changes[removal], float(np.mean(random)), float(low), float(high)


def _present(table: pd.DataFrame) -> pd.DataFrame:
    """Without the categories that no sequence of the sample has."""
    return table[table.groupby("category")["before"].transform("max") > 0].reset_index(drop=True)
