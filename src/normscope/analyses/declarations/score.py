"""Score contributions: which dimensions decide attention, and do they cause it? Options, and what the analysis returns."""

import dataclasses
from typing import Any

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import MARUTA_2024
from normscope.config.rules import AboveZero, Count, RandomSets, Seed
from normscope.results.axes import CATEGORY_OF_KEY, CHANGES, DIMENSION, HEAD, LAYER, SEQUENCES, TOGETHER
from normscope.results.declare import Axis, Column, Declared, Rollup, Table, Where


@dataclasses.dataclass
class ScoreOptions(AnalysisConfig):
    """Contributions of hidden dimensions to attention scores (Maruta & Matsuzaki 2024)."""

    sequences: Count | None = None
    """Number of random sequences over which contributions are averaged; null uses the whole corpus."""
    interventions: bool = True
    """Whether to recompute each block's attention without the outlier dimensions' part of its scores."""
    intervention_sequences: Count = 100
    """Maximum number of random sequences for these interventions."""
    controls: RandomSets = 20
    """Number of random sets of dimensions, of the same size, as controls for the interventions."""
    seed: Seed = II("seed")
    """Seed of the sampled sequences and of the random sets of dimensions."""
    intervention_precision: AboveZero | None = 0.01
    """The interventions end early once the 95% intervals of the attention weight that each category gains or loses without the
    outlier dimensions, averaged over layers, are within ± this; null uses all sequences."""


def _positive(variance: Any) -> Any:
    return variance > 0


def _missing(rows: Any, column: str) -> Any:
    return rows[column].isna().mean()


_REMOVED = (
    Axis(
        "removed",
        f"The one dimension that is removed, or `{TOGETHER}`: all outlier dimensions together.",
        noun="removal",
    ),
    Axis("dimensions", "The removed dimensions, separated by spaces."),
)
_SPREAD: Where = {"variance": _positive}
_ALL: Where = {"removed": TOGETHER}

