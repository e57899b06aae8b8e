"""The frequency analysis by brute force."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.declarations.frequency import FrequencyOptions
from normscope.analyses.frequency import FREQUENCIES
from normscope.data.token_frequencies import TokenFrequencies
from normscope.results.result import Result
from tests.oracles.comparison import Expected, Picture, assert_expected, cloud, said, spearman, table
from tests.oracles.specimens import Specimen, made, reported

TITLES = {
    "alpha": "α received",
    "f": "‖f(x)‖",
    "attn_w": "mixing ratio (%), attention weights",
    "attn_n": "mixing ratio (%), weighted vectors",
    "attnres_w": "mixing ratio (%), weights + residual",
    "attnres_n": "mixing ratio (%), vectors + residual",
    "attnresln_n": "mixing ratio (%), attention block",
}
PRINTED = {
    "alpha": "α received",
    "attn_w": "attention weights (Attn-W)",
    "attn_n": "weighted vectors (Attn-N)",
    "attnres_w": "weights + residual (AttnRes-W)",
    "attnres_n": "vectors + residual (AttnRes-N)",
    "attnresln_n": "attention block (AttnResLn-N)",
    "f": "‖f(x)‖",
}


def counted(specimen: Specimen, left_out: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rank (1: most frequent, equal counts share one, 0: left out) and count of every token."""
    numbers = Counter(int(token) for sequence in specimen.sequences for token in sequence.ids)
    tokens = range(specimen.loaded.vocabulary)
    rank = [
        0 if token in left_out else 1 + sum(numbers[other] > numbers[token] for other in tokens) for token in tokens
    ]
    return np.array(rank), np.array([numbers[token] for token in tokens])


def expected(specimen: Specimen, layers: Sequence[int], rank: np.ndarray, count: np.ndarray) -> Expected:
    """Everything that the frequency analysis returns."""
    tokens = _tokens(specimen, layers, rank)
    means = tokens.groupby(["sequence", "position"]).first()[["id", "rank", "special", "kind"]]
    measures = _measures(specimen)
    means = means.join(tokens.groupby(["sequence", "position"])[measures].mean())
    overall = table(["measure", "specials"], _correlations(means, measures))
    by_layer = table(
        ["layer", "measure", "specials"],
        [
            {"layer": layer, **row}
            for layer in layers
            for row in _correlations(tokens[tokens["layer"] == layer], measures)
        ],
    )
    ranked = means[means["rank"] > 0]
    sample = ranked[["rank", *measures]].set_index("rank")
    metrics = {
        f"spearman/{measure}/{specials}_specials": rho
        for (measure, specials), rho in overall["spearman"].dropna().items()
    }
    percent = {measure: 100 if measure.startswith("attn") else 1 for measure in measures}
    points = {
        TITLES[measure]: list(zip(sample.index, percent[measure] * sample[measure], strict=True))
        for measure in measures
        if measure != "attnres_w"  # half of attn_w, since the weights of these models add up to 1
    }
    kinds = {kind: len(points) * count for kind, count in sorted(ranked["kind"].value_counts().items())}
    reasons = sorted(set(overall["reason"]) - {""})
    return Expected(
        tables={
            "correlation": overall,
            "correlation_by_layer": by_layer,
            "by_token": _by_token(specimen, means, measures, rank, count),
        },
        metrics=metrics,
        curves=_curves(by_layer),
        figures={
            "scatter": Picture(
                cloud(points) if len(sample) else {},
                {"log_x": True, "sharey": False, "medians": True, "kinds": kinds},
            )
        },
        summary=overall["spearman"]
        .unstack()
        .reindex(measures)
        .rename(index=lambda measure: PRINTED.get(measure, measure), columns=lambda name: f"{name} special tokens")
        .assign(**{"± with": np.nan, "± without": np.nan}),  # the bounds of exact correlations do not show
        sentences=said("frequency", metrics),
        notes=[f"frequency: ρ is undefined, {reason}" for reason in reasons],
    )


def _measures(specimen: Specimen) -> list[str]:
    """The attention that a token receives, the norm of its vectors, and the mixing ratios that its blocks have."""
    return ["alpha", "f", *specimen.sequences[0].blocks[0].ratios()]


def _tokens(specimen: Specimen, layers: Sequence[int], rank: np.ndarray) -> pd.DataFrame:
    """One row per layer and token: what it receives, how long its vectors are, how much its blocks mix."""
    return pd.concat(
        pd.DataFrame(
            {
                "layer": layer,
                "sequence": number,
                "position": range(len(sequence.ids)),
                "id": sequence.ids,
                "rank": rank[sequence.ids],
                "special": [specimen.is_special(token) for token in sequence.ids.tolist()],
                "kind": [
                    "ordinary tokens" if not specimen.is_special(token) else _kind(category)
                    for token, category in zip(sequence.ids.tolist(), specimen.key_categories(sequence), strict=True)
                ],
                "alpha": block.alpha.mean(axis=(0, 1)),
                "f": np.linalg.norm(block.f, axis=-1).mean(axis=0),
                **block.ratios(),
            }
        )
        for number, sequence in enumerate(specimen.sequences)
        for layer in layers
        for block in [sequence.blocks[layer - 1]]
    )


