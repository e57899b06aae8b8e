"""Options of the syntax analysis."""

import dataclasses
from typing import TYPE_CHECKING

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CLARK_2019
from normscope.analyses.syntax.published import PUBLISHED
from normscope.config.rules import at_least

if TYPE_CHECKING:
    from normscope.config.schema import RunOptions


@dataclasses.dataclass
class SyntaxOptions(AnalysisConfig):
    """Which heads, layers and probes follow dependency relations (Clark et al. 2019), by weights and by vectors."""

    punctuation: bool = False
    """Whether punctuation counts in the relation `all`, in trees and in probes."""
    subtypes: bool = False
    """Whether relations keep their subtypes: `nsubj:pass` beside `nsubj`."""
    probes: bool = True
    """Whether to train and score probes. This runs the model again, as well as a random model of the same shape."""
    train: str | None = None
    """CoNLL-U file to train probes on. By default, they are trained on every second sentence of the corpus and scored on the
    others."""
    train_sentences: int = 1000
    """Maximum number of training sentences, drawn at random. Their maps are kept in a temporary file."""
    seed: int = II("seed")
    """Seed of the training sentences and of the random model."""

    def validate(self, _run: "RunOptions") -> None:
        """Check the sizes.

        Raises:
            InputError: If there are too few training sentences.
        """
        at_least(1, "analysis.syntax.train_sentences", self.train_sentences)


SYNTAX = AnalysisInfo(
    name="syntax",
    title="Syntax",
    options=SyntaxOptions,
    implementation="normscope.analyses.syntax.analysis:SyntaxAnalysis",
    papers=(CLARK_2019,),
    supports_words=True,
    requires_annotation=True,
    path_keys=("train",),
    published=PUBLISHED,
)
