"""Options of the feed-forward analysis."""

import dataclasses

from omegaconf import II

from normscope.analyses.feedforward.published import PUBLISHED
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CUNNINGHAM_2026, KOBAYASHI_2024
from normscope.config.rules import AboveZero, Count, Seed


@dataclasses.dataclass
class FeedForwardOptions(AnalysisConfig):
    """Mixing through the whole layer, including the feed-forward network (Kobayashi et al. 2024)."""

    sequences: Count = 16
    """Maximum number of random sequences whose token maps are compared; the ratios cover the whole corpus."""
    tokens: Count | None = 64
    """Sequences of at most this many tokens are drawn first; longer ones are drawn only if the corpus has too few of these,
    because the time for maps grows with the square of a sequence's length; null draws from all sequences alike."""
    pairs: Count = 20
    """Number of amplified token pairs to list in each layer."""
    seed: Seed = II("seed")
    """Seed of the sampled sequences."""
    precision: AboveZero | None = 0.015
    """The sample ends early once the 95% interval of the change by the network, 1 − Spearman's ρ averaged over layers, is
    within ± this; null compares all sequences."""


FEEDFORWARD = AnalysisInfo(
    name="feedforward",
    title="Feed-forward networks",
    question="What does the feed-forward network change?",
    options=FeedForwardOptions,
    implementation="normscope.analyses.feedforward.analysis:FeedForwardAnalysis",
    papers=(KOBAYASHI_2024, CUNNINGHAM_2026),
    supports_cross_attention=True,
    published=PUBLISHED,
)
