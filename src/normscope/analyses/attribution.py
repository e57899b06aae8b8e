"""Attribution: which method is faithful on my text?

A sample of sequences is drawn while the corpus is read. Every method then scores each sequence's tokens by what they
contribute to the model's answer. How much the answer changes without the highest-scoring tokens shows
how faithful the scores are (DeYoung et al. 2020). With `model.stack=cross`, the words of translations are attributed
instead: see `translated_words`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.base import HELD_ROUTING, Analysis, AnalysisContext, Requirements
from normscope.analyses.declarations.attribution import (
    ATTRIBUTION,
    FALLING,
    METHODS,
    QUANTITIES,
    AttributionOptions,
    Erasure,
)
from normscope.analyses.faithfulness import (
    COMPREHENSIVENESS,
    MEASURES,
    SUFFICIENCY,
    Agreement,
    Faithfulness,
    by_score,
    random_orders,
    without,
)
from normscope.analyses.finite import require_finite
from normscope.analyses.samples import PAIRS, SampledPairs, note_on_length, steps_until_precise
from normscope.analyses.translated_words import TranslationSample, requirements_of_translations
from normscope.attribution.baselines import Baseline
from normscope.attribution.methods import MapMethod, MapStage, defined_methods
from normscope.attribution.model_maps import ModelMaps, model_maps
from normscope.attribution.readouts import EmbeddingReadout, Readout, readout_of
from normscope.attribution.token_scores import token_scores
from normscope.data.batching import Batch
from normscope.data.examples import Example
from normscope.errors import InputError
from normscope.maths.choices import AttentionRule, ReadoutTarget
from normscope.maths.partition import Partition
from normscope.models.facts import ModelFacts
from normscope.models.load.interventions import InterventionRunner
from normscope.results.figures import Dots, Figure, Heatmaps, Lines
from normscope.results.findings import Sentence, Summary
from normscope.results.result import Result
from normscope.results.rollups import by_axes, roll_up
from normscope.rounding import begun, between, brief, counted, differ, enumeration
from normscope.statistics.intervals import Interval
from normscope.statistics.kept_tensors import KeptTensors


class AttributionAnalysis(Analysis):
    """Draws a sample while the corpus is read, and attributes it afterwards."""

    info = ATTRIBUTION

    def __init__(self, options: AttributionOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._pairs: Sequence[Example] | None = context.resources.get(PAIRS)
        self._translated: TranslationSample | None = None
        self._attributed: SampleAttribution | None = None
        self._left_out = 0
        if self._pairs is not None and options.target is not ReadoutTarget.answer:
            return
        if options.erasure is Erasure.mask and context.vocabulary.mask is None:
            raise InputError(
                "analysis.attribution.erasure=mask: the tokenizer has no mask token; set analysis.attribution.erasure=remove"
            )
        self._sample = KeptTensors(torch.int64, options.sequences)
        self.accumulators = {"sample": self._sample}

    @classmethod
    def requirements(cls, options: AttributionOptions, facts: ModelFacts) -> Requirements:
        """The feed-forward networks, and the classifier if there is one; for translations, a sample of them.

        Raises:
            InputError: If a method is not defined for the model's family, or an option is not defined for translations.
        """
        if facts.is_cross_attention:
            return requirements_of_translations(options)
        try:
            maps = len(defined_methods(facts, methods_of(options)[0], MapStage(str(options.stage))))
        except InputError as error:
            raise InputError(f"analysis=attribution: {error}") from error
        pairs = {}
        if options.target is ReadoutTarget.answer:
            pairs[PAIRS] = SampledPairs(
                options.sequences,
                options.seed,
                "analysis.attribution.target=answer: expected texts and their answers (dataset.pair_column)",
            )
        return Requirements(feed_forward=True, classifier=options.pooling is None, token_maps=maps, resources=pairs)

    def start_batch(self, batch: Batch) -> None:
        """Offer the sequences of a batch to the sample."""
        if self._pairs is None:
            self._sample.update(*batch.for_samples(self.options.seed, self.options.tokens))

    def intervene(self, runner: InterventionRunner) -> None:
        """Attribute the sample."""
        answers = self.options.target is ReadoutTarget.answer
        if self._pairs is not None and not answers:
            self._translated = TranslationSample(runner, self.options)
            self._translated.run(self._pairs)
            return
        self._attributed = SampleAttribution(runner, self.context, self.options)
        if self._pairs is not None:
            found = [
                runner.answered(pair) for pair in runner.progress(self._pairs, len(self._pairs), "texts with answers")
            ]
            texts = [answered for answered in found if answered is not None]
            self._left_out = len(found) - len(texts)
        else:
            texts = [(batch, 0) for kinds in self._sample.compute().tensors for batch in runner.batches([kinds])]
        self._attributed.run(texts)

    def token_maps(
        self, runner: InterventionRunner, batch: Batch
    ) -> Mapping[str, Float[np.ndarray, "layer query key"]]:
        """The maps from the input up to each layer, by every method that has maps; without the bias."""
        # Maps of translations also have the source's tokens as columns.
        if self._pairs is not None and self.options.target is not ReadoutTarget.answer:
            return {}
        attributed = self._attributed or SampleAttribution(runner, self.context, self.options)
        return {
            str(method): np.stack([between_tokens(maps.cumulative[layer - 1]) for layer in self.context.layers])
            for method, maps in attributed.maps(batch).items()
            if maps.cumulative is not None
        }

    def result(self) -> Result:
        """Agreement between methods, and faithfulness; for translations, where words come from."""
        if self._translated is not None:
            return self._translated.result()
        assert self._attributed is not None
        attributed = self._attributed
        agreement, faithfulness = attributed.agreement.table(), attributed.faithfulness.table()
        require_finite(faithfulness["mean"].to_numpy(dtype=float), "the answers of the model")
        ranking = attributed.faithfulness.ranking()
        quantity = attributed.readout.quantity
        tables = {"agreement": agreement, "faithfulness": faithfulness, "ranking": ranking}
        rolled = roll_up(self.info.declared, tables | {"ranking": ranking.assign(quantity=quantity)})
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            figures=describe_figures(agreement, faithfulness, ranking, quantity, attributed.erasure),
            summaries={
                self.info.name: Summary(
                    ranking.set_index("method")[list(MEASURES)].rename(index=METHODS),
                    digits=3,
                    caption=f"mean drop in {QUANTITIES[quantity]} when the tokens that a method ranks highest are removed "
                    "(comprehensiveness: higher is better) or are the only ones kept (sufficiency: lower is better)",
                )
            },
            sentences=sentences_of(
                rolled.metrics,
                _differences(ranking, "above_random"),
                _differences(ranking, "below_best"),
            ),
            notes=self._notes(attributed),
        )

    def _notes(self, attributed: "SampleAttribution") -> list[str]:
        notes = []
        if self._pairs is None:
            notes += note_on_length(self.info.name, self._sample.compute().tensors, self.options.tokens)
        readout = attributed.readout
        if attributed.pooling_is_guessed and isinstance(readout, EmbeddingReadout):
            notes.append(
                "the model's files name no pooling that can be used: the embedding is "
                f"{_GUESSED[str(readout.embedder.pooling)]} (analysis.attribution.pooling)"
            )
        if self.options.erasure is None and self.context.vocabulary.mask is None:
            notes.append("the tokenizer has no mask token: erased tokens are removed (analysis.attribution.erasure)")
        if self._left_out:
            texts = counted(self._left_out, "sampled pair is", "sampled pairs are")
            notes.append(
                f"{texts} left out: the text or its answer has no tokens, or together they exceed the model's maximum length"
            )
        if attributed.untested:
            notes.append(
                f"{attributed.untested} of {attributed.sequences} sampled sequences have fewer than two ordinary "
                f"{attributed.noun} and are not tested"
            )
        if self.context.has_experts:
            notes.append(HELD_ROUTING)
        return notes


def _differences(ranking: pd.DataFrame, difference: str) -> dict[str, Interval]:
    """A difference of each method from another, sequence by sequence, with its interval."""
    columns = ranking[[difference, f"{difference}_low", f"{difference}_high"]].astype(float)
    return {str(name): Interval(*row) for name, row in zip(ranking["method"], columns.to_numpy(), strict=True)}


_GUESSED = {"mean": "the mean of the last hidden vectors", "last": "the last token's hidden vector"}


def methods_of(options: AttributionOptions) -> tuple[list[MapMethod] | None, list[Baseline]]:
    """The wanted methods with maps (None: all that are defined), and the baselines."""
    if options.methods is None:
        return None, [Baseline.THROUGH_ATTENTION] if options.attention is AttentionRule.through else []
    names = list(dict.fromkeys(str(method) for method in options.methods))
    maps, baselines = set(MapMethod), set(Baseline)
    return [MapMethod(name) for name in names if name in maps], [Baseline(name) for name in names if name in baselines]


class SampleAttribution:
    """Attributes a sample, one sequence at a time: the maps of a sequence need memory with the square of its length.

    Args:
        options: The options of the analysis.

    Raises:
        InputError: If a method is not defined for the model.
    """

    def __init__(self, runner: InterventionRunner, context: AnalysisContext, options: AttributionOptions) -> None:
        self._runner, self._context, self._options = runner, context, options
        self._stage, self._bias = MapStage(str(options.stage)), options.bias
        wanted, baselines = methods_of(options)
        model = runner.model
        self._map_methods = defined_methods(model.facts, wanted, self._stage)
        self._methods: list[MapMethod | Baseline] = [*self._map_methods, *baselines]
        self.readout = self._readout()
        removes = options.erasure is Erasure.remove or options.target is ReadoutTarget.loss
        self._mask_token = None if removes else context.vocabulary.mask
        names = [str(method) for method in self._methods]
        self.agreement = Agreement(names)
        self.faithfulness = Faithfulness(names, options.shares)
        self.sequences = self.untested = 0
        self.noun = "tokens"
        """What is scored and erased: `tokens`, or `words`."""

    def _readout(self, answer: int = 1) -> Readout:
        """What is attributed.

        Args:
            answer: Number of tokens of an answer.
        """
        model, options = self._runner.model, self._options
        found = readout_of(model, options.pooling, options.target, answer)
        if found is None:
            raise InputError(
                f"analysis.attribution.target={options.target}: {model.name} has no weights for it; leave it out, or set "
                "model.name to a checkpoint that has them"
            )
        readout, self.pooling_is_guessed = found
        return readout

    @property
    def erasure(self) -> Erasure:
        """How tokens are erased."""
        return Erasure.remove if self._mask_token is None else Erasure.mask

    def run(self, texts: Sequence[tuple[Batch, int]]) -> None:
        """Attribute the texts of a sample.

        Args:
            texts: Each text alone, with the number of tokens at its end that are an answer.

        Raises:
            InputError: If there are none.
        """
        if not texts:
            raise InputError(
                "analysis.attribution.target=answer: in every sampled pair, the text or its answer has no tokens, or together "
                "they exceed the model's maximum length"
            )
        known, precision = self.faithfulness.half_width, self._options.precision
        for batch, answer in steps_until_precise(
            self._runner, texts, list, known, precision, "attribution of a sample"
        ):
            self.noun = "tokens" if batch.units is None else "words"
            self.sequences += 1
            if answer:
                self.readout = self._readout(answer)
            self._test(batch, answer)

    def maps(self, batch: Batch) -> dict[MapMethod, ModelMaps]:
        """The maps of a batch, layer by layer and from the input up to each layer; of words, if words are measured."""
        return self._maps(batch, self._map_methods, keep=True, groups=batch.partition)

    def _maps(
        self, batch: Batch, methods: Sequence[MapMethod], *, keep: bool = False, groups: Partition | None = None
    ) -> dict[MapMethod, ModelMaps]:
        model, inputs, stage, bias = self._runner.model, batch.model_inputs(), self._stage, self._bias
        return model_maps(model.model, model.facts, inputs, methods, stage=stage, bias=bias, keep=keep, groups=groups)

    def _erasable(self, batch: Batch, answer: int) -> Int[np.ndarray, " ordinary"]:
        """The ordinary tokens or words of a batch of one sequence, except those that are predicted without being read."""
        ids = batch.measured.input_ids[0].cpu().numpy()
        ordinary = ~np.isin(ids, list(self._context.vocabulary.special))
        units = batch.unit_numbers
        if answer:
            ordinary[units[-answer:]] = False
        if self._options.target is ReadoutTarget.loss:  # nothing would predict what follows
            ordinary[units[0]] = False
        return np.flatnonzero(ordinary)

    def _test(self, batch: Batch, answer: int) -> None:
        """Score the tokens or words of a batch of one sequence, and test the scores."""
        ordinary = self._erasable(batch, answer)
        if len(ordinary) < 2:
            self.untested += 1
            return
        model = self._runner.model
        # DecompX attributes the answer itself: its map, which takes a pass for every token, is not needed.
        mapped = [method for method in self._map_methods if method is not MapMethod.DECOMPX]
        scored = token_scores(
            model.model,
            model.facts,
            batch.model_inputs(),
            self.readout,
            self._methods,
            self._maps(batch, mapped),
            bias=self._bias,
            steps=self._options.steps,
        )
        scored = {method: batch.partition.sums(values) for method, values in scored.items()}
        scores = {str(method): values[0].cpu().numpy() for method, values in scored.items()}
        self.agreement.add({method: values[ordinary] for method, values in scores.items()})
        packed = batch.packed()[:, 0].cpu()
        untouched = answers(self.readout, batch)
        units = None if batch.units is None else batch.units[0].tolist()

        def tokens_of(erased: frozenset[int]) -> frozenset[int]:
            if units is None:
                return erased
            return frozenset(token for token, unit in enumerate(units) if unit in erased)

        self.faithfulness.add(
            {method: by_score(values, ordinary) for method, values in scores.items()},
            random_orders(ordinary, self._options.orders, self._options.seed, batch.fingerprints[0]),
            lambda sets: self._falls(packed, [tokens_of(erased) for erased in sets], untouched),
        )

    def _falls(
        self, kinds: Int[Tensor, "kind token"], sets: Sequence[frozenset[int]], untouched: Float[Tensor, "1 _"]
    ) -> list[float]:
        """How far the answer falls without each set of positions."""
        sequences = [without(kinds, erased, self._mask_token) for erased in sets]
        # Batches come with the longest sequences first; so do these, and no sequence changes its place.
        order = sorted(range(len(sets)), key=lambda number: -sequences[number].shape[1])
        places = iter(order)
        falls: list[float] = []
        for batch in self._runner.batches([sequences[number] for number in order]):
            single = [batch.part(row, row + 1) for row in range(batch.sequences)]
            for part in [batch] if self.readout.takes_padding else single:
                left = answers(self.readout, part)
                of_part = [sets[number] for number in itertools.islice(places, part.sequences)]
                before = torch.cat([self.readout.remaining(untouched, erased) for erased in of_part])
                falls += (self.readout.values(before, before) - self.readout.values(left, before)).tolist()
        by_number = dict(zip(order, falls, strict=True))
        return [by_number[number] for number in range(len(sets))]


def answers(readout: Readout, batch: Batch) -> Float[Tensor, "batch _"]:
    """What the model answers for the texts of a batch."""
    with torch.inference_mode():
        inputs = batch.model_inputs()
        return readout.answers(readout.model(**inputs), inputs)


def between_tokens(maps: Float[Tensor, "1 query source"]) -> Float[np.ndarray, "query key"]:
    """The map of a batch of one sequence, without the column of the bias."""
    of_sequence = maps[0].cpu().numpy()
    between: np.ndarray = of_sequence[:, : len(of_sequence)]
    return between


def describe_figures(
    agreement: pd.DataFrame, faithfulness: pd.DataFrame, ranking: pd.DataFrame, quantity: str, erasure: Erasure
) -> dict[str, Figure]:
    """How faithful the methods are, how this depends on the share of erased tokens, and how far methods agree.

    Figures without data are left out.

    Args:
        agreement: The table `agreement`.
        faithfulness: The table `faithfulness`.
        ranking: The table `ranking`.
        quantity: What falls; see `QUANTITIES`.
        erasure: How tokens are erased.
    """
    figures: dict[str, Figure] = {}
    if len(agreement):
        figures["agreement"] = _agreement_figure(agreement)
    if len(ranking):
        figures["faithfulness"] = _ranking(ranking, quantity, erasure)
    if len(faithfulness):
        figures["faithfulness_curves"] = _curves(faithfulness, quantity, erasure)
    return figures


def _agreement_figure(agreement: pd.DataFrame) -> Heatmaps:
    mirrored = agreement.rename(columns={"method": "other", "other": "method"})
    both = pd.concat([agreement, mirrored], ignore_index=True)
    order = {method: place for place, method in enumerate(METHODS)}
    both = both.sort_values("other", key=lambda values: values.map(order), kind="stable")
    named = both.assign(method=both["method"].map(METHODS), other=both["other"].map(METHODS), panel="scores")
    return Heatmaps(
        table=named.assign(spearman=named["spearman"] * 100),
        panel="panel",
        row="method",
        column="other",
        values={"spearman": ""},
        panel_titles={"scores": "scores of tokens"},
        value_label="Spearman's ρ × 100",
        limits=(0.0, 100.0),
        numbered=True,
        caption=(
            "How well two methods agree: rank correlation between their scores for a sequence's tokens, averaged over "
            "sequences. Negative values have the colour of zero. Where two methods disagree, at most one is faithful: the "
            "faithfulness test says which."
        ),
    )


def _ranking(ranking: pd.DataFrame, quantity: str, erasure: Erasure) -> Dots:
    """How much more faithful each method is than random orders, the most faithful first."""
    rows = ranking.dropna(subset="above_random").sort_values("above_random", ascending=False, kind="stable")
    erased = "masked" if erasure is Erasure.mask else "removed"
    above = int((rows["above_random_low"] > 0).sum())
    return Dots(
        table=rows.assign(panel="methods"),
        row="method",
        value="above_random",
        interval=("above_random_low", "above_random_high"),
        panel="panel",
        panel_titles={"methods": "comprehensiveness minus that of random orders"},
        row_titles=METHODS,
        value_label=f"mean drop in {FALLING.get(quantity, quantity)} (AOPC), minus random",
        caption=(
            f"How much further {QUANTITIES[quantity]} falls when the highest-scoring tokens are {erased} than when random "
            f"tokens are (AOPC), with 95% intervals over {counted(rows['count'].max(), 'sequence')}. "
            f"{_how_many(above, len(rows))} detectably better than random.{_lead(rows)}"
        ),
    )


def _lead(rows: pd.DataFrame) -> str:
    """How far the first of some methods is ahead of the second, sequence by sequence."""
    return "".join(
        f" Sequence by sequence, {METHODS[second]} is {brief(behind.mean)} behind the best method{between(*behind.ends)}."
        for second, behind in _differences(rows.iloc[1:2], "below_best").items()
    )


def _how_many(some: int, methods: int) -> str:
    """How many of the methods are better than random: `All 6 methods are`, `2 of the 6 methods are`."""
    if methods == 1:
        return "The method is" if some else "The method is not"
    if some == methods:
        return f"All {methods} methods are"
    return f"{some or 'None'} of the {methods} methods {'is' if some < 2 else 'are'}"


def _curves(faithfulness: pd.DataFrame, quantity: str, erasure: Erasure) -> Lines:
    erased = "masked" if erasure is Erasure.mask else "removed"
    return Lines(
        table=faithfulness,
        x="share",
        x_label="share of the ordinary tokens (%)",
        y="mean",
        series="method",
        series_titles=METHODS,
        panel="measure",
        panel_titles={
            COMPREHENSIVENESS: "without the highest scores (comprehensiveness)",
            SUFFICIENCY: "with these alone (sufficiency)",
        },
        y_label=f"drop in {FALLING.get(quantity, quantity)}",
        sharey=True,
        band=("low", "high"),
        caption=(
            f"How far {QUANTITIES[quantity]} falls when the ordinary tokens with the highest scores are {erased} (higher is "
            "more faithful), and when all others are (lower is more faithful). Means and 95% intervals over "
            f"{counted(faithfulness['count'].max(), 'sequence')}. A method that differs from random orders by no more than "
            "the width of its interval says nothing about the answer."
        ),
    )


_NOTHING: Mapping[str, Interval] = MappingProxyType({})
_UNKNOWN = Interval(math.nan, math.nan, math.nan)


def sentences_of(
    metrics: Mapping[str, float],
    above_random: Mapping[str, Interval] = _NOTHING,
    below_best: Mapping[str, Interval] = _NOTHING,
) -> list[Sentence]:
    """Which method is the most faithful, and how far methods agree.

    Args:
        metrics: Numbers by name; missing ones are skipped.
        above_random: By method, its difference from random orders, sequence by sequence. If its interval does not lie above 0,
            the sample cannot tell the two apart.
        below_best: The same for the difference of the best method from it.
    """
    return [*_faithfulness(metrics, above_random, below_best), *_agreement(metrics)]


def _faithfulness(
    metrics: Mapping[str, float], above_random: Mapping[str, Interval], below_best: Mapping[str, Interval]
) -> list[Sentence]:
    sentences: list[Sentence] = []
    for quantity, words in QUANTITIES.items():
        by_method = by_axes(f"{quantity}/comprehensiveness/<method>", metrics)
        falls = sorted(((value, method) for method, value in by_method.items()), key=lambda pair: -pair[0])
        random = by_method.get("random")
        methods = [(value, method) for value, method in falls if method != "random"]
        if random is None or not methods:
            continue
        value, best = methods[0]
        sample = _sample(metrics)
        # Detectable is what the interval of the difference says, and what the written means show.
        above = [
            method
            for fall, method in methods
            if above_random.get(method, _UNKNOWN).low > 0 and fall > random and differ(fall, random)
        ]
        interval = None
        if not above:
            start = f"{begun(sample)}, no method is detectably more faithful than a random order"
            text = f"{start}: {_of_all(words, value, best, random)}"
        elif value <= 0:
            text = f"No method finds tokens that matter: {_of_all(words, value, best, random)}"
        else:
            tied = [
                method
                for fall, method in methods[1:]
                if not (below_best.get(method, _UNKNOWN).low > 0 and differ(fall, value))
            ]
            beyond = above_random.get(best, _UNKNOWN)
            interval = beyond.ends
            names = [method for _, method in methods]
            it = METHODS[best] if tied and best in above else "it"
            text = (
                f"{_best(names, tied, best in above, sample)}: without the tokens that {it} ranks highest, {words} falls by "
                f"{brief(value - random)} more than without as many random tokens{between(*interval)}"
                f"{_ahead(names, tied, below_best)}."
            )
        effect = value - random if above and quantity in _SHARES else 0.0
        sentences.append(Sentence(text, figure="faithfulness", table="ranking", effect=effect, interval=interval))
    return sentences


def _sample(metrics: Mapping[str, float]) -> str:
    sequences = metrics.get("faithfulness/sequences")
    return "on this sample" if sequences is None else f"on {counted(sequences, 'sequence')}"


def _best(methods: Sequence[str], tied: Sequence[str], is_above: bool, sample: str) -> str:
    """Which method is the most faithful, or which cannot be told apart.

    Args:
        methods: The best first.
        tied: Those that the sample cannot tell from the best.
        is_above: Whether it can tell the best from random orders.
    """
    best = METHODS[methods[0]]
    if not is_above:
        others = [*(METHODS[method] for method in tied), "a random order"]
        listed = " or ".join(filter(None, (", ".join(others[:-1]), others[-1])))
        return f"{begun(best)} has the largest mean drop {sample}, but cannot be told apart from {listed}"
    if tied:
        listed = enumeration([best, *(METHODS[method] for method in tied)])
        return f"{begun(listed)} are tied as the most faithful of {len(methods)} methods {sample}"
    if len(methods) == 1:
        return f"{begun(best)} is more faithful than a random order {sample}"
    return f"{begun(best)} is the most faithful of {len(methods)} methods {sample}"


def _ahead(methods: Sequence[str], tied: Sequence[str], below_best: Mapping[str, Interval]) -> str:
    """How far the best method is ahead of the next one, sequence by sequence."""
    if len(methods) == 1 or methods[1] not in below_best:
        return ""
    lead = below_best[methods[1]]
    detectable = ", no detectable difference" if methods[1] in tied else ""
    return f", and by {brief(lead.mean)} more than with {METHODS[methods[1]]}{between(*lead.ends)}{detectable}"


_SHARES = ("probability", "answer", "cosine")
"""Quantities that fall by at most 1, or, a cosine, little more."""


def _of_all(words: str, value: float, best: str, random: float) -> str:
    """How far a quantity falls, or how little it rises, without the tokens that the best method ranks highest."""
    size = brief(abs(value), abs(random))
    most = f"falls by at most {size}" if value >= 0 else f"rises by at least {size}"
    return (
        f"without the tokens that rank highest, {words} {most} on average ({METHODS[best]}), and "
        f"{_without_random(random, value)}."
    )


def _without_random(random: float, beside: float) -> str:
    """The same for random tokens. The verb is repeated only if it differs from the first one."""
    verb = "" if (beside >= 0) == (random >= 0) else "falls " if random >= 0 else "rises "
    return f"{verb}by {brief(abs(random), abs(beside))} without the same number of random tokens"


def _agreement(metrics: Mapping[str, float]) -> list[Sentence]:
    # A mean of opposite correlations is 0 up to rounding.
    pairs = sorted(
        ((round(value, 12), methods) for methods, value in by_axes("agreement/<method>/<other>", metrics).items()),
        key=lambda pair: pair[0],
    )
    if not pairs:
        return []
    (low, least), (high, most) = pairs[0], pairs[-1]
    if len(pairs) == 1:
        text = f"The scores of {_both(least)} have a rank correlation of {brief(low)}."
    elif not differ(low, high):
        text = f"Token scores of all methods agree alike (Spearman's ρ = {brief(high)})."
    else:
        text = (
            f"Token scores agree most between {_both(most)} (Spearman's ρ = "
            f"{brief(high, low)}) and least between {_both(least)} ({brief(low, high)})."
        )
    return [Sentence(text, figure="agreement", table="agreement")]


def _both(pair: tuple[str, str]) -> str:
    return " and ".join(METHODS[method] for method in pair)
