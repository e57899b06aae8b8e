"""Options of the similarity analysis."""

import dataclasses

from normscope.analyses.info import AnalysisConfig, AnalysisInfo, RunSettings
from normscope.analyses.papers import MODARRESSI_2023
from normscope.analyses.similarity.published import PUBLISHED
from normscope.config.rules import Count
from normscope.errors import InputError
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
    prompts: list[str] | None = None
    """What to put before the texts: names of the model's prompts, or texts; one for both texts, or one for each. By default,
    rankings use the model's prompts for queries and documents, and pairs its default prompt; `[]` for none."""
    sums: bool = False
    """Whether to measure only what each token adds together with the whole other text. This takes about three times as long as
    embedding the texts, however long they are; there are no maps, and no table of pairs of categories."""
    rows: list[Count] | None = None
    """Pairs of texts to show token by token, given by their numbers in the data, from 1. By default, the three shortest pairs,
    or in rankings the five documents that are most similar to the first query."""

    def validate(self, _run: RunSettings) -> None:
        """Check the number of prompts."""
        if self.prompts is not None and len(self.prompts) > 2:
            raise InputError(
                f"analysis.similarity.prompts={self.prompts}: expected one prompt for both texts, or one for each, got "
                f"{len(self.prompts)}"
            )


SIMILARITY = AnalysisInfo(
    name="similarity",
    title="Similarity of texts",
    question="Why are two texts similar, and which categories of tokens carry similarity?",
    options=SimilarityOptions,
    implementation="normscope.analyses.similarity.analysis:SimilarityAnalysis",
    papers=(MODARRESSI_2023,),
    published=PUBLISHED,
)
