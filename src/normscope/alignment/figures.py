"""The figures of the alignment analysis, described from its tables."""

import pandas as pd

from normscope.alignment.word_maps import Setting
from normscope.maths.mixing import Method
from normscope.results.figures import Figure, HeatmapGrid, HeatmapPanels, Scatter, WordMaps
from normscope.rounding import begun

METHODS = {str(Method.ATTN_W): "α: weights", str(Method.ATTN_N): "‖αf(x)‖: vectors"}
SETTINGS = {str(Setting.AWO): "alignment with output", str(Setting.AWI): "alignment with input"}


def describe_figures(rates: pd.DataFrame, maps: pd.DataFrame) -> dict[str, Figure]:
    """Figures 7, 8 and 13 to 17 of K20, from the tables of error rates and maps."""
    layers = rates[rates["head"] == 0].assign(percent=rates["aer"] * 100)
    heads = rates[rates["head"] > 0].assign(percent=rates["aer"] * 100)
    by_head = heads.pivot(index=["setting", "layer", "head"], columns="method", values="percent").reset_index()
    by_head = pd.concat([by_head[by_head["setting"] == setting] for setting in SETTINGS]).replace({"setting": SETTINGS})
    figures: dict[str, Figure] = {
        "by_layer": HeatmapPanels(
            table=layers.replace({"method": METHODS}),
            panel="setting",
            row="layer",
            column="method",
            value="percent",
            panel_titles=SETTINGS,
            value_label="alignment error rate (%)",
            limits=(0.0, 100.0),
            caption=(
                "Alignment error rate of each layer by weights and by vector norms; lower is better. "
                "With output: the row in which a word is predicted; with input: the row in which it is read."
            ),
        ),
        "by_head": HeatmapGrid(
            table=by_head,
            grid_row="setting",
            values={method: f"AER %, {title}" for method, title in METHODS.items()},
            row="layer",
            column="head",
            limits=(0.0, 100.0),
            caption=(
                "Alignment error rate of each head, by weights and by vector norms; heads with low rates align words."
            ),
        ),
        "norm_and_aer": Scatter(
            table=heads[heads["method"] == Method.ATTN_N],
            x="mean_norm",
            y="percent",
            panel="setting",
            panel_titles=SETTINGS,
            x_label="mean ‖αf(x)‖ of a head",
            y_label="alignment error rate (%)",
            caption=(
                "One point per head: its mean norm and its alignment error rate. If the points fall towards the right, "
                "heads with large norms align well."
            ),
        ),
    }
    if len(maps):
        figures |= {f"map_{row}": _map(row, maps[maps["row"] == row], layers) for row in maps["row"].unique().tolist()}
    return figures


def _map(row: int, maps: pd.DataFrame, layers: pd.DataFrame) -> WordMaps:
    """The maps of one sentence pair, each method in its best layer and setting."""
    titles, panels = {}, []
    for method, title in METHODS.items():
        rates = layers[layers["method"] == method]
        best = rates.iloc[rates["aer"].argmin()]
        in_best = (
            (maps["method"] == method)
            & (maps["setting"] == best["setting"])
            & (maps["layer"] == best["layer"])
            & (maps["head"] == 0)
        )
        panels.append(maps[in_best])
        titles[method] = f"{title}, layer {best['layer']}, {SETTINGS[str(best['setting'])]}"
    table = pd.concat(panels)
    frames = [
        words
        for kind, words in (
            ("sure", "Frames mark the reference's links"),
            ("possible", "dashed frames mark links that are only possible"),
        )
        if (table["gold"] == kind).any()
    ]
    marked = "; ".join(frames)
    return WordMaps(
        table=table,
        panel="method",
        panel_titles=titles,
        row="target",
        row_label="target_word",
        column="source",
        column_label="source_word",
        value="value",
        frame="gold",
        caption=(
            f"Row {row} of the corpus: what each target word receives from each source word, by each method in its best "
            f"layer.{f' {begun(marked)}.' if marked else ''}"
        ),
    )
