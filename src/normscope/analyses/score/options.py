"""Options of the score analysis."""

import dataclasses

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import MARUTA_2024
from normscope.analyses.score.published import PUBLISHED
from normscope.config.rules import ABOVE_ZERO, RANDOM_SETS, SEED, at_least


@dataclasses.dataclass
class ScoreOptions(AnalysisConfig):
    """Contributions of hidden dimensions to attention scores (Maruta & Matsuzaki 2024)."""

    sequences: int | None = dataclasses.field(default=None, metadata=at_least(1))
    """Number of random sequences over which contributions are averaged; null uses the whole corpus."""
    interventions: bool = True
    """Whether to recompute each block's attention without the outlier dimensions' part of its scores."""
    intervention_sequences: int = dataclasses.field(default=100, metadata=at_least(1))
    """Maximum number of random sequences for these interventions."""
    controls: int = dataclasses.field(default=20, metadata=RANDOM_SETS)
    """Number of random sets of dimensions, of the same size, as controls for the interventions."""
    ablation: bool = True
    """Whether to run the model with the outlier dimensions of the residual stream replaced."""
    ablation_sequences: int = dataclasses.field(default=16, metadata=at_least(1))
    """Maximum number of random sequences for these ablations."""
    ablation_controls: int = dataclasses.field(default=5, metadata=RANDOM_SETS)
    """Number of random sets of dimensions, of the same size, as controls for the ablations."""
    seed: int = dataclasses.field(default=II("seed"), metadata=SEED)
    """Seed of the sampled sequences and of the random sets of dimensions."""
    intervention_precision: float | None = dataclasses.field(default=0.01, metadata=ABOVE_ZERO)
    """The interventions end early once the 95% intervals of the attention weight that each category gains or loses without the
    outlier dimensions, averaged over layers, are within ± this; null uses all sequences."""
    ablation_precision: float | None = dataclasses.field(default=0.03, metadata=ABOVE_ZERO)
    """The same for the ablations, with all outlier dimensions set to zero from the first chosen layer on."""
    ablation_budget: float | None = dataclasses.field(default=1e13, metadata=ABOVE_ZERO)
    """Largest number of multiplications and additions of the ablations, which is minutes on two cores: in larger models, fewer
    sequences are used, and ablations start from fewer layers, as a note says; null sets no limit."""


SCORE = AnalysisInfo(
    name="score",
    title="Score contributions",
    options=ScoreOptions,
    implementation="normscope.analyses.score.analysis:ScoreAnalysis",
    papers=(MARUTA_2024,),
    published=PUBLISHED,
)
