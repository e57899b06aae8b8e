"""The score analysis by brute force."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.declarations.outliers import OutliersOptions
from normscope.analyses.declarations.score import ScoreOptions
from normscope.analyses.score import favoured
from normscope.results.result import Result
from normscope.statistics.intervals import Interval
from tests.oracles import outliers_oracle
from tests.oracles.activations import Block, Sequence_, softmax
from tests.oracles.comparison import Expected, Picture, assert_expected, interval, said, table
from tests.oracles.specimens import CHOICES, Specimen, made, reported

CHANGES = ["before", "after", "change", "controls_mean", "controls_low", "controls_high"]
TITLES = {"before": "unchanged", "after": "without the outliers"}


def expected(
    specimen: Specimen,
    layers: Sequence[int],
    categories: Sequence[str],
    options: ScoreOptions,
    outliers_options: OutliersOptions,
) -> Expected:
    """Everything that the score analysis returns."""
    scores, _, outliers = outliers_oracle.find(specimen, outliers_options)
    means, concentration = _pairs(specimen, layers, categories), _concentration(specimen, layers, outliers)
    tables = {"weights": _weights(specimen, layers, categories), "contributions": means, "concentration": concentration}
    if outliers:
        tables["by_category"] = _by_category(specimen, layers, categories, outliers)
    criterion = outliers_oracle.criterion(specimen, outliers_options)
    notes = [f"outlier dimensions: {criterion}" if outliers else f"no outlier dimensions: {criterion}"]
    if len(outliers) > 8 and options.interventions:
        notes.append(f"only the 8 most prominent of the {len(outliers)} outlier dimensions are removed individually")
    prominent = sorted(outliers, key=lambda j: -np.abs(scores[:, j]).max())[:8]
    reported = [category for category in categories if category != "all"]
    if outliers and options.interventions:
        drawn = _drawn(specimen, outliers, options.controls, options.seed, alone=True)
        tables["intervention"] = _intervention(specimen, layers, reported, outliers, prominent, drawn)
    metrics = _metrics(tables)
    return Expected(
        tables=tables,
        metrics=metrics,
        curves=_curves(concentration),
        figures=_figures(tables, outliers),
        summary=_summary(tables, reported),
        sentences=said(
            "score",
            metrics,
            outliers if len(outliers) <= 8 else (),
            _favoured(tables["by_category"]) if 0 < len(outliers) <= 8 else None,
            _changed(specimen, layers, reported, outliers) if outliers and options.interventions else {},
        ),
        notes=notes,
    )


def _pairs(specimen: Specimen, layers: Sequence[int], categories: Sequence[str]) -> pd.DataFrame:
    """Means over the pairs that are visible, by category of the key."""
    means = []
    for layer, category in itertools.product(layers, categories):
        contributions = []
        for sequence in specimen.sequences:
            block = sequence.blocks[layer - 1]
            keys = (specimen.categories(sequence) == category) | (category == "all")
            contributions.append(block.contributions[:, block.visible & keys])
        parts = np.concatenate(contributions, axis=1)
        if not parts.shape[1]:
            continue
        for head, j in np.ndindex(parts.shape[0], parts.shape[2]):
            place = {"layer": layer, "head": head + 1, "category": category, "dimension": j}
            means.append(place | {"mean": parts[head, :, j].mean()})
    return table(["layer", "head", "category", "dimension"], means)


def _weights(specimen: Specimen, layers: Sequence[int], categories: Sequence[str]) -> pd.DataFrame:
    """Every weight of every sequence: summed over a category's keys, and key by key."""
    rows = []
    for layer, category in itertools.product(layers, categories):
        together, single = [], []
        for sequence in specimen.sequences:
            keys = (specimen.categories(sequence) == category) | (category == "all")
            of_keys = sequence.blocks[layer - 1].alpha[..., keys]  # head query key
            together.append(of_keys.sum(axis=-1).mean())
            if keys.any():
                single.append(of_keys.mean())
        if single:
            place = {"layer": layer, "category": category}
            rows.append(place | {"sum": np.mean(together), "one_key": np.mean(single)})
    return table(["layer", "category"], rows)


