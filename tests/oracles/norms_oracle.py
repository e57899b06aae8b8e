"""The norms analysis by brute force."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.declarations.norms import NormsOpening, NormsOptions
from normscope.data.token_sequence import fingerprint
from normscope.results.result import Result
from normscope.statistics.intervals import Interval, Sample, mean_test
from tests.contract import test_norms_of_images
from tests.oracles import words
from tests.oracles.activations import Sequence_
from tests.oracles.comparison import (
    Expected,
    Picture,
    assert_expected,
    cloud,
    percent,
    said,
    spearman,
    spoken,
    table,
    with_inputs_of_its_own,
)
from tests.oracles.specimens import CHOICES, Specimen, made, reported
from tests.oracles.words import WordSequence

NO_EXPANSION = (
    "no single linear layer maps what attention reads to the values of this model, as in latent attention, in bottlenecks or "
    "with norms of values",
    ", so W_V has no expansion rate",
)
"""The note about models without W_V; see `tests/contract/test_hybrids.py`."""

MEASURES = {
    "alpha": "α: attention weight",
    "alpha_f": "‖αf(x)‖: weighted vector",
    "f": "‖f(x)‖: vector",
    "share": "signed share of the output",
}


def expected(specimen: Specimen, layers: Sequence[int], categories: Sequence[str], options: NormsOptions) -> Expected:
    """Everything that the norms analysis returns."""
    drawn = [_drawn(sequence, options) for sequence in specimen.sequences]
    pairs, keys, inputs = _pairs(specimen, layers), _keys(specimen, layers), _inputs(specimen, layers)
    present = [category for category in categories if category == "all" or (keys["category"] == category).any()]
    by_head = _by_head(keys, present)
    of_layers = by_head.groupby(["layer", "category"])
    by_layer = of_layers[["alpha", "alpha_f", "f"]].mean().join(of_layers["share"].sum()).rename_axis("measure", axis=1)
    of_heads = _by_head(keys, ["all"])["share"]
    by_layer = by_layer.stack().rename("sequence_mean").to_frame()
    spreads = {"f": keys.groupby(["layer", "head"])["f"], "x": inputs.groupby("layer")["x"]}
    dispersion = {letter: values.apply(_spread).unstack() for letter, values in spreads.items()}
    singular = _singular_values(specimen, layers)
    ranked = pairs[[query in drawn[number] for number, query in zip(pairs["sequence"], pairs["query"], strict=True)]]
    correlation = _correlation(specimen, ranked, layers, categories)
    rates = _expansion(specimen, layers)
    curves = {
        f"{measure}/{category}": by_layer.xs((category, measure), level=("category", "measure"))[
            "sequence_mean"
        ].to_dict()
        for measure in MEASURES
        for category in present
    }
    heads = {"share/negative_heads": int((of_heads < 0).sum()), "share/heads": len(of_heads)}
    metrics = heads | _metrics(curves, dispersion, correlation, rates, singular)
    if not isinstance(specimen.sequences[0], WordSequence):
        metrics |= {"f/uniform": _with_equal_weights(specimen, layers)}
    return Expected(
        tables={
            "by_layer": by_layer.reorder_levels(["layer", "measure", "category"]),
            "by_head": by_head,
            "correlation": correlation,
            "dispersion": dispersion["f"],
            "input_dispersion": dispersion["x"],
            "singular_values": singular,
        },
        metrics=metrics,
        curves=curves | {"expansion": rates["rate"].to_dict()},
        figures=_shares_figure(by_layer, present)
        | _figures(by_layer, by_head, pairs, _by_head(keys, ["all"])["alpha_f"].groupby("layer").mean())
        | _figures_of_dispersion(dispersion["f"], singular, options),
        summary=_summary_of_dispersion(dispersion)
        if options.opens_with is NormsOpening.dispersion
        else _summary(by_layer, correlation, present, _share_of_bias(specimen, layers)),
        sentences=said(
            "norms",
            metrics,
            _unseen(specimen, layers),
            opens_with=options.opens_with,
            apart=_apart(keys),
            sequences=keys["sequence"].nunique(),
        ),
        notes=_notes(sum(map(len, drawn)), sum(len(sequence.ids) for sequence in specimen.sequences), options),
    )


def _apart(keys: pd.DataFrame) -> dict[str, Interval]:
    """The share of the weight less that of the norms, by the delta method, with the intervals of a studentised bootstrap."""
    cells = keys.groupby(["layer", "head", "sequence"])
    whole = cells[["alpha", "alpha_f"]].sum().groupby("sequence").mean()["alpha_f"].to_numpy()
    intervals = {}
    for category in keys["category"].unique():
        chosen = keys[keys["category"] == category].groupby(["layer", "head", "sequence"])[["alpha", "alpha_f"]].sum()
        sums = chosen.reindex(cells.size().index, fill_value=0.0).groupby("sequence").mean()
        weight, norm = sums["alpha"].to_numpy(), sums["alpha_f"].to_numpy()
        ratio = norm.mean() / whole.mean()
        linear = np.sort(weight - (norm - ratio * whole) / whole.mean())
        mean, low, high = weight.mean() - ratio, np.nan, np.nan
        if len(linear) >= 5 and np.ptp(linear) > 1e-6:
            found = mean_test(Sample(linear, np.ones_like(linear)), resamples=999)
            low, high = mean - (found.mean - found.low), mean + (found.high - found.mean)
        intervals[category] = Interval(float(mean), float(low), float(high))
    return intervals


def _drawn(sequence: Sequence_, options: NormsOptions) -> set[int]:
    """The queries of a sequence whose pairs are ranked: the draw follows from the seed and the tokens."""
    length, limit = len(sequence.ids), options.sampled_queries
    if limit is None or length <= limit:
        return set(range(length))
    generator = np.random.default_rng([options.seed, fingerprint(sequence.all_ids)])
    return set(generator.choice(length, limit, replace=False).tolist())


def _notes(ranked: int, total: int, options: NormsOptions) -> list[str]:
    if ranked == total:
        return []
    return [
        f"rank correlations use {ranked:,} of {total:,} queries: at most {options.sampled_queries}"
        " are drawn from each sequence (analysis.norms.sampled_queries)"
    ]


def _pairs(specimen: Specimen, layers: Sequence[int]) -> pd.DataFrame:
    """One row per layer, head, query and key that the query sees."""
    frames = []
    for number, sequence in enumerate(specimen.sequences):
        categories = specimen.key_categories(sequence)
        for layer in layers:
            block = sequence.blocks[layer - 1]
            head, query, key = np.nonzero(np.broadcast_to(block.visible, block.alpha.shape))
            norms = np.linalg.norm(block.f, axis=-1)
            frames.append(
                pd.DataFrame(
                    {
                        "layer": layer,
                        "head": head + 1,
                        "sequence": number,
                        "query": query,
                        "category": categories[key],
                        "alpha": block.alpha[head, query, key],
                        "f": norms[head, key],
                    }
                )
            )
    return pd.concat(frames)


def _keys(specimen: Specimen, layers: Sequence[int]) -> pd.DataFrame:
    """One row per layer, head and token: ‖f‖, and the α and ‖αf‖ that it gets from a query on average."""
    frames = []
    for number, sequence in enumerate(specimen.sequences):
        categories = specimen.key_categories(sequence)
        for layer in layers:
            block = sequence.blocks[layer - 1]
            for head in range(len(block.alpha)):
                frames.append(
                    pd.DataFrame(
                        {
                            "layer": layer,
                            "head": head + 1,
                            "sequence": number,
                            "category": categories,
                            "alpha": block.alpha[head].mean(axis=0),
                            "alpha_f": block.weighted[head].mean(axis=0),
                            "f": np.linalg.norm(block.f[head], axis=-1),
                            "share": block.pair_shares()[head].mean(axis=0),
                        }
                    )
                )
    return pd.concat(frames)


def _unseen(specimen: Specimen, layers: Sequence[int]) -> set[str]:
    """Categories whose tokens are seen by no token but themselves."""
    seen: dict[str, bool] = {}
    for sequence in specimen.sequences:
        for key, category in enumerate(specimen.key_categories(sequence)):
            for layer in layers:
                others = sequence.blocks[layer - 1].visible[:, key].sum() > 1
                seen[category] = seen.get(category, False) or bool(others)
    return {category for category, others in seen.items() if not others}


def _with_equal_weights(specimen: Specimen, layers: Sequence[int]) -> float:
    """Mean ‖f‖ of the keys that a query sees, then over queries, heads, sequences and layers."""
    means = []
    for layer in layers:
        for sequence in specimen.sequences:
            block = sequence.blocks[layer - 1]
            norms = np.linalg.norm(block.f, axis=-1)
            means.append(np.mean([norms[:, seen].mean(axis=1).mean() for seen in block.visible]))
    return float(np.mean(means))


def _inputs(specimen: Specimen, layers: Sequence[int]) -> pd.DataFrame:
    return pd.concat(
        pd.DataFrame({"layer": layer, "x": np.linalg.norm(sequence.blocks[layer - 1].x, axis=-1)})
        for sequence in specimen.sequences
        for layer in layers
    )


def _of(rows: pd.DataFrame, category: str) -> pd.DataFrame:
    return rows if category == "all" else rows[rows["category"] == category]


def _by_head(keys: pd.DataFrame, present: Sequence[str]) -> pd.DataFrame:
    """Sums over a sequence's keys of a category, then means over all sequences; of ‖f‖, over those that have the category."""
    rows = []
    sequences = keys["sequence"].nunique()
    for (layer, head), own in keys.groupby(["layer", "head"]):
        for category in present:
            chosen = _of(own, category)
            by_sequence = chosen.groupby("sequence")
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "category": category,
                    "alpha": by_sequence["alpha"].sum().sum() / sequences,
                    "alpha_f": by_sequence["alpha_f"].sum().sum() / sequences,
                    "f": by_sequence["f"].mean().mean(),
                    "share": by_sequence["share"].sum().sum() / sequences,
                    "count": len(chosen),
                }
            )
    return table(["layer", "head", "category"], rows)


