"""Feed-forward networks: what does the network change? (Kobayashi et al. 2024)

Mixing ratios follow a token's vector from the attention block to the end of the layer. Maps of a sample of sequences say how
much each step in between changes the order of contributions, and which pairs of tokens the network amplifies.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import pandas as pd
import scipy.stats
import torch

from normscope.analyses.base import HELD_ROUTING, Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.feedforward import FEEDFORWARD, METHODS, STEP, FeedForwardOptions
from normscope.analyses.ratio_table import (
    RatioTable,
    caption_by_category,
    overall_rows,
    ratio_lines,
    ratio_maps,
    reported_rows,
)
from normscope.analyses.samples import note_on_length, steps_until_precise
from normscope.data.batching import Batch
from normscope.maths.layer_composition import LAYER_STAGES, LayerStage
from normscope.maths.mixing import ratio
from normscope.maths.shares import layer_shares
from normscope.models.facts import ModelFacts
from normscope.models.load.interventions import InterventionRunner
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.results.figures import Figure, Lines
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import brief, brief_share, compared, differ, in_points
from normscope.statistics.intervals import Interval
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.precision import half_width
from normscope.statistics.rank_correlation import correlation

T = TypeVar("T")

STEPS: Mapping[str, tuple[LayerStage, LayerStage]] = {
    "ff": (LayerStage.BLOCK, LayerStage.NETWORK),
    "res": (LayerStage.NETWORK, LayerStage.RESIDUAL),
    "ln": (LayerStage.RESIDUAL, LayerStage.NORMALISED),
    "ff+res": (LayerStage.BLOCK, LayerStage.RESIDUAL),
    "ff+res+ln": (LayerStage.BLOCK, LayerStage.NORMALISED),
}
"""The stages before and after each step."""


class FeedForwardAnalysis(Analysis):
    """Mixing ratios from the attention block to the end of the layer, and the maps of a sample before and after each step."""

    info = FEEDFORWARD

    def __init__(self, options: FeedForwardOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        positions = context.norm_positions
        self._stages = [stage for stage in LayerStage if all(stage in LAYER_STAGES[each] for each in positions)]
        # The attention block's last method is the first stage of the layer.
        self._attention = [str(method) for method in context.methods if str(method) in METHODS]
        if all(position in ("pre", "parallel") for position in positions):
            self._attention.remove("attnres_n")
        stages = [f"{stage}_n" for stage in self._stages]
        self._ratios = RatioTable([*self._attention, *stages], context, stages)
        self._sample = KeptTensors(torch.int64, options.sequences)
        self._maps = MapComparison(context, options.pairs)
        self.accumulators = {**self._ratios.accumulators, "sample": self._sample}

    @classmethod
    def requirements(cls, _options: FeedForwardOptions, _facts: ModelFacts) -> Requirements:
        """The feed-forward networks."""
        return Requirements(feed_forward=True, vectors_of_keys=True)

    def start_batch(self, batch: Batch) -> None:
        """Offer the sequences of a batch to the sample for maps."""
        self._sample.update(*batch.for_samples(self.options.seed, self.options.tokens))

    def update_feed_forward(self, block: FeedForwardBlock, batch: Batch) -> None:
        """Add the mixing ratios of a layer's tokens."""
        # The layer's norms come first: they leave vectors from which the attention block's follow.
        composition = block.composition()
        norms = composition.relative_norms()
        attention = block.attention.mixing_ratios
        values = [ratios for method, ratios in attention.items() if str(method) in self._attention]
        values += [ratio(*norms[stage]) for stage in self._stages]
        shares = layer_shares(composition)
        self._ratios.update(block.layer, values, batch, [shares[stage] for stage in self._stages])

    def intervene(self, runner: InterventionRunner) -> None:
        """Compare the maps of the sample, sequence by sequence: in a batch, pairs with padding would be computed as well."""
        sample, title = self._sample.compute().tensors, "token maps of feed-forward networks"
        known, precision = self._maps.half_width, self.options.precision
        for batch in steps_until_precise(runner, sample, runner.batches, known, precision, title):
            for row in range(batch.sequences):
                self._maps.observe(runner, batch.part(row, row + 1))

    def result(self) -> Result:
        """Ratios by layer and category, changes by step, and the pairs that the network amplifies."""
        ratios, change = self._ratios.compute(), self._maps.change()
        shares = self._ratios.compute_shares().drop(columns=["residual", "count"])  # residual: the token's own
        table = ratios.merge(shares, on=["layer", "method", "category"])
        overall = overall_rows(table)
        rolled = roll_up(self.info.declared, {"change": change, "mixing_by_layer": overall})
        summary = self._ratios.by_category()
        title = "how much of a token's vector comes from other tokens after the whole layer"
        return Result(
            tables={
                "mixing_by_layer": reported_rows(table, self.context.categories),
                "change": change,
                "amplified": self._maps.amplified(),
                "sequences": self._ratios.by_sequence(set(overall["method"])),
            },
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics, rolled.curves, self._of_layer(), self._ratios.number),
            curves=rolled.curves,
            figures=describe_figures(reported_rows(ratios, self.context.categories), overall_rows(ratios), change),
            summaries={self.info.name: Summary(summary, digits=1, caption=caption_by_category(title, summary))},
            notes=[
                *note_on_length(self.info.name, self._sample.compute().tensors, self.options.tokens),
                *([HELD_ROUTING] if self.context.has_experts else []),
            ],
        )

    def _of_layer(self) -> Interval | None:
        """The mean ratio after the whole layer less that after the attention block."""
        known = [f"{stage}_n" for stage in self._stages]
        whole = next((name for name in map(_method, _WHOLE) if name in known), None)
        return (
            None if whole is None or _method(_BLOCK) not in known else self._ratios.difference(whole, _method(_BLOCK))
        )


