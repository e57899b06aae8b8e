"""Value drains: the vectors of the key that receives most, beside those of the other keys."""

import pandas as pd
import torch

from normscope.analyses.base import AnalysisContext
from normscope.analyses.finite import require_finite
from normscope.data.batching import Batch
from normscope.maths.sinks import importance, queries_of_keys, strongest_key
from normscope.models.block import AttentionBlock
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.mean import Mean
from normscope.statistics.tidy import tidy

SINK, OTHER = "sink", "other"
MEASURES = ("alpha", "v_norm", "f_norm", "alpha_f")


class ValueDrains:
    """Accumulates αₖ, ‖v‖, ‖f(x)‖ and ‖αf(x)‖ by layer and head."""

    def __init__(self, context: AnalysisContext) -> None:
        self._context = context
        self.accumulator = Mean(len(context.layers), 2, len(MEASURES), context.heads)

    def update(self, block: AttentionBlock, batch: Batch) -> None:
        """Add a block. The sink of a head is the key that receives most of its weight in the sequence."""
        if block.gate is not None:
            return
        received, mask = block.received, batch.token_mask
        weights = importance(received, queries_of_keys(mask, block.mask))
        values = torch.linalg.vector_norm(block.value, dim=-1)
        norms = torch.stack([weights, values, block.transformed_norms, weights * block.transformed_norms])
        sink = strongest_key(received).unsqueeze(-1)
        of_sink = norms.gather(-1, sink.expand(len(MEASURES), *sink.shape)).squeeze(-1).sum(dim=1)
        others = mask.unsqueeze(1).expand_as(received).scatter(-1, sink, False)
        of_others = (norms * others.to(norms.dtype)).sum(dim=(1, 3))
        tokens = mask.sum()
        counts = torch.stack([torch.full_like(tokens, batch.sequences), tokens - batch.sequences])
        self.accumulator.update(self._context.index(block.layer), torch.stack([of_sink, of_others]), counts)

    def table(self) -> pd.DataFrame:
        """The table `drains`; `other` is missing if every sequence has a single token.

        Empty if heads have gates, since f(x) is not defined.
        """
        try:
            summary = self.accumulator.compute()
        except EmptyAccumulatorError:
            return pd.DataFrame(columns=["layer", "head", "key", *MEASURES])
        require_finite(summary.mean[:, 0], "the values of layer {layer}", self._context.layers)
        table = tidy(
            {name: summary.mean[:, :, number].transpose(1, 2) for number, name in enumerate(MEASURES)},
            layer=self._context.layers,
            head=range(1, self._context.heads + 1),
            key=[SINK, OTHER],
        )
        return table.dropna().reset_index(drop=True)
