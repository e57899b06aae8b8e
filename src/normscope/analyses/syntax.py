"""Syntax: does the weight or the vector find the syntactic head? (Clark et al. 2019)

Every map between words, of a head or of a whole block, predicts an arc by the largest entry of a row. Heads are chosen on one
half of the treebank and scored on the other.
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.syntax import SYNTAX, SyntaxOptions
from normscope.analyses.finite import require_finite
from normscope.analyses.treebank import ALL, INSIDE, MISSING, Arcs, Treebank, TreebankResource, arcs_of
from normscope.data.batching import Batch
from normscope.errors import InputError
from normscope.maths.tensors import lengthened
from normscope.models.blocks.block import AttentionBlock
from normscope.models.blocks.grouped_block import GroupedBlock
from normscope.models.facts import ModelFacts
from normscope.models.observe.feed_forward import FeedForwardBlock
from normscope.results.figures import Dots, Figure, Heatmaps
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import brief_share, compared, counted, in_points, percentage
from normscope.statistics.counts import Counts
from normscope.statistics.intervals import Interval
from normscope.statistics.share_moments import ShareMoments
from normscope.statistics.tidy import tidy

TREEBANK = "treebank"
"""Name of the resource that knows the relations."""

HEAD_MEASURES = ("attn_w", "attn_n")
"""Measures of single heads."""

LAYER = "layer"
"""The measure that follows vectors to the end of the layer."""

TITLES = {
    "attn_w": "weights",
    "attn_n": "vectors",
    "attnres_n": "+ residual",
    "attnresln_n": "+ norm",
    LAYER: "whole layer",
}
"""Titles of the measures, in order."""

NO_SELF, WORDS = CANDIDATES = ("no_self", "words")
SPECIAL = {NO_SELF: "special tokens allowed", WORDS: "special tokens excluded"}
"""Panels of the figure of gains; a word may choose itself in neither."""

DIRECTIONS = ("dependent-head", "head-dependent")
HALVES = ("odd", "even", "both")
RIGHT_BRANCHING, FIXED_OFFSET = "right_branching", "fixed_offset"

LONGEST_OFFSET = 10
"""Fixed offsets of at most this many words, in either direction, compete for the best."""

_OFFSETS = np.arange(-LONGEST_OFFSET, LONGEST_OFFSET + 1)

_MOST_RELATIONS = 24
"""More columns of a figure would not be legible."""


class SyntaxAnalysis(Analysis):
    """Counts, for every map, the arcs that its largest entries find."""

    info = SYNTAX

    def __init__(self, options: SyntaxOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._treebank: Treebank = context.resources[TREEBANK]
        self._relations = {relation: index for index, relation in enumerate(self._treebank.relations)}
        self._has_networks = context.has_feed_forward
        methods = {str(method) for method in context.methods}
        known = methods | ({LAYER} if self._has_networks else set())
        self._measures = [measure for measure in TITLES if measure in known]
        layers, relations = len(context.layers), len(self._relations)
        maps = len(HEAD_MEASURES) * context.heads + len(self._measures)
        moments = 3  # c, c² and c n of sentences
        self._correct = Counts(layers, moments, len(CANDIDATES), len(DIRECTIONS), maps, 2, relations)
        # Of the corpus: n, n² and the number of sentences with arcs.
        self._arcs = Counts(1, moments, 2, relations)
        self._offsets = Counts(1, moments, 2 * LONGEST_OFFSET + 1, 2, relations)
        self._dropped = Counts(1, 2)
        self.accumulators = {
            "correct": self._correct,
            "arcs": self._arcs,
            "offsets": self._offsets,
            "dropped": self._dropped,
        }

    @classmethod
    def requirements(cls, options: SyntaxOptions, facts: ModelFacts) -> Requirements:
        """The treebank, and feed-forward networks where there are any."""
        return Requirements(
            vectors_of_keys=True, feed_forward=facts.has_networks, resources={TREEBANK: TreebankResource(options)}
        )

    def start_batch(self, batch: Batch) -> None:
        """Find the arcs of a batch, and score the baselines."""
        self._batch_arcs = self._find_arcs(batch)
        self._zeros: dict[int, Tensor] = {}
        arcs, relations = self._batch_arcs, len(self._relations)
        counts = by_relation(torch.ones_like(arcs.counted), arcs, relations)
        self._counts = counts
        self._arcs.update(0, by_half(torch.stack([counts, counts.square(), (counts > 0).long()]), arcs.halves))
        offsets = torch.arange(-LONGEST_OFFSET, LONGEST_OFFSET + 1, device=arcs.offset.device)
        correct = by_relation(offsets[:, None] == arcs.offset, arcs, relations)
        self._offsets.update(0, by_half(torch.stack(products(correct, counts)), arcs.halves))
        self._dropped.update(0, arcs.dropped)

    def update_attention(self, block: AttentionBlock, _batch: Batch) -> None:
        """Add the maps of a layer whose feed-forward network is not observed."""
        if not self._has_networks:
            self._add(block, None)

    def update_feed_forward(self, block: FeedForwardBlock, _batch: Batch) -> None:
        """Add the maps of a layer."""
        self._add(block.attention, block)

    def end_batch(self, _batch: Batch) -> None:
        """Check the maps of all layers.

        Raises:
            InputError: If a map is not finite; the message names the layer.
        """
        require_finite(torch.stack(list(self._zeros.values())), "the maps of layer {layer}", self.context.layers)

    def result(self) -> Result:
        """Accuracies by head and relation, and the best heads.

        Raises:
            InputError: If no arc joins words with different tokens.
        """
        if not self._arcs.compute()[0, 0].any():
            raise InputError(
                "analysis=syntax: expected arcs between words with different tokens, got none: all arcs join words that share "
                "the same tokens or were truncated (dataset.max_length)"
            )
        scores = Scores(
            self.context,
            self._measures,
            self._treebank.relations,
            self._correct.compute().numpy(),
            self._arcs.compute()[0].numpy(),
            self._offsets.compute()[0].numpy(),
        )
        heads, pooled = scores.heads(), scores.held_out()
        tables = {"heads": heads, "best": scores.best()}
        # Where single heads compete, the maps of whole blocks do not.
        competing = {"heads": heads[(heads["head"] > 0) | ~heads["measure"].isin(HEAD_MEASURES)]}
        rolled = roll_up(self.info.declared, tables | competing)
        metrics = {**rolled.metrics, **self._gains_and_drops(pooled)}
        relations = [relation for relation in self._treebank.relations if relation != ALL]
        return Result(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(metrics, _gain_of_vectors(pooled), int(self._arcs.compute()[0, 2, :, 0].sum())),
            curves=rolled.curves,
            figures=describe_figures(heads, pooled, relations, metrics),
            summaries={
                self.info.name: Summary(
                    self._summary(metrics),
                    digits=1,
                    caption="words whose syntactic head is found, in %, by the best attention head (or block) of each measure, "
                    "on the half of the corpus that was not used to select it",
                )
            },
            notes=self._notes(),
        )

    def _find_arcs(self, batch: Batch) -> Arcs:
        return arcs_of(batch, self._relations, punctuation=self.options.punctuation, subtypes=self.options.subtypes)

    def _add(self, block: AttentionBlock, network: FeedForwardBlock | None) -> None:
        arcs, layer = self._batch_arcs, self.context.index(block.layer)
        of_words = GroupedBlock(block, arcs.targets, arcs.sources)
        heads = lengthened(torch.stack(of_words.head_maps(in_double=False), dim=1), self.context.heads, 2).flatten(1, 2)
        of_block = {str(method): values for method, values in of_words.maps(in_double=False).items()}
        if network is not None:
            last = network.stages[-1]
            of_block[LAYER] = network.pair_maps(arcs.targets, arcs.sources, stages=[last], in_double=False)[last]
        maps = torch.cat([heads, *(of_block[measure].unsqueeze(1).to(heads) for measure in self._measures)], dim=1)
        correct = by_relation(correct_arcs(maps, arcs), arcs, len(self._relations))
        self._correct.update(layer, by_half(torch.stack(products(correct, self._counts)), arcs.halves))
        # Zero, or NaN unless every number is finite.
        self._zeros[layer] = (maps * 0).sum()

    def _gains_and_drops(self, pooled: pd.DataFrame) -> dict[str, float]:
        """What norms add to weights, and how many arcs were excluded."""
        overall = pooled[pooled["relation"] == ALL].set_index(["measure", "candidates"])["accuracy"]
        dropped = self._dropped.compute()[0].tolist()
        metrics = {"dropped/inside": float(dropped[INSIDE]), "dropped/missing": float(dropped[MISSING])}
        for sinks, candidates in (("with_sinks", NO_SELF), ("sinks_masked", WORDS)):
            if ("attn_n", candidates) in overall.index:  # missing if all arcs are punctuation's
                gain = float(overall["attn_n", candidates] - overall["attn_w", candidates])
                metrics |= {f"gain/{sinks}": gain} if np.isfinite(gain) else {}
        return metrics

    def _summary(self, metrics: dict[str, float]) -> pd.DataFrame:
        rows = {}
        for measure in dict.fromkeys([*HEAD_MEASURES, *self._measures]):
            rows[TITLES[measure]] = {"found %": 100 * metrics.get(f"{measure}/best/{ALL}", np.nan)}
        rows["always the next word"] = {"found %": 100 * metrics.get(f"{RIGHT_BRANCHING}/{ALL}", np.nan)}
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("measure")

    def _notes(self) -> list[str]:
        inside, missing = self._dropped.compute()[0].tolist()
        notes = []
        if without := self._treebank.without_tree:
            sentences = counted(without, "sentence without heads is", "sentences without heads are")
            notes.append(f"{sentences} excluded from analysis=syntax")
        if inside:
            notes.append(
                f"{counted(inside, 'arc is excluded because its', 'arcs are excluded because their')} two words share "
                "the same tokens"
            )
        if missing:
            notes.append(
                f"{counted(missing, 'arc is excluded because one of its', 'arcs are excluded because one of their')} words has "
                "no token"
            )
        return notes


def correct_arcs(
    maps: Float[Tensor, "batch map word unit"], arcs: Arcs
) -> Bool[Tensor, "candidates direction map arc"]:
    """Whether the largest entry of the row of one end of an arc is its other end.

    Rows without an entry above zero predict nothing. Of equal entries, the first counts.

    Args:
        maps: What each word takes from each unit.
    """
    words, units = maps.shape[2:]
    # Special tokens are the last units; the word itself has the number of its row.
    itself = torch.eye(words, units, dtype=torch.bool, device=maps.device)
    excluded = ~arcs.sources.exists[:, None, None] | itself
    results = []
    for others in (excluded, excluded | arcs.special[:, None, None]):  # as CANDIDATES
        largest = maps.masked_fill(others, -torch.inf).max(dim=-1)
        predicted = largest.indices.masked_fill(largest.values <= 0, -1)
        ends = (arcs.dependent, arcs.head), (arcs.head, arcs.dependent)
        results.append(torch.stack([(predicted[arcs.sentence, :, row] == column[:, None]).T for row, column in ends]))
    return torch.stack(results)


def by_relation(values: Bool[Tensor, "*map arc"], arcs: Arcs, relations: int) -> Int[Tensor, "*map batch relation"]:
    """Sums of values over the arcs of each sentence and relation; relation 0 is the union of those that count."""
    shape = values.shape[:-1]
    sentences = len(arcs.halves)
    flat = values.reshape(math.prod(shape), values.shape[-1]).long()
    sums = flat.new_zeros(len(flat), sentences * relations)
    sums.index_add_(1, arcs.sentence * relations + arcs.relation, flat)
    sums.index_add_(1, arcs.sentence * relations, flat * arcs.counted)
    return sums.view(*shape, sentences, relations)


def by_half(values: Int[Tensor, "*map batch relation"], halves: Int[Tensor, " batch"]) -> Tensor:
    """Sums over the sentences of each half of the corpus: map, half, relation."""
    sums = values.new_zeros(*values.shape[:-2], 2, values.shape[-1])
    return sums.index_add_(values.dim() - 2, halves, values)


def products(correct: Int[Tensor, "..."], counts: Int[Tensor, "..."]) -> tuple[Tensor, Tensor, Tensor]:
    """c, c² and c n of every sentence."""
    return correct, correct.square(), correct * counts


class _Choice(NamedTuple):
    """The map that found the most arcs of a relation on one half of the corpus, and where it is scored: all but the measure are
    places along axes."""

    measure: str
    layer: int
    candidates: int
    direction: int
    map: int
    half: int
    relation: int

    @property
    def place(self) -> tuple[int, ...]:
        """Where its correct arcs are."""
        return self[1:]

    @property
    def arcs(self) -> tuple[int, int]:
        """Where all arcs are."""
        return self.half, self.relation


class Scores:
    """Accuracies of heads and layers, and the best of them, from the counts of the whole treebank.

    Axes of moments: c, c² and c n of correct arcs; n, n² and the number of sentences of arcs. Maps are the single heads by
    every measure of HEAD_MEASURES, then the measures of whole blocks.

    Args:
        measures: Measures of whole blocks.
        correct: Counts by layer, moment, candidates, direction, map, half and relation.
        arcs: Counts by moment, half and relation.
        offsets: Counts by moment, offset, half and relation.
    """

    def __init__(
        self,
        context: AnalysisContext,
        measures: Sequence[str],
        relations: Sequence[str],
        correct: np.ndarray,
        arcs: np.ndarray,
        offsets: np.ndarray,
    ) -> None:
        self._context, self._measures, self._relations = context, measures, relations
        self._maps = [(measure, head) for measure in HEAD_MEASURES for head in range(1, context.heads + 1)]
        self._maps += [(measure, 0) for measure in measures]  # measure and head of every map
        self._all_arcs = _with_both(arcs, 1)
        # layer, candidates, direction, map, half (both included), relation
        self._moments = ShareMoments(*np.moveaxis(_with_both(correct, 5), 1, 0), *self._all_arcs)
        self._intervals = self._moments.interval()
        # offset, half (both included), relation
        self._offset_moments = ShareMoments(*_with_both(offsets, 2), *self._all_arcs)
        # Index of the best offset that scores each half and relation: chosen on the other half, for both on both.
        self._fixed = np.nan_to_num(self._offset_moments.share, nan=-1.0).argmax(axis=0)[[1, 0, 2]]
        self._baseline = np.take_along_axis(self._offset_moments.share, self._fixed[None], axis=0)[0]

    def heads(self) -> pd.DataFrame:
        """The table `heads`: every head and layer, and the baselines as rows of layer 0."""
        low, high = self._intervals
        table = tidy(
            {
                "accuracy": self._moments.share,
                "low": low,
                "high": high,
                "count": self._all_arcs[0],
                "baseline": self._baseline,
            },
            layer=self._context.layers,
            candidates=CANDIDATES,
            direction=DIRECTIONS,
            map=range(len(self._maps)),
            half=HALVES,
            relation=self._relations,
        )
        number = table.pop("map").to_numpy()
        table["measure"] = np.array([measure for measure, _ in self._maps], dtype=object)[number]
        table["head"] = np.array([head for _, head in self._maps])[number]
        table = self._context.with_heads(table)
        return pd.concat([table[table["count"] > 0], self._baselines()], ignore_index=True)[_HEAD_COLUMNS]

    def _baselines(self) -> pd.DataFrame:
        low, high = self._offset_moments.interval()
        tables = []
        for measure, chosen in (
            (FIXED_OFFSET, self._fixed),
            (RIGHT_BRANCHING, np.full_like(self._fixed, LONGEST_OFFSET + 1)),
        ):
            values = {
                name: np.take_along_axis(array, chosen[None], axis=0)[0]
                for name, array in {"accuracy": self._offset_moments.share, "low": low, "high": high}.items()
            }
            rows = tidy(
                values | {"count": self._all_arcs[0], "baseline": self._baseline}, half=HALVES, relation=self._relations
            )
            tables.append(rows.assign(layer=0, head=0, measure=measure, direction=DIRECTIONS[0], candidates=WORDS))
        rows = pd.concat(tables)
        return rows[rows["count"] > 0]

    @cached_property
    def _choices(self) -> list[_Choice]:
        """The best head (or layer) of every relation by measure and candidates, for each half that it is scored on."""
        share = np.nan_to_num(self._moments.share, nan=-1.0)
        heads_of = [self._context.heads_of[layer] for layer in self._context.layers]
        exists = np.array([[head <= heads for _, head in self._maps] for heads in heads_of])
        share = np.where(exists[:, None, None, :, None, None], share, -1.0)
        measures = np.array([measure for measure, _ in self._maps])
        single = np.array([head > 0 for _, head in self._maps])
        choices = []
        for measure in dict.fromkeys([*HEAD_MEASURES, *self._measures]):
            maps = np.flatnonzero((measures == measure) & (single | (measure not in HEAD_MEASURES)))
            for c, half, r in itertools.product(range(len(CANDIDATES)), (0, 1), range(len(self._relations))):
                if not self._all_arcs[0, half, r]:
                    continue
                others = np.moveaxis(share[:, c, :, maps, 1 - half, r], 0, 1)  # layer, map, direction
                layer, number, direction = np.unravel_index(others.argmax(), others.shape)
                choices.append(_Choice(measure, int(layer), c, int(direction), int(maps[number]), half, r))
        return choices

    def best(self) -> pd.DataFrame:
        """The best head (or layer) of every relation by measure, chosen on one half and scored on the other."""
        low, high = self._intervals
        return pd.DataFrame(
            {
                "measure": choice.measure,
                "relation": self._relations[choice.relation],
                "candidates": CANDIDATES[choice.candidates],
                "half": HALVES[choice.half],
                "layer": self._context.layers[choice.layer],
                "head": self._maps[choice.map][1],
                "direction": DIRECTIONS[choice.direction],
                "accuracy": self._moments.share[choice.place],
                "low": low[choice.place],
                "high": high[choice.place],
                "count": self._all_arcs[(0, *choice.arcs)],
                "offset": _OFFSETS[self._fixed[choice.arcs]],
                "baseline": self._baseline[choice.arcs],
                "right_branching": self._offset_moments.share[(LONGEST_OFFSET + 1, *choice.arcs)],
            }
            for choice in self._choices
        )

    def held_out(self) -> pd.DataFrame:
        """The held-out accuracy over both halves: measure, relation, candidates, with its interval over sentences."""
        sums: dict[tuple[str, str, str], np.ndarray] = {}
        for choice in self._choices:
            key = choice.measure, self._relations[choice.relation], CANDIDATES[choice.candidates]
            correct = [moment[choice.place] for moment in self._moments[:3]]
            arcs = [moment[choice.arcs] for moment in self._moments[3:]]
            sums[key] = sums.get(key, 0) + np.array([*correct, *arcs], dtype=float)
        keys = pd.DataFrame(list(sums), columns=["measure", "relation", "candidates"])
        moments = ShareMoments(*np.array([*sums.values()]).T)
        low, high = moments.interval()
        return keys.assign(accuracy=moments.share, low=low, high=high, count=moments.arcs.astype(int))


def _with_both(counts: np.ndarray, axis: int) -> np.ndarray:
    """Counts of both halves besides those of each."""
    return np.concatenate([counts, counts.sum(axis=axis, keepdims=True)], axis=axis)


_HEAD_COLUMNS = list(SYNTAX.declared.tables["heads"].columns)


def describe_figures(
    heads: pd.DataFrame, pooled: pd.DataFrame, relations: Sequence[str], metrics: Mapping[str, float]
) -> dict[str, Figure]:
    """All figures.

    Args:
        heads: The table `heads`.
        pooled: Held-out accuracy of the best head by measure, relation and candidates, with its interval.
        relations: All relations but their union.
        metrics: Numbers by name.
    """
    counts = pooled[pooled["measure"] == "attn_w"].groupby("relation")["count"].max()
    shown = [relation for relation in relations if relation in counts.index]
    shown = sorted(shown, key=lambda relation: (-int(counts[relation]), relation))[:_MOST_RELATIONS]
    shown = [*(["all"] if "all" in counts.index else []), *shown]  # missing if all arcs are punctuation's
    return {
        "gain": _gain_figure(pooled, shown, _accuracies(metrics)),
        "relations": _relations_figure(heads, shown),
    }


def _apart(weights: Mapping[Hashable, float], vectors: Mapping[Hashable, float]) -> Interval:
    """What vectors add to the accuracy of weights, from the smallest to the largest difference that both intervals allow."""
    return Interval(
        vectors["accuracy"] - weights["accuracy"], vectors["low"] - weights["high"], vectors["high"] - weights["low"]
    )


def _gain_of_vectors(pooled: pd.DataFrame) -> Interval | None:
    """What vectors add over all relations, special tokens excluded; None if all arcs are punctuation's."""
    rows = pooled[(pooled["relation"] == ALL) & (pooled["candidates"] == WORDS)].set_index("measure")
    if not {*HEAD_MEASURES} <= {*rows.index}:
        return None
    by_measure = rows[["accuracy", "low", "high"]].astype(float).to_dict("index")
    return _apart(*(by_measure[measure] for measure in HEAD_MEASURES))


