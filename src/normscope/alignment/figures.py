"""The figures of Kobayashi et al. 2020, section 5: error rates by layer, heads' norms, and the maps of sentence pairs."""

import pandas as pd

from normscope.analyses.declarations.alignment import Setting
from normscope.results.figures import Figure, Heatmaps, Scatter, WordMaps
from normscope.rounding import enumeration, percentage

_METHODS = {"attn_w": "α: weights", "attn_n": "‖αf(x)‖: vectors"}
_SETTINGS = {str(Setting.awo): "alignment with output", str(Setting.awi): "alignment with input"}
_REFERENCE = "reference"
_STRENGTHS = {"sure": 1.0, "possible": 0.5, "none": 0.0}
"""How dark the reference's links are."""


def describe_figures(rates: pd.DataFrame, maps: pd.DataFrame | None, setting: Setting | None) -> dict[str, Figure]:
    """Figures 7, 8 and 13 to 17 of Kobayashi et al. 2020, and every head's error rate beside its norm.

    Args:
        rates: The rows of the table `aer` of the model.
        maps: The table `maps`; None without one.
        setting: That of the maps; None for the one in which vectors align best.
    """
    layers = rates[rates["head"] == 0].assign(percent=rates["aer"] * 100)
    heads = rates[rates["head"] > 0].assign(percent=rates["aer"] * 100)
    figures: dict[str, Figure] = {
        "by_layer": Heatmaps(
            table=layers.replace({"method": _METHODS}),
            panel="setting",
            row="layer",
            column="method",
            values={"percent": ""},
            panel_titles=_SETTINGS,
            value_label="alignment error rate (%)",
            limits=(0.0, 100.0),
            numbered=True,
            caption=(
                "Alignment error rate of each layer by weights and by vector norms; lower is better. "
                "With output: the row in which a word is predicted; with input: the row in which it is read. Where vectors "
                "have a lower rate than weights, what heads contribute aligns words better than where they attend. Averaged "
                f"over layers: {enumeration(_means(layers))}."
            ),
        ),
        "norm_and_aer": Scatter(
            table=heads[heads["method"] == "attn_n"],
            x="mean_norm",
            y="percent",
            panel="setting",
            panel_titles=_SETTINGS,
            x_label="mean ‖αf(x)‖ of a head",
            y_label="alignment error rate (%)",
            caption=(
                "One point per head: its mean norm and its alignment error rate. If the points fall towards the right, "
                "heads with large norms align well."
            ),
        ),
    }
    if maps is None:
        return figures
    by_vectors = layers[layers["method"] == "attn_n"]
    if setting is not None:
        by_vectors = by_vectors[by_vectors["setting"] == setting]
    best = by_vectors.iloc[by_vectors["aer"].argmin()]
    drawn = maps[(maps["head"] == 0) & (maps["setting"] == best["setting"])]
    drawn = drawn.assign(frame=drawn["link"].map({True: "sure", False: "none"}))
    how = f"by weights and by vectors, {_SETTINGS[best['setting']]}"
    for row, pair in drawn.groupby("row"):
        of_best = pair[pair["layer"] == best["layer"]]
        figures[f"map_{row}"] = _best_layer(of_best, f"Row {row} of the corpus, {how}, layer {best['layer']}")
        figures[f"map_layers_{row}"] = _all_layers(pair, f"Row {row} of the corpus, {how}, in every layer")
    return figures


def _means(layers: pd.DataFrame) -> list[str]:
    """The error rates of all layers together, in words."""
    by_map = layers.groupby(["setting", "method"], sort=False)["aer"].mean().reset_index()
    return [
        f"{percentage(rate)} by {_METHODS[method].partition(': ')[2]}, {_SETTINGS[setting]}"
        for setting, method, rate in by_map.itertuples(index=False)
    ]


def _best_layer(maps: pd.DataFrame, what: str) -> WordMaps:
    """The maps of one sentence pair by both methods in one layer, beside the reference's links."""
    gold = maps[maps["method"] == "attn_n"]
    gold = gold.assign(method=_REFERENCE, value=gold["gold"].map(_STRENGTHS), frame=gold["gold"])
    dashed = "; dashed: only possible" if (gold["gold"] == "possible").any() else ""
    return _maps(
        pd.concat([gold, maps]).assign(panel=lambda table: table["method"]),
        {_REFERENCE: f"reference{dashed}", **_METHODS},
        f"{what}, the layer in which vectors have the lowest error rate: what each target word receives from each source word. "
        "Frames mark the links that each map yields, beside those of the reference.",
    )


def _all_layers(maps: pd.DataFrame, what: str) -> WordMaps:
    """The maps of one sentence pair by both methods in every layer."""
    titles = {
        f"{layer} {method}": f"layer {layer}, {title}"
        for layer in maps["layer"].unique()
        for method, title in _METHODS.items()
    }
    return _maps(
        maps.assign(panel=maps["layer"].astype(str) + " " + maps["method"]),
        titles,
        f"{what}: what each target word receives from each source word. Frames mark the links that each map yields.",
    )


def _maps(table: pd.DataFrame, titles: dict[str, str], caption: str) -> WordMaps:
    return WordMaps(
        table=table,
        panel="panel",
        panel_titles=titles,
        row="target",
        row_label="target_word",
        column="source",
        column_label="source_word",
        value="value",
        frame="frame",
        caption=caption,
    )
