"""Massive activations of the residual stream, the tokens that carry them, and what the model does without (Sun et al. 2024)."""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.declarations.sinks import LOSS, SinksOptions, weight_on
from normscope.analyses.removals import beside_controls, random_sets, weight_by_category, without_all
from normscope.analyses.samples import steps_until_precise
from normscope.data.batching import Batch
from normscope.maths.massive import MASSIVE, is_massive, massive_activations, median_magnitudes
from normscope.maths.tensors import host_waits
from normscope.models.blocks.block import AttentionBlock
from normscope.models.load.interventions import Ablation, InterventionRunner, Loss
from normscope.statistics.accumulator import Accumulator
from normscope.statistics.intervals import FEWEST
from normscope.statistics.keyed_means import KeyedMeans
from normscope.statistics.mean import Mean
from normscope.statistics.precision import half_width

VALUES = ("zero", "mean")
"""What massive activations are set to."""

_CARRIERS = 8
"""Tokens of a sequence that are kept until the end of a batch, at first. Few carry massive activations."""


class _Kept(NamedTuple):
    """The tokens with the largest activations of each sequence in one layer, the largest first."""

    layer: int
    tokens: Int[Tensor, "batch kept"]
    largest: Float[Tensor, "batch kept"]
    vectors: Float[Tensor, "batch kept model"]
    medians: Float[Tensor, " batch"]


class MassiveSearch:
    """Finds massive activations, which takes the median of every sequence in which some |x| exceeds 100.

    A CPU looks for them layer by layer. Other devices would have to wait for the host to decide, and keeping all hidden vectors
    until the batch has passed would take too much memory. So the largest |x| of a layer is kept, and nothing else while it is
    below 100, as always in models without massive activations. Once it has been larger, the layer's medians are computed in
    every pass, and a few tokens with the largest activations are kept. If this was not enough, the layer is seen again.
    """

    def __init__(self, context: AnalysisContext) -> None:
        self._context = context
        # Layer, dimension, position (from 0) and token of each massive activation; its value, median, ratio and square.
        self._found = KeyedMeans(4, 4)
        # Hidden vectors of the tokens that carry massive activations.
        self._carriers = Mean(context.depth + 1, 1, context.model)
        self.accumulators: dict[str, Accumulator] = {"massive": self._found, "carriers": self._carriers}
        self._watched: set[int] = set()
        """Layers in which some |x| has exceeded 100. Not saved: forgetting them costs time alone."""
        self._room = _CARRIERS
        self.start_batch()

    def start_batch(self) -> None:
        """Forget what a batch that did not fit has left."""
        self._largest: dict[int, Tensor] = {}
        self._kept: list[_Kept] = []

    def update(
        self,
        layer: int,
        vectors: Float[Tensor, "batch token model"],
        batch: Batch,
        largest: Float[Tensor, "batch token"],
    ) -> None:
        """Look at the hidden vectors of one layer during a pass.

        Args:
            largest: The largest |x| of each token; 0 at padding.
        """
        if not host_waits(vectors.device):
            self.update_again(layer, vectors, batch, largest)
            return
        if layer not in self._watched:
            self._largest[layer] = largest.amax()
            return
        # One more than there is room for, which tells whether it was enough.
        largest, tokens = largest.topk(min(self._room + 1, largest.shape[1]), dim=-1)
        kept = vectors.gather(1, tokens.unsqueeze(-1).expand(-1, -1, vectors.shape[-1]))
        self._kept.append(_Kept(layer, tokens, largest, kept, median_magnitudes(vectors, batch.token_mask)))

    def again(self, batch: Batch) -> Collection[int]:
        """Read what the pass has left on the device; the layers that must be seen again."""
        missing = []
        if self._largest:
            large = (torch.stack([*self._largest.values()]) > MASSIVE).tolist()
            missing += [layer for layer, is_large in zip(self._largest, large, strict=True) if is_large]
        for layer, *on_device in self._kept:
            tokens, largest, vectors, medians = (tensor.cpu() for tensor in on_device)
            carry = is_massive(largest, medians.unsqueeze(-1))
            if carry.shape[1] > self._room and carry[:, self._room].any():
                missing.append(layer)
                continue
            # Padding may be among the tokens that were kept.
            activations = is_massive(vectors.abs(), medians[:, None, None]) & carry.unsqueeze(-1)
            row, place, dimension = activations.nonzero().unbind(dim=1)
            places = torch.stack([row, tokens[row, place], dimension], dim=1)
            self._add(layer, places, vectors[row, place, dimension], medians[row], vectors[carry], batch)
        self._room *= 2 if self._watched.intersection(missing) else 1
        self._watched.update(missing)
        self.start_batch()
        return missing

    def update_again(
        self,
        layer: int,
        vectors: Float[Tensor, "batch token model"],
        batch: Batch,
        largest: Float[Tensor, "batch token"] | None = None,
    ) -> None:
        """Look at the hidden vectors of one layer, at once."""
        places, medians = massive_activations(vectors, batch.token_mask, largest)
        if not len(places):
            return
        row, token, dimension = places.unbind(dim=1)
        carrying = places[:, :2].unique(dim=0)
        carriers = vectors[carrying[:, 0], carrying[:, 1]]
        self._add(layer, places, vectors[row, token, dimension], medians[row], carriers, batch)

    def _add(
        self,
        layer: int,
        places: Int[Tensor, "activation 3"],
        values: Float[Tensor, " activation"],
        medians: Float[Tensor, " activation"],
        carriers: Float[Tensor, "carrier model"],
        batch: Batch,
    ) -> None:
        if not len(places):
            return
        row, token, dimension = places.cpu().unbind(dim=1)
        value, median = values.cpu().double(), medians.cpu().double()
        keys = torch.stack([torch.full_like(row, layer), dimension, token, batch.host.input_ids[row, token]], dim=1)
        observations = torch.stack([value, median, value.abs() / median, value.square()], dim=1)
        self._found.update(keys, observations, torch.ones(len(keys), dtype=torch.long))
        self._carriers.update(layer, carriers.cpu().double().sum(dim=0)[None], torch.tensor([len(carriers)]))

    def carriers(self) -> Float[Tensor, "layer model"]:
        """Mean hidden vectors of the tokens that carry massive activations, layer by layer; NaN where none does."""
        state = self._carriers.state_dict()
        return (state["total"] / state["count"].unsqueeze(-1))[:, 0]

    def table(self) -> pd.DataFrame:
        """The table `massive`."""
        state = self._found.state_dict()
        keys, count = state["keys"].numpy(), state["count"].numpy()
        value, median, ratio, square = (state["total"].numpy() / count[:, None]).T if len(count) else np.zeros((4, 0))
        return pd.DataFrame(
            {
                "layer": keys[:, 0],
                "dimension": keys[:, 1],
                "position": keys[:, 2] + 1,
                "token": np.array([self._context.vocabulary.text(int(token)) for token in keys[:, 3]], dtype=object),
                "value": value,
                "std": np.sqrt(np.maximum(square - value**2, 0)),  # rounding may take it below 0
                "median": median,
                "ratio": ratio,
                "sequences": count,
            }
        )