def _spread(values: pd.Series) -> pd.Series:
    numbers = values.to_numpy()
    mean, std = numbers.mean(), numbers.std()
    return pd.Series({"mean": mean, "std": std, "cv": std / mean, "max": numbers.max(), "min": numbers.min()})


def _correlation(
    specimen: Specimen, pairs: pd.DataFrame, layers: Sequence[int], categories: Sequence[str]
) -> pd.DataFrame:
    rows = []
    for layer in (0, *layers):
        own = pairs if layer == 0 else pairs[pairs["layer"] == layer]
        for category in (*specimen.names, "all"):
            chosen = _of(own, category)
            if category in categories and len(chosen):
                found = spearman(chosen["alpha"].to_numpy(), chosen["f"].to_numpy())
                rows.append({"layer": layer, "category": category, **found})
    return table(["layer", "category"], rows, ["spearman", "count", "error_bound", "reason"])


def _pooled(correlation: pd.DataFrame) -> pd.Series:
    """ρ over all layers, by category."""
    return correlation.loc[correlation.index.get_level_values("layer") == 0, "spearman"].droplevel("layer").dropna()


def _expansion(specimen: Specimen, layers: Sequence[int]) -> pd.DataFrame:
    """Root mean square singular value of the block's affine map, as a matrix that acts on (x, 1)."""

    def matrix(linear: np.ndarray, constant: np.ndarray) -> np.ndarray:
        size = len(linear)
        return np.block([[linear, np.zeros((size, 1))], [constant[None], np.ones((1, 1))]])

    rates = []
    for layer in layers:
        weights = specimen.sequences[0].blocks[layer - 1].weights
        linear = weights.value @ weights.output
        constant = np.einsum("hd,hdm->hm", weights.value_bias, weights.output)
        whole = matrix(linear.sum(axis=0), constant.sum(axis=0))
        biased = matrix(linear.sum(axis=0), constant.sum(axis=0) + weights.output_bias)
        rate, with_bias = (np.sqrt((np.linalg.svd(m, compute_uv=False) ** 2).mean()) for m in (whole, biased))
        rates.append({"layer": layer, "rate": rate, "rate_with_output_bias": with_bias})
    return table(["layer"], rates)


