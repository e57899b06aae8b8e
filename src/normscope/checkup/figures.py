"""The figures of a checkup, by the names of their tables."""

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd

from normscope.checkup.findings import FORMATS
from normscope.results.figures import Dots, Figure, Heatmaps, Lines


def figures_of(tables: Mapping[str, pd.DataFrame]) -> dict[str, Figure]:
    """The figure of each table."""
    figures: dict[str, Figure] = {
        "rounding": _rounding(tables["rounding"]),
        "rounding_by_layer": _by_layer(tables["rounding_by_layer"]),
        "linear_inputs": _inputs(tables["linear_inputs"]),
        "heads": Heatmaps(
            table=tables["heads"],
            values={"share": "share of the variance", "correlation": "correlation with its twin"},
            row="layer",
            column="head",
            limits=(0.0, 1.0),
            value_label="share, correlation",
            caption=(
                "Left: the share of each head in the variance over tokens of what the heads of its layer add. A head without "
                "a share adds the same vector to every token. Right: how what a head adds correlates with what the most "
                "similar head of the same layer adds. Near 1, a head does what another one does."
            ),
        ),
    }
    if "against" in tables:
        figures["against"] = _against(tables["against"])
    return figures


def part_of(module: str) -> str:
    """The name of a module without the number of its layer: `mlp.down_proj`."""
    return re.split(r"\.\d+\.", module)[-1]


def _inputs(table: pd.DataFrame) -> Figure:
    rows = table.dropna(subset=["layer"])
    rows = rows.assign(
        part=rows["module"].map(part_of),
        layer=rows["layer"].astype(int),
        ratio=np.log10(rows["ratio"].replace([np.inf, 0.0], np.nan)),
    )
    rows = rows.groupby(["part", "layer"], sort=False)["ratio"].max().reset_index()
    return Heatmaps(
        table=rows.rename(columns={"part": "linear layer"}),
        values={"ratio": "largest ÷ median"},
        row="linear layer",
        column="layer",
        value_label="log₁₀ of the largest |x| ÷ the median |x|",
        caption=(
            "How far the largest input of each linear layer is from the median: 3 stands for 1,000 times. Where that is far, "
            "one scale for all inputs leaves hardly any of its 255 steps to most of them. Layers count from 1; names of "
            "modules count as the model's code does, mostly from 0."
        ),
    )


_ROWS = {
    "bfloat16": FORMATS["bfloat16"],
    "int8_per_token": FORMATS["int8_per_token"],
    "int8_per_tensor": FORMATS["int8_per_tensor"],
    "without_skipped": "int8, all but the skip list",
}
"""Titles of what is rounded, from top to bottom; random lists come last."""


def _rounding(table: pd.DataFrame) -> Figure:
    random = [name for name in table["rounded"] if name not in _ROWS]
    titles = _ROWS | {name: f"int8, all but random list {name.rpartition('_')[2]}" for name in random}
    rows = table.set_index("rounded").loc[[name for name in titles if name in {*table["rounded"]}]].reset_index()
    columns = ["loss_change", "loss_low", "loss_high"]
    what = "change of the loss (nats per token)"
    if table["loss"].isna().all():
        columns = ["change", "change_low", "change_high"]
        what = "‖x̂ − x‖ ÷ ‖x‖ of the last hidden vectors"
    return Dots(
        table=rows[["rounded", *columns]].assign(all=what),
        row="rounded",
        row_titles=titles,
        value=columns[0],
        panel="all",
        panel_titles={what: ""},
        value_label=what,
        interval=(columns[1], columns[2]),
        caption=(
            "What it costs to round the weights and inputs of all linear layers, on other texts than those on which the skip "
            "list was chosen: mean over texts with its 95% interval. Lists are left out of int8 with one scale per tensor."
        ),
    )


def _by_layer(table: pd.DataFrame) -> Figure:
    return Lines(
        table=table,
        x="layer",
        y="change",
        series="format",
        series_titles=FORMATS,
        band=("change_low", "change_high"),
        y_label="‖x̂ − x‖ ÷ ‖x‖ after the last layer",
        log_y=True,
        caption=(
            "How much the last hidden vectors change when the linear layers of one layer are rounded, on a logarithmic scale: "
            "mean over texts with its 95% interval."
        ),
    )


def _against(table: pd.DataFrame) -> Figure:
    rows = table.melt("layer", ["weights", "vectors"], var_name="of", value_name="change")
    titles = {"weights": "weights", "vectors": "hidden vectors"}
    return Lines(
        table=rows,
        x="layer",
        y="change",
        series="of",
        series_titles=titles,
        y_label="relative difference",
        caption="‖W − W₀‖ ÷ ‖W₀‖ of each layer's weights, and ‖x − x₀‖ ÷ ‖x₀‖ of what leaves it, a mean over tokens and texts.",
    )