def ablate(
    runner: InterventionRunner,
    search: MassiveSearch,
    sample: Sequence[Int[Tensor, "kind _"]],
    context: AnalysisContext,
    options: SinksOptions,
) -> tuple[pd.DataFrame | None, list[str]]:
    """Attention and loss with massive activations replaced at their tokens, from the first layer that reads one to the last.

    Args:
        search: Has seen the whole corpus.
        sample: Sequences, as `InterventionRunner.batches` takes them.

    Returns:
        The table `ablation`, None if no layer reads a massive activation; and notes on what was left out.
    """
    massive = search.table()
    read = massive[massive["layer"] < max(context.layers)]  # what the last layer writes, no layer reads
    if not len(read):
        return None, []
    replaced = tuple(sorted(set(read["dimension"].tolist())))
    controls = random_sets(replaced, context.model, [len(replaced)], options.controls, options.seed)
    steps = list(itertools.product(VALUES, dict.fromkeys([replaced, *controls])))
    replacement = _Replacement(search.carriers(), int(read["layer"].min()) + 1, replaced)
    counted = without_all(context)
    affordable = _within(options.ablation_budget, runner.operations_from(replacement.start) * len(steps), sample)
    before, outcomes = _outcomes(runner, affordable, counted, replacement, steps, options.ablation_precision)
    notes = []
    if len(affordable) < len(sample):
        notes.append(
            f"ablations use {len(before.weights)} of {len(sample)} sequences, to limit their time "
            "(analysis.sinks.ablation_budget)"
        )
    if runner.without_loss is not None:
        notes.append(f"{runner.without_loss}, so the effect of massive activations on the loss is not measured")
    by_value = {
        value: [outcomes[value, dimensions].measures(counted.categories) for dimensions in (replaced, *controls)]
        for value in VALUES
    }
    table = _effects(before.measures(counted.categories), by_value)
    return table.assign(sequences=len(before.weights)), notes


