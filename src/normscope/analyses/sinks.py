"""Attention sinks: which token, how much weight, how much contribution, and what happens without? (Gu et al. 2025)

Sink rates depend on length, so they are measured after the corpus has been read, on sampled sequences of one length. What makes
a token a sink are massive activations of the residual stream (Sun et al. 2024): the model is run again without them.
"""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.base import Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.sinks import LOSS, NOWHERE, SINKS, SinkInput, SinksOptions
from normscope.analyses.finite import require_finite
from normscope.analyses.massive_activations import MassiveSearch, ablate
from normscope.analyses.samples import steps_until_precise
from normscope.data.batching import Batch
from normscope.data.categories import ALL, FIRST
from normscope.data.nouns import TEXTS, Nouns
from normscope.data.token_sequence import fingerprint
from normscope.maths.massive import largest_magnitudes
from normscope.maths.sinks import importance, queries_of_keys
from normscope.models.blocks.block import AttentionBlock
from normscope.models.facts import ModelFacts
from normscope.models.load.interventions import InterventionRunner
from normscope.results.codes import category_name
from normscope.results.figures import Dots, Figure, Heatmaps, Lines
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, curves_of, metrics_of
from normscope.rounding import brief, brief_share, compared, counted, differ, enumeration
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.counts import Counts
from normscope.statistics.kept_tensors import KeptTensors
from normscope.statistics.mean import Mean
from normscope.statistics.precision import half_width
from normscope.statistics.tidy import tidy


def _read(nouns: Nouns) -> dict[str, str]:
    """What the model reads, in words."""
    return {"text": nouns.inputs, "random": f"random {nouns.units}", "repeat": f"one {nouns.unit} repeated"}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to feed the model."""

    inputs: SinkInput
    bos: bool
    """Whether sequences begin with the tokenizer's `bos` (or `cls`) token."""


