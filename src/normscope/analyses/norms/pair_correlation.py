"""Rank correlation of α and ‖f‖ over the pairs of a corpus (Kobayashi et al. 2020, section 4.1)."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from normscope.analyses.norms.options import NormsOptions
from normscope.data.batching import Batch
from normscope.models.block import AttentionBlock
from normscope.statistics.counts import Counts
from normscope.statistics.pair_histogram import Axis
from normscope.statistics.rank_correlation import RankCorrelation

# Some thousandths of the range of ranks per cell, where most pairs are: ρ of many pairs comes within some 1e-4 of the
# exact one, and always within the bound that is reported.
WEIGHT_AXIS = Axis(-30, 0, 5)
NORM_AXIS = Axis(-10, 12, 6)


class PairCorrelation:
    """Offers the pairs of every block to a rank correlation; of long sequences those of a sample of the queries.

    Whether a sequence is sampled depends on its length alone, and the draw on its text and the seed: how a corpus is cut into
    batches changes nothing.

    Args:
        options: How many pairs are kept, how many queries are drawn, and by which seed.
        layers: Number of layers.
        groups: Number of categories of keys.
    """

    def __init__(self, options: NormsOptions, layers: int, groups: int) -> None:
        self._limit, self._seed = options.sampled_queries, options.seed
        self.correlation = RankCorrelation(layers, groups, WEIGHT_AXIS, NORM_AXIS, options.exact_pairs)
        self.queries = Counts(1, 2)
        """How many queries were used, and how many there were."""

    def update(self, layer: int, block: AttentionBlock, batch: Batch) -> None:
        """Add the pairs of one block.

        Args:
            layer: Index of the layer, from 0.
            block: The block.
            batch: What it saw.
        """
        norms, categories = block.transformed_norms, batch.keys.categories
        lengths = batch.token_mask.sum(dim=-1).tolist()
        used = [length if self._limit is None else min(length, self._limit) for length in lengths]
        if layer == 0:
            self.queries.update(0, torch.tensor([sum(used), sum(lengths)]))
        width, at_once = block.query.shape[2], block.queries_at_once
        sequences = at_once // width
        if used == lengths and (block.own_weights is not None or sequences >= len(lengths)):
            # All at once, and other analyses may ask for them as well.
            everything = block.mask is None and bool(batch.token_mask.all())
            self.correlation.update(layer, block.weights, norms, categories, None if everything else block.visible())
            return
        for some, queries in self._parts(batch, lengths, used, max(1, sequences)):
            for part in queries.to(norms.device).split(at_once):
                weights, seen = block.weights_of(part, some), block.visible(part, some)
                self.correlation.update(layer, weights, norms[some], categories[some], seen)

    def _parts(
        self, batch: Batch, lengths: list[int], used: list[int], sequences: int
    ) -> Iterator[tuple[slice, Int[Tensor, " query"]]]:
        """Some sequences together, and which of their queries are used; a sequence that is sampled stands alone."""
        if used == lengths:
            for start in range(0, len(lengths), sequences):
                some = slice(start, start + sequences)
                yield some, torch.arange(max(lengths[some]))
            return
        for row, (length, size) in enumerate(zip(lengths, used, strict=True)):
            queries = np.arange(length)
            if size < length:
                draw = np.random.default_rng([self._seed, batch.fingerprints[row]])
                queries = np.sort(draw.choice(length, size, replace=False))
            yield slice(row, row + 1), torch.from_numpy(queries)

    def notes(self) -> list[str]:
        """What a reader must know of the sample."""
        used, there = self.queries.compute()[0].tolist()
        if used == there:
            return []
        return [
            f"rank correlations are of {used:,} of the {there:,} queries: of sequences longer than {self._limit} tokens that "
            "many are drawn (analysis.norms.sampled_queries)"
        ]
