"""The figures of the sinks analysis, described from its tables."""

from collections.abc import Mapping

import pandas as pd

from normscope.analyses.categories import category_name
from normscope.analyses.sinks.report import label
from normscope.results.figures import Figure, HeatmapGrid, Lines
from normscope.rounding import enumeration

_INPUTS = {"text": "text", "random": "random tokens", "repeat": "one token repeated"}


def describe_figures(
    tables: Mapping[str, pd.DataFrame], position: str | None, first_token: str | None, epsilon: float
) -> dict[str, Figure]:
    """The map of sink rates, and norms of the residual stream.

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
    return figures


def _in_words(position: str) -> tuple[str, str, str, str]:
    if position == "first":
        return "the first token", "is a sink", "it", "it receives"
    return f"{category_name(position)} tokens", "are sinks", "them", "they receive"