def _accuracies(metrics: Mapping[str, float]) -> str:
    """What the best heads find over all relations, beside the next word; nothing if that is not known."""
    known = [metrics.get(name) for name in ("attn_w/best/all", "attn_n/best/all", "right_branching/all")]
    if None in known:
        return ""
    weights, vectors, following = compared(brief_share, *(value for value in known if value is not None))
    return (
        f" Over all relations, special tokens excluded, weights find {weights} of the arcs, vectors {vectors}, and always "
        f"choosing the next word {following}."
    )


def _gain_figure(pooled: pd.DataFrame, relations: Sequence[str], accuracies: str) -> Figure:
    held_out = pooled.set_index(["relation", "candidates", "measure"]).to_dict("index")
    rows = []
    for candidates, relation in itertools.product(SPECIAL, relations):
        weights, vectors = (held_out[relation, candidates, measure] for measure in HEAD_MEASURES)
        gain, low, high = (100 * value for value in _apart(weights, vectors))
        rows.append(
            {"candidates": candidates, "relation": f"{relation} ({int(weights['count']):,})"}
            | {"gain": gain, "low": low, "high": high}
        )
    return Dots(
        table=pd.DataFrame(rows),
        row="relation",
        value="gain",
        panel="candidates",
        panel_titles=SPECIAL,
        value_label="vectors ‖αf(x)‖ − weights α (points)",
        interval=("low", "high"),
        caption=(
            "What norms add to weights, in percentage points: accuracy of the best head by ‖αf(x)‖ minus that of the best "
            "head by α, by relation (number of arcs), on the half of the corpus not used to select the heads. Lines run from "
            "the smallest to the largest gain that the 95% intervals of the two accuracies, over sentences, allow: where a "
            "line does not cross zero, the gain is detectable. If the gain vanishes when special tokens are excluded, norms "
            f"merely discount these tokens.{accuracies}"
        ),
    )


