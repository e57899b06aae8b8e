"""Attribution through all layers, over a sample of sequences."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float

from normscope.analyses.attribution.erasures import MEASURES
from normscope.analyses.attribution.figures import describe_figures
from normscope.analyses.attribution.options import ATTRIBUTION, AttributionOptions, Erasure
from normscope.analyses.attribution.sample import SampleAttribution, between_tokens, methods_of
from normscope.analyses.attribution.sentences import sentences_of
from normscope.analyses.base import HELD_ROUTING, Analysis, AnalysisContext, Requirements
from normscope.analyses.findings import Findings
from normscope.analyses.finite import require_finite
from normscope.attribution.methods import MapStage, defined_methods
from normscope.attribution.readouts import EmbeddingReadout
from normscope.data.batching import Batch
from normscope.data.categories import ALL
from normscope.errors import InputError
from normscope.models.interventions import InterventionRunner
from normscope.models.model_info import ModelInfo
from normscope.results.rollups import roll_up
from normscope.statistics.sequence_sample import SequenceSample


class AttributionAnalysis(Analysis):
    """Draws a sample while the corpus is read, and attributes it afterwards."""

    info = ATTRIBUTION

    def __init__(self, options: AttributionOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        if options.erasure is Erasure.mask and context.vocabulary.mask is None:
            raise InputError(
                "analysis.attribution.erasure=mask: the tokenizer has no mask token; set analysis.attribution.erasure=remove"
            )
        self._sample = SequenceSample(options.sequences, options.seed)
        self._attributed: SampleAttribution | None = None
        self.accumulators = {"sample": self._sample}

    @classmethod
    def requirements(cls, options: AttributionOptions, model: ModelInfo) -> Requirements:
        """The feed-forward networks, and the classifier if there is one.

        Raises:
            InputError: If a method is not defined for the model's family.
        """
        maps = 0
        if model.layout is not None:
            try:
                maps = len(defined_methods(model.layout, methods_of(options)[0], MapStage(str(options.stage))))
            except InputError as error:
                raise InputError(f"analysis=attribution: {error}") from error
        return Requirements(feed_forward=True, classifier=options.pooling is None, token_maps=maps)

    def start_batch(self, batch: Batch) -> None:
        """Offer the sequences of a batch to the sample."""
        self._sample.update(*batch.for_samples)

    def intervene(self, runner: InterventionRunner) -> None:
        """Attribute the sample."""
        self._attributed = SampleAttribution(runner, self.context, self.options)
        self._attributed.run(self._sample.compute())

    def token_maps(
        self, _runner: InterventionRunner, batch: Batch
    ) -> Mapping[str, Float[np.ndarray, "layer query key"]]:
        """The maps from the input up to each layer, by every method that has maps; without the bias."""
        assert self._attributed is not None
        return {
            str(method): np.stack([between_tokens(maps.cumulative[layer - 1]) for layer in self.context.layers])
            for method, maps in self._attributed.maps(batch).items()
            if maps.cumulative is not None
        }

    def result(self) -> Findings:
        """Shares by layer and source, agreement between methods, and faithfulness."""
        assert self._attributed is not None
        attributed, categories = self._attributed, self.context.categories
        parts, faithfulness = attributed.shares.by_category(), attributed.faithfulness.table()
        require_finite(parts["share"].to_numpy(dtype=float), "the shares of a layer")
        require_finite(faithfulness["mean"].to_numpy(dtype=float), "the answers of the model")
        by_layer, agreement = attributed.shares.by_layer(), attributed.agreement.table()
        ranking = attributed.faithfulness.ranking()
        overall = parts[parts["category"] == ALL]
        quantity = attributed.readout.quantity
        tables = {
            "by_layer": by_layer,
            "by_category": parts[parts["category"].isin(categories)].reset_index(drop=True),
            "scores": attributed.score_shares.table(),
            "agreement": agreement,
            "faithfulness": faithfulness,
            "ranking": ranking,
        }
        counted = {"by_category": overall, "ranking": ranking.assign(quantity=quantity)}
        rolled = roll_up(self.info.published, tables | counted)
        summary = summarised(overall, ranking)
        return Findings(
            tables=tables,
            rolled_up_from=counted,
            metrics=rolled.metrics,
            curves=rolled.curves,
            figures=describe_figures(overall, agreement, faithfulness, attributed.drawn, quantity, attributed.erasure),
            summary=summary,
            summary_digits=3,
            summary_caption=(
                f"drop in {quantity} when the top tokens are removed (comprehensiveness), or kept alone (sufficiency)"
            ),
            sentences=sentences_of(
                rolled.metrics,
                _lower_ends(ranking, "above_random"),
                _lower_ends(ranking, "below_best"),
                self._deepest(),
            ),
            notes=self._notes(attributed),
        )

    def _deepest(self) -> str:
        """What the metrics are about: the vectors of the deepest chosen layer."""
        layer = max(self.context.layers)
        return "output vector" if layer == self.context.depth else f"vector after layer {layer}"

    def _notes(self, attributed: SampleAttribution) -> list[str]:
        notes = []
        readout = attributed.readout
        if attributed.pooling_is_guessed and isinstance(readout, EmbeddingReadout):
            notes.append(
                "the model's files name no pooling that can be used: the embedding is "
                f"{_GUESSED[str(readout.pooling)]} (analysis.attribution.pooling)"
            )
        if self.options.erasure is None and attributed.erasure is Erasure.remove:
            notes.append("the tokenizer has no mask token: erased tokens are removed (analysis.attribution.erasure)")
        if attributed.untested:
            notes.append(
                f"{attributed.untested} of {attributed.sequences} sampled sequences have fewer than two ordinary "
                f"{attributed.noun} and are not tested"
            )
        if self.context.has_experts:
            notes.append(HELD_ROUTING)
        return notes


def _lower_ends(ranking: pd.DataFrame, difference: str) -> dict[str, float]:
    """The lower end of the interval of a difference, by method."""
    ends = zip(ranking["method"], ranking[f"{difference}_low"], strict=True)
    return {str(method): float(low) for method, low in ends}


_GUESSED = {"mean": "the mean of the last hidden vectors", "last": "the last token's hidden vector"}


def summarised(overall: pd.DataFrame, ranking: pd.DataFrame) -> pd.DataFrame:
    """AOPC by method, the largest comprehensiveness first, and the share that comes from the token itself."""
    deepest = overall[(overall["layer"] == overall["layer"].max()) & (overall["source"] == "itself")]
    tested = ranking.set_index("method")[list(MEASURES)]
    own = deepest.set_index("method")["share"].rename("itself").astype(float)
    methods = [*tested.index, *(method for method in own.index if method not in tested.index)]
    return tested.reindex(methods).join(own).rename_axis("method")
