"""The outliers analysis by brute force."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from normscope.analyses.declarations.outliers import OutlierCriterion, OutliersOptions
from normscope.analyses.hidden_moments import Origin
from normscope.results.result import Result
from tests.oracles.comparison import Expected, Picture, assert_expected, said, table
from tests.oracles.specimens import Specimen, made, reported


def expected(specimen: Specimen, categories: Sequence[str], options: OutliersOptions) -> Expected:
    """Everything that the outliers analysis returns."""
    hidden, of_token = _hidden(specimen)
    scores, is_outlier, outliers = find(specimen, options)
    layers, dimensions = range(len(hidden)), range(hidden.shape[-1])
    every = table(
        ["layer", "dimension"],
        [
            {
                "layer": layer,
                "dimension": j,
                "mean": hidden[layer, :, j].mean(),
                "std": hidden[layer, :, j].std(),
                "score": scores[layer, j],
                "is_outlier": is_outlier[layer, j],
            }
            for layer in layers
            for j in dimensions
        ],
    )
    by_category = table(
        ["layer", "dimension", "category"],
        [
            {
                "layer": layer,
                "dimension": j,
                "category": category,
                "mean": values.mean(),
                "std": values.std(),
                "count": len(values),
            }
            for layer in layers
            for j in outliers
            for category in categories
            if len(values := hidden[layer, (of_token == category) | (category == "all"), j])
        ],
        ["mean", "std", "count"],
    )
    share = is_outlier.mean(axis=0)
    model = table(
        ["dimension"],
        [
            {
                "dimension": j,
                "layers": spans([layer for layer in layers if is_outlier[layer, j]]),
                "share_of_layers": share[j],
                "largest_score": np.abs(scores[:, j]).max(),
            }
            for j in outliers
        ],
        ["layers", "share_of_layers", "largest_score"],
    )
    metrics = {"count": len(outliers)} | {f"{j}/share_of_layers": share[j] for j in outliers}
    means = [hidden[layer].mean(axis=0) for layer in layers]
    lengths = [sum(mean[j] ** 2 for j in outliers) / np.linalg.norm(mean) ** 2 for mean in means]
    metrics |= {"share_of_dimensions": len(outliers) / len(means[0]), "share_of_length": np.mean(lengths)}
    return Expected(
        tables={"dimensions": every, "by_category": by_category, "model": model},
        metrics=metrics,
        curves={f"mean/{j}": {layer: hidden[layer, :, j].mean() for layer in layers} for j in outliers},
        figures=_figures(every, by_category, outliers),
        summary=_summary(model),
        sentences=said("outliers", metrics, layers=model["layers"].to_dict(), origin=origin(options)),
        notes=[f"outlier dimensions: {criterion(specimen, options)}"],
    )


def find(specimen: Specimen, options: OutliersOptions) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """How far each dimension lies from the others in each layer, whether that is too far, and the model's outliers."""
    means = _hidden(specimen)[0].mean(axis=1)
    if options.criterion == "sigma":
        scores = scipy.stats.zscore(means, axis=1)
    else:
        middle = np.median(means, axis=1, keepdims=True)
        scores = (means - middle) / scipy.stats.median_abs_deviation(means, axis=1, scale="normal")[:, None]
    is_outlier = np.abs(scores) > options.threshold
    if origin(options) is not Origin.detected:
        return scores, is_outlier, sorted(set(options.dimensions or options.known))
    share = is_outlier.mean(axis=0)
    return scores, is_outlier, [j for j, part in enumerate(share) if part >= options.share and part > 0]


def origin(options: OutliersOptions) -> Origin:
    """Where the outlier dimensions come from: what is set by hand comes first, and what is known holds for WEIGHTS alone."""
    if options.dimensions is not None:
        return Origin.given
    return Origin.known if WEIGHTS in (options.known_for or []) else Origin.detected


def spans(layers: Sequence[int]) -> str:
    """Layers as people write them: `0–2`, or `0, 2` with fewer than three in a row."""
    text = ", ".join(map(str, layers))
    for first in range(4):
        for last in range(3, first + 1, -1):
            text = text.replace(", ".join(map(str, range(first, last + 1))), f"{first}–{last}")
    return text


def criterion(specimen: Specimen, options: OutliersOptions) -> str:
    """What makes a dimension an outlier, in words."""
    if options.dimensions is not None:
        return "those of analysis.outliers.dimensions"
    if origin(options) is Origin.known:
        return "2 and 7, which are known for these weights (analysis.outliers.known)"
    unit = {
        "sigma": "standard deviations from the mean",
        "mad": "median absolute deviations (× 1.4826) from the median",
    }[options.criterion.value]
    layers = specimen.loaded.layers + 1
    return (
        f"mean more than {options.threshold:g} {unit} of the layer's dimensions, in at least "
        f"{int(np.ceil(options.share * layers))} of the {layers} layers"
    )


