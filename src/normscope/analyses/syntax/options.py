"""Options of the syntax analysis."""

import dataclasses

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import CLARK_2019
from normscope.analyses.syntax.published import PUBLISHED


@dataclasses.dataclass
class SyntaxOptions(AnalysisConfig):
    """Which heads and layers follow dependency relations (Clark et al. 2019), by weights and by vectors."""

    punctuation: bool = False
    """Whether punctuation counts in the relation `all`."""
    subtypes: bool = False
    """Whether relations keep their subtypes: `nsubj:pass` beside `nsubj`."""


SYNTAX = AnalysisInfo(
    name="syntax",
    title="Syntax",
    question="Do weights or vectors find the syntactic head of a word?",
    options=SyntaxOptions,
    implementation="normscope.analyses.syntax.analysis:SyntaxAnalysis",
    papers=(CLARK_2019,),
    supports_words=True,
    requires_annotation=True,
    published=PUBLISHED,
)