def _by_category(
    specimen: Specimen, layers: Sequence[int], categories: Sequence[str], outliers: Sequence[int]
) -> pd.DataFrame:
    """Means of C_j over all pairs, one head beside the other, and how far they are from those of all keys."""
    rows = []
    for layer in layers:
        blocks = [(sequence.blocks[layer - 1], specimen.categories(sequence)) for sequence in specimen.sequences]
        heads = range(len(blocks[0][0].contributions))
        deviations = [
            np.mean(
                [
                    (block.contributions[head, query, seen].sum(axis=-1) + block.key_bias_part[head, query, seen]).var()
                    for block, _ in blocks
                    for query, seen in enumerate(block.visible)
                ]
            )
            ** 0.5
            for head in heads
        ]

        def means(j: int, category: str, blocks: Any = blocks, heads: Sequence[int] = heads) -> list[float]:
            pairs = [block.visible & ((of_key == category) | (category == "all")) for block, of_key in blocks]
            return [
                np.concatenate(
                    [block.contributions[head, seen, j] for (block, _), seen in zip(blocks, pairs, strict=True)]
                ).mean()
                for head in heads
            ]

        for j, category in itertools.product(outliers, categories):
            if not any(((of_key == category) | (category == "all")).any() for _, of_key in blocks):
                continue
            found = means(j, category)
            beyond = [
                (one - every) / deviation
                for one, every, deviation in zip(found, means(j, "all"), deviations, strict=True)
            ]
            place = {"layer": layer, "dimension": j, "category": category}
            columns = {f"head_{head + 1}": mean for head, mean in enumerate(found)}
            advantage = np.mean(beyond) if "all" in categories else np.nan
            rows.append(place | columns | {"advantage": advantage})
    return table(["layer", "dimension", "category"], rows)


def _favoured(by_category: pd.DataFrame) -> dict[int, dict[str, list[int]]] | None:
    """For each layer and dimension the category that is farthest above all keys, if that is at least a tenth."""
    found: dict[int, dict[str, list[int]]] = {}
    advantages = by_category["advantage"].drop("all", level="category", errors="ignore").dropna()
    if not len(advantages):
        return None
    for (dimension, layer), of_place in advantages.groupby(["dimension", "layer"]):
        *_, category = of_place.idxmax()
        if of_place.max() >= 0.1:
            found.setdefault(dimension, {}).setdefault(category, []).append(layer)
    return found


def _concentration(specimen: Specimen, layers: Sequence[int], outliers: Sequence[int]) -> pd.DataFrame:
    """Covariance of every part with the score over the keys that a query sees; means over queries."""
    concentration = []
    for layer in layers:
        covariances, variances = [], []
        for sequence in specimen.sequences:
            block = sequence.blocks[layer - 1]
            parts = np.concatenate([block.contributions, block.key_bias_part[..., None]], axis=-1)
            for query, seen in enumerate(block.visible):
                own = parts[:, query, seen]  # head key part
                score = own.sum(axis=-1)
                covariances.append((own * (score - score.mean(axis=1, keepdims=True))[..., None]).mean(axis=1))
                variances.append(score.var(axis=1))
        variance = np.mean(variances, axis=0)
        shares = np.mean(covariances, axis=0) / variance[:, None]
        for head, (*of_dimensions, of_bias) in enumerate(shares.tolist(), start=1):
            ranked = sorted(enumerate(of_dimensions), key=lambda part: -part[1])
            cumulative = list(itertools.accumulate(share for _, share in ranked))

            def needed(part: float, cumulative: list[float] = cumulative) -> float:
                return next((number for number, total in enumerate(cumulative, start=1) if total >= part), np.nan)

            concentration.append(
                {
                    "layer": layer,
                    "head": head,
                    "variance": variance[head - 1],
                    "half": needed(0.5),
                    "ninety": needed(0.9),
                    "outliers": sum(of_dimensions[j] for j in outliers),
                    "key_bias": of_bias,
                    "first": ranked[0][0],
                    "first_share": ranked[0][1],
                }
            )
    return table(["layer", "head"], concentration)


def _drawn(
    specimen: Specimen, outliers: Sequence[int], controls: int, seed: int, *, alone: bool
) -> dict[int, list[list[int]]]:
    """Random sets of other dimensions, by size: first those of single dimensions, where they are wanted."""
    generator = np.random.default_rng(seed)
    others = [j for j in range(specimen.loaded.model.config.hidden_size) if j not in outliers]
    sizes = sorted({1, len(outliers)}) if alone else [len(outliers)]
    return {
        size: [generator.choice(others, size=size, replace=False).tolist() for _ in range(controls)]
        for size in sizes
        if size <= len(others)
    }