class MapComparison:
    """What the maps of a sample of sequences show: how much each step changes them, and which pairs the network amplifies.

    Args:
        context: The layers and the vocabulary.
        pairs: Number of amplified pairs that are kept for each layer.
    """

    def __init__(self, context: AnalysisContext, pairs: int) -> None:
        self._context, self._pairs = context, pairs
        self._changes: dict[tuple[int, str], list[float]] = {}
        # The headline: each sequence's changes by the network, layer by layer.
        self._by_network: list[list[float]] = []
        self._amplified: dict[int, list[tuple[float, tuple[int, ...], dict[str, object]]]] = {}

    def observe(self, runner: InterventionRunner, batch: Batch) -> None:
        """Run the model on a batch of one sequence and add its maps, layer by layer."""
        self._by_network.append([])
        runner.observe(batch, lambda _block: None, visit_feed_forward=lambda block: self._add(block, batch))

    def half_width(self) -> float:
        """Half the width of the interval of the mean change by the network, over layers and sequences."""
        means = [float(np.mean(changes)) for changes in self._by_network if changes]
        return half_width(np.array(means)[:, None])

    def change(self) -> pd.DataFrame:
        """The table `change`: 1 − ρ by layer and step."""
        rows = [
            {
                "layer": layer,
                "step": step,
                "mean": np.mean(values) if values else np.nan,
                "std": np.std(values) if values else np.nan,
                "count": len(values),
            }
            for layer in self._context.layers
            for step in STEPS
            if (values := self._changes.get((layer, step))) is not None
        ]
        return pd.DataFrame(rows, columns=["layer", "step", "mean", "std", "count"])

    def amplified(self) -> pd.DataFrame:
        """The table `amplified`: the pairs whose share the network raises most, layer by layer."""
        rows = [{"layer": layer, **row} for layer in self._context.layers for *_, row in self._amplified.get(layer, ())]
        return pd.DataFrame(rows, columns=["layer", "query_token", "key_token", "category", "before", "after"])

    def _add(self, block: FeedForwardBlock, batch: Batch) -> None:
        maps = {stage: norms[0].cpu().double().numpy() for stage, norms in block.pair_maps(in_double=False).items()}
        seen = block.attention.alpha.seen.of()[0].any(dim=0).cpu().numpy()
        self._compare(block.layer, {stage: norms[seen] for stage, norms in maps.items()})
        before, after = (_shares(maps[stage], seen) for stage in STEPS["ff"])
        self._amplify(block.layer, before, after, seen, batch)

    def _compare(self, layer: int, maps: Mapping[LayerStage, np.ndarray]) -> None:
        """Add the changes of the norms of visible pairs; skip steps before or after which these norms are constant."""
        ranks = {stage: scipy.stats.rankdata(norms) for stage, norms in maps.items()}
        for step, (before, after) in STEPS.items():
            if before not in ranks or after not in ranks:
                continue
            changes = self._changes.setdefault((layer, step), [])
            spearman = correlation(ranks[before], ranks[after])
            if spearman is not None:
                changes.append(1 - spearman)
                if step == "ff":
                    self._by_network[-1].append(changes[-1])

    def _amplify(self, layer: int, before: np.ndarray, after: np.ndarray, seen: np.ndarray, batch: Batch) -> None:
        """Keep the pairs of different positions whose share the network raises most."""
        gain = np.where(seen, after - before, -np.inf)
        if not batch.is_cross_attention:
            np.fill_diagonal(gain, -np.inf)
        best = np.argsort(-gain, axis=None, kind="stable")[: self._pairs]
        listed = self._amplified.setdefault(layer, [])
        for query, key in zip(*np.unravel_index(best, gain.shape), strict=True):
            if gain[query, key] == -np.inf:
                continue
            taking, giving = int(batch.input_ids[0, query]), int(batch.keys.input_ids[0, key])
            pair = {
                "query_token": self._context.vocabulary.text(taking),
                "key_token": self._context.vocabulary.text(giving),
                "category": self._kind(taking, giving, abs(int(query) - int(key)), batch),
                "before": float(before[query, key]),
                "after": float(after[query, key]),
            }
            listed.append((-float(gain[query, key]), (batch.fingerprints[0], int(query), int(key)), pair))
        listed.sort(key=lambda entry: entry[:2])
        del listed[self._pairs :]

    def _kind(self, query: int, key: int, distance: int, batch: Batch) -> str:
        special = self._context.vocabulary.special
        if query in special or key in special:
            return "special"
        if query == key:
            return "same token"
        return "adjacent" if distance == 1 and not batch.is_cross_attention else "other"


