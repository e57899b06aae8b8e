"""Options of the score analysis."""

import dataclasses

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import MARUTA_2024
from normscope.analyses.score.published import PUBLISHED
from normscope.config.rules import AboveZero, Count, RandomSets, Seed


@dataclasses.dataclass
class ScoreOptions(AnalysisConfig):
    """Contributions of hidden dimensions to attention scores (Maruta & Matsuzaki 2024)."""

    sequences: Count | None = None
    """Number of random sequences over which contributions are averaged; null uses the whole corpus."""
    interventions: bool = True
    """Whether to recompute each block's attention without the outlier dimensions' part of its scores."""
    intervention_sequences: Count = 100
    """Maximum number of random sequences for these interventions."""
    controls: RandomSets = 20
    """Number of random sets of dimensions, of the same size, as controls for the interventions."""
    ablation: bool = True
    """Whether to run the model with the outlier dimensions of the residual stream replaced."""
    ablation_sequences: Count = 16
    """Maximum number of random sequences for these ablations."""
    ablation_controls: RandomSets = 5
    """Number of random sets of dimensions, of the same size, as controls for the ablations."""
    seed: Seed = II("seed")
    """Seed of the sampled sequences and of the random sets of dimensions."""
    intervention_precision: AboveZero | None = 0.01
    """The interventions end early once the 95% intervals of the attention weight that each category gains or loses without the
    outlier dimensions, averaged over layers, are within ± this; null uses all sequences."""
    ablation_precision: AboveZero | None = 0.03
    """The same for the ablations, with all outlier dimensions set to zero from the first chosen layer on."""
    ablation_budget: AboveZero | None = 1e13
    """Largest number of multiplications and additions of the ablations, which is minutes on two cores: in larger models, fewer
    sequences are used, and ablations start from fewer layers, as a note says; null sets no limit."""


SCORE = AnalysisInfo(
    name="score",
    title="Score contributions",
    question="Which dimensions decide where attention goes, and is their effect causal?",
    options=ScoreOptions,
    implementation="normscope.analyses.score.analysis:ScoreAnalysis",
    papers=(MARUTA_2024,),
    published=PUBLISHED,
)
