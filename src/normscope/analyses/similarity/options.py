"""Options of the similarity analysis."""

import dataclasses

from normscope.analyses.info import AnalysisConfig, AnalysisInfo
from normscope.analyses.papers import MODARRESSI_2023
from normscope.analyses.similarity.published import PUBLISHED
from normscope.config.rules import at_least, each
from normscope.maths.choices import Pooling, ValueBias


@dataclasses.dataclass
class SimilarityOptions(AnalysisConfig):
    """Cosine similarities of pairs of texts, split into pairs of tokens (DecompX's vectors, pooled)."""

    pooling: Pooling | None = None
    """How the last hidden vectors are pooled into an embedding: their `mean`, the first (`cls`) or the `last`. By default, as
    the model's own sentence-transformers files say."""
    bias: ValueBias = ValueBias.token
    """Whether all biases form a category of their own (`token`), or those of the first layer's values go to their tokens
    (`decompx`), as in the official code of DecompX."""
    rows: list[int] = dataclasses.field(default_factory=lambda: [1, 2, 3], metadata=each(at_least(1)))
    """Rows of the data, from 1, whose pairs of texts are shown token by token."""


SIMILARITY = AnalysisInfo(
    name="similarity",
    title="Similarity of texts",
    options=SimilarityOptions,
    implementation="normscope.analyses.similarity.analysis:SimilarityAnalysis",
    papers=(MODARRESSI_2023,),
    published=PUBLISHED,
)