def _shares(norms: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Each query's norms divided by their sum over its keys."""
    norms = np.where(seen, norms, 0.0)
    shares: np.ndarray = norms / np.maximum(norms.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    return shares


def describe_figures(shown: pd.DataFrame, overall: pd.DataFrame, change: pd.DataFrame) -> dict[str, Figure]:
    """The ratios by category, the ratios over all tokens, and the changes by step.

    Args:
        shown: Mixing ratios by layer, method (those of METHODS) and reported category.
        overall: The same over all tokens.
        change: The table `change`.
    """
    figures: dict[str, Figure] = {
        "strip": ratio_maps(
            shown,
            METHODS,
            "Mean mixing ratio by layer (deepest at the top) and token category, from the attention weights to the end of the "
            "layer. Below 50%, tokens preserve more of themselves than they take from others.",
        ),
        "by_layer": ratio_lines(
            overall,
            METHODS,
            "Mean mixing ratio over all tokens, by layer, from the attention weights to the end of the layer. The gap between "
            "the attention block and the last method is what the network and the steps after it change; the other methods are "
            "thin and grey.",
            beside=["atb_n"],
        ),
    }
    known = change[change["mean"].notna()]
    if len(known):
        figures["change"] = Lines(
            table=known.assign(low=known["mean"] - known["std"], high=known["mean"] + known["std"]),
            x="layer",
            y="mean",
            series="step",
            series_titles=STEP.titles,
            y_label="change (1 − Spearman's ρ)",
            band=("low", "high"),
            caption=(
                "How much each step changes the order of contributions between tokens: the feed-forward network (FF), its "
                "residual connection (RES) and normalisation (LN). Bands are one standard deviation over sequences. Where FF "
                "alone changes more than FF together with the steps after it, these steps undo part of what the network does."
            ),
        )
    return figures


_BLOCK = "atb_n/mean"
"""The ratio after the attention block."""

_WHOLE = "atbffresln_n/mean", "atbffres_n/mean"
"""The ratio after the whole layer, by the position of its norms."""


def _method(name: str) -> str:
    return name.removesuffix("/mean")


def sentences_of(
    metrics: Mapping[str, float],
    curves: "Mapping[str, pd.Series[float]]" = MappingProxyType({}),
    of_layer: Interval | None = None,
    sequences: int = 0,
) -> list[Sentence]:
    """The mixing ratio of the whole layer beside that of the attention block, and what the network does to the maps.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        curves: The same numbers by layer.
        of_layer: The first ratio less the second, with its interval over sequences.
        sequences: The number of these.
    """
    sentences = _after_the_layer(metrics, curves, of_layer, sequences)
    alone, whole = metrics.get("change/ff"), _first_of(metrics, "change/ff+res+ln", "change/ff+res")
    if alone is not None and whole is not None:
        first, then = compared(brief, alone, whole)
        change = "the same" if first == then else f"about the same: {then}"
        if differ(alone, whole):
            change = f"{'smaller' if whole < alone else 'larger'}: {then}"
        sentences.append(
            Sentence(
                f"The feed-forward network alone changes the order of contributions by {first} (1 − Spearman's ρ); "
                f"with what follows it in the layer, the change is {change}.",
                figure="change",
                table="change",
            )
        )
    return sentences


def _after_the_layer(
    metrics: Mapping[str, float],
    curves: "Mapping[str, pd.Series[float]]",
    of_layer: Interval | None,
    sequences: int,
) -> list[Sentence]:
    """The mixing ratio of the whole layer beside that of the attention block, and where they differ most."""
    block, last = metrics.get(_BLOCK), _first_of(metrics, *_WHOLE)
    if block is None or last is None:
        return []
    text = (
        f"After the whole layer, the mean mixing ratio is {brief_share(last, block)}; after the attention block, it is "
        f"{brief_share(block, last)}"
    )
    effect, interval = last - block, None
    if of_layer is not None:
        interval = of_layer.ends
        text += in_points(*of_layer, sequences)
    place: dict[str, int] = {}
    before, after = curves.get(_BLOCK), _first_of(curves, *_WHOLE)
    if before is not None and after is not None and len(before) > 1:
        layer = max(before.keys(), key=lambda layer: abs(after[layer] - before[layer]))
        one, other = float(before[layer]), float(after[layer])
        place = {"layer": int(layer)}
        effect, interval = other - one, None  # layers are not resampled one by one
        text += f". The change is largest in layer {layer}: from {brief_share(one, other)} to {brief_share(other, one)}"
    measure = _method(next(name for name in _WHOLE if name in metrics))
    return [
        Sentence(
            f"{text}.",
            figure="by_layer",
            table="mixing_by_layer",
            measure=measure,
            effect=effect,
            interval=interval,
            place=place,
        )
    ]


def _first_of(values: Mapping[str, T], *names: str) -> T | None:
    """The first of the named values that exists; None if none does."""
    return next((values[name] for name in names if name in values), None)
