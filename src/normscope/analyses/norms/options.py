"""Options of the norms analysis."""

import dataclasses

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.norms.published import PUBLISHED
from normscope.analyses.papers import CUNNINGHAM_2026, KOBAYASHI_2020, KOBAYASHI_2021
from normscope.config.rules import SEED, at_least


@dataclasses.dataclass
class NormsOptions(AnalysisConfig):
    """Vector norms (Kobayashi et al. 2020)."""

    sampled_queries: int | None = dataclasses.field(default=512, metadata=at_least(1))
    """Maximum number of queries per sequence for the rank correlation, drawn at random; null uses all."""
    scatter_pairs: int = dataclasses.field(default=10_000, metadata=at_least(1))
    """Number of pairs in the scatter plot."""
    seed: int = dataclasses.field(default=II("seed"), metadata=SEED)
    """Seed of the sampled queries and pairs."""


NORMS = AnalysisInfo(
    name="norms",
    title="Vector norms",
    options=NormsOptions,
    implementation="normscope.analyses.norms.analysis:NormsAnalysis",
    papers=(KOBAYASHI_2020, KOBAYASHI_2021, CUNNINGHAM_2026),
    supports_words=True,
    supports_cross_attention=True,
    published=PUBLISHED,
)
