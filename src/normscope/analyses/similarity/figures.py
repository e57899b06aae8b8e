"""Figures of the similarity analysis."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from normscope.analyses.similarity.pair_maps import DrawnPair
from normscope.results.codes import category_name
from normscope.results.figures import Figure, Lines, WordMaps
from normscope.rounding import counted, number
from normscope.statistics.tidy import tidy

_GROUPS = 5


def describe_figures(
    table: pd.DataFrame | None, pairs: pd.DataFrame, parts: pd.DataFrame, drawn: Mapping[int, DrawnPair], cosine: float
) -> dict[str, Figure]:
    """All figures.

    Args:
        table: The table `by_category`; None without one.
        pairs: The table `pairs`.
        parts: What each category adds to the cosine of each of these pairs.
        drawn: Single pairs, by their rows.
        cosine: The mean cosine.
    """
    figures: dict[str, Figure] = {} if table is None else {"by_category": _cells(table, len(pairs), cosine)}
    groups = by_similarity(pairs, parts)
    if groups["cosine"].nunique() == groups["group"].nunique() > 1:
        figures["by_similarity"] = Lines(
            table=groups,
            x="cosine",
            y="contribution",
            series="category",
            y_label="added to the cosine",
            series_titles={category: category for category in parts.columns},
            caption=(
                "What the tokens of each category, and the biases, add to the cosine similarity, from the least to the most "
                f"similar pairs of texts ({groups['group'].nunique()} groups, as equal in size as possible). A category whose "
                "line rises distinguishes similar from dissimilar texts; one whose line is flat adds the same to all groups."
            ),
        )
    return figures | {f"pair_{row}": pair.texts.figure() for row, pair in drawn.items()}


def by_similarity(pairs: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """What each category adds in groups of equal size, from the least to the most similar pairs: group, category, means."""
    order = np.argsort(pairs["value"].to_numpy(), kind="stable")
    groups = np.array_split(order, min(_GROUPS, len(order)))
    means = np.array([parts.to_numpy()[group].mean(axis=0) for group in groups])
    # Ticks stand at these places, so they should be short.
    cosines = np.array([pairs["value"].to_numpy()[group].mean() for group in groups]).round(3)
    return tidy(
        {"cosine": cosines[:, None], "contribution": means}, group=range(len(groups)), category=list(parts.columns)
    )


def _cells(table: pd.DataFrame, pairs: int, cosine: float) -> WordMaps:
    order = list(dict.fromkeys([*table["category_a"], *table["category_b"]]))
    order.sort(key="bias".__eq__)  # the biases come last
    numbers = {category: position for position, category in enumerate(order)}
    title = f"mean cosine {number(cosine)}"
    return WordMaps(
        table=table.assign(
            panel=title,
            frame="none",
            a=table["category_a"].map(numbers),
            b=table["category_b"].map(numbers),
            category_a=table["category_a"].map(category_name),
            category_b=table["category_b"].map(category_name),
        ),
        panel="panel",
        panel_titles={title: title},
        row="a",
        row_label="category_a",
        column="b",
        column_label="category_b",
        value="contribution",
        largest=float(table["contribution"].abs().max()) or 1.0,
        digits=3,
        caption=(
            f"What pairs of tokens add to the mean cosine similarity of {counted(pairs, 'pair')} of texts, by the category of "
            "the token in the first text (rows) and in the second (columns). Over all categories, the cells add up to "
            f"{number(cosine)}: orange raises it, purple lowers it. The biases belong to no token."
        ),
    )
