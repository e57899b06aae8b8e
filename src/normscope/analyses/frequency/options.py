"""Options of the frequency analysis."""

import dataclasses
from typing import TYPE_CHECKING

from omegaconf import II

from normscope.analyses.frequency.published import PUBLISHED
from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import KOBAYASHI_2020, KOBAYASHI_2021
from normscope.config.rules import pair_budget

if TYPE_CHECKING:
    from normscope.config.schema import RunOptions


@dataclasses.dataclass
class FrequencyOptions(AnalysisConfig):
    """Token frequency (Kobayashi et al. 2020 and 2021)."""

    source: str = "corpus"
    """Where tokens are counted: `corpus`, or a text file like those of dataset.path."""
    path: str | None = None
    """A file of `rank count token_id` lines to read the ranks from instead."""
    conventional: bool = False
    """Whether [CLS], [SEP], comma and period rank as the four most frequent tokens, and other special tokens and single
    characters are left out (K20, footnote 5)."""
    exact_pairs: int = 50_000_000
    """Largest number of (rank, measure) pairs kept for exact rank correlations; with more, they are estimated."""
    seed: int = II("seed")
    """Seed of the scatter plot's sample."""

    def validate(self, _run: "RunOptions") -> None:
        """Check the size of the sample.

        Raises:
            InputError: If it is negative.
        """
        pair_budget("analysis.frequency.exact_pairs", self.exact_pairs)


FREQUENCY = AnalysisInfo(
    name="frequency",
    title="Token frequency",
    options=FrequencyOptions,
    implementation="normscope.analyses.frequency.analysis:FrequencyAnalysis",
    papers=(KOBAYASHI_2020, KOBAYASHI_2021),
    path_keys=("path", "source"),
    paper_tables="normscope.analyses.frequency.paper_tables:paper_tables",
    published=PUBLISHED,
)