def _singular_values(specimen: Specimen, layers: Sequence[int]) -> pd.DataFrame:
    """Those of each head's whole matrix that acts on (x, 1), as many as a head's size and one more."""
    rows = []
    for layer in layers:
        weights = specimen.sequences[0].blocks[layer - 1].weights
        for head, (value, bias, output) in enumerate(
            zip(weights.value, weights.value_bias, weights.output, strict=True), start=1
        ):
            size = len(value)
            matrix = np.block([[value @ output, np.zeros((size, 1))], [(bias @ output)[None], np.ones((1, 1))]])
            found = np.linalg.svd(matrix, compute_uv=False)[: min(value.shape) + 1]
            rows += [
                {"layer": layer, "head": head, "index": place, "value": number} for place, number in enumerate(found, 1)
            ]
    return table(["layer", "head", "index"], rows)


def _metrics(curves, dispersion, correlation, rates, singular) -> dict[str, float]:
    pooled = _pooled(correlation)
    metrics = {f"spearman/{category}": rho for category, rho in pooled.items()}
    counts = correlation.loc[correlation.index.get_level_values("layer") == 0, "count"].droplevel("layer")
    metrics |= {f"pairs/{category}": count for category, count in counts.items()}
    of_heads = singular["value"].groupby(["layer", "head"])
    ratios = of_heads.max() / of_heads.min()
    metrics |= {"singular_values/ratio_min": ratios.min(), "singular_values/ratio_max": ratios.max()}
    metrics |= {name: np.mean(list(curve.values())) for name, curve in curves.items()}
    for letter, spread in dispersion.items():
        metrics |= {f"{letter}/{name}": spread[column].mean() for name, column in AVERAGES.items()}
        for name, place in (("cv_max", spread["cv"].idxmax()), ("cv_min", spread["cv"].idxmin())):
            row = spread.loc[place]
            metrics |= {
                f"{letter}/{name}": row["cv"],
                **dict(zip(_axes(letter, name), np.atleast_1d(place), strict=True)),
            }
            metrics |= {f"{letter}/{name}/{column}": row[column] for column in ("mean", "std", "max", "min")}
    metrics |= {
        "expansion/mean": rates["rate"].mean(),
        "expansion_with_output_bias/mean": rates["rate_with_output_bias"].mean(),
    }
    for layer, rate in rates["rate_with_output_bias"].items():
        metrics[f"expansion_with_output_bias/layer_{layer}"] = rate
    return metrics