def _relations_figure(heads: pd.DataFrame, relations: Sequence[str]) -> Figure:
    table = heads[
        (heads["candidates"] == WORDS)
        & (heads["half"] == "both")
        & (heads["layer"] > 0)
        & heads["relation"].isin(relations)
        & ((heads["head"] > 0) | ~heads["measure"].isin(HEAD_MEASURES))
    ]
    best = table.groupby(["measure", "relation", "layer"], sort=False)["accuracy"].max().mul(100).reset_index()
    order = {relation: place for place, relation in enumerate(relations)}
    best = best.sort_values("relation", key=lambda column: column.map(order), kind="stable").reset_index(drop=True)
    return Heatmaps(
        table=best,
        panel="measure",
        row="layer",
        column="relation",
        values={"accuracy": ""},
        panel_titles=TITLES,
        value_label="accuracy (%)",
        limits=(0.0, 100.0),
        numbered=True,
        caption=(
            "Share of the arcs at which the largest entry among the other words is the correct one, by layer (deepest at the "
            "top) and relation (most frequent first). For weights and vectors, that of the best head and direction; for the "
            "other measures, that of the whole block in its better direction."
        ),
    )


def sentences_of(metrics: Mapping[str, float], gain: Interval | None = None, sentences_read: int = 0) -> list[Sentence]:
    """The best single head, by weights and by vectors.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        gain: What vectors add over all relations, special tokens excluded, with its interval over sentences.
        sentences_read: The number of these.
    """
    sentences: list[Sentence] = []
    weights, vectors = (metrics.get(f"{measure}/best/all") for measure in ("attn_w", "attn_n"))
    baseline = metrics.get("right_branching/all")
    if weights is not None and vectors is not None and baseline is not None:
        found = compared(brief_share, weights, vectors, baseline)
        beside = "" if gain is None else in_points(*gain, sentences_read)
        sentences.append(
            Sentence(
                f"The best head by weights finds {found[0]} of the arcs and the best head by vector norms "
                f"{found[1]}{beside}, each on the half of the corpus not used to select it; always choosing the next word "
                f"finds {found[2]}.",
                figure="gain",
                table="best",
                effect=vectors - weights,
                interval=None if gain is None else gain.ends,
            )
        )
    gains = [metrics[name] for name in ("gain/with_sinks", "gain/sinks_masked") if name in metrics]
    if len(gains) == 2:
        with_sinks, masked = _gain(*gains), _gain(*reversed(gains))
        sentences.append(
            Sentence(
                f"With special tokens allowed, norms {with_sinks}; with special tokens excluded, they {masked}.",
                figure="gain",
                table="best",
            )
        )
    return sentences


def _gain(gain: float, other: float) -> str:
    """What norms do to the accuracy of the best head, beside what they do otherwise."""
    points = brief_share(abs(gain), abs(other)).removesuffix("%")
    if percentage(gain) == percentage(0.0):
        return "change the accuracy of the best head by less than 0.1 points"
    return f"{'raise' if gain > 0 else 'lower'} the accuracy of the best head by {points} percentage points"
