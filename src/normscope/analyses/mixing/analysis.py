"""The mixing ratio of every block, by five methods (Kobayashi et al. 2021)."""

import pandas as pd

from normscope.analyses.base import Analysis, AnalysisContext
from normscope.analyses.findings import Findings, HeatmapPanels, Lines
from normscope.analyses.mixing.options import MIXING, MixingOptions
from normscope.analyses.mixing.sentences import sentences_of
from normscope.analyses.ratio_table import RatioTable, overall_rows, percentages, reported_rows
from normscope.data.batching import Batch
from normscope.models.block import AttentionBlock
from normscope.models.word_block import WordBlock
from normscope.results.axes import METHODS
from normscope.results.rollups import roll_up


class MixingAnalysis(Analysis):
    """Mixing ratios by layer, method and token category."""

    info = MIXING

    def __init__(self, options: MixingOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._ratios = RatioTable([str(method) for method in context.methods], context)
        self.accumulators = {"moments": self._ratios.moments, "sequences": self._ratios.sequences}

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the mixing ratios of a block's tokens."""
        ratios = block.mixing_ratios if batch.groups is None else WordBlock(block, batch.groups).mixing_ratios()
        self._ratios.update(block.layer, [ratios[method] for method in self.context.methods], batch.measured)

    def result(self) -> Findings:
        """Tables, figures and the summary of K21: mean, maximum and minimum over all tokens of all layers."""
        table = self._ratios.compute()
        overall, shown = overall_rows(table), reported_rows(table, self.context.categories)
        counted = {"by_layer": overall}
        rolled = roll_up(self.info.published, counted)
        return Findings(
            tables={"by_layer": shown},
            rolled_up_from=counted,
            metrics=rolled.metrics,
            sentences=sentences_of(rolled.metrics),
            curves=rolled.curves,
            by_sequence=self._ratios.by_sequence([str(method) for method in self.context.methods]),
            figures=self._figures(shown, overall),
            summary_digits=1,
            summary_caption="how much of a token's output vector comes from other tokens, by method",
            summary=percentages(rolled.metrics),
        )

    @staticmethod
    def _figures(shown: pd.DataFrame, overall: pd.DataFrame) -> dict[str, HeatmapPanels | Lines]:
        def percent(table: pd.DataFrame) -> pd.DataFrame:
            return table.assign(mean=table["mean"] * 100)

        return {
            "heatmap": HeatmapPanels(
                table=percent(shown),
                panel="method",
                row="layer",
                column="category",
                value="mean",
                panel_titles=METHODS,
                value_label="mixing ratio (%)",
                limits=(0.0, 100.0),
                caption=(
                    "Mean mixing ratio by layer (deepest at the top) and token category: the norm of what a token takes from "
                    "the others, divided by the sum of this norm and that of what it preserves of itself. The titles say what "
                    "each method takes into account. Below 50%, tokens preserve more than they take."
                ),
            ),
            "by_layer": Lines(
                table=percent(overall),
                x="layer",
                y="mean",
                series="method",
                series_titles={
                    method: title for method, title in METHODS.items() if (overall["method"] == method).any()
                },
                y_label="mean mixing ratio (%)",
                limits=(0.0, 100.0),
                caption=(
                    "Mean mixing ratio over all tokens, by layer and method. The gaps between the lines show what the vectors, "
                    "the residual connection and the normalisation change, as far as the model's blocks have them."
                ),
            ),
        }
