"""Options of the syntax analysis."""

import dataclasses

from omegaconf import II

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CLARK_2019
from normscope.analyses.syntax.published import PUBLISHED
from normscope.config.rules import IS_PATH, SEED, at_least


@dataclasses.dataclass
class SyntaxOptions(AnalysisConfig):
    """Which heads, layers and probes follow dependency relations (Clark et al. 2019), by weights and by vectors."""

    punctuation: bool = False
    """Whether punctuation counts in the relation `all`, in trees and in probes."""
    subtypes: bool = False
    """Whether relations keep their subtypes: `nsubj:pass` beside `nsubj`."""
    probes: bool = True
    """Whether to train and score probes. This runs the model again, as well as a random model of the same shape."""
    train: str | None = dataclasses.field(default=None, metadata=IS_PATH)
    """CoNLL-U file to train probes on. By default, they are trained on every second sentence of the corpus and scored on the
    others."""
    train_sentences: int = dataclasses.field(default=1000, metadata=at_least(1))
    """Maximum number of training sentences, drawn at random. Their maps are kept in a temporary file."""
    seed: int = dataclasses.field(default=II("seed"), metadata=SEED)
    """Seed of the training sentences and of the random model."""


SYNTAX = AnalysisInfo(
    name="syntax",
    title="Syntax",
    options=SyntaxOptions,
    implementation="normscope.analyses.syntax.analysis:SyntaxAnalysis",
    papers=(CLARK_2019,),
    supports_words=True,
    requires_annotation=True,
    published=PUBLISHED,
)
