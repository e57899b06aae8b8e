"""A uniform sample of the visible pairs of query and key, with the weight and vector norm of each."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normscope.analyses.norms.pairs import Pairs
from normscope.statistics.accumulator import EmptyAccumulatorError, accumulation_device
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

    def update(self, pairs_of_block: Pairs) -> None:
        """Offer the visible pairs of one block."""
        block, batch = pairs_of_block.block, pairs_of_block.batch
        heads, queries = block.query.shape[1], batch.token_mask.shape[1]
        ends = pairs_of_block.visible_counts.cumsum(axis=-1)  # pairs of one head, up to and including each query
        pairs = ends[:, -1]
        before = pairs.cumsum() - pairs  # pairs of one head in the sequences before

        def take(rows: np.ndarray, positions: np.ndarray) -> Tensor:
            head, pair = np.divmod(positions, pairs[rows])
            # One search in the pairs of all sequences, one after the other.
            query = (
                np.searchsorted((ends + before[:, None]).ravel(), pair + before[rows], side="right") - rows * queries
            )
            rank = pair - np.where(query > 0, ends[rows, query - 1], 0)
            return _rows(pairs_of_block, torch.from_numpy(np.stack([rows, head, query, rank])))

        populations = [
            ((fingerprint, block.layer), heads * int(number))
            for fingerprint, number in zip(batch.fingerprints, pairs, strict=True)
        ]
        self.accumulator.update(populations, take)

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


def _rows(pairs: Pairs, places: Int[Tensor, "4 pair"]) -> Float[Tensor, "pair column"]:
    """One row per pair, given its sequence, head, query and rank among the keys that the query sees."""
    row, head, key, weights = pairs.single(places)
    columns = torch.full_like(weights, pairs.block.layer), head + 1, pairs.keys.categories[row, key], weights
    device = accumulation_device(weights.device)
    return torch.stack([column.to(device).double() for column in (*columns, pairs.norms[row, head, key])], dim=1)
