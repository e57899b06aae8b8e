"""Outlier dimensions: which are they? Options, and what the analysis returns."""

import dataclasses
import enum
from typing import Annotated

from pydantic import Field

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import MARUTA_2024
from normscope.config.rules import AboveZero, Expected, SomeOf
from normscope.results.axes import CATEGORY_OF_TOKEN, DIMENSION, LAYER, TOKENS, in_stream
from normscope.results.declare import Column, Declared, Rollup, Table


class OutlierCriterion(enum.StrEnum):
    """Unit of a dimension's distance from the others: see `maths/outliers.py`."""

    sigma = "sigma"
    mad = "mad"


Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$"), Expected("64 hexadecimal digits in lower case")]


@dataclasses.dataclass
class OutliersOptions(AnalysisConfig):
    """Outlier dimensions (Maruta & Matsuzaki 2024). Other analyses that use outlier dimensions share this definition."""

    criterion: OutlierCriterion = OutlierCriterion.sigma
    """Unit of the distance: standard deviations (`sigma`), or median absolute deviations (`mad`)."""
    threshold: AboveZero = 3.0
    """Distance beyond which a dimension is an outlier of a layer."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Minimum share of the layers in which a dimension must be an outlier to count as an outlier dimension of the model."""
    dimensions: list[int] | None = None
    """The outlier dimensions; null detects them, unless they are known."""
    known: SomeOf[Annotated[int, Field(ge=0)]] | None = None
    """The outlier dimensions that a paper names, for the weights of `known_for`."""
    known_for: SomeOf[Digest] | None = None
    """SHA-256 of the weight files that have the dimensions `known`; those of other weights are detected."""


_STREAM = LAYER.but("Layer of the hidden vectors, from 0, the output of the embeddings.")
_OUTLIER = DIMENSION.but(noun="outlier dimension")

DECLARED = Declared(
    tables={
        "model": Table(
            rows=(_OUTLIER,),
            per="outlier dimension of the model",
            values={
                "layers": Column("The layers 0 to L in which the dimension is an outlier: `0–4, 6`.", kind="text"),
                "share_of_layers": Column(
                    "Share of the layers 0 to L in which the dimension is an outlier.",
                    label="share of layers with the outlier (%)",
                ),
                "largest_score": "Largest absolute distance of the dimension in any layer.",
            },
            ranked_by=("largest_score",),
        ),
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
    },
    metrics=(
        Rollup(
            "count",
            "Number of outlier dimensions of the model.",
            of="model.dimension",
            how="count",
            label="outlier dimensions",
        ),
        Rollup(
            "<dimension>/share_of_layers",
            "Share of the layers 0 to L in which an outlier dimension is an outlier.",
            of="model.share_of_layers",
        ),
        Rollup(
            "share_of_dimensions",
            "Share of the hidden dimensions that are outlier dimensions.",
            label="dimensions that are outliers (%)",
        ),
        Rollup(
            "share_of_length",
            "Share of the squared length of the mean hidden vector over all tokens that lies in the outlier dimensions, "
            "averaged over the layers 0 to L. If they were like the others, it would be about `share_of_dimensions`.",
            label="share of the mean vector in the outlier dimensions (%)",
        ),
    ),
    curves=(Rollup("mean/<dimension>", "Mean of an outlier dimension over all tokens.", of="dimensions.mean"),),
)

OUTLIERS = AnalysisInfo(
    name="outliers",
    title="Outlier dimensions",
    question="Which hidden dimensions stand far from the others?",
    options=OutliersOptions,
    implementation="normscope.analyses.outliers:OutliersAnalysis",
    papers=(MARUTA_2024,),
    supports_cross_attention=True,
    declared=DECLARED,
)
