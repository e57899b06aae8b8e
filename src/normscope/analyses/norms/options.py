"""Options of the norms analysis."""

import dataclasses

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.norms.published import PUBLISHED
from normscope.analyses.papers import CUNNINGHAM_2026, KOBAYASHI_2020, KOBAYASHI_2021
from normscope.config.rules import Count, Seed


@dataclasses.dataclass
class NormsOptions(AnalysisConfig):
    """Vector norms (Kobayashi et al. 2020)."""

    sampled_queries: Count | None = 512
    """Maximum number of queries per sequence for the rank correlation, drawn at random; null uses all."""
    scatter_pairs: Count = 10_000
    """Number of pairs in the scatter plot."""
    seed: Seed = II("seed")
    """Seed of the sampled queries and pairs."""


NORMS = AnalysisInfo(
    name="norms",
    title="Vector norms",
    question="How much does each token contribute, as opposed to how much weight it gets?",
    options=NormsOptions,
    implementation="normscope.analyses.norms.analysis:NormsAnalysis",
    papers=(KOBAYASHI_2020, KOBAYASHI_2021, CUNNINGHAM_2026),
    supports_words=True,
    supports_cross_attention=True,
    published=PUBLISHED,
)
