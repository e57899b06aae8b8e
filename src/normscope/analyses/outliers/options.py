"""Options of the outliers analysis."""

import dataclasses
import enum
from typing import Annotated

from pydantic import Field

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.outliers.published import PUBLISHED
from normscope.analyses.papers import MARUTA_2024
from normscope.config.rules import AboveZero


class OutlierCriterion(enum.StrEnum):
    """Unit of a dimension's distance from the others: see `maths/outliers.py`."""

    sigma = "sigma"
    mad = "mad"


@dataclasses.dataclass
class OutliersOptions(AnalysisConfig):
    """Outlier dimensions (Maruta & Matsuzaki 2024). Other analyses that use outlier dimensions share this definition."""

    criterion: OutlierCriterion = OutlierCriterion.sigma
    """Unit of the distance: standard deviations (`sigma`), or median absolute deviations (`mad`)."""
    threshold: AboveZero = 3.0
    """Distance beyond which a dimension is an outlier of a layer."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Minimum share of the layers in which an outlier of the model must be an outlier."""
    dimensions: list[int] | None = None
    """The outlier dimensions; null detects them."""


OUTLIERS = AnalysisInfo(
    name="outliers",
    title="Outlier dimensions",
    question="Which hidden dimensions stand far from the others?",
    options=OutliersOptions,
    implementation="normscope.analyses.outliers.analysis:OutliersAnalysis",
    papers=(MARUTA_2024,),
    supports_cross_attention=True,
    published=PUBLISHED,
)