def _removals(outliers: Sequence[int], prominent: Sequence[int]) -> list[tuple[str, list[int]]]:
    return [*((str(j), [j]) for j in sorted(prominent)), ("outliers", sorted(outliers))]


def _row(before: float, after: float, random: Sequence[float]) -> dict[str, float]:
    """The numbers of a removal beside those of random ones."""
    changes = np.array(random) - before
    low, high = np.percentile(changes, [2.5, 97.5]) if len(changes) else (np.nan, np.nan)
    mean = changes.mean() if len(changes) else np.nan
    return dict(zip(CHANGES, (before, after, after - before, mean, low, high), strict=True))


def _weight_by_category(specimen: Specimen, sequence: Sequence_, alpha: np.ndarray) -> Callable[[str], float]:
    """Sum over a category's keys: mean over queries and heads."""
    of_token = specimen.categories(sequence)
    return lambda category: float(alpha[..., of_token == category].sum(axis=-1).mean())


def _without(block: Block, without: Sequence[int]) -> np.ndarray:
    """α of scores less the contributions of some dimensions."""
    scores = block.query @ block.key.transpose(0, 2, 1) - block.contributions[..., list(without)].sum(axis=-1)
    return softmax(block.scale * scores, block.visible)


def _intervention(specimen, layers, categories, outliers, prominent, drawn) -> pd.DataFrame:
    """Softmax again, of scores less the contributions of some dimensions, in one block alone."""

    def weight(layer: int, category: str, without: Sequence[int]) -> float:
        shares = []
        for sequence in specimen.sequences:
            block = sequence.blocks[layer - 1]
            shares.append(_weight_by_category(specimen, sequence, _without(block, without))(category))
        return float(np.mean(shares))

    rows = []
    for layer, category in itertools.product(layers, categories):
        before = weight(layer, category, [])
        if before == 0:
            continue  # no sequence has the category
        random = {size: [weight(layer, category, one) for one in sets] for size, sets in drawn.items()}
        for name, dimensions in _removals(outliers, prominent):
            listed = " ".join(map(str, dimensions))
            place = {"layer": layer, "removed": name, "dimensions": listed, "category": category}
            after = weight(layer, category, dimensions)
            numbers = _row(before, after, random.get(len(dimensions), []))
            rows.append(place | numbers)
    changes = table(["layer", "removed", "dimensions", "category"], rows, CHANGES)
    return changes.assign(sequences=len(specimen.sequences))


def _changed(specimen, layers, categories, outliers) -> dict[str, Interval]:
    """How the weight on each category changes without all outliers, over sequences, by Student's t."""
    changes: dict[str, list[float]] = {category: [] for category in categories}
    for sequence in specimen.sequences:
        blocks = [sequence.blocks[layer - 1] for layer in layers]
        for category, of_category in changes.items():
            of_layers = [
                _weight_by_category(specimen, sequence, _without(block, outliers))(category)
                - _weight_by_category(specimen, sequence, _without(block, []))(category)
                for block in blocks
            ]
            of_category.append(float(np.mean(of_layers)))
    few = len(specimen.sequences) < 5
    return {
        category: Interval(*(values[:1] if few else values), *([np.nan] * 2 if few else []))
        for category, of_category in changes.items()
        for values in [interval(of_category)]
    }


def _together(changes: pd.DataFrame) -> pd.DataFrame:
    """The rows where all outliers are removed."""
    return changes.xs("outliers", level="removed").droplevel("dimensions")


