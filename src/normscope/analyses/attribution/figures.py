"""Figures of the attribution analysis."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from normscope.analyses.attribution.erasures import COMPREHENSIVENESS, SUFFICIENCY
from normscope.analyses.attribution.options import Erasure
from normscope.analyses.attribution.published import FALLING, METHODS, QUANTITIES
from normscope.results.figures import Dots, Figure, HeatmapPanels, Lines, WordMaps
from normscope.results.maps import TokenMap
from normscope.rounding import counted

_SCOPES = {"scores": "scores of tokens", "map": "rows of the map"}


def describe_figures(
    agreement: pd.DataFrame,
    faithfulness: pd.DataFrame,
    ranking: pd.DataFrame,
    drawn: Sequence[TokenMap],
    quantity: str,
    erasure: Erasure,
) -> dict[str, Figure]:
    """All figures that have data.

    Args:
        agreement: The table `agreement`.
        faithfulness: The table `faithfulness`.
        ranking: The table `ranking`.
        drawn: Maps of a few sequences.
        quantity: What falls; see `QUANTITIES`.
        erasure: How tokens are erased.
    """
    figures: dict[str, Figure] = {}
    if len(agreement):
        figures["agreement"] = _agreement(agreement)
    if len(ranking):
        figures["faithfulness"] = _ranking(ranking, quantity, erasure)
    if len(faithfulness):
        figures["faithfulness_curves"] = _faithfulness(faithfulness, quantity, erasure)
    return figures | {f"maps_{number}": _maps(sequence) for number, sequence in enumerate(drawn, start=1)}


def _titles(table: pd.DataFrame) -> dict[str, str]:
    present = set(table["method"])
    return {method: title for method, title in METHODS.items() if method in present}


def _agreement(agreement: pd.DataFrame) -> HeatmapPanels:
    mirrored = agreement.rename(columns={"method": "other", "other": "method"})
    both = pd.concat([agreement, mirrored], ignore_index=True)
    order = {method: place for place, method in enumerate(METHODS)}
    both = both.sort_values(["scope", "other"], key=lambda values: values.map(order).fillna(0), kind="stable")
    named = both.assign(method=both["method"].map(METHODS), other=both["other"].map(METHODS))
    return HeatmapPanels(
        table=named.assign(spearman=named["spearman"] * 100),
        panel="scope",
        row="method",
        column="other",
        value="spearman",
        panel_titles={scope: title for scope, title in _SCOPES.items() if (agreement["scope"] == scope).any()},
        value_label="Spearman's ρ × 100",
        limits=(0.0, 100.0),
        caption=(
            "How well two methods agree: rank correlation between their scores for a sequence's tokens, and between the rows "
            "of their maps through all layers, averaged over sequences. Negative values have the colour of zero."
        ),
    )


def _ranking(ranking: pd.DataFrame, quantity: str, erasure: Erasure) -> Dots:
    """How much more faithful each method is than random orders, the most faithful first."""
    rows = ranking.dropna(subset="above_random").sort_values("above_random", ascending=False, kind="stable")
    erased = "masked" if erasure is Erasure.mask else "removed"
    above = int((rows["above_random_low"] > 0).sum())
    return Dots(
        table=rows.assign(panel="methods"),
        row="method",
        value="above_random",
        interval=("above_random_low", "above_random_high"),
        panel="panel",
        panel_titles={"methods": "comprehensiveness minus that of random orders"},
        row_titles=METHODS,
        value_label=f"AOPC: drop in {FALLING.get(quantity, quantity)}, minus random",
        caption=(
            f"How much further {QUANTITIES[quantity]} falls when the highest-scoring tokens are {erased} than when random "
            f"tokens are (AOPC), with 95% intervals over sequences. {_of_all(above, len(rows))} "
            "detectably better than random."
        ),
    )


def _of_all(some: int, methods: int) -> str:
    """How many of the methods are better than random: `All 6 methods are`, `2 of the 6 methods are`."""
    if methods == 1:
        return "The method is" if some else "The method is not"
    if some == methods:
        return f"All {methods} methods are"
    return f"{some or 'None'} of the {methods} methods {'is' if some < 2 else 'are'}"


def _faithfulness(faithfulness: pd.DataFrame, quantity: str, erasure: Erasure) -> Lines:
    erased = "masked" if erasure is Erasure.mask else "removed"
    return Lines(
        table=faithfulness,
        x="share",
        x_label="share of the ordinary tokens (%)",
        y="mean",
        series="method",
        series_titles=_titles(faithfulness),
        panel="measure",
        panel_titles={
            COMPREHENSIVENESS: "without the highest scores (comprehensiveness)",
            SUFFICIENCY: "with these alone (sufficiency)",
        },
        y_label=f"drop in {FALLING.get(quantity, quantity)}",
        sharey=True,
        band=("low", "high"),
        caption=(
            f"How far {QUANTITIES[quantity]} falls when the ordinary tokens with the highest scores are {erased} (higher is "
            "more faithful), and when all others are (lower is more faithful). Means and 95% intervals over "
            f"{counted(faithfulness['count'].max(), 'sequence')}."
        ),
    )


def _maps(sequence: TokenMap) -> WordMaps:
    # Methods differ in their units, so each map is shown as shares of its rows.
    shares = {
        method: values / np.maximum(values.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
        for method, values in sequence.maps.items()
    }
    caption = (
        "How much of each token's output (row) comes from each token (column) through all layers; rows add up to 1."
    )
    return dataclasses.replace(sequence, maps=shares).figure(METHODS, caption)