AVERAGES = {"cv_mean": "cv", "mean": "mean", "std": "std"}


def _axes(letter: str, name: str) -> list[str]:
    """Names of the numbers that say where."""
    return [f"{letter}/{name}/{axis}" for axis in (("layer", "head") if letter == "f" else ("layer",))]


def _figures_of_dispersion(dispersion, singular, options: NormsOptions) -> dict[str, Picture]:
    title = "coefficient of variation of ‖f(x)‖"
    heads = list(
        dict.fromkeys(zip(*(singular.index.get_level_values(axis) for axis in ("layer", "head")), strict=True))
    )
    # As many of each layer as of any other, but for one.
    assert options.singular_value_heads >= len(heads), "which heads are drawn has a test of its own"
    return {
        "dispersion": Picture({(None, title, layer, head): cv for (layer, head), cv in dispersion["cv"].items()}),
        "singular_values": Picture(
            {
                (None, f"layer {layer}, head {head}", place): value
                for (layer, head, place), value in singular["value"].items()
            }
        ),
    }


def _summary_of_dispersion(dispersion) -> pd.DataFrame:
    """Tables 1 and 4 of the paper."""
    rows = {}
    for letter, norm in (("f", "‖f(x)‖"), ("x", "‖x‖")):
        spread = dispersion[letter]
        for name, place in (("max CV", spread["cv"].idxmax()), ("min CV", spread["cv"].idxmin())):
            where = ", ".join(f"{axis} {at}" for axis, at in zip(spread.index.names, np.atleast_1d(place), strict=True))
            rows[f"{norm}, {name}: {where}"] = spread.loc[place]
        rows[f"{norm}, average"] = spread[["mean", "std", "cv"]].mean()
    titles = {"mean": "μ", "std": "σ", "cv": "CV", "max": "max", "min": "min"}
    return pd.DataFrame(rows).T[list(titles)].rename(columns=titles)