def _metrics(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    concentration = tables["concentration"]
    metrics = {
        "dimensions_for_half/mean": concentration["half"].mean(),
        "dimensions_for_90_percent/mean": concentration["ninety"].mean(),
        "share_of_outliers/mean": concentration["outliers"].mean(),
        "share_of_key_bias/mean": concentration["key_bias"].mean(),
        "heads_below_half/share": concentration["half"].isna().mean(),
        "heads_below_90_percent/share": concentration["ninety"].isna().mean(),
    }
    for category, rows in tables["weights"].groupby("category"):
        metrics |= {f"weights/{category}/{reading}": rows[reading].mean() for reading in ("sum", "one_key")}
    if len(tables.get("intervention", ())):
        together = _together(tables["intervention"]).groupby("category")
        for column in ("before", "after", "change", "controls_mean"):
            for category, mean in together[column].mean().items():
                metrics[f"intervention/{category}/{column}"] = mean
        metrics["intervention/sequences"] = tables["intervention"]["sequences"].max()
    return {name: float(value) for name, value in metrics.items() if not np.isnan(value)}


def _curves(concentration: pd.DataFrame) -> dict[str, dict[int, float]]:
    names = {
        "half": "dimensions_for_half",
        "ninety": "dimensions_for_90_percent",
        "outliers": "share_of_outliers",
        "key_bias": "share_of_key_bias",
    }
    means = concentration.groupby("layer").mean()
    return {name: means[column].dropna().to_dict() for column, name in names.items()}


def _figures(tables: Mapping[str, pd.DataFrame], outliers: Sequence[int]) -> dict[str, Picture]:
    means = tables["contributions"]["mean"]
    by_place = list(means.items())
    weights = tables["weights"]
    shown = {*weights.index.get_level_values("category")} - {"all"} or {"all"}
    readings = {"sum": "all keys of a category", "one_key": "one key of a category"}
    figures = {
        "weights": Picture(
            {
                (title, category, layer): row[reading]
                for (layer, category), row in weights.iterrows()
                for reading, title in readings.items()
                if category in shown
            }
        )
    }
    if "all" in means.index.get_level_values("category"):
        figures["contributions"] = Picture(
            {(layer, head, j): mean for (layer, head, category, j), mean in by_place if category == "all"},
            {"labelled": list(outliers)},
        )
    parts = {place: mean for place, mean in by_place if place[2] != "all" and place[3] in outliers}
    if parts:
        strength = {j: max(abs(mean) for place, mean in parts.items() if place[3] == j) for j in outliers}
        drawn = sorted(outliers, key=lambda j: -strength[j])[:6]
        figures["by_category"] = Picture(
            {
                (category, f"j = {j}", layer, head): mean
                for (layer, head, category, j), mean in parts.items()
                if j in drawn
            },
            {"diverging": True},
        )
    if len(tables.get("intervention", ())):
        together = _together(tables["intervention"])
        figures["intervention"] = Picture(
            _compared(together, {"before": together["before"], "after": together["after"]}, "without random dimensions")
        )
    return figures


def _compared(rows: pd.DataFrame, lines: Mapping[str, pd.Series], controls: str) -> dict[tuple[Any, ...], Any]:
    """Lines by category, without a band but for that of the controls."""
    drawn = {
        (category, TITLES[name], layer): (alpha, np.nan, np.nan)
        for name, values in lines.items()
        for (layer, category), alpha in values.items()
    }
    for (layer, category), row in rows.dropna(subset="controls_mean").iterrows():
        drawn[category, controls, layer] = tuple(
            row["before"] + row[["controls_mean", "controls_low", "controls_high"]]
        )
    return drawn


def _summary(tables: Mapping[str, pd.DataFrame], categories: Sequence[str]) -> pd.DataFrame:
    titles = {
        "half": "dimensions for 50%",
        "ninety": "dimensions for 90%",
        "outliers": "outlier dimensions' share",
        "key_bias": "b_K's share",
    }
    summary = tables["concentration"].groupby("layer")[list(titles)].mean().rename(columns=titles)
    if len(tables.get("intervention", ())):
        together = _together(tables["intervention"])
        present = together.index.get_level_values("category")
        first = next(category for category in categories if category in present)
        own = together.xs(first, level="category")
        name = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}.get(first, first)
        summary[f"α on {name}"], summary["without outlier dimensions"] = own["before"], own["after"]
        summary["without random dimensions"] = own["before"] + own["controls_mean"]
    return summary


INSIDE = {"line", "alpha", "low", "high", "part", "controls"}
"""Names within the analysis that it does not return."""


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    bert, options = made("bert"), ScoreOptions(seed=0, controls=1)
    outliers = outliers_oracle.OUTLIERS["given"]
    return bert.findings("score", options, [1, 2], reported(bert), options=[outliers])


def options_of_score(**more) -> ScoreOptions:
    return ScoreOptions(seed=3, controls=3, **more)


