"""Metrics, curves and the table for the terminal, from the published tables."""

import pandas as pd

from normscope.analyses.attribution.agreement import SCORES
from normscope.analyses.attribution.erasures import MEASURES


def metrics_of(
    overall: pd.DataFrame, agreement: pd.DataFrame, ranking: pd.DataFrame, quantity: str
) -> dict[str, float]:
    """All metrics.

    Args:
        overall: The rows of `by_category` over all tokens.
        agreement: The table `agreement`.
        ranking: The table `ranking`.
        quantity: What falls: `probability` or `cosine`.
    """
    deepest = overall[overall["layer"] == overall["layer"].max()]
    metrics = {
        f"{method}/share/{source}": float(share)
        for method, source, share in zip(deepest["method"], deepest["source"], deepest["share"], strict=True)
    }
    scored = agreement[agreement["scope"] == SCORES]
    metrics |= {
        f"agreement/{method}/{other}": float(spearman)
        for method, other, spearman in zip(scored["method"], scored["other"], scored["spearman"], strict=True)
    }
    return metrics | {
        f"{quantity}/{measure}/{method}": float(value)
        for measure in MEASURES
        for method, value in zip(ranking["method"], ranking[measure], strict=True)
    }


def curves_of(overall: pd.DataFrame) -> dict[str, pd.Series]:
    """The share of a token's vector that comes from the token itself, by method."""
    own = overall[overall["source"] == "itself"]
    return {f"{method}/itself": rows.set_index("layer")["share"] for method, rows in own.groupby("method", sort=False)}


def summarised(overall: pd.DataFrame, ranking: pd.DataFrame) -> pd.DataFrame:
    """AOPC by method, the largest comprehensiveness first, and the share that comes from the token itself."""
    deepest = overall[(overall["layer"] == overall["layer"].max()) & (overall["source"] == "itself")]
    tested = ranking.set_index("method")[list(MEASURES)]
    own = deepest.set_index("method")["share"].rename("itself").astype(float)
    methods = [*tested.index, *(method for method in own.index if method not in tested.index)]
    return tested.reindex(methods).join(own).rename_axis("method")