def _shares_figure(by_layer, present: Sequence[str]) -> dict[str, Picture]:
    """Each category's part of what all tokens have: rows have their numbers in their names."""
    means = by_layer.groupby(["category", "measure"], sort=False)["sequence_mean"].mean().unstack()
    if "all" not in means.index:
        return {}
    shares = means.assign(alpha_f=means["alpha_f"] / means.loc["all", "alpha_f"]).drop(columns="f")
    titles = {"alpha": "of the weight α", "alpha_f": "of Σ‖αf(x)‖"}
    if means.loc["all", "share"] >= 0.05:
        titles["share"] = "along the output"
        shares["share"] = means["share"] / means.loc["all", "share"]
    rows = {
        category: f"{spoken(category)}: {', '.join(percent(row[measure]) for measure in titles)}"
        for category, row in shares.loc[[each for each in present if each != "all"]].iterrows()
    }
    if not rows:
        return {}
    drawn = {
        (titles[measure], rows[category]): 100 * shares.loc[category, measure]
        for category in rows
        for measure in titles
    }
    return {"shares": Picture(drawn, {"order": list(dict.fromkeys(rows.values()))})}


def _figures(by_layer, by_head, pairs, norms_of_all) -> dict[str, Picture]:
    shown = set(by_head.index.get_level_values("category"))
    parts = shown - {"all"} or shown
    points = {category: _of(pairs, category)[["f", "alpha"]].itertuples(index=False, name=None) for category in parts}
    titles = {"alpha": "attention weight α", "alpha_f": "norms Σ‖αf(x)‖", "share": "signed share of the output"}
    grid = {"alpha": "α, summed over keys", "alpha_f": "‖αf(x)‖, summed over keys", "f": "‖f(x)‖, mean"}
    return {
        "by_layer": Picture(
            {
                (category, titles[measure], layer): 100 * value / (norms_of_all[layer] if measure == "alpha_f" else 1)
                for (layer, category, measure), value in by_layer["sequence_mean"].items()
                if category in parts and measure in titles
            }
        ),
        "by_head": Picture(
            {
                (category, title, layer, head): value
                for column, title in grid.items()
                for (layer, head, category), value in by_head[column].items()
                if category in parts
            },
            {"own_scales": True},
        ),
        "scatter": Picture(cloud({category: list(some) for category, some in points.items()}), {"log_y": True}),
    }


def _share_of_bias(specimen: Specimen, layers: Sequence[int]) -> float | None:
    """The mean share of b_O in the attention output; None if there is none."""
    blocks = [[sequence.blocks[layer - 1] for layer in layers] for sequence in specimen.sequences]
    if not any(block.weights.output_bias.any() for block in blocks[0]):
        return None
    return float(np.mean([[block.bias_shares().mean() for block in of_sequence] for of_sequence in blocks]))


