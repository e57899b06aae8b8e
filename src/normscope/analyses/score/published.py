"""What the score analysis publishes."""

from typing import Any

from normscope.results.axes import CATEGORY_OF_KEY, CHANGES, DIMENSION, HEAD, LAYER, SEQUENCES, TOGETHER, in_nats
from normscope.results.declare import Axis, Column, Published, Rollup, Table, Where

_REMOVED = (
    Axis(
        "removed",
        f"The one dimension that is removed, or `{TOGETHER}`: all outlier dimensions together.",
        noun="removal",
    ),
    Axis("dimensions", "The removed dimensions, separated by spaces."),
)
_ABLATED = (
    Axis(
        "from_layer",
        "First layer whose inputs are changed; those of all later layers are changed, too.",
        noun="first layer",
        kind="whole",
    ),
    Axis("value", "What the dimensions are set to: `zero`, or the `mean` of each over all tokens of the corpus."),
    *_REMOVED,
)
_LOSS = CHANGES | {
    "before": "Loss of the unchanged model in nats: of masked tokens, or of the next token in a causal model.",
    "after": "Loss with the dimensions replaced, in nats.",
}


def _positive(variance: Any) -> Any:
    return variance > 0


def _earliest(layers: Any) -> Any:
    return layers == layers.min()


def _missing(rows: Any, column: str) -> Any:
    return rows[column].isna().mean()


_SPREAD: Where = {"variance": _positive}
_ALL: Where = {"removed": TOGETHER}
_EARLIEST: Where = {"removed": TOGETHER, "from_layer": _earliest}

PUBLISHED = Published(
    tables={
        "contributions": Table(
            rows=(LAYER, HEAD, CATEGORY_OF_KEY, DIMENSION),
            values={
                "mean": "Mean contribution C_j to the score q·k over pairs of a query and a visible key, before scaling and "
                "softmax."
            },
            ranked_by=("mean",),
        ),
        "by_category": Table(
            rows=(LAYER, DIMENSION.but(noun="outlier dimension"), CATEGORY_OF_KEY),
            values={"head_<head>": "Mean contribution C_j in the head."},
        ),
        "totals": Table(
            rows=(LAYER, HEAD, CATEGORY_OF_KEY),
            values={
                "contributions": "Σ_j C_j: the mean part of the score that comes from the dimensions.",
                "key_bias": "The mean part of the score that comes from b_K.",
                "score": "The mean score q·k, the sum of both.",
                "pairs": Column("Number of pairs of a query and a visible key.", kind="whole"),
            },
        ),
        "spread": Table(
            rows=(
                LAYER,
                HEAD,
                Axis("rank", "Rank of the dimension by its share, from 1.", noun="dimension", kind="whole"),
            ),
            values={
                "dimension": Column(DIMENSION.meaning, kind="whole"),
                "share": "Share of the dimension in the variance of a query's scores over the keys; missing if there is no "
                "variance.",
                "cumulative": "Sum of the shares up to this rank.",
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
                "first_share": "Its share.",
            },
        ),
        "intervention": Table(
            rows=(LAYER, *_REMOVED, CATEGORY_OF_KEY),
            per="layer, removal and category; the outlier dimensions' part of the scores is removed in one block at a time",
            values={**CHANGES, "sequences": SEQUENCES},
            ranked_by=("change",),
        ),
        "ablation": Table(
            rows=(*_ABLATED, LAYER, CATEGORY_OF_KEY),
            per="first layer, value, removal, layer and category; the dimensions are replaced wherever a layer reads them",
            values={**CHANGES, "sequences": SEQUENCES},
            ranked_by=("change",),
        ),
        "ablation_loss": Table(
            rows=_ABLATED,
            per="first layer, value and removal, if the checkpoint has a language-modelling head",
            values=in_nats(**_LOSS),
        ),
    },
    metrics=(
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
        ),
        Rollup(
            "heads_below_90_percent/share",
            "Share of the heads in which all dimensions together explain less than 90% of the variance.",
            of="concentration.ninety",
            how=_missing,
            where=_SPREAD,
        ),
        Rollup(
            "intervention/<category>/before",
            "Mean weight on the category over layers, unchanged.",
            of="intervention.before",
            where=_ALL,
        ),
        Rollup(
            "intervention/<category>/after",
            "Mean weight on the category over layers, with the outlier dimensions' part of the block's scores removed.",
            of="intervention.after",
            where=_ALL,
        ),
        Rollup("intervention/<category>/change", "The difference.", of="intervention.change", where=_ALL),
        Rollup(
            "intervention/<category>/controls_mean",
            "Mean change of that weight when as many random dimensions are removed instead.",
            of="intervention.controls_mean",
            where=_ALL,
        ),
        Rollup(
            "intervention/sequences",
            "Number of sequences on which outlier dimensions were removed from the scores.",
            of="intervention.sequences",
            how="max",
        ),
        Rollup(
            "ablation/sequences",
            "Number of sequences on which outlier dimensions were replaced.",
            of="ablation.sequences",
            how="max",
        ),
        Rollup(
            "ablation/<value>/loss_before",
            "Loss in nats, unchanged: of masked tokens, or of the next token in a causal model.",
            of="ablation_loss.before",
            where=_EARLIEST,
        ),
        Rollup(
            "ablation/<value>/loss_after",
            "Loss in nats with all outlier dimensions replaced from the first chosen layer on.",
            of="ablation_loss.after",
            where=_EARLIEST,
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
