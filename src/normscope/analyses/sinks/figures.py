"""The figures of the sinks analysis, described from its tables."""

from collections.abc import Mapping

import pandas as pd

from normscope.analyses.categories import category_name
from normscope.analyses.findings import Figure, HeatmapGrid, Lines
from normscope.analyses.sinks.drains import MEASURES, OTHER, SINK
from normscope.analyses.sinks.report import label
from normscope.rounding import enumeration

_INPUTS = {"text": "text", "random": "random tokens", "repeat": "one token repeated"}

_DRAIN_TITLES = {
    "alpha_f": "‖αf(x)‖: contribution",
    "alpha": "α: weight",
    "f_norm": "‖f(x)‖: vector",
    "v_norm": "‖v‖: value vector",
}
"""Panels in order: what sinks contribute comes first."""


def describe_figures(
    tables: Mapping[str, pd.DataFrame], position: str | None, first_token: str | None, epsilon: float
) -> dict[str, Figure]:
    """The map of sink rates, norms of the residual stream, and the vectors of sinks beside others.

    Args:
        position: The position whose sink rates are drawn; None if none was measured.
        first_token: The tokenizer's token that begins a sequence; None if it has none.
        epsilon: The mean weight that a sink exceeds.
    """
    figures: dict[str, Figure] = {}
    if position is not None:
        rows = tables["by_head"][tables["by_head"]["position"] == position]
        labels = [label(inputs, bos, first_token) for inputs, bos in zip(rows["inputs"], rows["bos"], strict=True)]
        of, is_a, seen, receive = _in_words(position)
        inputs = enumeration([words for name, words in _INPUTS.items() if (rows["inputs"] == name).any()])
        figures["rate"] = HeatmapGrid(
            table=rows.assign(variant=labels).reset_index(drop=True),
            grid_row="variant",
            values={"sink_rate": "sink rate", "received": "weight received, αₖ"},
            row="layer",
            column="head",
            limits=(0.0, 1.0),  # of a rate as of a weight
            caption=(
                f"How often {of} {is_a} of each head (a mean weight αₖ of more than ε = {epsilon:g} over the queries that see "
                f"{seen}), and how much weight {receive} from a query on average: on {inputs}."
            ),
        )
    norms = tables["norms"]
    figures["norms"] = Lines(
        table=norms,
        x="layer",
        y="norm",
        series="position",
        series_titles={place: f"token {place}" for place in dict.fromkeys(norms["position"])},
        y_label="mean ‖x‖",
        log_y=True,
        caption=(
            "Norm ‖x‖ of the hidden vectors by layer (0: the embeddings) and position, on a logarithmic scale. Massive "
            "activations appear as positions far above the others."
        ),
    )
    if len(tables["drains"]):
        figures["drains"] = _drains(tables["drains"])
    return figures


def _drains(table: pd.DataFrame) -> Lines:
    means = table.groupby(["layer", "key"], sort=False)[list(MEASURES)].mean().reset_index()
    return Lines(
        table=means.melt(["layer", "key"], var_name="measure", value_name="norm"),
        x="layer",
        y="norm",
        series="key",
        series_titles={SINK: "sink", OTHER: "other keys"},
        panel="measure",
        panel_titles=_DRAIN_TITLES,
        y_label="mean over heads",
        log_y=True,
        caption=(
            f"{_contribution(means)} A head's sink is the key that receives the most weight. The other panels compare its "
            "weight and vectors with those of the other keys, on logarithmic scales."
        ),
    )


def _contribution(means: pd.DataFrame) -> str:
    """In how many layers sinks contribute more than the average other key."""
    by_key = means.pivot_table(index="layer", columns="key", values="alpha_f").dropna()
    if SINK not in by_key or OTHER not in by_key:
        return "What sinks contribute, ‖αf(x)‖."
    layers, more = len(by_key), int((by_key[SINK] > by_key[OTHER]).sum())
    if not more:
        return "In every layer, a sink contributes no more than the average other key (‖αf(x)‖)."
    where = "every layer" if more == layers else f"{more} of {layers} layers"
    return f"In {where}, a sink contributes more than the average other key (‖αf(x)‖)."


def _in_words(position: str) -> tuple[str, str, str, str]:
    if position == "first":
        return "the first token", "is a sink", "it", "it receives"
    return f"{category_name(position)} tokens", "are sinks", "them", "they receive"
