"""Options of the frequency analysis."""

import dataclasses

from omegaconf import II

from normscope.analyses.frequency.published import PUBLISHED
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import KOBAYASHI_2020, KOBAYASHI_2021
from normscope.config.rules import FilePath, Seed


@dataclasses.dataclass
class FrequencyOptions(AnalysisConfig):
    """Token frequency (Kobayashi et al. 2020 and 2021)."""

    source: FilePath = "corpus"
    """Where tokens are counted: `corpus`, or a text file like those of dataset.path."""
    path: FilePath | None = None
    """A file of `rank count token_id` lines to read the ranks from instead."""
    conventional: bool = False
    """Whether [CLS], [SEP], comma and period rank as the four most frequent tokens, and other special tokens and single
    characters are left out (K20, footnote 5)."""
    seed: Seed = II("seed")
    """Seed of the scatter plot's sample."""


FREQUENCY = AnalysisInfo(
    name="frequency",
    title="Token frequency",
    question="Does the model discount frequent tokens?",
    options=FrequencyOptions,
    implementation="normscope.analyses.frequency.analysis:FrequencyAnalysis",
    papers=(KOBAYASHI_2020, KOBAYASHI_2021),
    published=PUBLISHED,
)