SCORES = {
    "two outliers": (outliers_oracle.OUTLIERS["given"], options_of_score(), CHOICES["everything"]),
    "part": (outliers_oracle.OUTLIERS["given"], options_of_score(sequences=1000), CHOICES["some"]),
    "all": (outliers_oracle.OUTLIERS["given"], options_of_score(), CHOICES["all"]),
    "no outliers": (outliers_oracle.OUTLIERS["none"], options_of_score(), CHOICES["some"]),
    "nothing is run again": (outliers_oracle.OUTLIERS["given"], options_of_score(interventions=False), CHOICES["some"]),
    "nine outliers and nothing is run again": (
        OutliersOptions(dimensions=list(range(9))),
        options_of_score(interventions=False),
        ((2,), ["punctuation", "other"]),
    ),
    "nine outliers": (
        OutliersOptions(dimensions=list(range(9))),
        options_of_score(),
        ((2,), ["punctuation", "other"]),
    ),
}


@pytest.mark.parametrize("choice", SCORES)
@pytest.mark.spread(1)
def test_score(specimen, choice):
    outliers, options, (layers, categories) = SCORES[choice]
    categories = reported(specimen, categories)
    findings = specimen.findings("score", options, layers, categories, options=[outliers])
    computed = expected(specimen, layers, categories, options, outliers)
    assert_expected(findings, computed, tolerance=1e-6)  # logits are in float32


SCORE = {"dimensions_for_half/mean": 3.4, "dimensions_for_90_percent/mean": 116.2, "share_of_outliers/mean": 0.123}
BIAS = "The key bias b_K makes up {} of the variance of a query's scores over its keys."
WITHOUT_OUTLIERS = "Without the outlier dimensions' part of the scores, in one block at a time, the attention weight on"
SEP = {
    "intervention/sep/before": 0.5,
    "intervention/sep/after": 0.2,
    "intervention/sep/change": -0.3,
    "intervention/sep/controls_mean": 0.02,
}
CLS = {"intervention/cls/before": 0.25, "intervention/cls/after": 0.35, "intervention/cls/change": 0.1}
OTHER = {"intervention/other/before": 0.1, "intervention/other/after": 0.5, "intervention/other/change": 0.4}