def _kind(category: str) -> str:
    return category if category in ("cls", "sep", "mask") else "other special tokens"


def _correlations(tokens: pd.DataFrame, measures: Sequence[str]) -> list[Mapping[str, object]]:
    rows = []
    for measure in measures:
        for specials, chosen in (("with", tokens), ("without", tokens[~tokens["special"]])):
            ranked = chosen[chosen["rank"] > 0]
            rho = spearman(ranked[measure].to_numpy(), ranked["rank"].to_numpy())
            rows.append({"measure": measure, "specials": specials, **rho})
    return rows


def _curves(by_layer: pd.DataFrame) -> dict[str, dict[int, float]]:
    curves: dict[str, dict[int, float]] = {}
    for (layer, measure, specials), rho in by_layer["spearman"].dropna().items():
        curves.setdefault(f"spearman/{measure}/{specials}_specials", {})[layer] = rho
    return curves


def _by_token(
    specimen: Specimen, means: pd.DataFrame, measures: Sequence[str], rank: np.ndarray, count: np.ndarray
) -> pd.DataFrame:
    rows = [
        {
            "token_id": token,
            "token": specimen.loaded.tokenizer.convert_ids_to_tokens(token),
            "rank": rank[token] or np.nan,
            "reference_count": count[token],
            "count": len(own),
            **own[measures].mean(),
        }
        for token, own in means.groupby("id")
    ]
    return table(["token", "token_id"], rows)


def everything() -> Result:
    """Everything that the analysis can return, on a tiny model."""
    bert = made("bert")
    resources = {FREQUENCIES: TokenFrequencies(*counted(bert, []))}
    return bert.findings("frequency", FrequencyOptions(seed=0), [1, 2], reported(bert), resources=resources)


LEFT_OUT = {"none": lambda _: False, "two words": lambda token: token in (6, 9), "all words": lambda token: token > 4}


@pytest.mark.parametrize("left_out", LEFT_OUT)
@pytest.mark.spread(1)
def test_frequency(specimen, left_out):
    layers = [2, 3]  # as in test_norms
    tokens = [token for token in range(specimen.loaded.vocabulary) if LEFT_OUT[left_out](token)]
    rank, count = counted(specimen, tokens)
    findings = specimen.findings(
        "frequency",
        FrequencyOptions(seed=0),
        layers,
        reported(specimen, None),
        resources={FREQUENCIES: TokenFrequencies(rank, count)},
    )
    assert_expected(findings, expected(specimen, layers, rank, count))
    by_token = findings.tables["by_token"]
    assert by_token["count"].duplicated().any()
    assert by_token.sort_values(["count", "token_id"], ascending=[False, True]).index.equals(by_token.index)


CASES = [
    ({}, []),
    ({"spearman/alpha/without_specials": 0.5}, []),
    (
        {"spearman/f/with_specials": -0.25, "spearman/attnresln_n/with_specials": 0.5},
        [
            "Frequent tokens are not discounted (their vectors are longer): special tokens included, a token's frequency "
            "rank (1: most frequent) has a rank correlation of −0.25 with ‖f(x)‖ and +0.50 with its mixing ratio."
        ],
    ),
    (
        {"spearman/f/with_specials": 0.75, "spearman/alpha/with_specials": 0.125},
        {
            "bounds": {
                "spearman/f/with_specials": 0.0051,
                "spearman/alpha/with_specials": 0.0049,
                "spearman/f/without_specials": 0.5,
            }
        },
        [
            "Frequent tokens are discounted (their vectors are shorter): special tokens included, a token's frequency "
            "rank (1: most frequent) has a rank correlation of +0.13 with the weight that it receives and +0.75 ± 0.0051 "
            "with ‖f(x)‖."
        ],
    ),
    (
        {"spearman/f/with_specials": 0.75},
        [
            "Frequent tokens are discounted (their vectors are shorter): special tokens included, a token's frequency "
            "rank (1: most frequent) has a rank correlation of +0.75 with ‖f(x)‖."
        ],
    ),
    (
        {"spearman/f/with_specials": 0.1},
        [
            "Frequent tokens have vectors of about the same length as rare ones: special tokens included, a token's "
            "frequency rank (1: most frequent) has a rank correlation of +0.10 with ‖f(x)‖."
        ],
    ),
    (
        {"spearman/alpha/with_specials": 0.125},
        [
            "Special tokens included, a token's frequency rank (1: most frequent) has a rank correlation of +0.13 with "
            "the weight that it receives."
        ],
    ),
]

EFFECTS = [
    ({"spearman/f/with_specials": 0.78}, {}, 0.78),
    ({"spearman/f/with_specials": -0.2}, {}, 0.2),
    ({"spearman/alpha/with_specials": 0.3}, {}, 0.0),
]

CLAIMS = {
    r"are discounted .* correlation of (?:\S+ with the weight that it receives.* and )?\+(\S+) with ‖f": lambda rho: (
        rho > 0
    ),
    r"are not discounted .* correlation of (\S+) with ‖f": lambda rho: rho < 0,
}
