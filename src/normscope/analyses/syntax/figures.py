"""Figures of the syntax analysis."""

import itertools
from collections.abc import Sequence

import pandas as pd

from normscope.analyses.syntax.maps import HEAD_MEASURES
from normscope.results.figures import Dots, Figure, HeatmapPanels

TITLES = {
    "attn_w": "weights",
    "attn_n": "vectors",
    "attnres_n": "+ residual",
    "attnresln_n": "+ norm",
    "layer": "whole layer",
}
"""Titles of the measures, in order."""

SPECIAL = {"no_self": "special tokens allowed", "words": "special tokens excluded"}
"""Panels of the figure of gains, by candidates; a word may choose itself in neither."""

# More columns would not be legible.
_MOST_RELATIONS = 24


def describe_figures(heads: pd.DataFrame, pooled: pd.DataFrame, relations: Sequence[str]) -> dict[str, Figure]:
    """All figures.

    Args:
        heads: The table `heads`.
        pooled: Held-out accuracy of the best head by measure, relation and candidates, with its interval.
        relations: All relations but their union.
    """
    counts = pooled[pooled["measure"] == "attn_w"].groupby("relation")["count"].max()
    shown = [relation for relation in relations if relation in counts.index]
    shown = sorted(shown, key=lambda relation: (-int(counts[relation]), relation))[:_MOST_RELATIONS]
    shown = [*(["all"] if "all" in counts.index else []), *shown]  # missing if all arcs are punctuation's
    return {
        "gain": _gain(pooled, shown),
        "relations": _relations(heads, shown),
    }


def _gain(pooled: pd.DataFrame, relations: Sequence[str]) -> Figure:
    held_out = pooled.set_index(["relation", "candidates", "measure"]).to_dict("index")
    rows = []
    for candidates, relation in itertools.product(SPECIAL, relations):
        weights, vectors = (held_out[relation, candidates, measure] for measure in ("attn_w", "attn_n"))
        ends = (("gain", "accuracy", "accuracy"), ("low", "low", "high"), ("high", "high", "low"))
        rows.append(
            {"candidates": candidates, "relation": f"{relation} ({int(weights['count']):,})"}
            | {name: 100 * (vectors[end] - weights[other]) for name, end, other in ends}
        )
    return Dots(
        table=pd.DataFrame(rows),
        row="relation",
        value="gain",
        panel="candidates",
        panel_titles=SPECIAL,
        value_label="vectors ‖αf(x)‖ − weights α (points)",
        interval=("low", "high"),
        caption=(
            "What norms add to weights, in percentage points: accuracy of the best head by ‖αf(x)‖ minus that of the best "
            "head by α, by relation (number of arcs), on the half of the corpus not used to select the heads. Lines run from "
            "the smallest to the largest gain that the 95% intervals of the two accuracies, over sentences, allow: where a "
            "line does not cross zero, the gain is detectable. If the gain vanishes when special tokens are excluded, norms "
            "merely discount these tokens."
        ),
    )


def _relations(heads: pd.DataFrame, relations: Sequence[str]) -> Figure:
    table = heads[
        (heads["candidates"] == "words")
        & (heads["half"] == "both")
        & (heads["layer"] > 0)
        & heads["relation"].isin(relations)
        & ((heads["head"] > 0) | ~heads["measure"].isin(HEAD_MEASURES))
    ]
    best = table.groupby(["measure", "relation", "layer"], sort=False)["accuracy"].max().mul(100).reset_index()
    order = {relation: place for place, relation in enumerate(relations)}
    best = best.sort_values("relation", key=lambda column: column.map(order), kind="stable").reset_index(drop=True)
    return HeatmapPanels(
        table=best,
        panel="measure",
        row="layer",
        column="relation",
        value="accuracy",
        panel_titles={name: title for name, title in TITLES.items() if (best["measure"] == name).any()},
        value_label="accuracy (%)",
        limits=(0.0, 100.0),
        caption=(
            "Share of the arcs at which the largest entry among the other words is the correct one, by layer (deepest at the "
            "top) and relation (most frequent first). For weights and vectors, that of the best head and direction; for the "
            "other measures, that of the whole block in its better direction."
        ),
    )