DECLARED = Declared(
    tables={
        "weights": Table(
            rows=(LAYER, CATEGORY_OF_KEY),
            values={
                "sum": Column(
                    "α summed over the category's keys: the mean over queries and heads, then sequences.",
                    label="α, summed over the category’s keys",
                ),
                "one_key": Column(
                    "α of one key of the category: the mean over queries, heads and the sequence's keys of the category, then "
                    "over the sequences that have any.",
                    label="α of one key",
                ),
            },
        ),
        "contributions": Table(
            rows=(LAYER, HEAD, CATEGORY_OF_KEY, DIMENSION),
            values={
                "mean": Column(
                    "Mean contribution C_j to the score q·k over pairs of a query and a visible key, before scaling and "
                    "softmax.",
                    label="contribution to the score",
                )
            },
            ranked_by=("mean",),
        ),
        "by_category": Table(
            rows=(LAYER, DIMENSION.but(noun="outlier dimension"), CATEGORY_OF_KEY),
            values={
                "head_<head>": "Mean contribution C_j in a head, as in `contributions`; missing if the layer lacks the head.",
                "advantage": "C_j less that of all keys, in standard deviations of a query's scores over the keys it sees: "
                "above 0, the dimension favours the category. Mean over heads; missing if `all` is not reported.",
            },
        ),
        "concentration": Table(
            rows=(LAYER, HEAD),
            values={
                "variance": "Variance of a query's scores over the keys it sees, averaged over queries.",
                "half": Column(
                    "Fewest dimensions whose shares add up to half of the variance; missing if all dimensions explain less.",
                    label="dimensions for half",
                    kind="whole",
                ),
                "ninety": Column(
                    "Fewest dimensions whose shares add up to 90% of the variance; missing if all dimensions explain less.",
                    label="dimensions for 90%",
                    kind="whole",
                ),
                "outliers": Column(
                    "Share of all outlier dimensions together in the variance.", label="share of outliers"
                ),
                "key_bias": Column(
                    "Share of b_K in the variance: 0 unless rotary positions or a norm of the keys make it differ "
                    "between keys.",
                    label="share of b_K",
                ),
                "first": Column("The dimension with the largest share.", kind="whole"),
                "first_share": "Share of that dimension in the variance.",
            },
        ),
        "intervention": Table(
            rows=(LAYER, *_REMOVED, CATEGORY_OF_KEY),
            per="layer, removal and category; the outlier dimensions' part of the scores is removed in one block at a time",
            values={**CHANGES, "sequences": SEQUENCES},
            ranked_by=("change",),
        ),
    },
    metrics=(
        Rollup(
            "weights/<category>/sum",
            "Mean weight over layers on all keys of the category together.",
            of="weights.sum",
        ),
        Rollup(
            "weights/<category>/one_key",
            "Mean weight over layers on one key of the category.",
            of="weights.one_key",
        ),
        Rollup(
            "dimensions_for_half/mean",
            "Mean number of dimensions that explain half of the variance of the scores, over heads.",
            of="concentration.half",
            where=_SPREAD,
        ),
        Rollup(
            "dimensions_for_90_percent/mean",
            "Mean number of dimensions that explain 90% of the variance, over heads.",
            of="concentration.ninety",
            where=_SPREAD,
        ),
        Rollup(
            "share_of_outliers/mean",
            "Mean share of the outlier dimensions in the variance, over heads.",
            of="concentration.outliers",
            where=_SPREAD,
        ),
        Rollup(
            "share_of_key_bias/mean",
            "Mean share of b_K in the variance, over heads.",
            of="concentration.key_bias",
            where=_SPREAD,
        ),
        Rollup(
            "heads_below_half/share",
            "Share of the heads in which all dimensions together explain less than half of the variance.",
            of="concentration.half",
            how=_missing,
            where=_SPREAD,
            label="share of heads whose dimensions explain less than half of the variance (%)",
        ),
        Rollup(
            "heads_below_90_percent/share",
            "Share of the heads in which all dimensions together explain less than 90% of the variance.",
            of="concentration.ninety",
            how=_missing,
            where=_SPREAD,
            label="share of heads whose dimensions explain less than 90% of the variance (%)",
        ),
        Rollup(
            "intervention/<category>/before",
            "Mean weight on the category over layers, with all dimensions.",
            of="intervention.before",
            where=_ALL,
            label="α with all dimensions",
        ),
        Rollup(
            "intervention/<category>/after",
            "Mean weight on the category over layers, with the outlier dimensions' part of the block's scores removed.",
            of="intervention.after",
            where=_ALL,
            label="α without outlier dimensions",
        ),
        Rollup(
            "intervention/<category>/change",
            "Change of the mean weight on the category: `after` minus `before`.",
            of="intervention.change",
            where=_ALL,
            label="change of α without outlier dimensions",
        ),
        Rollup(
            "intervention/<category>/controls_mean",
            "Mean change of that weight when as many random dimensions are removed instead.",
            of="intervention.controls_mean",
            where=_ALL,
            label="change of α without random dimensions",
        ),
        Rollup(
            "intervention/sequences",
            "Number of sequences on which outlier dimensions were removed from the scores.",
            of="intervention.sequences",
            how="max",
            label="sequences run without outlier dimensions",
        ),
    ),
    curves=(
        Rollup(
            "dimensions_for_half",
            "Mean number of dimensions that explain half of the variance of the scores, over heads.",
            of="concentration.half",
        ),
        Rollup(
            "dimensions_for_90_percent",
            "Mean number of dimensions that explain 90% of the variance.",
            of="concentration.ninety",
        ),
        Rollup(
            "share_of_outliers", "Mean share of the outlier dimensions in the variance.", of="concentration.outliers"
        ),
        Rollup("share_of_key_bias", "Mean share of b_K in the variance.", of="concentration.key_bias"),
    ),
)

SCORE = AnalysisInfo(
    name="score",
    title="Score contributions",
    question="Which dimensions decide where attention goes, and is their effect causal?",
    options=ScoreOptions,
    implementation="normscope.analyses.score:ScoreAnalysis",
    papers=(MARUTA_2024,),
    declared=DECLARED,
)