def _hidden(specimen: Specimen) -> tuple[np.ndarray, np.ndarray]:
    """Hidden vectors of all tokens (layer, token, dimension), and the tokens' categories."""
    hidden = np.concatenate([sequence.hidden for sequence in specimen.sequences], axis=1)
    return hidden, np.concatenate([specimen.categories(sequence) for sequence in specimen.sequences])


def _summary(model: pd.DataFrame) -> pd.DataFrame:
    """The ten that are farthest from the others."""
    shown = model.sort_values("largest_score")[-10:][["layers", "largest_score"]]
    return shown.set_axis(["layers", "largest distance"], axis="columns")


def _figures(every: pd.DataFrame, by_category: pd.DataFrame, outliers: Sequence[int]) -> dict[str, Picture]:
    figures = {
        "dimensions": Picture(
            {(layer, None, j): mean for (layer, j), mean in every["mean"].items()}, {"labelled": list(outliers)}
        )
    }
    if len(by_category):
        shown = set(by_category.index.get_level_values("category"))
        parts = shown - {"all"} or shown
        figures["by_category"] = Picture(
            {
                (f"dimension {j}", category, layer): (row["mean"], row["mean"] - row["std"], row["mean"] + row["std"])
                for (layer, j, category), row in by_category.iterrows()
                if category in parts
            }
        )
    return figures


INSIDE = {"low", "high"}
"""Names within the analysis that it does not return."""


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    bert, options = made("bert"), OUTLIERS["given"]
    return bert.findings("outliers", options, [1, 2], reported(bert), options=[options])


WEIGHTS = "a" * 64
"""Digest of the specimens' weights."""

OUTLIERS = {
    "sigma": OutliersOptions(threshold=1.5),
    "mad": OutliersOptions(criterion=OutlierCriterion.mad, threshold=2.5, share=0.3),
    "given": OutliersOptions(dimensions=[7, 2, 7]),
    "none": OutliersOptions(threshold=100.0),
    "known": OutliersOptions(threshold=1.5, known=[7, 2], known_for=["b" * 64, WEIGHTS]),
    "known for other weights": OutliersOptions(threshold=1.5, known=[7, 2], known_for=["b" * 64]),
    "known and given": OutliersOptions(dimensions=[3], known=[7, 2], known_for=[WEIGHTS]),
}


@pytest.mark.parametrize("categories", [None, ["punctuation", "other"], ["all"]])
@pytest.mark.parametrize("options", OUTLIERS)
@pytest.mark.spread(4)
def test_outliers(any_specimen, options, categories):
    chosen = OUTLIERS[options]
    categories = reported(any_specimen, categories)
    more = {"options": [chosen], "files_sha256": WEIGHTS}
    findings = any_specimen.findings("outliers", chosen, [2], categories, **more)
    assert_expected(findings, expected(any_specimen, categories, chosen))


CASES = [
    (
        {"count": 0.0},
        ["The model has no outlier dimensions: no hidden dimension is an outlier in enough layers."],
    ),
    ({"count": 0.0}, {"origin": Origin.given}, ["The model has no outlier dimensions: no dimension is set."]),
    (
        {"count": 1.0},
        {"layers": {7: ""}, "origin": Origin.given},
        ["1 outlier dimension is set by hand: 7 (an outlier in no layer)."],
    ),
    (
        {"count": 2.0},
        {"layers": {7: "0, 2", 31: "0–12"}, "origin": Origin.given},
        ["2 outlier dimensions are set by hand: 7 (an outlier in layers 0, 2) and 31 (in layers 0–12)."],
    ),
    (
        {"count": 3.0},
        {"layers": {180: "10–12", 308: "0–12", 381: ""}, "origin": Origin.known},
        [
            "3 outlier dimensions are known for these weights: 180 (an outlier in layers 10–12), 308 (in layers 0–12) and 381 "
            "(in no layer)."
        ],
    ),
    ({"count": 1.0}, {"layers": {7: "12"}}, ["The model has 1 outlier dimension: 7 (in layer 12)."]),
    *(
        (
            {"count": 1.0, "share_of_dimensions": 0.0026, "share_of_length": share},
            {"layers": {7: "12"}},
            [
                "The model has 1 outlier dimension: 7 (in layer 12). The one outlier dimension makes up 0.3% of the "
                f"dimensions and {written} of the squared length of the mean hidden vector, on average over layers."
            ],
        )
        for share, written in ((0.621, "62%"), (0.0026, "0.3%"))
    ),
    (
        {"count": 2.0},
        {"layers": {7: "3", 31: "0–12"}},
        ["The model has 2 outlier dimensions: 7 (in layer 3) and 31 (in layers 0–12)."],
    ),
]

EFFECTS = [
    ({"count": 0.0}, {}, 0.0),
    (
        {"count": 1.0, "share_of_dimensions": 0.01, "share_of_length": 0.62},
        {"layers": {7: "12"}},
        0.61,
    ),
]
