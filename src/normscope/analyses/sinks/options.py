"""Options of the sinks analysis."""

import dataclasses
import enum
from typing import Annotated

from omegaconf import II
from pydantic import Field

from normscope.analyses.info import AnalysisConfig, AnalysisInfo, RunSettings
from normscope.analyses.papers import BONDARENKO_2023, GU_2025, GUO_2024, SUN_2024
from normscope.analyses.sinks.published import PUBLISHED
from normscope.config.rules import AboveZero, Count, RandomSets, Seed, Share, SomeOf
from normscope.errors import InputError


class SinkInput(enum.StrEnum):
    """What the model reads when sink rates are measured."""

    text = "text"
    random = "random"
    repeat = "repeat"


@dataclasses.dataclass
class SinksOptions(AnalysisConfig):
    """Attention sinks, dormant heads and massive activations (Gu et al. 2025, Guo et al. 2024, Sun et al. 2024)."""

    inputs: SomeOf[SinkInput] = dataclasses.field(default_factory=lambda: list(SinkInput))
    """What to measure sink rates on: sequences of the corpus (`text`), random tokens in their place (`random`), or one random
    token in place of all others (`repeat`)."""
    length: Annotated[int, Field(ge=2)] = 64
    """Number of tokens T of every sequence: longer ones are truncated, shorter ones skipped and counted."""
    epsilon: Share = 0.3
    """A key is a sink of a head if its mean weight over the queries that see it exceeds this."""
    sequences: Count = 100
    """Maximum number of random sequences on which sink rates are measured."""
    dormant: Share = 0.5
    """A head is dormant on a sequence if more than this share of its weight goes to a single key."""
    ablation: bool = True
    """Whether to run the model with its massive activations replaced, if there are any."""
    ablation_sequences: Count = 16
    """Maximum number of random sequences for these ablations."""
    controls: RandomSets = 5
    """Number of random sets of dimensions, replaced at the same tokens, as controls."""
    seed: Seed = II("seed")
    """Seed of the sampled sequences, the random tokens and the random sets of dimensions."""
    precision: AboveZero | None = 0.02
    """The sample ends early once the 95% intervals of the first token's sink rate and weight, averaged over all heads, are
    within ± this for all `inputs`; null uses all sequences."""
    ablation_precision: AboveZero | None = 0.03
    """The ablations end early once the 95% intervals of the attention weight that each category gains or loses without massive
    activations, averaged over layers, are within ± this; null uses all sequences."""
    ablation_budget: AboveZero | None = 1e13
    """Largest number of multiplications and additions of the ablations, which is minutes on two cores: in larger models, fewer
    sequences are used, and ablations start from fewer layers, as a note says; null sets no limit."""

    def validate(self, run: RunSettings) -> None:
        """Check the length of the inputs.

        Raises:
            InputError: If `dataset.max_length` cuts every sequence below `length`.
        """
        longest = run.dataset.max_length
        if self.enabled and longest is not None and longest < self.length:
            raise InputError(
                f"analysis.sinks.length={self.length}: expected at most dataset.max_length={longest}, to which all sequences "
                "are cut"
            )


SINKS = AnalysisInfo(
    name="sinks",
    title="Attention sinks",
    question="Which token draws most attention, does it contribute, and what happens without it?",
    options=SinksOptions,
    implementation="normscope.analyses.sinks.analysis:SinksAnalysis",
    papers=(GU_2025, SUN_2024, GUO_2024, BONDARENKO_2023),
    published=PUBLISHED,
)