def _outcomes(
    runner: InterventionRunner,
    sample: Sequence[Int[Tensor, "kind _"]],
    counted: AnalysisContext,
    replacement: "_Replacement",
    steps: Sequence[tuple[str, tuple[int, ...]]],
    precision: float | None,
) -> "tuple[_Outcome, dict[tuple[str, tuple[int, ...]], _Outcome]]":
    """What the model does unchanged, and with each value for each set of dimensions.

    A batch runs once unchanged, and once with each ablation, from the first layer that it changes.

    Args:
        steps: The ablations; the first is the one whose effects are to be precise.
        precision: The half-width of the intervals of the weights' changes at which the sample ends; None for all of it.
    """
    before, outcomes = _Outcome(), {step: _Outcome() for step in steps}

    def passes(part: Sequence[Tensor]) -> "list[tuple[Batch, tuple[str, tuple[int, ...]] | None]]":
        return list(itertools.product(runner.batches(part), (None, *steps)))  # None: unchanged

    def known() -> float:
        return half_width((outcomes[steps[0]].weights - before.weights).numpy())

    title = "ablations of massive activations"
    for batch, step in steps_until_precise(runner, sample, passes, known, precision, title):
        weights: list[Tensor] = []

        def keep(block: AttentionBlock, batch: Batch = batch, weights: list[Tensor] = weights) -> None:
            if block.layer >= replacement.start:
                weights.append(weight_by_category(block, counted.members(batch)))

        if step is None:
            unchanged = runner.unchanged(batch, keep, [replacement.start])
            before.add(weights, unchanged.loss)
        else:
            loss = runner.ablated(unchanged, keep, replacement.of(*step))
            outcomes[step].add(weights, loss)
    return before, outcomes


def _effects(before: Mapping[str, float], by_value: Mapping[str, Sequence[Mapping[str, float]]]) -> pd.DataFrame:
    """What becomes of each measure that is not 0, as those of categories are that do not occur in the sample.

    Args:
        before: The measures of the unchanged model.
        by_value: Those with massive activations replaced by each value, and then with random dimensions.
    """
    rows = []
    for (value, (without, *random)), (measure, unchanged) in itertools.product(by_value.items(), before.items()):
        after, others = without[measure], [other[measure] for other in random]
        changes = beside_controls(np.array(after - unchanged), np.array(others) - unchanged)
        row = {"value": value, "measure": measure, "before": unchanged, "after": after}
        rows.append(row | {name: float(change) for name, change in changes.items()})
    table = pd.DataFrame(rows)
    return table[table["before"] > 0].reset_index(drop=True)


@dataclasses.dataclass(frozen=True)
class _Replacement:
    """Where dimensions are replaced, and by what."""

    means: Float[Tensor, "layer model"]
    """Mean hidden vectors of the tokens with massive activations, from layer 0 on; NaN in layers that have none."""
    start: int
    """The first layer whose inputs are changed."""
    massive: Sequence[int]
    """The dimensions with massive activations."""

    def of(self, value: str, dimensions: Sequence[int]) -> Ablation:
        """The replacement of some dimensions at the tokens with massive activations, by `zero` or their `mean`."""
        values = {
            layer: self.means[layer - 1, list(dimensions)] if value == "mean" else torch.zeros(len(dimensions))
            for layer in range(self.start, len(self.means))
            if not self.means[layer - 1].isnan().any()
        }
        return Ablation(dimensions, values, self._carriers)

    def _carriers(
        self, vectors: Float[Tensor, "batch token model"], token_mask: Bool[Tensor, "batch token"]
    ) -> Bool[Tensor, "batch token"]:
        """The tokens with a massive activation in one of the dimensions."""
        chosen = torch.zeros_like(token_mask)
        row, token, dimension = massive_activations(vectors, token_mask).places.unbind(dim=1)
        among = torch.isin(dimension, torch.tensor(self.massive, device=dimension.device))
        chosen[row[among], token[among]] = True
        return chosen


class _Outcome:
    """What the model does under one ablation, or without one."""

    def __init__(self) -> None:
        self._weights: list[Float[Tensor, "sequence group"]] = []
        self._lost, self._predicted = 0.0, 0

    def add(self, weights: Sequence[Float[Tensor, "sequence group"]], loss: Loss | None) -> None:
        """Add a batch.

        Args:
            weights: The weight on each category, layer by layer.
        """
        self._weights.append(torch.stack(list(weights)).mean(dim=0))
        if loss is not None:
            self._lost, self._predicted = self._lost + loss.total, self._predicted + loss.tokens

    @property
    def weights(self) -> Float[Tensor, "sequence group"]:
        """The weight on each category, a mean over layers."""
        return torch.cat(self._weights)

    def measures(self, categories: Sequence[str]) -> dict[str, float]:
        """The loss in nats per predicted token, if any is predicted, and the mean weight on each category."""
        weights = zip(map(weight_on, categories), self.weights.mean(dim=0).tolist(), strict=True)
        return ({LOSS: self._lost / self._predicted} if self._predicted else {}) | dict(weights)


def _within(
    budget: float | None, operations: float, sample: Sequence[Int[Tensor, "kind _"]]
) -> Sequence[Int[Tensor, "kind _"]]:
    """The sequences whose ablations stay within a budget, and in any case as many as an interval needs.

    Args:
        operations: Of all ablations, per token.
    """
    number = len(sample)
    tokens = [int((kinds[0] >= 0).sum()) for kinds in sample]
    while budget is not None and number > FEWEST and operations * sum(tokens[:number]) > budget:
        number -= 1
    return sample[:number]
