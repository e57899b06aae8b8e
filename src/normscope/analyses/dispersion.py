"""How much vector norms vary over tokens, and the maps that lengthen vectors (K20, Tables 1 and 4, appendix A)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from normscope.analyses.base import AnalysisContext
from normscope.maths.norms import singular_values
from normscope.results.figures import Figure, Heatmaps, Lines
from normscope.results.findings import Sentence, Summary
from normscope.rounding import brief, compared
from normscope.statistics.grouped import GroupedMoments
from normscope.statistics.tidy import tidy

FIGURES = ("dispersion", "singular_values")
"""Names of the figures."""


def dispersion_table(moments: GroupedMoments, context: AnalysisContext) -> pd.DataFrame:
    """Mean, deviation, coefficient of variation, maximum and minimum over the tokens of the last group, by layer and head."""
    summary = moments.compute()
    columns = {"mean": summary.mean, "std": summary.deviation, "cv": summary.deviation / summary.mean}
    columns |= {"max": summary.maximum, "min": summary.minimum}
    return tidy(
        {name: values[..., -1] for name, values in columns.items()},
        layer=context.layers,
        head=range(1, summary.mean.shape[1] + 1),
    )


def singular_values_table(context: AnalysisContext) -> pd.DataFrame:
    """The singular values of every head's map; no rows if values are no affine function of what attention reads."""
    tables = [pd.DataFrame(columns=["layer", "head", "index", "value"]).astype({"value": float})]
    for layer in context.layers:
        weights = context.parameters[layer]
        if weights.value is None:
            return tables[0]
        values = singular_values(weights.value_weight, weights.value_bias, weights.output_weight)
        heads, places = (range(1, size + 1) for size in values.shape)
        tables.append(tidy({"value": values[None]}, layer=[layer], head=heads, index=places))
    return pd.concat(tables[1:], ignore_index=True)


def drawn_heads(table: pd.DataFrame, number: int, seed: int) -> pd.DataFrame:
    """The rows of some heads: one of every layer, in random order, then another of every layer, until there are enough."""
    heads = table[["layer", "head"]].drop_duplicates()
    shuffled = heads.sample(frac=1, random_state=np.random.default_rng(seed))
    turns = shuffled.assign(turn=shuffled.groupby("layer").cumcount()).sort_values("turn", kind="stable")
    return table.merge(turns[["layer", "head"]].head(number).sort_values(["layer", "head"]), on=["layer", "head"])


def figures(dispersion: pd.DataFrame, drawn: pd.DataFrame, metrics: Mapping[str, float]) -> dict[str, Figure]:
    """The coefficient of variation by head, and figure 9 of the paper.

    Args:
        drawn: The singular values of some heads.
        metrics: Numbers by name, of all heads.
    """
    mean = metrics.get("x/cv_mean")
    inputs = "" if mean is None else f" For the vectors x that layers read, this ratio is {brief(mean)} on average."
    times = _times(metrics)
    found: dict[str, Figure] = {
        "dispersion": Heatmaps(
            table=dispersion,
            values={"cv": "coefficient of variation of ‖f(x)‖"},
            row="layer",
            column="head",
            caption=(
                "By how much the norm of a head's vectors ‖f(x)‖ varies over all tokens, relative to its mean. Where it varies "
                f"little, weights say how much tokens contribute.{inputs}"
            ),
        )
    }
    if len(drawn):
        labels = [f"layer {layer}, head {head}" for layer, head in zip(drawn["layer"], drawn["head"], strict=True)]
        found["singular_values"] = Lines(
            table=drawn.assign(line=labels),
            x="index",
            y="value",
            series="line",
            series_titles={label: label for label in labels},
            x_label="place of the singular value",
            y_label="singular value",
            caption=(
                "Singular values of the map from x to f(x) in some heads, the largest first: by how much a head lengthens the "
                "directions of x. The heads are drawn at random from each layer. Where a line falls, norms vary with direction."
                + (f" Over all heads, the largest singular value is {times} times the smallest." if times else "")
            ),
        )
    return found


def summary(dispersion: pd.DataFrame, inputs: pd.DataFrame) -> Summary:
    """Tables 1 and 4 of the paper."""
    columns = {"mean": "μ", "std": "σ", "cv": "CV", "max": "max", "min": "min"}
    rows = [
        row
        for norm, table, axes in (("‖f(x)‖", dispersion, ["layer", "head"]), ("‖x‖", inputs, ["layer"]))
        for row in _rows(norm, table, axes)
    ]
    return Summary(
        pd.DataFrame(rows).set_index("row").rename_axis(None).reindex(columns=list(columns)).rename(columns=columns),
        caption="how much norms vary over all tokens: mean μ, standard deviation σ, coefficient of variation CV = σ/μ, largest "
        "and smallest value, where CV is largest and smallest, and on average",
    )


def _rows(norm: str, table: pd.DataFrame, axes: Sequence[str]) -> list[dict[str, object]]:
    """The rows with the largest and the smallest coefficient of variation, and the mean of all."""
    rows: list[dict[str, object]] = []
    ordered = table.dropna(subset="cv").sort_values("cv", kind="stable")
    for name, rows_of in (("max CV", ordered[ordered["cv"] == ordered["cv"].max()]), ("min CV", ordered)):
        for found in rows_of.head(1).to_dict("records"):
            where = ", ".join(f"{axis} {found[axis]}" for axis in axes)
            rows.append({"row": f"{norm}, {name}: {where}", **{str(column): found[column] for column in found}})
    return [*rows, {"row": f"{norm}, average", **table[["mean", "std", "cv"]].mean()}]


def sentences(metrics: Mapping[str, float]) -> list[Sentence]:
    """Where norms vary most and least over tokens, and how unequally heads lengthen directions."""
    return [*_variation(metrics), *_ratios(metrics)]


def _variation(metrics: Mapping[str, float]) -> list[Sentence]:
    names = ("f/cv_max", "f/cv_min", "f/cv_mean", "x/cv_mean")
    if not set(names) <= set(metrics):
        return []
    most, least, mean, inputs = compared(brief, *(metrics[name] for name in names))
    places = [
        f"head {metrics[f'{name}/head']:.0f} of layer {metrics[f'{name}/layer']:.0f}"
        for name in ("f/cv_max", "f/cv_min")
    ]
    where = f"{most} in {places[0]}"
    if places[0] != places[1]:
        where = f"{mean} on average, {most} in {places[0]} and {least} in {places[1]}"
    text = f"Over tokens, ‖f(x)‖ has a coefficient of variation of {where}; that of ‖x‖ is {inputs} on average."
    return [Sentence(text, figure="dispersion", table="dispersion")]


def _times(metrics: Mapping[str, float]) -> str:
    """How many times as large as its smallest singular value a head's largest is; empty if that is not known."""
    low, high = (metrics.get(f"singular_values/ratio_{how}") for how in ("min", "max"))
    if low is None or high is None:
        return ""
    smallest, largest = compared(brief, low, high)
    return largest if smallest == largest else f"{smallest} to {largest}"


def _ratios(metrics: Mapping[str, float]) -> list[Sentence]:
    times = _times(metrics)
    if not times:
        return []
    text = f"The largest singular value of a head's map from x to f(x) is {times} times its smallest."
    return [Sentence(text, figure="singular_values", table="singular_values")]
