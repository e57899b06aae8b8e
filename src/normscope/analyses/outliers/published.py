"""What the outliers analysis publishes."""

from normscope.results.axes import CATEGORY_OF_TOKEN, DIMENSION, LAYER, TOKENS, in_stream
from normscope.results.declare import Column, Published, Rollup, Table

_STREAM = LAYER.but("Layer of the hidden vectors, from 0, the output of the embeddings.")
_OUTLIER = DIMENSION.but(noun="outlier dimension")

PUBLISHED = Published(
    tables={
        "dimensions": Table(
            rows=(_STREAM, DIMENSION),
            values={
                "mean": in_stream("Mean of the dimension over all tokens.", label="mean value"),
                "std": in_stream("Population standard deviation over all tokens."),
                "score": "Signed distance of the mean from the centre of the means of all dimensions, in units of "
                "`analysis.outliers.criterion`.",
                "is_outlier": Column("Whether the distance exceeds `analysis.outliers.threshold`.", kind="truth"),
            },
            ranked_by=("is_outlier", "score"),
        ),
        "by_category": Table(
            rows=(_STREAM, _OUTLIER, CATEGORY_OF_TOKEN),
            values={
                "mean": in_stream("Mean of the dimension over the category's tokens."),
                "std": in_stream("Population standard deviation over the category's tokens."),
                "count": TOKENS,
            },
        ),
        "layernorm": Table(
            rows=(_STREAM, _OUTLIER),
            values={
                "weight": "γ of the normalisation that produces the hidden vectors.",
                "bias": in_stream("β of that normalisation; 0 if it has none."),
                "median_abs_weight": "Median of |γ| over all dimensions, for comparison.",
                "median_abs_bias": in_stream("Median of |β| over all dimensions."),
            },
        ),
        "model": Table(
            rows=(_OUTLIER,),
            per="outlier dimension of the model",
            values={
                "share_of_layers": "Share of the layers 0 to L in which the dimension is an outlier.",
                "largest_score": "Largest absolute distance of the dimension in any layer.",
            },
            ranked_by=("largest_score",),
        ),
    },
    metrics=(
        Rollup("count", "Number of outlier dimensions of the model.", of="model.dimension", how="count"),
        Rollup(
            "<dimension>/share_of_layers",
            "Share of the layers 0 to L in which an outlier dimension is an outlier.",
            of="model.share_of_layers",
        ),
    ),
    curves=(Rollup("mean/<dimension>", "Mean of an outlier dimension over all tokens.", of="dimensions.mean"),),
)
