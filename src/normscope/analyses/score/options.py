"""Options of the score analysis."""

import dataclasses
from typing import TYPE_CHECKING

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import MARUTA_2024
from normscope.analyses.score.published import PUBLISHED
from normscope.config.rules import at_least
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.config.schema import RunOptions


@dataclasses.dataclass
class ScoreOptions(AnalysisConfig):
    """Contributions of hidden dimensions to attention scores (Maruta & Matsuzaki 2024)."""

    sequences: int | None = None
    """Number of random sequences over which contributions are averaged; null uses the whole corpus."""
    interventions: bool = True
    """Whether to recompute each block's attention without the outlier dimensions' part of its scores."""
    intervention_sequences: int = 100
    """Number of random sequences for these interventions."""
    controls: int = 20
    """Number of random sets of dimensions, of the same size, as controls for the interventions."""
    ablation: bool = True
    """Whether to run the model with the outlier dimensions of the residual stream replaced."""
    ablation_sequences: int = 16
    """Number of random sequences for these ablations."""
    ablation_controls: int = 5
    """Number of random sets of dimensions, of the same size, as controls for the ablations."""
    seed: int = II("seed")
    """Seed of the sampled sequences and of the random sets of dimensions."""

    def validate(self, _run: "RunOptions") -> None:
        """Check the sizes of the samples.

        Raises:
            InputError: If one is too small.
        """
        if self.sequences is not None:
            at_least(1, "analysis.score.sequences", self.sequences)
        at_least(1, "analysis.score.intervention_sequences", self.intervention_sequences)
        at_least(1, "analysis.score.ablation_sequences", self.ablation_sequences)
        for key, value in (("controls", self.controls), ("ablation_controls", self.ablation_controls)):
            if value < 0:
                raise InputError(f"analysis.score.{key}={value}: expected a number of random sets, 0 for none")


SCORE = AnalysisInfo(
    name="score",
    title="Score contributions",
    options=ScoreOptions,
    implementation="normscope.analyses.score.analysis:ScoreAnalysis",
    papers=(MARUTA_2024,),
    paper_tables="normscope.analyses.score.paper_tables:paper_tables",
    published=PUBLISHED,
)
