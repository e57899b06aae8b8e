"""Figures of the feed-forward analysis."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from normscope.analyses.feedforward.maps import STEPS
from normscope.analyses.feedforward.published import FLATTENED, TITLES
from normscope.data.categories import ALL
from normscope.results.figures import Figure, HeatmapPanels, Lines, WordMaps
from normscope.results.maps import TokenMap

STEP_TITLES = {
    "ff": "FF: the network",
    "res": "RES: its residual connection",
    "ln": "LN: its normalisation",
    "ff+res": "FF and RES",
    "ff+res+ln": "FF, RES and LN",
}
"""The steps between the maps, by the paper's names."""


def describe_figures(
    ratios: pd.DataFrame, categories: Sequence[str], change: pd.DataFrame, sentences: Sequence[TokenMap]
) -> dict[str, Figure]:
    """All figures.

    Args:
        ratios: Mixing ratios by layer, method (those of TITLES) and category.
        categories: The categories to show.
        change: The table `change`.
        sentences: Maps of a few sequences.
    """
    percent = ratios.assign(mean=ratios["mean"] * 100)
    shown = percent[(percent["count"] > 0) & percent["category"].isin(categories)].reset_index(drop=True)
    overall = percent[percent["category"] == ALL]
    titles = {method: title for method, title in TITLES.items() if (overall["method"] == method).any()}
    figures: dict[str, Figure] = {
        "strip": HeatmapPanels(
            table=shown,
            panel="method",
            row="layer",
            column="category",
            value="mean",
            panel_titles=titles,
            value_label="mixing ratio (%)",
            limits=(0.0, 100.0),
            caption=(
                "Mean mixing ratio by layer (deepest at the top) and token category, from the attention weights to the end of "
                "the layer. Below 50%, tokens preserve more of themselves than they take from others."
            ),
        ),
        "by_layer": Lines(
            table=overall,
            x="layer",
            y="mean",
            series="method",
            series_titles=titles,
            y_label="mean mixing ratio (%)",
            limits=(0.0, 100.0),
            caption="Mean mixing ratio over all tokens, by layer, from the attention weights to the end of the layer.",
        ),
    }
    return figures | _of_maps(change, sentences)


def _of_maps(change: pd.DataFrame, sentences: Sequence[TokenMap]) -> dict[str, Figure]:
    """What the maps of the sample show: their change by step, and some of them."""
    figures: dict[str, Figure] = {}
    flattened = change[(change["scope"] == FLATTENED) & change["mean"].notna()]
    if len(flattened):
        figures["change"] = Lines(
            table=flattened.assign(low=flattened["mean"] - flattened["std"], high=flattened["mean"] + flattened["std"]),
            x="layer",
            y="mean",
            series="step",
            series_titles={step: STEP_TITLES[step] for step in STEPS if (flattened["step"] == step).any()},
            y_label="change (1 − Spearman's ρ)",
            band=("low", "high"),
            caption=(
                "How much each step changes the order of contributions between tokens: the feed-forward network (FF), its "
                "residual connection (RES) and normalisation (LN). Bands are one standard deviation over sequences."
            ),
        )
    network = flattened[flattened["step"] == "ff"]
    if len(network):
        layer = int(network["layer"].iloc[network["mean"].argmax()])
        for number, sentence in enumerate(sentences, start=1):
            figures[f"maps_{number}"] = _maps(sentence, layer)
    return figures


def _maps(sentence: TokenMap, layer: int) -> WordMaps:
    place = sentence.layers.index(layer)
    titles = {name: TITLES[name] for name, values in sentence.maps.items() if not np.isnan(values[place]).any()}
    first, *_, last = (title.partition(":")[0] for title in titles.values())  # the papers' names
    caption = (
        f"How much each token (row) receives from each token (column) in layer {layer}, where the network changes the maps "
        f"most, from the attention block ({first}) to the end of the layer ({last})."
    )
    return sentence.figure(titles, caption, layer)
