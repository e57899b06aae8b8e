"""Analyses without signed shares, beside which `make bench` measures what shares cost. No run can be configured like this."""

from unittest import mock

from torch import Tensor

from normscope.analyses.base import AnalysisContext
from normscope.analyses.mixing.analysis import MixingAnalysis
from normscope.analyses.mixing.options import MixingOptions
from normscope.analyses.norms.analysis import NormsAnalysis
from normscope.analyses.ratio_table import RatioTable
from normscope.data.batching import Batch
from normscope.models.block import AttentionBlock


class MixingWithoutShares(MixingAnalysis):
    """Mixing ratios alone, of tokens."""

    def __init__(self, options: MixingOptions, context: AnalysisContext) -> None:
        super().__init__(options, context)
        self._ratios = RatioTable([str(method) for method in context.methods], context)
        self.accumulators = self._ratios.accumulators

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the mixing ratios of a block's tokens."""
        ratios = [block.mixing_ratios[method] for method in self.context.methods]
        self._ratios.update(block.layer, ratios, batch.measured)


class NormsWithoutShares(NormsAnalysis):
    """Norms of tokens, with zeros in place of shares, which are still added up: that takes next to nothing."""

    def update_attention(self, block: AttentionBlock, batch: Batch) -> None:
        """Add the weights and norms of a block."""

        def zeros(_block: AttentionBlock, _rows: Tensor | None = None) -> Tensor:
            return block.value.new_zeros(block.value.shape[:3])

        # Without readers, α is not multiplied by them on the way.
        with (
            mock.patch.object(AttentionBlock, "received_shares", zeros),
            mock.patch.object(AttentionBlock, "readers", None),
        ):
            super().update_attention(block, batch)


ANALYSES = {"mixing": MixingWithoutShares, "norms": NormsWithoutShares}
"""By the names of the analyses that they stand for."""
