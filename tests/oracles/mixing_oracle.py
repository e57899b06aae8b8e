"""The mixing analysis by brute force."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.declarations.mixing import MixingOptions
from normscope.results.result import Result
from normscope.statistics.intervals import Interval, Sample, mean_test
from tests.oracles import words
from tests.oracles.activations import Sequence_
from tests.oracles.comparison import Expected, Picture, assert_expected, said, spoken, table
from tests.oracles.specimens import CHOICES, Specimen, made, reported

TITLES = {
    "attn_w": "attention weights (Attn-W)",
    "attn_n": "weighted vectors (Attn-N)",
    "attnres_w": "weights + residual (AttnRes-W)",
    "attnres_n": "vectors + residual (AttnRes-N)",
    "attnresln_n": "attention block (AttnResLn-N)",
}


def expected(specimen: Specimen, layers: Sequence[int], categories: Sequence[str]) -> Expected:
    """Everything that the mixing analysis returns."""
    tokens = _tokens(specimen, layers)
    methods = list(dict.fromkeys(tokens["method"]))
    rows = [
        {"layer": layer, "method": method, "category": category, **statistics_of(chosen)}
        for layer in layers
        for method in methods
        for category in categories
        if len(chosen := tokens_of(tokens, layer, method, category))
    ]
    by_layer = table(["layer", "method", "category"], rows)
    everything = {method: tokens[tokens["method"] == method]["ratio"] for method in methods}
    metrics = {
        f"{method}/{name}": float(getattr(ratios, name)())
        for method, ratios in everything.items()
        for name in ("mean", "max", "min")
    }
    means = {
        (method, layer): float(tokens_of(tokens, layer, method, "all")["ratio"].mean())
        for method in methods
        for layer in layers
    }
    shares = shares_of_tokens(
        specimen, layers, lambda sequence, layer: sequence.blocks[layer - 1].shares(), list(PARTS)
    )
    metrics |= share_metrics(shares)
    of_shares = {(method, layer): rows for (method, layer), rows in shares.groupby(["method", "layer"])}
    return Expected(
        tables={"by_layer": by_layer, "shares": share_table(shares, categories)},
        metrics=metrics,
        curves={f"{method}/mean": {layer: means[method, layer] for layer in layers} for method in methods}
        | share_curves(shares),
        by_sequence={f"{method}/mean": means_by_sequence(tokens, layers, method) for method in methods}
        | shares_by_sequence(shares, layers),
        figures={
            "heatmap": Picture(
                {
                    (TITLES[method], layer, category): mean * 100
                    for (layer, method, category), mean in by_layer["mean"].items()
                },
                {"limits": (0, 100)},
            ),
            "by_layer": Picture(
                {(None, TITLES[method], layer): mean * 100 for (method, layer), mean in means.items()},
                {"limits": (0, 100)},
            ),
            "shares": Picture(
                {
                    (TITLES[method], title, layer): rows[part].mean() * 100
                    for (method, layer), rows in of_shares.items()
                    for part, title in PARTS.items()
                    if (method, part) != ("attn_n", "residual")  # where there is none
                }
            ),
        },
        summary=summary_by_category(tokens[tokens["method"] == methods[-1]], layers, categories),
        sentences=said("mixing", metrics, *_beside_weights(tokens, methods)),
    )


def _beside_weights(tokens: pd.DataFrame, methods: Sequence[str]) -> tuple[Interval | None, int]:
    """The last ratio of vectors less that of the weights, and the number of sequences."""
    whole = next((method for method in ("attnresln_n", "attnres_n") if method in methods), None)
    known = whole is not None and "attn_w" in methods
    return difference_of(tokens, whole, "attn_w") if known else None, tokens["sequence"].nunique()


def difference_of(tokens: pd.DataFrame, one: str, other: str) -> Interval:
    """The mean ratio by one method less that by another, with the interval of each sequence's differences."""
    of_tokens = tokens.assign(token=tokens.groupby(["method", "layer", "sequence"]).cumcount()).pivot(
        index=["layer", "sequence", "token"], columns="method", values="ratio"
    )
    apart = (of_tokens[one] - of_tokens[other]).rename("apart").reset_index()
    sequences = apart.groupby("sequence")["apart"].agg(["size", "mean"]).sort_values(["size", "mean"])
    low = high = np.nan
    if len(sequences) >= 5 and np.ptp(sequences["mean"]) > 1e-6:
        sample = Sample(sequences["mean"].to_numpy(), sequences["size"].to_numpy(float))
        _, low, high, _ = map(float, mean_test(sample, resamples=999))
    return Interval(float(apart["apart"].mean()), low, high)


