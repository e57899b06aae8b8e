"""The frequency analysis by brute force."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from normscope.analyses.frequency import MEASURE_AXIS, RANK_AXIS
from tests.oracles.comparison import Expected, Picture, cloud, said, spearman, table
from tests.oracles.specimens import Specimen

TITLES = {
    "alpha": "α received",
    "f": "‖f(x)‖",
    "attn_w": "mixing ratio (%), Attn-W",
    "attn_n": "mixing ratio (%), Attn-N",
    "attnres_w": "mixing ratio (%), AttnRes-W",
    "attnres_n": "mixing ratio (%), AttnRes-N",
    "attnresln_n": "mixing ratio (%), AttnResLn-N",
}
PRINTED = {
    "alpha": "α received",
    "attn_w": "Attn-W: weights",
    "attn_n": "Attn-N: vectors",
    "attnres_w": "AttnRes-W: weights + residual",
    "attnres_n": "AttnRes-N: vectors + residual",
    "attnresln_n": "AttnResLn-N: the attention block",
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
    """Everything that the frequency analysis publishes."""
    tokens = _tokens(specimen, layers, rank)
    means = tokens.groupby(["sequence", "position"]).first()[["id", "rank", "special"]]
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
    sample = means[~means["special"] & (means["rank"] > 0)][["rank", *measures]].set_index("rank")
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
            "scatter": Picture(cloud(points) if len(sample) else {}, {"log_x": True, "sharey": False, "medians": True})
        },
        summary=overall["spearman"]
        .unstack()
        .reindex(measures)
        .rename(index=lambda measure: PRINTED.get(measure, measure), columns=lambda name: f"{name} special tokens"),
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
                "alpha": block.alpha.mean(axis=(0, 1)),
                "f": np.linalg.norm(block.f, axis=-1).mean(axis=0),
                **block.ratios(),
            }
        )
        for number, sequence in enumerate(specimen.sequences)
        for layer in layers
        for block in [sequence.blocks[layer - 1]]
    )


def _correlations(tokens: pd.DataFrame, measures: Sequence[str]) -> list[Mapping[str, object]]:
    rows = []
    for measure in measures:
        for specials, chosen in (("with", tokens), ("without", tokens[~tokens["special"]])):
            ranked = chosen[chosen["rank"] > 0]
            rho = spearman(ranked[measure].to_numpy(), ranked["rank"].to_numpy(), MEASURE_AXIS, RANK_AXIS)
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
