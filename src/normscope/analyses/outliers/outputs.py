"""What the outliers analysis publishes."""

from normscope.analyses.columns import CATEGORY_OF_TOKEN, DIMENSION, TOKENS
from normscope.analyses.info import Outputs, TableInfo

_LAYER = "Layer of the hidden vectors, from 0, the output of the embeddings."

OUTPUTS = Outputs(
    tables={
        "dimensions": TableInfo(
            row="layer and dimension",
            columns={
                "layer": _LAYER,
                "dimension": DIMENSION,
                "mean": "Mean of the dimension over all tokens.",
                "std": "Population standard deviation over all tokens.",
                "score": "Signed distance of the mean from the centre of the means of all dimensions, in units of "
                "`analysis.outliers.criterion`.",
                "is_outlier": "Whether the distance exceeds `analysis.outliers.threshold`.",
            },
        ),
        "by_category": TableInfo(
            row="layer, outlier dimension and category",
            columns={
                "layer": _LAYER,
                "dimension": DIMENSION,
                "category": CATEGORY_OF_TOKEN,
                "mean": "Mean of the dimension over the category's tokens.",
                "std": "Population standard deviation over the category's tokens.",
                "count": TOKENS,
            },
        ),
        "layernorm": TableInfo(
            row="layer and outlier dimension",
            columns={
                "layer": _LAYER,
                "dimension": DIMENSION,
                "weight": "γ of the normalisation that produces the hidden vectors.",
                "bias": "β of that normalisation; 0 if it has none.",
                "median_abs_weight": "Median of |γ| over all dimensions, for comparison.",
                "median_abs_bias": "Median of |β| over all dimensions.",
            },
        ),
        "model": TableInfo(
            row="outlier dimension of the model",
            columns={
                "dimension": DIMENSION,
                "share_of_layers": "Share of the layers 0 to L in which the dimension is an outlier.",
                "largest_score": "Largest absolute distance of the dimension in any layer.",
            },
        ),
    },
    metrics={
        "count": "Number of outlier dimensions of the model.",
        "<dimension>/share_of_layers": "Share of the layers 0 to L in which an outlier dimension is an outlier.",
    },
    curves={"mean/<dimension>": "Mean of an outlier dimension over all tokens."},
    labels={"mean/<dimension>": "mean value"},
)
