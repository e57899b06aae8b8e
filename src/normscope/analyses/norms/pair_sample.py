"""A uniform sample of the visible pairs of query and key, with the weight and vector norm of each."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from normscope.data.batching import Batch
from normscope.models.block import AttentionBlock
from normscope.statistics.accumulator import EmptyAccumulatorError
from normscope.statistics.uniform_sample import UniformSample

COLUMNS = ("layer", "head", "category", "alpha", "f")


class PairSample:
    """Draws uniformly from the visible pairs of all layers and heads.

    The visible pairs of a sequence are numbered by head, query and key, so neither its padding nor the other sequences
    of its batch change the sample.

    Args:
        size: Number of pairs to keep.
        seed: Seed of the draw.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.accumulator = UniformSample(size, len(COLUMNS), seed)

    def update(self, block: AttentionBlock, batch: Batch) -> None:
        """Offer the visible pairs of one block."""
        heads = block.query.shape[1]
        ends = block.visible_counts.cumsum(dim=-1).cpu().numpy()  # pairs of one head, up to and including each query
        for row, fingerprint in enumerate(batch.fingerprints):
            pairs = int(ends[row, -1])

            def take(positions: np.ndarray, row: int = row, pairs: int = pairs) -> Tensor:
                head, pair = np.divmod(positions, pairs)
                query = np.searchsorted(ends[row], pair, side="right")
                rank = pair - np.where(query > 0, ends[row][query - 1], 0)
                return _rows(block, batch, row, *map(torch.from_numpy, (head, query, rank)))

            self.accumulator.update((fingerprint, block.layer), heads * pairs, take)

    def table(self, categories: Sequence[str]) -> pd.DataFrame:
        """One row per pair.

        Args:
            categories: Names of all token categories.
        """
        try:
            rows = self.accumulator.compute()
        except EmptyAccumulatorError:
            rows = torch.zeros(0, len(COLUMNS))
        table = pd.DataFrame(rows.numpy(), columns=list(COLUMNS)).astype({"layer": int, "head": int})
        return table.assign(category=[categories[int(index)] for index in table["category"]])


def _rows(block: AttentionBlock, batch: Batch, row: int, head: Tensor, query: Tensor, rank: Tensor) -> Tensor:
    key = block.visible_keys(row, query, rank)
    weights = block.weights_at(row, head, query, key).cpu().double()
    norms = block.transformed_norms[row, head, key].cpu().double()
    categories = batch.keys.categories[row, key].cpu().double()
    return torch.stack([torch.full_like(weights, block.layer), head + 1.0, categories, weights, norms], dim=1)
