"""Maps and scores of the sampled sequences, and what they show."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.attribution.agreement import Agreement
from normscope.analyses.attribution.erasures import by_score, random_orders, without
from normscope.analyses.attribution.faithfulness import Faithfulness
from normscope.analyses.attribution.options import AttributionOptions, Erasure
from normscope.analyses.base import AnalysisContext
from normscope.analyses.samples import steps_until_precise
from normscope.attribution.baselines import Baseline
from normscope.attribution.methods import MapMethod, MapStage, defined_methods
from normscope.attribution.model_maps import ModelMaps, model_maps
from normscope.attribution.readouts import Readout, readout_of
from normscope.attribution.token_scores import token_scores
from normscope.data.batching import Batch
from normscope.data.words import unit_texts
from normscope.errors import InputError
from normscope.maths.choices import AttentionRule, ReadoutTarget
from normscope.maths.words import WordGroups
from normscope.models.interventions import InterventionRunner
from normscope.results.maps import TokenMap

_DRAWN, _DRAWN_TOKENS = 2, 40
"""Number of sequences whose maps are drawn: the shortest that have at most so many tokens."""


class SampledText(NamedTuple):
    """A text of the sample."""

    batch: Batch
    """The text alone."""
    answer: int = 0
    """Number of tokens at its end that are an answer."""


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
        self._map_methods = defined_methods(model.layout, wanted, self._stage)
        self._methods: list[MapMethod | Baseline] = [*self._map_methods, *baselines]
        self.readout = self._readout()
        removes = options.erasure is Erasure.remove or options.target is ReadoutTarget.loss
        self._mask_token = None if removes else context.vocabulary.mask
        names = [str(method) for method in self._methods]
        self.agreement = Agreement(names)
        self.faithfulness = Faithfulness(names, options.shares)
        self.drawn: list[TokenMap] = []
        """Maps through all layers, by method."""
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

    def run(self, texts: Sequence[SampledText]) -> None:
        """Attribute the texts of a sample.

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
            of_tokens, maps = self._maps(batch, keep=False)
            self._add_maps(batch, maps)
            if answer:
                self.readout = self._readout(answer)
            self._test(batch, of_tokens, answer)
            if maps and batch.input_ids.shape[1] <= _DRAWN_TOKENS:
                self._draw(batch, maps)

    def maps(self, batch: Batch) -> dict[MapMethod, ModelMaps]:
        """The maps of a batch, layer by layer and from the input up to each layer."""
        return self._maps(batch, keep=True)[1]

    def _maps(self, batch: Batch, *, keep: bool) -> tuple[dict[MapMethod, ModelMaps], dict[MapMethod, ModelMaps]]:
        """The maps of tokens that scores are made of, and those to report: the same, unless words are measured."""
        model, groups = self._runner.model, batch.groups

        def of(methods: Sequence[MapMethod], groups: WordGroups | None) -> dict[MapMethod, ModelMaps]:
            inputs, stage, bias = batch.model_inputs(), self._stage, self._bias
            return model_maps(
                model.model, model.layout, inputs, methods, stage=stage, bias=bias, keep=keep, groups=groups
            )

        if groups is None:
            maps = of(self._map_methods, None)
            return maps, maps
        carried = [method for method in self._map_methods if method is MapMethod.DECOMPX]
        of_tokens = of([method for method in self._map_methods if method not in carried], None)
        of_words = {method: maps.of_words(groups) for method, maps in of_tokens.items()} | of(carried, groups)
        return of_tokens, {method: of_words[method] for method in self._map_methods}

    def _add_maps(self, batch: Batch, maps: Mapping[MapMethod, ModelMaps]) -> None:
        """Add the maps of a batch of one sequence to the agreement."""
        self.sequences += 1
        tokens = batch.measured.input_ids.shape[1]
        seen = np.ones((tokens, tokens), dtype=bool)
        self.agreement.add_maps(
            {str(method): between_tokens(of_method.total) for method, of_method in maps.items()},
            np.tril(seen) if self._runner.model.causal else seen,
        )

    def _erasable(self, batch: Batch, answer: int) -> Int[np.ndarray, " ordinary"]:
        """The ordinary tokens or words of a batch of one sequence, except those that are predicted without being read."""
        ids = batch.measured.input_ids[0].cpu().numpy()
        ordinary = ~np.isin(ids, list(self._context.vocabulary.special))
        units = np.arange(len(ids)) if batch.units is None else batch.units[0].cpu().numpy()
        if answer:
            ordinary[units[-answer:]] = False
        if self._options.target is ReadoutTarget.loss:  # nothing would predict what follows
            ordinary[units[0]] = False
        return np.flatnonzero(ordinary)

    def _test(self, batch: Batch, maps: Mapping[MapMethod, ModelMaps], answer: int) -> None:
        """Score the tokens or words of a batch of one sequence, and test the scores."""
        ordinary = self._erasable(batch, answer)
        if len(ordinary) < 2:
            self.untested += 1
            return
        model = self._runner.model
        scored = token_scores(
            model.model,
            model.layout,
            batch.model_inputs(),
            self.readout,
            self._methods,
            maps,
            bias=self._bias,
            steps=self._options.steps,
        )
        if batch.groups is not None:
            scored = {method: batch.groups.to(values.device).sums(values) for method, values in scored.items()}
        scores = {str(method): values[0].cpu().numpy() for method, values in scored.items()}
        self.agreement.add_scores({method: values[ordinary] for method, values in scores.items()})
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

    def _draw(self, batch: Batch, maps: Mapping[MapMethod, ModelMaps]) -> None:
        units = None if batch.units is None else batch.units[0].tolist()
        tokens = unit_texts(self._runner.model.tokenizer, batch.input_ids[0].tolist(), units)
        totals = {str(method): between_tokens(found.total)[None] for method, found in maps.items()}
        drawn = TokenMap(" ".join(tokens), tokens, tokens, (0,), totals)
        self.drawn = sorted([*self.drawn, drawn], key=lambda drawn: len(drawn.queries))[:_DRAWN]


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
