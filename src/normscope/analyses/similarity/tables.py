"""Tables of the similarity analysis."""

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.statistics.mean import MeanSummary
from normscope.statistics.tidy import tidy

_FEWEST = 3
"""Pairs below which a rank correlation says nothing."""


@dataclasses.dataclass(frozen=True)
class PairColumns:
    """The numbers that are kept for every pair of texts."""

    categories: tuple[str, ...]
    """The categories of tokens, and last `bias`."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers are. The last are what each category adds to the cosine."""
        return ("row", "value", "with_bias", "gold", *self.categories)

    def rows(
        self,
        rows: Sequence[int],
        value: Float[Tensor, " pair"],
        cells: Float[Tensor, "pair a b"],
        gold: Sequence[float | None],
    ) -> Float[Tensor, "pair column"]:
        """The numbers of some pairs, in float64.

        Args:
            rows: Rows of the corpus.
            value: The cosines.
            cells: What each pair of categories adds to them; the last category is `bias`.
            gold: The gold scores.
        """
        with_bias = cells[:, -1].sum(dim=-1) + cells[:, :-1, -1].sum(dim=-1)
        # Half of a pair of tokens belongs to either.
        parts = (cells.sum(dim=1) + cells.sum(dim=2)) / 2
        scores = [math.nan if score is None else score for score in gold]
        columns = [torch.tensor(rows), value, with_bias, torch.tensor(scores), *parts.unbind(dim=1)]
        return torch.stack([column.double() for column in columns], dim=1)

    def parts(self, kept: Float[Tensor, "pair column"]) -> pd.DataFrame:
        """What each category adds to the cosine of each pair of texts: one column per category that occurs in the corpus."""
        parts = pd.DataFrame(kept[:, -len(self.categories) :].numpy(), columns=list(self.categories))
        return parts.loc[:, (parts != 0).any(axis=0)]


def cell_table(cells: MeanSummary, pairs: int, columns: PairColumns, reported: Collection[str]) -> pd.DataFrame:
    """One row per pair of reported categories that has tokens; `bias` is always reported.

    Args:
        cells: What pairs of tokens of each pair of categories add to cosines.
        pairs: Number of pairs of texts.
        columns: Names the categories.
        reported: The categories to report.
    """
    size = len(columns.categories)
    count, mean = cells.count[0].numpy(), cells.mean[0].numpy()
    contribution = np.where(count > 0, mean, 0.0) * count / pairs
    total = float(contribution.sum())
    numbers = {
        "contribution": contribution,
        "share": contribution / total if total else np.full_like(contribution, np.nan),
        "mean": mean,
        "count": count,
    }
    table = tidy(
        {name: values.reshape(size, size) for name, values in numbers.items()},
        category_a=columns.categories,
        category_b=columns.categories,
    )
    shown = [*reported, "bias"]
    chosen = table["category_a"].isin(shown) & table["category_b"].isin(shown) & (table["count"] > 0)
    return table[chosen].reset_index(drop=True)


def pair_table(kept: Float[Tensor, "pair column"]) -> pd.DataFrame:
    """One row per pair of texts."""
    row, value, with_bias, gold = kept[:, :4].numpy().T
    share = np.divide(with_bias, value, out=np.full_like(value, np.nan), where=value != 0)
    return pd.DataFrame({"row": row.astype(np.int64), "value": value, "bias_share": share, "gold": gold})


def gold_correlation(pairs: pd.DataFrame) -> dict[str, float]:
    """Spearman's ρ with the gold scores and their number, as metrics; nothing without gold scores.

    ρ is left out if it is undefined: fewer than three pairs, or one side is constant.
    """
    import scipy.stats  # slow to import

    scored = pairs[pairs["gold"].notna()]
    if scored.empty:
        return {}
    metrics = {"gold/count": float(len(scored))}
    if len(scored) >= _FEWEST and scored["gold"].nunique() > 1 and scored["value"].nunique() > 1:
        metrics["gold/spearman"] = float(scipy.stats.spearmanr(scored["value"], scored["gold"]).statistic)
    return metrics