CASES = [
    ({}, []),
    (
        SCORE,
        [
            "On average over heads, 3.4 dimensions make up half of the variance of a query's scores over its keys, and 116 "
            "make up 90%.",
            "The share of the outlier dimensions in the variance of a query's scores is 12%.",
        ],
    ),
    (
        {"dimensions_for_half/mean": 3.4},
        ["On average over heads, 3.4 dimensions make up half of the variance of a query's scores over its keys."],
    ),
    (
        {"dimensions_for_half/mean": 3.4, "heads_below_90_percent/share": 0.01},
        [
            "On average over heads, 3.4 dimensions make up half of the variance of a query's scores over its keys (heads "
            "whose dimensions never reach that share are left out).",
        ],
    ),
    (
        {"dimensions_for_half/mean": 3.4, "share_of_key_bias/mean": 0.0006},
        [
            "On average over heads, 3.4 dimensions make up half of the variance of a query's scores over its keys; the key "
            "bias b_K makes up 0.1%.",
        ],
    ),
    ({"share_of_outliers/mean": 0.0}, []),  # there are none
    (
        {"share_of_outliers/mean": -0.0001},
        ["The share of the outlier dimensions in the variance of a query's scores is 0.0%."],
    ),
    ({"share_of_key_bias/mean": 0.0006}, [BIAS.format("0.1%")]),
    ({"share_of_key_bias/mean": 0.0004}, []),
    ({"share_of_key_bias/mean": -0.25}, [BIAS.format("−25%")]),
    (
        CLS | SEP | OTHER,
        [
            f"{WITHOUT_OUTLIERS} [SEP] tokens falls from 50% to 20%; with as many random dimensions removed "
            "instead, it is 52%."
        ],
    ),
    *(
        (
            SEP | {"intervention/sequences": 40.0},
            {"changed": {"sep": Interval(-0.3, low, high)}},
            [f"{WITHOUT_OUTLIERS} [SEP] tokens {moves}; with as many random dimensions removed instead, it is 52%."],
        )
        for low, high, moves in (
            (
                -0.32,
                -0.284,
                "falls from 50% to 20% (difference 30.0 points, 95% interval 28.4 to 32.0 over 40 sequences)",
            ),
            (
                -0.61,
                0.0,
                "stays at about 20%, no detectable difference (difference 30.0 points, 95% interval 0.0 to 61.0 over 40 "
                "sequences)",
            ),
        )
    ),
    (
        # A change that is written as none has no interval.
        {"intervention/cls/before": 0.2502, "intervention/cls/after": 0.2501},
        {"changed": {"cls": Interval(-0.0001, -0.0002, -0.00005)}},
        [f"{WITHOUT_OUTLIERS} [CLS] tokens stays at 25%."],
    ),
    (
        CLS | OTHER,
        [f"{WITHOUT_OUTLIERS} [CLS] tokens rises from 25% to 35%."],
    ),
    (
        OTHER,
        [f"{WITHOUT_OUTLIERS} other tokens rises from 10% to 50%."],
    ),
    (
        {
            "intervention/cls/before": 0.2502,
            "intervention/cls/after": 0.2501,
        },
        [f"{WITHOUT_OUTLIERS} [CLS] tokens stays at 25%."],
    ),
    *(
        (
            {"intervention/cls/before": 0.0126, "intervention/cls/after": after},
            [f"{WITHOUT_OUTLIERS} [CLS] tokens {moves}."],
        )
        for after, moves in (
            (0.0124, "stays at about 1.2%"),  # 0.02 points
            (0.0114, "stays at about 1.1%"),
            (0.0112, "falls from 1.3% to 1.1%"),
            (0.0141, "rises from 1.3% to 1.4%"),
        )
    ),
    ({"intervention/cls/before": 0.4}, []),
    ({"weights/all/one_key": 0.1, "weights/all/sum": 1.0}, []),
    ({"weights/cls/one_key": 0.1}, []),
    (
        {"weights/cls/one_key": 0.482, "weights/cls/sum": 0.482},
        [
            "On average over layers, a query gives 48% of its attention weight to one [CLS] token; summed over keys, it gives "
            "most to [CLS] tokens, 48%."
        ],
    ),
    (
        {
            "weights/cls/one_key": 0.38,
            "weights/cls/sum": 0.38,
            "weights/sep/one_key": 0.37,
            "weights/sep/sum": 0.39,
            "weights/other/one_key": 0.021,
            "weights/other/sum": 0.42,
            "weights/all/one_key": 0.05,
            "weights/all/sum": 1.0,
        },
        [
            "On average over layers, a query gives 38% of its attention weight to one [CLS] token (to any token: 5.0%); summed "
            "over keys, it gives most to other tokens, 42%."
        ],
    ),
    (
        {},
        {"favoured": {381: {"sep": [4, 5, 6]}, 308: {"cls": [2], "sep": [6, 12]}}},
        [
            "Of the outlier dimensions, 381 favours [SEP] in layers 4–6; 308 favours [CLS] in layer 2 and [SEP] in layers 6, "
            "12 (by at least a tenth of the standard deviation of a query's scores)."
        ],
    ),
    (
        {},
        {"favoured": {}},
        [
            "No outlier dimension favours the keys of a category by at least a tenth of the standard deviation of a query's "
            "scores."
        ],
    ),
]

EFFECTS = [
    (SEP, {}, 0.3),
    (SEP, {"changed": {"sep": Interval(-0.3, -0.32, -0.284)}}, 0.3),
    (SEP, {"changed": {"sep": Interval(-0.3, -0.61, 0.01)}}, 0.0),
    (SCORE, {}, 0.0),
]

CLAIMS = {
    r"falls from (\S+) to (\S+?)(?:;|\.$)": lambda before, after: after < before,
    r"rises from (\S+) to (\S+?)(?:;|\.$)": lambda before, after: after > before,
}


def test_a_dimension_favours_the_category_that_is_farthest_above_all_keys():
    """By a tenth of a standard deviation or more; without `all`, nothing is known."""
    rows = [(4, 7, "cls", 0.1), (4, 7, "sep", 0.3), (5, 7, "cls", 0.1), (5, 7, "sep", 0.09), (6, 7, "cls", 0.0999)]
    rows += [(layer, 7, "all", 0.0) for layer in (4, 5, 6)] + [(5, 3, "sep", 2.0), (5, 9, "sep", -2.0)]
    table = pd.DataFrame(rows, columns=["layer", "dimension", "category", "advantage"])
    assert favoured(table) == {3: {"sep": [5]}, 7: {"sep": [4], "cls": [5]}}
    assert favoured(table.assign(advantage=np.nan)) is None
    assert favoured(table[table["category"] == "all"]) is None
