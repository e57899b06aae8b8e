"""Rank correlation of α and ‖f‖ over the pairs of a corpus (Kobayashi et al. 2020, section 4.1)."""

import numpy as np
import torch
from jaxtyping import Int

from normscope.analyses.norms.options import NormsOptions
from normscope.analyses.norms.pairs import Pairs
from normscope.data.batching import Batch
from normscope.statistics.counts import Counts
from normscope.statistics.pair_histogram import Axis
from normscope.statistics.rank_correlation import RankCorrelation, rounded

# Where most pairs are, a cell covers a few thousandths of the ranks. For many pairs, ρ is within about 1e-4 of the exact value,
# and always within the reported bound.
WEIGHT_AXIS = Axis(-30, 0, 5)
NORM_AXIS = Axis(-10, 12, 6)


class PairCorrelation:
    """Accumulates the pairs of every block in a rank correlation. For long sequences, it samples the queries.

    Whether a sequence is sampled depends only on its length, and the draw only on its text and the seed, so batching makes no
    difference.

    Args:
        options: The number of queries to draw, and the seed.
        groups: Number of categories of keys.
        dtype: The type in which the model computes.
    """

    def __init__(self, options: NormsOptions, layers: int, groups: int, dtype: torch.dtype) -> None:
        self._limit, self._seed = options.sampled_queries, options.seed
        self.correlation = RankCorrelation(layers, groups, rounded(WEIGHT_AXIS, dtype), rounded(NORM_AXIS, dtype))
        self.queries = Counts(1, 2)
        """Number of queries used, and of all queries."""

    def update(self, layer: int, pairs: Pairs) -> None:
        """Add the pairs of a block.

        Args:
            layer: Index of the layer, from 0.
        """
        norms, categories, batch = pairs.norms, pairs.keys.categories, pairs.batch
        lengths = batch.lengths
        used = lengths if self._limit is None else lengths.clip(max=self._limit)
        if layer == 0:
            self.queries.update(0, torch.tensor([used.sum(), lengths.sum()]))
        drawn = [] if (used == lengths).all() else self._drawn(batch, used)
        parts = (part for row in enumerate(drawn) for part in pairs.of_queries(*row)) if drawn else pairs.parts()
        self.correlation.update(layer, norms, categories, parts)

    def _drawn(self, batch: Batch, sizes: Int[np.ndarray, " batch"]) -> list[Int[np.ndarray, " query"]]:
        """The indices of the queries drawn from each sequence."""
        every = []
        for length, size, fingerprint in zip(batch.lengths, sizes, batch.fingerprints, strict=True):
            queries = np.arange(length)
            if size < length:
                draw = np.random.default_rng([self._seed, fingerprint])
                queries = np.sort(draw.choice(length, size, replace=False))
            every.append(queries)
        return every

    def notes(self) -> list[str]:
        """A note if queries were sampled."""
        used, total = self.queries.compute()[0].tolist()
        if used == total:
            return []
        return [
            f"rank correlations use {used:,} of {total:,} queries: at most {self._limit} are drawn from each sequence "
            "(analysis.norms.sampled_queries)"
        ]