class SinksAnalysis(Analysis):
    """Sink rates by head, massive activations, and what massive ones cause."""

    info = SINKS

    def __init__(self, options: SinksOptions, context: AnalysisContext) -> None:
        if context.input_length is not None:
            options = dataclasses.replace(options, length=context.input_length)
        super().__init__(options, context)
        self._massive = MassiveSearch(context)
        self._largest = Mean(context.depth + 1, 1)  # of the embeddings, then of every layer
        # Sequences long enough to be cut, and sequences that are too short.
        self._lengths = Counts(1, 2)
        self._long = KeptTensors(torch.int64, options.sequences)
        # Ablations need no common length, so they draw from all sequences.
        self._sample = KeptTensors(torch.int64, options.ablation_sequences)
        # What `intervene` measures after the last batch, so no accumulators: no checkpoint or other process needs it.
        self._rates: list[SinkRates] = []
        self._ablation: pd.DataFrame | None = None
        self._ablation_notes: list[str] = []
        self.accumulators = {
            **self._massive.accumulators,
            "largest": self._largest,
            "lengths": self._lengths,
            "long": self._long,
            "sample": self._sample,
        }

    @classmethod
    def requirements(cls, options: SinksOptions, _facts: ModelFacts) -> Requirements:
        """The hidden vectors, and the head whose loss massive activations may decide."""
        return Requirements(hidden=True, language_head=options.ablation)

    def start_batch(self, batch: Batch) -> None:
        """Offer the sequences of a batch to the samples."""
        self._massive.start_batch()
        numbers, sequences = batch.for_samples(self.options.seed)
        self._sample.update(numbers, sequences)
        ids, lengths = batch.host.input_ids.numpy(), batch.lengths
        rows = [
            row
            for row, length in enumerate(lengths)
            if long_enough(ids[row, :length], self.options.length, self.context)
        ]
        self._long.update([numbers[row] for row in rows], [sequences[row] for row in rows])
        self._lengths.update(0, torch.tensor([len(rows), len(lengths) - len(rows)]))

    def update_hidden(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Add the largest activations of one layer, and look for massive ones."""
        largest = largest_magnitudes(vectors, batch.token_mask)
        self._largest.update(layer, largest.amax(dim=-1).sum()[None], torch.tensor([batch.sequences]))
        self._massive.update(layer, vectors, batch, largest)

    def layers_to_see_again(self, batch: Batch) -> Collection[int]:
        """The layers in which massive activations could not be looked for during the pass."""
        return self._massive.again(batch)

    def update_hidden_again(self, layer: int, vectors: Float[Tensor, "batch token model"], batch: Batch) -> None:
        """Look for massive activations."""
        self._massive.update_again(layer, vectors, batch)

    def intervene(self, runner: InterventionRunner) -> None:
        """Measure sink rates on sequences of one length, and replace massive activations."""
        try:
            sample = self._long.compute().tensors
        except EmptyAccumulatorError:
            sample = []
        options, context = self.options, self.context
        begins = (True, False) if context.vocabulary.first is not None else (False,)
        variants = itertools.starmap(Variant, itertools.product(map(SinkInput, options.inputs), begins))
        every = [SinkRates(variant, context, options) for variant in variants]

        def passes(part: Sequence[Tensor]) -> list[tuple[Sequence[Tensor], SinkRates]]:
            return [(part, rates) for rates in every]

        def known() -> float:
            return max(rates.half_width() for rates in every)

        for part, rates in steps_until_precise(runner, sample, passes, known, options.precision, "sink rates"):
            rates.measure(runner, runner.batches(sequences_of(rates.variant, part, options, context)))
        # A variant may have no sequence: without the token that begins one, all have a token less.
        self._rates = [rates for rates in every if rates.sequences]
        if options.ablation:
            self._ablation, self._ablation_notes = ablate(
                runner, self._massive, self._sample.compute().tensors, context, options
            )

    def result(self) -> Result:
        """Tables, figures and sentences."""
        declared = self.info.declared
        largest = self._largest.compute().mean[:, 0]
        require_finite(largest, "the hidden vectors of layer {layer}", range(len(largest)))
        by_head = [rates.by_head() for rates in self._rates]
        tables = {
            "by_head": pd.concat(by_head, ignore_index=True)
            if by_head
            else pd.DataFrame(columns=list(declared.tables["by_head"].columns)),
            "massive": self._massive.table(),
        }
        if self._ablation is not None:
            tables["ablation"] = self._ablation
        metrics = metrics_of(declared, tables)
        if self._rates:
            metrics["sink_rates/sequences"] = float(max(rates.sequences for rates in self._rates))
            widest = max(rates.half_width() for rates in self._rates)
            if np.isfinite(widest):
                metrics["sink_rates/half_width"] = widest
        sink = main_position(metrics)
        vocabulary = self.context.vocabulary
        first_token = None if vocabulary.first is None else vocabulary.text(vocabulary.first)
        whole, nouns = self.context.input_length is not None, self.context.nouns
        of_sink = tables["by_head"][tables["by_head"]["position"] == sink]
        curve = pd.Series(largest.numpy(), index=pd.RangeIndex(len(largest), name="layer"))
        return Result(
            tables=tables,
            metrics=metrics,
            sentences=sentences_of(metrics, first_token or "BOS", None if whole else self.options.length, nouns),
            # One curve for the sink, not one for each position.
            curves=curves_of(declared, {"by_head": of_sink}) | {"max_abs": curve},
            figures=describe_figures(of_sink, curve, first_token, self.options, metrics, nouns),
            summaries={
                self.info.name: Summary(
                    _summary(tables["by_head"], sink, first_token, nouns),
                    digits=1,
                    caption="sink rate: % of the heads in which the token receives more than "
                    f"{self.options.epsilon:g} of the weight; its weight: % of all attention weight; its contribution: % of "
                    "the norms ‖αf(x)‖ of what heads contribute; all on "
                    + (f"whole {nouns.inputs}" if whole else f"sequences truncated to {self.options.length} tokens"),
                )
            },
            notes=self._notes(),
        )

    def _notes(self) -> list[str]:
        notes, length = [], self.options.length
        long, short = self._lengths.compute()[0].tolist()
        if not long:
            notes.append(
                f"no sequence has {length} tokens or more, so sink rates are not measured (analysis.sinks.length)"
            )
        elif short:
            notes.append(
                f"sink rates leave out {counted(short, 'sequence')} with fewer than {length} tokens (analysis.sinks.length)"
            )
        if self.context.vocabulary.first is None and self.context.input_length is None:
            notes.append(
                "the tokenizer has no beginning-of-sequence token, so sink rates are only measured without one"
            )
        return notes + self._ablation_notes


class SinkRates:
    """What every head does on the sequences of one variant.

    Args:
        options: The length and ε.
    """

    def __init__(self, variant: Variant, context: AnalysisContext, options: SinksOptions) -> None:
        self.variant, self._context, self._options = variant, context, options
        # The category `first` is the first token, which comes before all categories anyway.
        self._counted = [category for category in context.categories if category not in (ALL, FIRST)]
        shape = len(context.layers), 1 + len(self._counted), context.heads
        self._importance = torch.zeros(shape, dtype=torch.float64)
        self._sinks = torch.zeros(shape, dtype=torch.float64)
        self._mass = torch.zeros(shape, dtype=torch.float64)
        self._contribution = torch.zeros(shape, dtype=torch.float64)
        self._count = torch.zeros(shape[1], dtype=torch.int64)
        self._nowhere = torch.zeros(shape[0], shape[2], dtype=torch.float64)
        self._headline: list[Float[Tensor, "sequence 2"]] = []
        """Each sequence's sink rate of the first token and the weight on it, over all heads: the sample ends when their means
        are known precisely enough."""
        self.sequences = 0
        """Number of sequences so far."""

    def measure(self, runner: InterventionRunner, batches: Sequence[Batch]) -> None:
        """Run the model on some sequences."""
        for batch in batches:
            first = torch.zeros_like(batch.token_mask)
            first[:, 0] = True
            names = self._context.names
            members = torch.stack([first, *(batch.categories == names.index(name) for name in self._counted)])
            self._count += members.sum(dim=(1, 2)).cpu()
            self.sequences += batch.sequences
            self._headline.append(torch.zeros(batch.sequences, 2, dtype=torch.float64))
            runner.observe(batch, lambda block, members=members: self._add(block, members))  # type: ignore[misc]

    def _add(self, block: AttentionBlock, members: Tensor) -> None:
        layer = self._context.index(block.layer)
        received, contributed = block.received.cpu().double(), _contributed(block).cpu().double()
        weights = importance(received, queries_of_keys(block.token_mask, block.mask).cpu())
        exceeds = (weights > self._options.epsilon).double()
        tokens = block.token_mask.sum(dim=-1).cpu()
        shares = received / tokens[:, None, None]
        groups = members.cpu().double()
        own = slice(received.shape[1])  # the heads of the layer
        for total, values in (
            (self._importance, weights),
            (self._sinks, exceeds),
            (self._mass, shares),
            (self._contribution, contributed / contributed.sum(dim=-1, keepdim=True)),
        ):
            total[layer, :, own] += torch.einsum("gbk,bhk->gh", groups, values)
        of_first = torch.stack([exceeds[:, :, 0], shares[:, :, 0]], dim=-1)
        self._headline[-1] += of_first.mean(dim=1) / len(self._context.layers)
        if block.weight_to_nowhere is not None:
            lost = block.weight_to_nowhere.cpu().double() * block.token_mask.cpu()[:, None]
            self._nowhere[layer, own] += (lost.sum(dim=-1) / tokens[:, None]).sum(dim=0)

    def half_width(self) -> float:
        """Half the width of the widest interval of the headline; 0 if no sequence is long enough."""
        return half_width(torch.cat(self._headline).numpy()) if self._headline else 0.0

    def by_head(self) -> pd.DataFrame:
        """The table `by_head`: the positions that occur, and the learned sinks of a model that has them."""
        count, occurs = self._count[None, :, None], self._count > 0
        values = {
            "received": self._importance / count,
            "sink_rate": self._sinks / count,
            "mass": self._mass / self.sequences,
            "contribution": self._contribution / self.sequences,
            "count": count,
        }
        axes = {"layer": self._context.layers, "head": range(1, self._context.heads + 1)}
        positions = list(itertools.compress([FIRST, *self._counted], occurs.tolist()))
        table = tidy(
            {name: tensor.expand(self._mass.shape).transpose(1, 2)[..., occurs] for name, tensor in values.items()},
            **axes,
            position=positions,
        )
        if self._nowhere.any():
            # Learned sinks are no key, so nothing can be counted, and have no vector, so they contribute nothing.
            learned = tidy({"mass": self._nowhere / self.sequences}, **axes)
            table = pd.concat(
                [table, learned.assign(position=NOWHERE, contribution=0.0, count=0)], ignore_index=True
            ).sort_values(["layer", "head"], kind="stable", ignore_index=True)
        table.insert(2, "inputs", str(self.variant.inputs))
        table.insert(3, "bos", self.variant.bos)
        return self._context.with_heads(table)


def _contributed(block: AttentionBlock) -> Float[Tensor, "batch head key"]:
    """Σ_i ‖α_ik f(x_k)‖ over the queries that are tokens."""
    if block.gate is None:
        return block.received * block.transformed_norms
    # With a gate, what a key contributes is not a multiple of one vector.
    return block.head_norms(block.weights).masked_fill(~block.token_mask[:, None, :, None], 0).sum(dim=2)


def long_enough(ids: np.ndarray, length: int, context: AnalysisContext) -> bool:
    """Whether a sequence can be cut to the length in one of the variants."""
    return len(ids) - _begins(ids, context) + (context.vocabulary.first is not None) >= length


def sequences_of(
    variant: Variant, sample: Sequence[Int[Tensor, "..."]], options: SinksOptions, context: AnalysisContext
) -> list[Int[Tensor, "kind token"]]:
    """The sampled sequences as a variant, each of exactly `options.length` tokens; those that are too short are left out.

    Args:
        sample: Sequences in the form of `Batch.packed`. Inherited categories stay at their positions.
        options: The length and the seed.
        context: The special tokens, which `random` and `repeat` keep, and the vocabulary.
    """
    every = np.arange(context.vocabulary.size)
    ordinary = every[~np.isin(every, list(context.vocabulary.special))]
    # Inputs of one length are not cut: without their first token, they are one shorter.
    shorter = context.input_length is not None and context.vocabulary.first is not None and not variant.bos
    made = []
    for kinds in sample:
        cut = _cut(kinds.numpy(), options.length - shorter, variant.bos, context)
        if cut is not None:
            own = (
                ordinary if context.nouns is TEXTS else np.intersect1d(ordinary, cut[0])
            )  # an image has no other patches
            made.append(torch.from_numpy(_replaced(cut, variant.inputs, own, options.seed, context.vocabulary.special)))
    return made


def _begins(ids: np.ndarray, context: AnalysisContext) -> int:
    """1 if a sequence begins with the beginning-of-sequence token, else 0."""
    return int(context.vocabulary.first is not None and ids[0] == context.vocabulary.first)


def _cut(kinds: np.ndarray, length: int, bos: bool, context: AnalysisContext) -> np.ndarray | None:
    """A packed sequence of the given length, which ends with the special tokens of the original; None if it is too short."""
    ids, segments, source, inherited, _units, numbers = kinds  # as `Batch.packed` has them, −1 where there are none
    ids = ids[ids >= 0]
    start, end = _begins(ids, context), len(ids)
    while end - 1 > start and ids[end - 1] in context.vocabulary.special:
        end -= 1
    room = length - bos - (len(ids) - end)
    if not 0 < room <= end - start:
        return None
    kept = np.concatenate([np.arange(start, start + room), np.arange(end, len(ids))])
    columns = max(length, int((source >= 0).sum()))
    cut = np.full((len(kinds), columns), -1, dtype=np.int64)
    cut_ids, cut_segments, cut_source, cut_inherited, _units, cut_numbers = cut
    cut_numbers[:length] = numbers[0]
    cut_ids[bos:length] = ids[kept]
    cut_inherited[bos:length] = inherited[kept]
    if bos and context.vocabulary.first is not None:
        cut_ids[0] = context.vocabulary.first
    if bos and start:  # the original begins with the same token
        cut_inherited[0] = inherited[0]
    if segments[0] >= 0:
        cut_segments[bos:length] = segments[kept]
        cut_segments[0] = segments[0]
    cut_source[: len(source)] = source[:columns]
    return cut


def _replaced(
    kinds: np.ndarray, inputs: SinkInput, ordinary: np.ndarray, seed: int, special: Collection[int]
) -> np.ndarray:
    """The sequence with its ordinary tokens replaced, by random numbers that depend on the seed and the sequence alone."""
    ids = kinds[0]
    places = np.flatnonzero((ids >= 0) & ~np.isin(ids, list(special)))
    generator = np.random.default_rng([seed, fingerprint(ids), list(SinkInput).index(inputs)])
    match inputs:
        case SinkInput.text:
            pass
        case SinkInput.random:
            ids[places] = generator.choice(ordinary, size=len(places))
        case SinkInput.repeat:
            ids[places] = generator.choice(ordinary)
    return kinds


_RARE = 0.01
"""Sink rates below this are not worth reporting."""

_LEAST = 0.03
"""A tenth of the default `epsilon`: what a sink receives of all weight even if only a tenth of the queries see it."""


def main_position(metrics: Mapping[str, float]) -> str | None:
    """The position that is a sink most often in the first variant, or the first token if sinks are rare; None without any.

    Late keys may be sinks by chance, because few queries see them, or none but themselves, as a [SEP] at the end of the texts
    of a causal model: they receive less weight than a sink would that even a few queries see.
    """
    variant = _first_variant(metrics)
    if variant is None:
        return None
    rates, masses = (by_axes(f"{variant}/{name}/<position>", metrics) for name in ("sink_rate", "mass"))
    seen = [name for name in rates if name == FIRST or masses.get(name, 1.0) >= _LEAST * rates[name]]
    position: str = max(seen or rates, key=lambda name: rates[name])
    return position if rates[position] >= _RARE or FIRST not in rates else FIRST


def _first_variant(metrics: Mapping[str, float]) -> str | None:
    """What the model reads first, as `text/with_bos`."""
    return next((key.partition("/sink_rate/")[0] for key in metrics if "/sink_rate/" in key), None)


def _label(inputs: str, bos: bool, first_token: str | None, nouns: Nouns) -> str:
    """A variant in words.

    Args:
        first_token: The tokenizer's token that begins a sequence; None if it has none, so that there is nothing to say.
    """
    read = _read(nouns)[inputs]
    return read if first_token is None else f"{read}, {'with' if bos else 'without'} {first_token}"


def _summary(by_head: pd.DataFrame, sink: str | None, first_token: str | None, nouns: Nouns = TEXTS) -> pd.DataFrame:
    """By variant, in per cent: how often the position is a sink, its weight and its contribution, and the weight of the first
    token if that is another.
    """
    if sink is None:
        return pd.DataFrame()
    columns = {
        f"sink rate of {'the first token' if sink == FIRST else category_name(sink)} %": (sink, "sink_rate"),
        "its weight %": (sink, "mass"),
        "its contribution %": (sink, "contribution"),
    }
    if sink != FIRST:
        columns["first token's weight %"] = (FIRST, "mass")
    measures = ["sink_rate", "mass", "contribution"]
    by_variant = by_head.groupby(["inputs", "bos", "position"], sort=False)[measures].mean() * 100
    table = pd.DataFrame(
        {title: by_variant[name].xs(place, level="position") for title, (place, name) in columns.items()}
    )
    table.index = pd.Index([_label(inputs, bos, first_token, nouns) for inputs, bos in table.index])
    return table


def describe_figures(
    of_sink: pd.DataFrame,
    largest: "pd.Series[float]",
    first_token: str | None,
    options: SinksOptions,
    metrics: Mapping[str, float],
    nouns: Nouns = TEXTS,
) -> dict[str, Figure]:
    """The map of sink rates, weight and contribution, and the largest activations by layer.

    Args:
        of_sink: The rows of the table `by_head` for the position whose rates are drawn; none if none was measured.
        largest: Largest |x| of a sequence by layer.
        first_token: The tokenizer's token that begins a sequence; None if it has none.
        options: The mean weight that a sink exceeds, and the length of the sequences.
        metrics: Numbers by name.
        nouns: What the model reads, in words.
    """
    figures: dict[str, Figure] = {}
    massive = f" In single tokens and dimensions, they are {_size(metrics)}." if metrics.get("massive/count") else ""
    if len(of_sink):
        position = of_sink["position"].iloc[0]
        of, is_a, seen, its = ("the first token", "is a sink", "it", "its")
        if position != FIRST:
            of, is_a, seen, its = (f"{category_name(position)} tokens", "are sinks", "them", "their")
        variants = zip(of_sink["inputs"], of_sink["bos"], strict=True)
        labels = [_label(name, bos, first_token, nouns) for name, bos in variants]
        table = of_sink.assign(variant=labels).reset_index(drop=True)
        figures["rate"] = Heatmaps(
            table=table[table["variant"] == labels[0]].reset_index(drop=True),
            values=_SHARES,
            row="layer",
            column="head",
            limits=(0.0, 1.0),  # of a rate as of a share
            value_label="share",
            caption=(
                f"How often {of} {is_a} of each head (a mean weight of more than {options.epsilon:g} over the queries that see "
                f"{seen}), and {its} share of the head's weight and of the norms of what the head contributes, on "
                f"{labels[0]}, in sequences of {options.length} tokens. Where the contribution is paler than the weight, the "
                "vectors are short: the sink takes weight but contributes little."
            ),
        )
        if len({*labels}) > 1:
            figures["by_input"] = _by_input(table, of, is_a, its)
    figures["largest"] = Lines(
        table=largest.rename("largest").reset_index().assign(series="largest |x|"),
        x="layer",
        y="largest",
        series="series",
        y_label="largest |x|",
        log_y=True,
        caption=(
            "Largest |x| of a sequence by layer (0: the embeddings), averaged over sequences, on a logarithmic scale. Massive "
            f"activations appear as a jump to a plateau that the last layers leave.{massive}"
        ),
    )
    return figures


_SHARES = {"sink_rate": "sink rate", "mass": "share of the weight", "contribution": "share of the contribution"}
"""What the figures show of the sink."""


def _by_input(table: pd.DataFrame, of: str, is_a: str, its: str) -> Dots:
    """The means of all heads on each input.

    Args:
        table: The rows of `describe_figures`, with the column `variant`.
        of: The position, in words.
        is_a: That it is a sink, or that they are.
        its: Its pronoun.
    """
    means = 100 * table.groupby("variant", sort=False)[list(_SHARES)].mean()
    return Dots(
        table=means.reset_index().melt("variant", var_name="measure", value_name="percent"),
        row="variant",
        value="percent",
        panel="measure",
        panel_titles=_SHARES,
        value_label="mean over heads (%)",
        reference=None,
        caption=(
            f"How often {of} {is_a} on each input, and {its} share of the weight and of the norms of what heads contribute: "
            "means over all heads. Where a sink hardly differs between inputs, its position makes it one, not its token."
        ),
    )


def sentences_of(
    metrics: Mapping[str, float], first_token: str = "BOS", length: int | None = None, nouns: Nouns = TEXTS
) -> list[Sentence]:
    """The sink, with its weight and contribution; sinks in other inputs; and massive activations and their effect.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        first_token: The token that begins a sequence.
        length: Number of tokens measured in each text (other analyses measure whole texts); None to omit it.
        nouns: What the model reads, in words.
    """
    return [*_sink(metrics, first_token, length, nouns), *_elsewhere(metrics, first_token, nouns), *_massive(metrics)]


def _sink(metrics: Mapping[str, float], first_token: str, length: int | None, nouns: Nouns) -> list[Sentence]:
    variant, position = _first_variant(metrics), main_position(metrics)
    if variant is None or position is None:
        return []
    inputs, bos = variant.split("/")
    known = any("/with_bos/" in key for key in metrics)
    begins = f" {'with' if bos == 'with_bos' else 'without'} {first_token}" if known else ""
    subject = f"{category_name(position)} tokens are, on average, sinks"
    if position == FIRST:
        subject = "the first token is a sink"
    shares = [metrics.get(f"{variant}/{name}/{position}") for name in ("mass", "contribution")]
    known_shares = [share for share in shares if share is not None]
    rate, *written = compared(brief_share, metrics[f"{variant}/sink_rate/{position}"], *known_shares)
    receives = ""
    if len(written) == 2:
        receives = f", with {written[0]} of the attention weight and {written[1]} of the norms ‖αf(x)‖ of what heads contribute"
    nowhere = metrics.get(f"{variant}/mass/{NOWHERE}")
    learned = (
        "" if nowhere is None else f"; learned sinks take {brief_share(nowhere)} of the weight, which goes to no key"
    )
    part = f"the first {length} tokens of " if length is not None and inputs == SinkInput.text else ""
    text = f"On {part}{_read(nouns)[inputs]}{begins}, {subject} in {rate} of the heads{receives}{learned}."
    effect = abs(known_shares[0] - known_shares[1]) if len(known_shares) == 2 else 0.0
    return [Sentence(text, figure="rate", table="by_head", effect=effect, place={"category": position})]


def _elsewhere(metrics: Mapping[str, float], first_token: str, nouns: Nouns) -> list[Sentence]:
    """The sink rate of the same position without the first token, and on other inputs."""
    variant, position = _first_variant(metrics), main_position(metrics)
    if variant is None or position is None:
        return []
    inputs, bos = variant.split("/")
    others = {f"without {first_token}": f"{inputs}/without_bos"} if bos == "with_bos" else {}
    others |= {f"on {words}": f"{name}/{bos}" for name, words in _read(nouns).items() if name != inputs}
    names = {words: f"{other}/sink_rate/{position}" for words, other in others.items()}
    rates = {words: metrics[name] for words, name in names.items() if name in metrics}
    if not rates:
        return []
    whose = "whichever token comes first" if position == FIRST else f"{category_name(position)} tokens"
    parts = [f"{brief_share(rate, *rates.values())} {words}" for words, rate in rates.items()]
    return [Sentence(f"The sink rate of {whose} is {enumeration(parts)}.", figure="by_input", table="by_head")]


def _massive(metrics: Mapping[str, float]) -> list[Sentence]:
    count = metrics.get("massive/count")
    if count is None:
        return []
    if not count:
        text = "There are no massive activations: no value exceeds 100 and is at least 1,000 times the median."
        return [Sentence(text, figure="largest", table="massive")]
    first, last = (int(metrics[f"massive/{name}_layer"]) for name in ("first", "last"))
    dimensions = "1 dimension has" if count == 1 else f"{int(count)} dimensions have"
    where = f"in layer {first}" if first == last else f"in layers {first} to {last}"
    text = f"{dimensions} massive activations {where}, {_size(metrics)}."
    return [Sentence(text, figure="largest", table="massive", surprising=True)]


def _size(metrics: Mapping[str, float]) -> str:
    """How large massive activations are, and what they do."""
    size = f"up to {brief(metrics['massive/largest'])} ({brief(metrics['massive/ratio'])} times the median)"
    return f"{size}{_without(metrics)}"


def _without(metrics: Mapping[str, float]) -> str:
    """What becomes of the loss without them, as far as it is known and the written digits show it."""
    losses = [metrics.get(f"ablation/zero/{LOSS}/{name}") for name in ("before", "after", "controls")]
    before, after, controls = losses
    if before is None or after is None:
        return ""
    whole, without, *of_random = compared(brief, before, after, *([] if controls is None else [controls]))
    random = f"; with as many random dimensions set to zero, the loss is {of_random[0]}" if of_random else ""
    about = "" if without == whole else "about "
    change = (
        f"changes the loss from {whole} to {without}"
        if differ(before, after)
        else f"leaves the loss at {about}{without}"
    )
    return f"; setting them to zero {change} nats{random}"
