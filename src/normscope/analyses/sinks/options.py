"""Options of the sinks analysis."""

import dataclasses
import enum
from typing import TYPE_CHECKING

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import BONDARENKO_2023, GU_2025, GUO_2024, SUN_2024
from normscope.analyses.sinks.published import PUBLISHED
from normscope.config.rules import at_least
from normscope.errors import InputError

if TYPE_CHECKING:
    from normscope.config.schema import RunOptions


class SinkInput(enum.StrEnum):
    """What the model reads when sink rates are measured."""

    text = "text"
    random = "random"
    repeat = "repeat"


@dataclasses.dataclass
class SinksOptions(AnalysisConfig):
    """Attention sinks, massive activations and value drains (Gu et al. 2025, Sun et al. 2024, Guo et al. 2024)."""

    inputs: list[SinkInput] = dataclasses.field(default_factory=lambda: list(SinkInput))
    """What to measure sink rates on: sequences of the corpus (`text`), random tokens in their place (`random`), or one random
    token in place of all others (`repeat`)."""
    length: int = 64
    """Number of tokens T of every sequence: longer ones are truncated, shorter ones skipped and counted."""
    epsilon: float = 0.3
    """A key is a sink of a head if its mean weight over the queries that see it exceeds this."""
    sequences: int = 100
    """Number of random sequences on which sink rates are measured."""
    dormant: float = 0.5
    """A head is dormant on a sequence if more than this share of its weight goes to a single key."""
    ablation: bool = True
    """Whether to run the model with its massive activations replaced, if there are any."""
    ablation_sequences: int = 16
    """Number of random sequences for these ablations."""
    controls: int = 5
    """Number of random sets of dimensions, replaced at the same tokens, as controls."""
    seed: int = II("seed")
    """Seed of the sampled sequences, the random tokens and the random sets of dimensions."""

    def validate(self, run: "RunOptions") -> None:
        """Check the inputs, their length, the thresholds and the sizes of the samples.

        Raises:
            InputError: If one is invalid, or `dataset.max_length` cuts every sequence below `length`.
        """
        if not self.inputs or len(set(self.inputs)) < len(self.inputs):
            given = ",".join(map(str, self.inputs))
            raise InputError(
                f"analysis.sinks.inputs=[{given}]: expected one or more of text, random and repeat, each once"
            )
        at_least(2, "analysis.sinks.length", self.length)
        at_least(1, "analysis.sinks.sequences", self.sequences)
        at_least(1, "analysis.sinks.ablation_sequences", self.ablation_sequences)
        if self.controls < 0:
            raise InputError(f"analysis.sinks.controls={self.controls}: expected a number of random sets, 0 for none")
        for key in ("epsilon", "dormant"):
            if not 0 <= (value := getattr(self, key)) < 1:
                raise InputError(f"analysis.sinks.{key}={value}: expected a share of attention weight in [0, 1)")
        longest = run.dataset.max_length
        if self.enabled and longest is not None and longest < self.length:
            raise InputError(
                f"analysis.sinks.length={self.length}: expected at most dataset.max_length={longest}, to which all sequences "
                "are cut"
            )


SINKS = AnalysisInfo(
    name="sinks",
    title="Attention sinks",
    options=SinksOptions,
    implementation="normscope.analyses.sinks.analysis:SinksAnalysis",
    papers=(GU_2025, SUN_2024, GUO_2024, BONDARENKO_2023),
    published=PUBLISHED,
)
