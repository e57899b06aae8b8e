"""Mixing through the whole layer, with the feed-forward network (Kobayashi et al. 2024)."""

import torch

from normscope.analyses.base import HELD_ROUTING, Analysis, AnalysisContext, Requirements
from normscope.analyses.feedforward.figures import describe_figures
from normscope.analyses.feedforward.maps import MapFindings, compare_maps
from normscope.analyses.feedforward.options import FEEDFORWARD, FeedForwardOptions
from normscope.analyses.feedforward.published import TITLES
from normscope.analyses.feedforward.sentences import sentences_of
from normscope.analyses.ratio_table import RatioTable, caption_by_category, overall_rows, reported_rows
from normscope.analyses.samples import note_on_length
from normscope.data.batching import Batch
from normscope.maths.layer_composition import LAYER_STAGES, LayerStage
from normscope.maths.mixing import ratio
from normscope.maths.shares import layer_shares
from normscope.models.feed_forward import FeedForwardBlock
from normscope.models.interventions import InterventionRunner
from normscope.models.model_info import ModelInfo
from normscope.results.findings import Summary
from normscope.results.result import Result
from normscope.results.rollups import roll_up
from normscope.statistics.kept_tensors import KeptTensors


class FeedForwardAnalysis(Analysis):
    """Mixing ratios from the attention block to the end of the layer, and the maps of a sample before and after each step."""

    info = FEEDFORWARD

    def __init__(self, options: FeedForwardOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        positions = context.norm_positions
        self._stages = [stage for stage in LayerStage if all(stage in LAYER_STAGES[each] for each in positions)]
        # The attention block's last method is the first stage of the layer.
        self._attention = [str(method) for method in context.methods if str(method) in TITLES]
        if all(position in ("pre", "parallel") for position in positions):
            self._attention.remove("attnres_n")
        stages = [f"{stage}_n" for stage in self._stages]
        self._ratios = RatioTable([*self._attention, *stages], context, stages)
        self._sample = KeptTensors(torch.int64, options.sequences)
        self._maps: MapFindings | None = None
        self.accumulators = {**self._ratios.accumulators, "sample": self._sample}

    @classmethod
    def requirements(cls, _options: FeedForwardOptions, _model: ModelInfo) -> Requirements:
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
        """Compare the maps of the sample."""
        self._maps = compare_maps(runner, self._sample.compute().tensors, self.context, self.options)

    def result(self) -> Result:
        """Ratios by layer and category, changes by step, and the pairs that the network amplifies."""
        assert self._maps is not None
        ratios, change = self._ratios.compute(), self._maps.change
        table = ratios[~ratios["method"].isin(self._attention)]
        shares = self._ratios.compute_shares().drop(columns="residual")  # which counts as the token's own
        overall = overall_rows(table)
        counted = {"mixing_by_layer": overall, "shares": overall_rows(shares)}
        rolled = roll_up(self.info.published, {"change": change} | counted)
        summary = self._ratios.by_category()
        name = TITLES[f"{self._stages[-1]}_n"].partition(":")[0]
        title = f"mixing ratio {name}: how much of a token's vector comes from other tokens after the whole layer"
        return Result(
            tables={
                "mixing_by_layer": reported_rows(table, self.context.categories),
                "shares": reported_rows(shares, self.context.categories),
                "change": change,
                "amplified": self._maps.amplified,
                "sequences": self._ratios.by_sequence(set(overall["method"])),
            },
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics),
            curves=rolled.curves,
            figures=describe_figures(ratios, self.context.categories, change, self._maps.sentences),
            summaries={self.info.name: Summary(summary, digits=1, caption=caption_by_category(title, summary))},
            notes=[
                *note_on_length(self.info.name, self._sample.compute().tensors, self.options.tokens),
                *([HELD_ROUTING] if self.context.has_experts else []),
            ],
        )
