"""Attribution through all layers, over a sample of sequences."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from normscope.analyses.attribution.erasures import MEASURES
from normscope.analyses.attribution.figures import describe_figures
from normscope.analyses.attribution.options import ATTRIBUTION, AttributionOptions, Erasure
from normscope.analyses.attribution.published import METHODS, QUANTITIES
from normscope.analyses.attribution.sample import SampleAttribution, SampledText, between_tokens, methods_of
from normscope.analyses.attribution.sampled_pairs import PAIRS, SampledPairs
from normscope.analyses.attribution.sentences import sentences_of
from normscope.analyses.attribution.translated import TranslationSample, translation_methods
from normscope.analyses.attribution.translation_findings import translation_findings
from normscope.analyses.base import HELD_ROUTING, Analysis, AnalysisContext, Requirements
from normscope.analyses.finite import require_finite
from normscope.analyses.samples import note_on_length
from normscope.attribution.methods import MapStage, defined_methods
from normscope.attribution.readouts import EmbeddingReadout
from normscope.data.batching import Batch
from normscope.data.examples import Example
from normscope.errors import InputError
from normscope.maths.choices import ReadoutTarget, ValueBias
from normscope.models.interventions import InterventionRunner
from normscope.models.model_info import ModelInfo
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.rounding import counted
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
    def requirements(cls, options: AttributionOptions, model: ModelInfo) -> Requirements:
        """The feed-forward networks, and the classifier if there is one; for translations, a sample of them.

        Raises:
            InputError: If a method is not defined for the model's family, or an option is not defined for translations.
        """
        if model.is_cross_attention:
            return _requirements_of_translations(options)
        maps = 0
        if model.layout is not None:
            try:
                maps = len(defined_methods(model.layout, methods_of(options)[0], MapStage(str(options.stage))))
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
            found = [runner.answered(pair) for pair in self._pairs]
            texts = [SampledText(*answered) for answered in found if answered is not None]
            self._left_out = len(found) - len(texts)
        else:
            texts = [
                SampledText(batch) for kinds in self._sample.compute().tensors for batch in runner.batches([kinds])
            ]
        self._attributed.run(texts)

    def token_maps(
        self, _runner: InterventionRunner, batch: Batch
    ) -> Mapping[str, Float[np.ndarray, "layer query key"]]:
        """The maps from the input up to each layer, by every method that has maps; without the bias."""
        if self._attributed is None:  # maps of translations also have the source's tokens as columns
            return {}
        return {
            str(method): np.stack([between_tokens(maps.cumulative[layer - 1]) for layer in self.context.layers])
            for method, maps in self._attributed.maps(batch).items()
            if maps.cumulative is not None
        }

    def result(self) -> Result:
        """Agreement between methods, and faithfulness; for translations, where words come from."""
        if self._translated is not None:
            sample = self._translated
            return translation_findings(sample.tables(), sample.drawn, sample.without_rows)
        assert self._attributed is not None
        attributed = self._attributed
        agreement, faithfulness = attributed.agreement.table(), attributed.faithfulness.table()
        require_finite(faithfulness["mean"].to_numpy(dtype=float), "the answers of the model")
        ranking = attributed.faithfulness.ranking()
        quantity = attributed.readout.quantity
        tables = {
            "agreement": agreement,
            "faithfulness": faithfulness,
            "ranking": ranking,
        }
        rolled = roll_up(self.info.published, tables | {"ranking": ranking.assign(quantity=quantity)})
        return Result(
            tables=tables,
            metrics=rolled.metrics,
            figures=describe_figures(agreement, faithfulness, ranking, attributed.drawn, quantity, attributed.erasure),
            summaries={
                self.info.name: Summary(
                    ranking.set_index("method")[list(MEASURES)].rename(index=METHODS),
                    digits=3,
                    caption=f"mean drop in {QUANTITIES[quantity]} when the tokens that a method ranks highest are removed "
                    "(comprehensiveness: higher is better) or kept alone (sufficiency: lower is better)",
                )
            },
            sentences=sentences_of(
                rolled.metrics,
                _lower_ends(ranking, "above_random"),
                _lower_ends(ranking, "below_best"),
            ),
            notes=self._notes(attributed),
        )

    def _notes(self, attributed: SampleAttribution) -> list[str]:
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


def _requirements_of_translations(options: AttributionOptions) -> Requirements:
    translation_methods(options)
    unusable = {
        "target": options.target is not None,
        "pooling": options.pooling is not None,
        "erasure": options.erasure is not None,
        "bias": options.bias is not ValueBias.token,
    }
    for key, given in unusable.items():
        if given:
            raise InputError(
                f"analysis.attribution.{key}={getattr(options, key)}: not defined for translations (model.stack=cross), "
                "where words are attributed; leave it out, or set model.stack=encoder"
            )
    pairs = SampledPairs(
        options.sequences,
        options.seed,
        "analysis=attribution with model.stack=cross: expected texts and their translations (dataset=parallel, or "
        "dataset.pair_column)",
    )
    return Requirements(feed_forward=True, translator=True, resources={PAIRS: pairs})


def _lower_ends(ranking: pd.DataFrame, difference: str) -> dict[str, float]:
    """The lower end of the interval of a difference, by method."""
    ends = zip(ranking["method"], ranking[f"{difference}_low"], strict=True)
    return {str(method): float(low) for method, low in ends}


_GUESSED = {"mean": "the mean of the last hidden vectors", "last": "the last token's hidden vector"}