def _summary(
    by_layer: pd.DataFrame, correlation: pd.DataFrame, present: Sequence[str], share_of_bias: float | None
) -> pd.DataFrame:
    means = by_layer.groupby(["category", "measure"])["sequence_mean"].mean().unstack()
    rho = _pooled(correlation).reindex(means.index)
    parts = {"‖αf‖, % of total": 100 * means["alpha_f"] / means.loc["all", "alpha_f"]} if "all" in present else {}
    summary = pd.DataFrame(
        {
            "α": means["alpha"],
            "‖αf‖": means["alpha_f"],
            **parts,
            "‖f‖": means["f"],
            "% of the output": means["share"] * 100,
            "ρ(α, ‖f‖)": rho,
            "±": np.nan,  # the bounds of exact correlations do not show
        },
        index=list(present),
    )
    if share_of_bias is not None and "all" in present:
        summary.loc["b_O", "% of the output"] = 100 * share_of_bias
    return summary.rename(index=spoken)


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    bert = made("bert")
    texts = bert.findings("norms", NormsOptions(seed=0), [1, 2], reported(bert))
    return with_inputs_of_its_own("norms", texts, test_norms_of_images.measured())


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.spread(1)
def test_norms(any_specimen, choice):
    layers, categories = CHOICES[choice]
    # The first layer of a rotary model gives equal tokens equal vectors, whose order is left to rounding.
    layers = [layer for layer in layers if layer > 1]
    # Where some layers are looked at, so are some queries of sequences with more than six.
    options = NormsOptions(
        seed=5,
        opens_with=NormsOpening.dispersion if choice == "some" else NormsOpening.weights,
        sampled_queries=6 if choice == "some" else 512,
        scatter_pairs=10**6,
        singular_value_heads=100,
    )
    categories = reported(any_specimen, categories)
    findings = any_specimen.findings("norms", options, layers, categories)
    assert_expected(findings, expected(any_specimen, layers, categories, options))


@pytest.mark.spread(1)
@pytest.mark.parametrize("sampled", [4, 512])
def test_norms_of_words(sampled):
    # Not of a causal model, where the first word's α of 1 is a tie that rounding may break: unit tests compare its pairs.
    layers, of_words, options = (
        [2, 3],
        words.of_words(made("bert")),
        NormsOptions(seed=5, sampled_queries=sampled, scatter_pairs=10**6, singular_value_heads=100),
    )
    categories = reported(of_words, None)
    findings = of_words.findings("norms", options, layers, categories)
    assert_expected(findings, expected(of_words, layers, categories, options))


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [4, 512])
def test_cross_attention_of_words(sampled):
    """What target words take from source words, in padded batches."""
    layers, of_words, options = (
        [2, 3],
        words.of_translations(made("marian")),
        NormsOptions(seed=5, sampled_queries=sampled, scatter_pairs=10**6, singular_value_heads=100),
    )
    categories = reported(of_words, None)
    findings = of_words.findings("norms", options, layers, categories)
    assert_expected(findings, expected(of_words, layers, categories, options))


NORMS = {"alpha/all": 0.8, "alpha_f/all": 5.0, "alpha/cls": 0.25, "alpha_f/cls": 0.1, "alpha/other": 0.55}

DISPERSION = {
    "f/cv_max": 0.37,
    "f/cv_max/layer": 2,
    "f/cv_max/head": 4,
    "f/cv_min": 0.12,
    "f/cv_min/layer": 2,
    "f/cv_min/head": 7,
    "f/cv_mean": 0.22,
    "x/cv_mean": 0.12,
}

