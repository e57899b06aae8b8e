"""Rank correlation of α and ‖f‖ over the pairs of a corpus (Kobayashi et al. 2020, section 4.1)."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from normscope.analyses.norms.options import NormsOptions
from normscope.analyses.norms.pairs import Pairs
from normscope.data.batching import Batch
from normscope.statistics.counts import Counts
from normscope.statistics.pair_histogram import Axis
from normscope.statistics.rank_correlation import RankCorrelation

# Where most pairs are, a cell covers a few thousandths of the ranks. For many pairs, ρ is within about 1e-4 of the exact value,
# and always within the reported bound.
WEIGHT_AXIS = Axis(-30, 0, 5)
NORM_AXIS = Axis(-10, 12, 6)


class PairCorrelation:
    """Accumulates the pairs of every block in a rank correlation. For long sequences, it samples the queries.

    Whether a sequence is sampled depends only on its length, and the draw only on its text and the seed, so batching makes no
    difference.

    Args:
        options: The number of pairs to keep, the number of queries to draw, and the seed.
        layers: Number of layers.
        groups: Number of categories of keys.
    """

    def __init__(self, options: NormsOptions, layers: int, groups: int) -> None:
        self._limit, self._seed = options.sampled_queries, options.seed
        self.correlation = RankCorrelation(layers, groups, WEIGHT_AXIS, NORM_AXIS, options.exact_pairs)
        self.queries = Counts(1, 2)
        """Number of queries used, and of all queries."""

    def update(self, layer: int, pairs: Pairs) -> None:
        """Add the pairs of a block.

        Args:
            layer: Index of the layer, from 0.
            pairs: The pairs.
        """
        norms, categories, batch = pairs.norms, pairs.keys.categories, pairs.batch
        lengths = batch.token_mask.sum(dim=-1).tolist()
        used = [length if self._limit is None else min(length, self._limit) for length in lengths]
        if layer == 0:
            self.queries.update(0, torch.tensor([sum(used), sum(lengths)]))
        if used == lengths:
            for some, keys, weights, seen in pairs.strips():
                each = norms[some, :, keys], categories[some, keys]
                self.correlation.update(layer, weights, *each, seen, zero_where_unseen=True)
            return
        for row, queries in self._drawn(batch, lengths, used):
            for some, _, weights, seen in pairs.of_queries(row, queries.to(norms.device)):
                self.correlation.update(layer, weights, norms[some], categories[some], seen)

    def _drawn(self, batch: Batch, lengths: list[int], used: list[int]) -> Iterator[tuple[int, Int[Tensor, " query"]]]:
        """Each sequence, and the indices of the queries drawn from it."""
        for row, (length, size) in enumerate(zip(lengths, used, strict=True)):
            queries = np.arange(length)
            if size < length:
                draw = np.random.default_rng([self._seed, batch.fingerprints[row]])
                queries = np.sort(draw.choice(length, size, replace=False))
            yield row, torch.from_numpy(queries)

    def notes(self) -> list[str]:
        """A note if queries were sampled."""
        used, total = self.queries.compute()[0].tolist()
        if used == total:
            return []
        return [
            f"rank correlations use {used:,} of {total:,} queries: at most {self._limit} are drawn from each sequence "
            "(analysis.norms.sampled_queries)"
        ]
