"""Options of the norms analysis."""

import dataclasses
from typing import TYPE_CHECKING

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.norms.published import PUBLISHED
from normscope.analyses.papers import KOBAYASHI_2020, KOBAYASHI_2021
from normscope.config.rules import at_least, pair_budget

if TYPE_CHECKING:
    from normscope.config.schema import RunOptions


@dataclasses.dataclass
class NormsOptions(AnalysisConfig):
    """Vector norms (Kobayashi et al. 2020)."""

    exact_pairs: int = 50_000_000
    """Largest number of (α, ‖f‖) pairs kept for an exact rank correlation; with more, the correlation is estimated."""
    sampled_queries: int | None = 512
    """Maximum number of queries per sequence for the rank correlation, drawn at random; null uses all."""
    scatter_pairs: int = 10_000
    """Number of pairs in the scatter plot."""
    seed: int = II("seed")
    """Seed of the sampled queries and pairs."""

    def validate(self, _run: "RunOptions") -> None:
        """Check the sizes of the samples.

        Raises:
            InputError: If one is too small.
        """
        pair_budget("analysis.norms.exact_pairs", self.exact_pairs)
        at_least(1, "analysis.norms.scatter_pairs", self.scatter_pairs)
        if self.sampled_queries is not None:
            at_least(1, "analysis.norms.sampled_queries", self.sampled_queries)


NORMS = AnalysisInfo(
    name="norms",
    title="Vector norms",
    options=NormsOptions,
    implementation="normscope.analyses.norms.analysis:NormsAnalysis",
    papers=(KOBAYASHI_2020, KOBAYASHI_2021),
    supports_words=True,
    supports_cross_attention=True,
    paper_tables="normscope.analyses.norms.paper_tables:paper_tables",
    published=PUBLISHED,
)
