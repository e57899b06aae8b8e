"""Similarity of texts: which categories carry it, how much is constant? Options, and what the analysis returns."""

import dataclasses

from normscope.analyses.info import AnalysisConfig, AnalysisInfo, RunSettings
from normscope.analyses.papers import MODARRESSI_2023
from normscope.config.rules import Count
from normscope.errors import InputError
from normscope.maths.choices import Pooling, ValueBias
from normscope.results.axes import VOCABULARY
from normscope.results.declare import Axis, Column, Declared, Rollup, Table


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


_CATEGORY = "Category of the token of the {} text; `bias` stands for the model's biases, which belong to no token."
_UNRANKED = "missing if the pair is not a query and one of its documents."

_ADDED = "added to the mean cosine"
_WITH_GOLD = "Spearman’s ρ with gold scores"

DECLARED = Declared(
    tables={
        "by_category": Table(
            rows=(
                Axis("category_a", _CATEGORY.format("first")),
                Axis("category_b", _CATEGORY.format("second")),
            ),
            per="pair of categories",
            values={
                "contribution": "What pairs of such tokens add to the mean cosine. Over all categories, it adds up to the "
                "mean cosine.",
                "share": "`contribution` divided by the mean cosine.",
                "mean": "What one pair of such tokens adds to a cosine, on average.",
                "count": Column("Number of pairs of such tokens.", kind="whole"),
            },
            ranked_by=("contribution",),
        ),
        "by_token": Table(
            rows=VOCABULARY,
            per="token of the vocabulary that occurs",
            values={
                "contribution": "What the token adds to the mean cosine, in either text. What a pair of tokens adds is split "
                "equally between the two. Over all tokens and the biases, it adds up to the mean cosine.",
                "mean": "What one occurrence adds to a cosine, on average.",
                "count": Column("Number of occurrences.", kind="whole"),
                "low_gold": "What the token adds in total to the pairs whose gold score is in the lowest quarter and in which "
                "it is among the three words that add most; missing if there are none.",
                "low_gold_pairs": Column("Number of the pairs that `low_gold` covers.", kind="whole"),
            },
            ranked_by=("contribution",),
        ),
        "pairs": Table(
            rows=(Axis("row", "Number of the pair in the data, from 1.", kind="whole"),),
            per="pair of texts",
            values={
                "value": "Cosine similarity of the two embeddings.",
                "bias_share": "Share of the cosine that comes from pairs with a bias on at least one side, negative if they "
                "lower it; missing if the cosine is 0.",
                "gold": "Gold score; missing if there is none.",
                "query": Column(f"Number of the query in the data, from 1; {_UNRANKED}", kind="whole"),
                "document": Column(
                    f"Number of the document among those of its query, from 1; {_UNRANKED}",
                    kind="whole",
                ),
                "rank": Column(
                    f"Rank of the document among those of its query by similarity, from 1; {_UNRANKED}", kind="whole"
                ),
            },
        ),
    },
    metrics=(
        Rollup("pairs", "Number of pairs of texts.", of="pairs.row", how="count", label="pairs of texts"),
        Rollup("cosine", "Mean cosine similarity.", of="pairs.value", label="mean cosine"),
        Rollup(
            "with_bias",
            "The constant part: what pairs with a bias on at least one side add to the mean cosine.",
            label="what pairs with a bias add to the mean cosine",
        ),
        Rollup(
            "with_bias_share",
            "The same, divided by the mean cosine.",
            label="share of the mean cosine from pairs with a bias (%)",
        ),
        Rollup(
            "category/<category>",
            "What tokens of the category add to the mean cosine; over all categories, it adds up to it. What a pair adds "
            "is split equally between its two tokens. `bias` stands for the biases.",
            label=_ADDED,
        ),
        Rollup(
            "span/<span>",
            "What the `special` tokens of both texts, the other tokens of a `prompt`, all others (`text`) or the model's "
            "biases (`bias`) add to the mean cosine; over all spans, it adds up to it.",
            label=f"{_ADDED}, by part of the text",
        ),
        Rollup(
            "span_share/<span>",
            "The same, divided by the mean cosine.",
            label="share of the mean cosine (%)",
        ),
        Rollup("gold/spearman", "Spearman's ρ of cosines and gold scores.", label=_WITH_GOLD),
        Rollup("gold/count", "Number of pairs with a gold score.", label="pairs with a gold score"),
        Rollup(
            "gold/category/<category>",
            "Spearman's ρ of the gold scores and what tokens of the category add: how well that part of the cosine ranks pairs "
            "as people do.",
            label="Spearman’s ρ of a category’s part of the cosine with gold scores",
        ),
    ),
)

SIMILARITY = AnalysisInfo(
    name="similarity",
    title="Similarity of texts",
    question="Why are two texts similar, and which categories of tokens carry similarity?",
    options=SimilarityOptions,
    implementation="normscope.analyses.similarity:SimilarityAnalysis",
    papers=(MODARRESSI_2023,),
    requires_pairs=True,
    declared=DECLARED,
)
