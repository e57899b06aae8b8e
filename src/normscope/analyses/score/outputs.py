"""What the score analysis publishes."""

from normscope.analyses.columns import CATEGORY_OF_KEY, CHANGES, DIMENSION, HEAD, LAYER
from normscope.analyses.info import Outputs, TableInfo

_REMOVED = {
    "removed": "The one dimension that is removed, or `outliers`: all outlier dimensions together.",
    "dimensions": "The removed dimensions, separated by spaces.",
}
_ABLATED = {
    "from_layer": "First layer whose inputs are changed; those of all later layers are changed, too.",
    "value": "What the dimensions are set to: `zero`, or the `mean` of each over all tokens of the corpus.",
    **_REMOVED,
}
_LOSS = {
    "before": "Loss of the unchanged model in nats: of masked tokens, or of the next token in a causal model.",
    "after": "Loss with the dimensions replaced, in nats.",
}

OUTPUTS = Outputs(
    tables={
        "contributions": TableInfo(
            row="layer, head, category and dimension",
            columns={
                "layer": LAYER,
                "head": HEAD,
                "category": CATEGORY_OF_KEY,
                "dimension": DIMENSION,
                "mean": "Mean contribution C_j to the score q·k over pairs of a query and a visible key, before scaling and "
                "softmax.",
            },
        ),
        "by_category": TableInfo(
            row="layer, outlier dimension and category",
            columns={
                "layer": LAYER,
                "dimension": DIMENSION,
                "category": CATEGORY_OF_KEY,
                "head_<head>": "Mean contribution C_j in the head.",
            },
            cells={"layer": "whole", "dimension": "whole", "category": "text"},
            key=("layer", "dimension", "category"),
        ),
        "totals": TableInfo(
            row="layer, head and category",
            columns={
                "layer": LAYER,
                "head": HEAD,
                "category": CATEGORY_OF_KEY,
                "contributions": "Σ_j C_j: the mean part of the score that comes from the dimensions.",
                "key_bias": "The mean part of the score that comes from b_K.",
                "score": "The mean score q·k, the sum of both.",
                "pairs": "Number of pairs of a query and a visible key.",
            },
        ),
        "spread": TableInfo(
            row="layer, head and dimension",
            columns={
                "layer": LAYER,
                "head": HEAD,
                "rank": "Rank of the dimension by its share, from 1.",
                "dimension": DIMENSION,
                "share": "Share of the dimension in the variance of a query's scores over the keys; missing if there is no "
                "variance.",
                "cumulative": "Sum of the shares up to this rank.",
            },
        ),
        "concentration": TableInfo(
            row="layer and head",
            columns={
                "layer": LAYER,
                "head": HEAD,
                "variance": "Variance of a query's scores over the keys it sees, averaged over queries.",
                "half": "Fewest dimensions whose shares add up to half of the variance; missing if all dimensions explain "
                "less.",
                "ninety": "Fewest dimensions whose shares add up to 90% of the variance; missing if all dimensions explain "
                "less.",
                "outliers": "Share of all outlier dimensions together in the variance.",
                "key_bias": "Share of b_K in the variance: 0 unless rotary positions or a norm of the keys make it differ "
                "between keys.",
                "first": "The dimension with the largest share.",
                "first_share": "Its share.",
            },
        ),
        "intervention": TableInfo(
            row="layer, removal and category; the outlier dimensions' part of the scores is removed in one block at a time",
            columns={"layer": LAYER, **_REMOVED, "category": CATEGORY_OF_KEY, **CHANGES},
        ),
        "ablation": TableInfo(
            row="first layer, value, removal, layer and category; the dimensions are replaced wherever a layer reads them",
            columns={**_ABLATED, "layer": LAYER, "category": CATEGORY_OF_KEY, **CHANGES},
        ),
        "ablation_loss": TableInfo(
            row="first layer, value and removal, if the checkpoint has a language-modelling head",
            columns={**_ABLATED, **CHANGES, **_LOSS},
        ),
    },
    metrics={
        "dimensions_for_half/mean": "Mean number of dimensions that explain half of the variance of the scores, over heads.",
        "dimensions_for_90_percent/mean": "Mean number of dimensions that explain 90% of the variance, over heads.",
        "share_of_outliers/mean": "Mean share of the outlier dimensions in the variance, over heads.",
        "share_of_key_bias/mean": "Mean share of b_K in the variance, over heads.",
        "heads_below_half/share": "Share of the heads in which all dimensions together explain less than half of the variance.",
        "heads_below_90_percent/share": "Share of the heads in which all dimensions together explain less than 90% of the "
        "variance.",
        "intervention/<category>/before": "Mean weight on the category over layers, unchanged.",
        "intervention/<category>/after": "Mean weight on the category over layers, with the outlier dimensions' part of the "
        "block's scores removed.",
        "intervention/<category>/change": "The difference.",
        "intervention/<category>/controls_mean": "Mean change of that weight when as many random dimensions are removed "
        "instead.",
        "ablation/<value>/loss_before": "Loss in nats, unchanged: of masked tokens, or of the next token in a causal model.",
        "ablation/<value>/loss_after": "Loss in nats with all outlier dimensions replaced from the first chosen layer on.",
    },
    curves={
        "dimensions_for_half": "Mean number of dimensions that explain half of the variance of the scores, over heads.",
        "dimensions_for_90_percent": "Mean number of dimensions that explain 90% of the variance.",
        "share_of_outliers": "Mean share of the outlier dimensions in the variance.",
        "share_of_key_bias": "Mean share of b_K in the variance.",
    },
    labels={
        "dimensions_for_half": "dimensions for half",
        "dimensions_for_90_percent": "dimensions for 90%",
        "share_of_outliers": "share of outliers",
        "share_of_key_bias": "share of b_K",
    },
)