CASES = [
    ({}, []),
    *(
        (
            {"alpha_f/all": 5.0, "alpha_f/sep": 1.0, "share/all": 0.9, "share/sep": share},
            [
                f"Norms {'over' if share < 0.1 else 'under'}state what [SEP] tokens contribute: these have 20% of "
                f"Σ‖αf(x)‖, but {written} of what comes from all tokens along the output vectors, where "
                "contributions add up."
            ]
            if written
            else [],
        )
        # Between half and one and a half of the norms' share, nothing is said.
        for share, written in ((-0.09, "−10%"), (0.0891, "9.9%"), (0.0901, ""), (0.2699, ""), (0.2709, "30%"))
    ),
    *(
        (
            # b_O has all the rest of the output: of what tokens add, [CLS] has as much as of the norms, or half of it.
            {"alpha_f/all": 5.0, "alpha_f/cls": 0.6, "share/all": of_tokens, "share/cls": share},
            [
                f"Norms overstate what [CLS] tokens contribute: these have 12% of Σ‖αf(x)‖, but {written} of what comes "
                "from all tokens along the output vectors, where contributions add up."
            ]
            if written
            else [],
        )
        for of_tokens, share, written in (
            (0.125, 0.015, ""),
            (0.125, 0.00749, "6.0%"),
            (0.0501, -0.0501, "−100%"),
            (0.0499, -0.0499, ""),
            (-0.2, 0.015, ""),
        )
    ),
    (
        NORMS | {"alpha/sep": 0.6, "alpha_f/sep": 0.5},  # further apart than those of [CLS]
        [
            "The [SEP] tokens receive 60% of the attention weight but contribute only 10% of Σ‖αf(x)‖.",
            "The [CLS] tokens receive 25% of the attention weight but contribute only 2.0% of Σ‖αf(x)‖.",
        ],
    ),
    ({"alpha_f/all": 5.0, "alpha_f/cls": 0.001, "share/all": 0.9, "share/cls": 0.0008}, []),  # 0.0% and 0.1%
    *(
        (
            {"alpha/all": all_weight, "alpha_f/all": weighted, "f/uniform": 2.0},
            [
                f"{length} vectors tend to get larger weights: the keys that a query sees have a mean ‖f(x)‖ of {written} "
                "weighted by α, and of 2.0 with equal weights."
            ]
            if length
            else [],
        )
        for all_weight, weighted, length, written in (
            (1.0, 1.79, "Shorter", "1.8"),
            (0.99, 1.79, "", ""),  # a learned sink takes weight, and lengths weighted by the rest are shorter
            (1.0, 1.81, "", ""),
            (1.0, 2.0, "", ""),
            (1.0, 2.22, "", ""),
            (1.0, 2.23, "Longer", "2.2"),
        )
    ),
    (NORMS, {"unseen": ["cls"]}, []),
    *(
        (
            NORMS,
            {"apart": {"cls": Interval(0.23, low, 0.25)}, "sequences": 40},
            [f"The [CLS] tokens receive 25% of the attention weight {contrast} 2.0% of Σ‖αf(x)‖{beside}."],
        )
        for low, contrast, beside in (
            (0.22, "but contribute only", " (difference 23.0 points, 95% interval 22.0 to 25.0 over 40 sequences)"),
            (
                -0.01,
                "and contribute",
                ", no detectable difference (difference 23.0 points, 95% interval −1.0 to 25.0 over 40 sequences)",
            ),
            (float("nan"), "but contribute only", ""),
        )
    ),
    ({"alpha_f/all": 5.0, "share/all": 0.9, "share/sep": -0.2}, []),
    (NORMS, ["The [CLS] tokens receive 25% of the attention weight but contribute only 2.0% of Σ‖αf(x)‖."]),
    *(
        (
            NORMS | {"alpha_f/cls": norm},
            [f"The [CLS] tokens receive 25% of the attention weight {contrast} of Σ‖αf(x)‖."],
        )
        for norm, contrast in (
            (0.62, "but contribute only 12%"),
            (0.625, "and contribute 13%"),
            (0.63, "and contribute 13%"),
            (2.0, "and contribute 40%"),
        )
    ),
    (
        NORMS | {"alpha/cls": 0.0004, "alpha_f/cls": 0.0005},  # 0.04% and 0.01%
        ["The [CLS] tokens receive 0.0% of the attention weight and contribute 0.0% of Σ‖αf(x)‖."],
    ),
    ({name: value for name, value in NORMS.items() if name != "alpha_f/all"}, []),
    (NORMS | {"alpha_f/all": 0.0}, []),
    (
        # The further of the two first, and of the two that norms overstate.
        NORMS | {"alpha/sep": 0.3, "alpha_f/sep": 0.5, "share/all": 1.0, "share/cls": 0.0, "share/sep": 0.01},
        [
            "The [CLS] tokens receive 25% of the attention weight but contribute only 2.0% of Σ‖αf(x)‖.",
            "The [SEP] tokens receive 30% of the attention weight but contribute only 10% of Σ‖αf(x)‖.",
            "Norms overstate what [SEP] tokens contribute: these have 10% of Σ‖αf(x)‖, but 1.0% of what comes from all "
            "tokens along the output vectors, where contributions add up.",
        ],
    ),
    (
        {"spearman/all": -0.3},
        {"bounds": {"all": 0.0051, "cls": 0.4}},
        ["Weights have a rank correlation of −0.30 ± 0.0051 with ‖f(x)‖ over all pairs of query and key."],
    ),
    (
        {"spearman/all": -0.3},
        {"bounds": {"all": 0.0049}},
        ["Weights have a rank correlation of −0.30 with ‖f(x)‖ over all pairs of query and key."],
    ),
    *(
        (
            {"spearman/all": -0.3, "singular_values/ratio_min": low, "singular_values/ratio_max": high},
            {"opens_with": NormsOpening(opens_with)},
            sentences if opens_with == "weights" else sentences[::-1],
        )
        for low, high, opens_with, times in (
            (1.71, 10.3, "weights", "1.7 to 10"),
            (1.71, 10.3, "dispersion", "1.7 to 10"),
            (1.71, 1.7101, "dispersion", "1.7"),
        )
        for sentences in [
            [
                "Weights have a rank correlation of −0.30 with ‖f(x)‖ over all pairs of query and key.",
                f"The largest singular value of a head's map from x to f(x) is {times} times its smallest.",
            ]
        ]
    ),
    ({"singular_values/ratio_max": 10.3}, []),
    ({name: value for name, value in DISPERSION.items() if name != "x/cv_mean"}, []),
    (
        DISPERSION,
        [
            "Over tokens, ‖f(x)‖ has a coefficient of variation of 0.22 on average, 0.37 in head 4 of layer 2 and 0.12 in "
            "head 7 of layer 2; that of ‖x‖ is 0.12 on average."
        ],
    ),
    (
        DISPERSION | {"f/cv_min": 0.37, "f/cv_min/head": 4, "f/cv_mean": 0.37},  # of one head
        [
            "Over tokens, ‖f(x)‖ has a coefficient of variation of 0.37 in head 4 of layer 2; that of ‖x‖ is 0.12 on average."
        ],
    ),
    ({"spearman/cls": -0.5, "spearman/other": 0.25}, []),
    (
        {"spearman/cls": 0.0, "spearman/other": 0.25, "spearman/all": 0.125},
        ["Weights have a rank correlation of +0.13 with ‖f(x)‖ over all pairs of query and key."],
    ),
    (
        {"spearman/all": -0.3, "alpha/all": 1.0, "alpha_f/all": 2.0, "f/uniform": 2.0},  # all rows are uniform
        ["Weights have a rank correlation of −0.30 with ‖f(x)‖ over all pairs of query and key."],
    ),
    (
        {"spearman/all": -0.3, "alpha/all": 1.0, "alpha_f/all": 1.79, "f/uniform": 2.0},
        [
            "Weights have a rank correlation of −0.30 with ‖f(x)‖ over all pairs of query and key; shorter vectors tend to get "
            "larger weights: the keys that a query sees have a mean ‖f(x)‖ of 1.8 weighted by α, and of 2.0 with equal "
            "weights."
        ],
    ),
]

EFFECTS = [
    (NORMS, {}, 0.23),  # 25% of the weight, 2% of the norms
    (NORMS | {"alpha_f/cls": 2.0}, {}, 0.15),  # 40% of the norms
    (NORMS, {"apart": {"cls": Interval(0.23, -0.01, 0.25)}}, 0.0),
]

CLAIMS = {
    r"receive (\S+) of the attention weight but contribute only (\S+) of": lambda weight, norm: norm < weight,
    r"Norms overstate .* have (\S+) of Σ‖αf\(x\)‖, but (\S+) of": lambda norm, share: share < norm,
    r"Norms understate .* have (\S+) of Σ‖αf\(x\)‖, but (\S+) of": lambda norm, share: share > norm,
    r"horter .* ‖f\(x\)‖ of (\S+) weighted by α, and of (\S+) with": lambda weighted, alike: weighted < alike,
    r"onger .* ‖f\(x\)‖ of (\S+) weighted by α, and of (\S+) with": lambda weighted, alike: weighted > alike,
}
