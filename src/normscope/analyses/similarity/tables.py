"""Tables of the similarity analysis."""

import dataclasses
import math
from collections.abc import Callable, Collection

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normscope.analyses.similarity.parts import FRIENDS, SPANS
from normscope.attribution.similarities import PairSums
from normscope.data.batching import Batch
from normscope.statistics.keyed_means import KeyedSummary
from normscope.statistics.mean import MeanSummary
from normscope.statistics.tidy import tidy

_FEWEST = 3
"""Pairs below which a rank correlation says nothing."""

_LOW = 0.25
"""The share of pairs whose gold scores are low."""

_OF_PAIR = ("row", "query", "document", "value", "with_bias", "gold")


@dataclasses.dataclass(frozen=True)
class PairColumns:
    """The numbers that are kept for every pair of texts."""

    categories: tuple[str, ...]
    """The categories of tokens, and last `bias`."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers are. The last are what each category adds to the cosine."""
        friends = [f"{what}_{place}" for what in ("friend", "added") for place in range(FRIENDS)]
        return (*_OF_PAIR, *friends, *self.categories)

    def rows(
        self,
        batch: Batch,
        sums: PairSums,
        categories: Float[Tensor, "pair category"],
        friends: Float[np.ndarray, "pair number"],
    ) -> Float[Tensor, "pair column"]:
        """The numbers of a batch of pairs, in float64.

        Args:
            categories: What each category adds; the last is `bias`.
            friends: The tokens that add most to each pair; see `PairTokens`.
        """
        assert batch.pairing is not None
        gold = [math.nan if score is None else score for score in batch.pairing.scores]
        ranked = zip(*batch.pairing.ranked, strict=True)
        numbers = [batch.rows[0::2], *ranked, sums.value, sums.with_bias, gold]
        columns = [torch.as_tensor(column).cpu().double() for column in numbers]
        return torch.cat([torch.stack(columns, dim=1), torch.from_numpy(friends), categories.cpu().double()], dim=1)

    def of(self, kept: Float[Tensor, "pair column"], name: str) -> Float[np.ndarray, " pair"]:
        """One of the numbers of each pair."""
        column: np.ndarray = kept[:, self.names.index(name)].numpy()
        return column

    def friends(self, kept: Float[Tensor, "pair column"]) -> pd.DataFrame:
        """The tokens that add most to each pair: its place among the pairs, the token's id, and what the token adds."""
        start = len(_OF_PAIR)
        ids, added = kept[:, start : start + FRIENDS].numpy(), kept[:, start + FRIENDS : start + 2 * FRIENDS].numpy()
        pairs = np.repeat(np.arange(len(kept)), FRIENDS)
        table = pd.DataFrame({"pair": pairs, "token_id": ids.ravel(), "added": added.ravel()})
        return table[table["added"] > 0]

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


def span_table(spans: MeanSummary, pairs: int, cosine: float) -> pd.DataFrame:
    """One row per text of the pair and span that has tokens.

    Args:
        spans: What they add; see `PairSpans`.
        pairs: Number of pairs of texts.
        cosine: The mean cosine.
    """
    count = spans.count[0].numpy()
    contribution = np.where(count > 0, spans.mean[0].numpy(), 0.0) * count / pairs
    numbers = {
        "contribution": contribution,
        "share": contribution / cosine if cosine else np.full_like(contribution, np.nan),
        "count": count,
    }
    table = tidy(
        {name: values.reshape(2, len(SPANS)) for name, values in numbers.items()}, text=["first", "second"], span=SPANS
    )
    return table[table["count"] > 0].reset_index(drop=True)


def token_table(tokens: KeyedSummary, pairs: int, text: Callable[[int], str]) -> pd.DataFrame:
    """One row per token that occurs, the largest contribution first.

    Args:
        tokens: What they add; see `PairTokens`.
        pairs: Number of pairs of texts.
        text: Returns the text of a token.
    """
    ids, mean, count = tokens.keys[:, 0].numpy(), tokens.mean[:, 0].numpy(), tokens.count.numpy()
    table = pd.DataFrame({"token": _texts(ids, text), "token_id": ids, "contribution": mean * count / pairs})
    table = table.assign(mean=mean, count=count)
    return table.sort_values("contribution", ascending=False, kind="stable", ignore_index=True)


def false_friends(
    kept: Float[Tensor, "pair column"], columns: PairColumns, text: Callable[[int], str]
) -> pd.DataFrame | None:
    """The tokens that add most to the pairs whose gold scores are in the lowest quarter; None if scores do not differ."""
    gold = columns.of(kept, "gold")
    scored = gold[~np.isnan(gold)]
    if len(scored) < _FEWEST or scored.min() == scored.max():
        return None
    low = np.flatnonzero(gold <= np.quantile(scored, _LOW))
    friends = columns.friends(kept)
    groups = friends[friends["pair"].isin(low)].groupby("token_id", sort=True)["added"]
    table = groups.agg(["sum", "mean", "count"]).reset_index().rename(columns={"sum": "total"})
    ids = table["token_id"].to_numpy().astype(np.int64)
    table = table.assign(token_id=ids)
    table.insert(0, "token", _texts(ids, text))
    return table.sort_values("total", ascending=False, kind="stable", ignore_index=True)


def _texts(ids: np.ndarray, text: Callable[[int], str]) -> pd.Series:
    return pd.Series([text(number) for number in ids.tolist()], dtype=object)


def pair_table(kept: Float[Tensor, "pair column"], columns: PairColumns) -> pd.DataFrame:
    """One row per pair of texts."""
    number = {name: columns.of(kept, name) for name in _OF_PAIR}
    value = number["value"]
    share = np.divide(number["with_bias"], value, out=np.full_like(value, np.nan), where=value != 0)
    rows = number["row"].astype(np.int64)
    return pd.DataFrame({"row": rows, "value": value, "bias_share": share, "gold": number["gold"]})


def ranking_table(kept: Float[Tensor, "pair column"], columns: PairColumns) -> pd.DataFrame | None:
    """One row per query and document, the most similar first; None without rankings."""
    names = ("query", "document", "row", "value")
    table = pd.DataFrame({name: columns.of(kept, name) for name in names})
    table = table[table["query"] > 0].astype({"query": np.int64, "document": np.int64, "row": np.int64})
    if table.empty:
        return None
    table = table.sort_values(["query", "value"], ascending=[True, False], kind="stable", ignore_index=True)
    table.insert(3, "rank", table.groupby("query").cumcount() + 1)
    return table


def gold_correlation(pairs: pd.DataFrame, parts: pd.DataFrame) -> dict[str, float]:
    """Spearman's ρ with the gold scores, of the cosines and of each part, and the number of pairs; nothing without scores.

    ρ is left out if it is undefined: fewer than three pairs, or one side is constant.

    Args:
        pairs: The table `pairs`.
        parts: What each category adds to the cosine of each of these pairs.
    """
    scored = pairs["gold"].notna()
    if not scored.any():
        return {}
    gold, metrics = pairs["gold"][scored], {"gold/count": float(scored.sum())}
    sides = {"gold/spearman": pairs["value"], **{f"gold/category/{name}": parts[name] for name in parts}}
    found = {name: _spearman(values[scored], gold) for name, values in sides.items()}
    return metrics | {name: value for name, value in found.items() if value is not None}


def _spearman(values: pd.Series, gold: pd.Series) -> float | None:
    import scipy.stats  # slow to import

    if len(gold) < _FEWEST or gold.nunique() < 2 or values.nunique() < 2:
        return None
    return float(scipy.stats.spearmanr(values, gold).statistic)