def summary_by_category(tokens: pd.DataFrame, layers: Sequence[int], categories: Sequence[str]) -> pd.DataFrame:
    """Mean over tokens and layers by category, its interval over sequences, and the number of tokens."""
    rows = {}
    for category in categories:
        chosen = tokens if category == "all" else tokens[tokens["category"] == category]
        if not len(chosen):
            continue
        sequences = chosen.groupby("sequence")["ratio"].agg(["size", "mean"]).sort_values(["size", "mean"])
        low = high = np.nan
        if len(sequences) >= 5 and sequences["mean"].max() - sequences["mean"].min() > 1e-6:
            sample = Sample(sequences["mean"].to_numpy(), sequences["size"].to_numpy(float))
            _, low, high, _ = mean_test(sample, resamples=999)
        rows[spoken(category)] = {
            "mean %": 100 * chosen["ratio"].mean(),
            "low %": 100 * np.clip(low, 0, 1),
            "high %": 100 * np.clip(high, 0, 1),
            "tokens": len(chosen) // len(layers),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


PARTS = {
    "share": "the other tokens",
    "own": "the token itself, through attention",
    "residual": "the residual connection",
    "bias": "biases",
}


def shares_of_tokens(
    specimen: Specimen,
    layers: Sequence[int],
    shares: Callable[[Sequence_, int], Mapping[str, Mapping[str, np.ndarray]]],
    columns: Sequence[str],
) -> pd.DataFrame:
    """One row per layer, method and token, with the share of every part; they add up to 1."""
    table = pd.concat(
        pd.DataFrame(
            {
                "layer": layer,
                "method": method,
                "sequence": number,
                "category": specimen.categories(sequence),
                "share": parts["others"],
                **{part: parts[part] for part in columns if part != "share"},
            }
        )
        for number, sequence in enumerate(specimen.sequences)
        for layer in layers
        for method, parts in shares(sequence, layer).items()
    )
    np.testing.assert_allclose(table[list(columns)].sum(axis=1), 1, rtol=1e-12)
    return table


def share_table(shares: pd.DataFrame, categories: Sequence[str]) -> pd.DataFrame:
    columns = [column for column in shares if column in PARTS]
    rows = [
        {"layer": layer, "method": method, "category": category, **chosen[columns].mean(), "count": len(chosen)}
        for layer, method in shares.groupby(["layer", "method"], sort=False).groups
        for category in categories
        if len(chosen := tokens_of(shares, layer, method, category))
    ]
    return table(["layer", "method", "category"], rows)


def share_metrics(shares: pd.DataFrame) -> dict[str, float]:
    columns = [column for column in shares if column in PARTS]
    means = shares.groupby("method")[columns].mean()
    return {f"{method}/{part}": float(means.loc[method, part]) for method in means.index for part in columns}


def share_curves(shares: pd.DataFrame) -> dict[str, dict[int, float]]:
    means = shares.groupby(["method", "layer"])["share"].mean()
    return {f"{method}/share": means[method].to_dict() for method in dict.fromkeys(shares["method"])}


def shares_by_sequence(shares: pd.DataFrame, layers: Sequence[int]) -> dict[str, list[tuple[int, float]]]:
    named = shares.rename(columns={"share": "ratio"})
    return {f"{method}/share": means_by_sequence(named, layers, method) for method in dict.fromkeys(shares["method"])}


def _tokens(specimen: Specimen, layers: Sequence[int]) -> pd.DataFrame:
    """One row per layer, method and token."""
    return pd.concat(
        pd.DataFrame(
            {
                "layer": layer,
                "method": method,
                "sequence": number,
                "category": specimen.categories(sequence),
                "ratio": ratios,
            }
        )
        for number, sequence in enumerate(specimen.sequences)
        for layer in layers
        for method, ratios in sequence.blocks[layer - 1].ratios().items()
    )


def tokens_of(tokens: pd.DataFrame, layer: int, method: str, category: str) -> pd.DataFrame:
    chosen = tokens[(tokens["layer"] == layer) & (tokens["method"] == method)]
    return chosen if category == "all" else chosen[chosen["category"] == category]


def statistics_of(chosen: pd.DataFrame) -> dict[str, float]:
    ratio = chosen["ratio"]
    return {
        "mean": ratio.mean(),
        "sequence_mean": chosen.groupby("sequence")["ratio"].mean().mean(),
        "max": ratio.max(),
        "min": ratio.min(),
        "count": len(ratio),
    }


def means_by_sequence(tokens: pd.DataFrame, layers: Sequence[int], method: str) -> list[tuple[int, float]]:
    """Number of tokens, and mean over them and the layers, of each sequence."""
    sequences = tokens[tokens["method"] == method].groupby("sequence")["ratio"]
    return [(len(ratios) // len(layers), float(ratios.mean())) for _, ratios in sequences]


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    bert = made("bert")
    return bert.findings("mixing", MixingOptions(), [1, 2], reported(bert))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.spread(2)
def test_mixing(any_specimen, choice):
    layers, categories = CHOICES[choice]
    categories = reported(any_specimen, categories)
    findings = any_specimen.findings("mixing", MixingOptions(), layers, categories)
    assert findings.summaries["mixing"].digits == 1
    assert_expected(findings, expected(any_specimen, layers, categories))


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["bert", "qwen2"])
def test_mixing_of_words(name):
    layers, of_words = [2, 3], words.of_words(made(name))
    categories = reported(of_words, None)
    findings = of_words.findings("mixing", MixingOptions(), layers, categories)
    assert_expected(findings, expected(of_words, layers, categories))


def test_mixing_of_words_of_translations():
    """What target words take from source words, in padded batches."""
    layers, of_words = [2, 3], words.of_translations(made("marian"))
    categories = reported(of_words, None)
    findings = of_words.findings("mixing", MixingOptions(), layers, categories)
    assert_expected(findings, expected(of_words, layers, categories))


MIXING = {"attn_w/mean": 0.8, "attnres_n/mean": 0.25, "attnres_n/min": 0.1, "attnres_n/max": 0.4}
SHARES = {"attnres_n/share": 0.125, "attnres_n/own": 0.0, "attnres_n/residual": 0.9, "attnres_n/bias": -0.025}
WHOLE = {"attnresln_n/mean": 0.5, "attnresln_n/min": 0.2, "attnresln_n/max": 0.9}
RANGE = (
    "The mixing ratio, which includes the vectors, the residual connection and the layer normalisation, ranges from 20% to "
    "90% over tokens and layers."
)

CASES = [
    ({}, []),
    (
        {"attn_w/mean": 0.8},
        ["By attention weights alone, the mean mixing ratio is 80%."],
    ),
    (
        MIXING,
        [
            "On average, tokens take less from other tokens than they preserve of themselves: the mean mixing ratio of the "
            "attention blocks is 25%; attention weights alone suggest 80%.",
            "The mixing ratio, which includes the vectors and the residual connection, ranges from 10% to 40% over "
            "tokens and layers.",
        ],
    ),
    *(
        (
            MIXING,
            {"beside_weights": Interval(-0.55, low, high), "sequences": 40},
            [
                "On average, tokens take less from other tokens than they preserve of themselves: the mean mixing ratio of the "
                f"attention blocks is 25%; attention weights alone suggest 80%{written}.",
                "The mixing ratio, which includes the vectors and the residual connection, ranges from 10% to 40% over "
                "tokens and layers.",
            ],
        )
        for low, high, written in (
            (-0.56, -0.541, " (difference 55.0 points, 95% interval 54.1 to 56.0 over 40 sequences)"),
            (
                -1.2,
                0.1,
                ", no detectable difference (difference 55.0 points, 95% interval −10.0 to 120.0 over 40 sequences)",
            ),
            (float("nan"), float("nan"), ""),
        )
    ),
    *(
        (
            WHOLE | {"attnresln_n/mean": mean},
            [
                f"On average, tokens take {amount} they preserve of themselves: the mean mixing ratio of the attention "
                f"blocks is {written}.",
                RANGE,
            ],
        )
        for mean, amount, written in (
            (0.4949, "less from the source than", "49%"),
            (0.4951, "about as much from the source as", "49.5%"),
            (0.4994, "about as much from the source as", "49.9%"),
            (0.4996, "as much from the source as", "50%"),
            (0.5, "as much from the source as", "50%"),
            (0.5004, "as much from the source as", "50%"),
            (0.5006, "about as much from the source as", "50.1%"),
            (0.5051, "more from the source than", "51%"),
        )
    ),
    (
        MIXING | WHOLE,
        [
            "On average, tokens take as much from other tokens as they preserve of themselves: the mean mixing ratio of "
            "the attention blocks is 50%; attention weights alone suggest 80%.",
            RANGE,
        ],
    ),
    *(
        (
            SHARES | (MIXING if by_weights else {name: MIXING[name] for name in MIXING if name != "attn_w/mean"}),
            [
                f"On average, tokens take less from {origin} than they preserve of themselves: the mean mixing ratio of "
                f"the attention blocks is 25%{suggestion}.",
                "The mixing ratio, which includes the vectors and the residual connection, ranges from 10% to 40% over "
                "tokens and layers.",
                f"Measured along the output vectors, where parts add up to 100%, 13% comes from {origin}, {through}90% "
                "from the residual connection and −2.5% from biases.",
            ],
        )
        for by_weights, origin, suggestion, through in (
            (
                True,
                "other tokens",
                "; attention weights alone suggest 80%",
                "0% from the token itself through attention, ",
            ),
            (False, "the source", "", ""),
        )
    ),
]

EFFECTS = [
    ({"attn_w/mean": 0.8}, {}, 0.0),
    (MIXING, {}, 0.55),  # 80% by weights, 25% by vectors
    (MIXING, {"beside_weights": Interval(-0.55, -1.2, 0.1)}, 0.0),
    (WHOLE, {}, 0.0),
    (WHOLE | {"attnresln_n/mean": 0.1}, {}, 0.4),  # from half, where weights have no ratio
]

CLAIMS = {
    r"take less from .* than .*: the mean mixing ratio of the attention blocks is (\S+?)(?:;|\.$)": lambda ratio: (
        ratio < 0.5
    ),
    r"take more from .* than .*: the mean mixing ratio of the attention blocks is (\S+?)(?:;|\.$)": lambda ratio: (
        ratio > 0.5
    ),
    r"take as much from .*: the mean mixing ratio of the attention blocks is (\S+?)(?:;|\.$)": lambda ratio: (
        ratio == 0.5
    ),
}
