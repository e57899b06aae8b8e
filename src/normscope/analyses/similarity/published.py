"""What the similarity analysis publishes."""

from normscope.results.axes import TOKEN_ID, VOCABULARY
from normscope.results.declare import Axis, Column, Published, Rollup, Table

_CATEGORY = "Category of the token of the {} text; `bias` stands for the model's biases, which belong to no token."
_HALF = "What a pair of tokens adds is split equally between the two."
_WHOLE = "Number of {}."
_ADDED = "added to the mean cosine"
_WITH_GOLD = "Spearman’s ρ with gold scores"

PUBLISHED = Published(
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
        "by_span": Table(
            rows=(
                Axis("text", "The text of the pair: `first` or `second`."),
                Axis(
                    "span",
                    "Its `special` tokens, the other tokens of a `prompt`, all others (`text`), or the model's biases "
                    "(`bias`).",
                ),
            ),
            per="text of the pair and span",
            values={
                "contribution": f"What these tokens add to the mean cosine. {_HALF} Over all rows, it adds up to this mean.",
                "share": "`contribution` divided by the mean cosine.",
                "count": Column(_WHOLE.format("these tokens; for `bias`, of texts"), kind="whole"),
            },
        ),
        "by_token": Table(
            rows=VOCABULARY,
            per="token of the vocabulary that occurs",
            values={
                "contribution": f"What the token adds to the mean cosine, in either text. {_HALF} Over all tokens and the "
                "biases, it adds up to the mean cosine.",
                "mean": "What one occurrence adds to a cosine, on average.",
                "count": Column(_WHOLE.format("occurrences"), kind="whole"),
            },
            ranked_by=("contribution",),
        ),
        "false_friends": Table(
            rows=(
                Axis("token", "A token that is neither special nor punctuation."),
                TOKEN_ID,
            ),
            per="token that is among the three that add most to a pair with a low gold score",
            values={
                "total": "What it adds to the cosines of these pairs in total.",
                "mean": "What it adds to one of them, on average.",
                "count": Column(_WHOLE.format("these pairs"), kind="whole"),
            },
            ranked_by=("total",),
        ),
        "rankings": Table(
            rows=(
                Axis("query", "Number of the query in the data, from 1.", kind="whole"),
                Axis("document", "Number of the document among those of its query, from 1.", kind="whole"),
            ),
            per="query and document",
            values={
                "row": Column("Number of the pair in the data, as in `similarity_pairs`.", kind="whole"),
                "rank": Column("Rank of the document among those of its query by similarity, from 1.", kind="whole"),
                "value": "Cosine similarity of the query and the document.",
            },
        ),
        "pairs": Table(
            rows=(Axis("row", "Number of the pair in the data, from 1.", kind="whole"),),
            per="pair of texts",
            values={
                "value": "Cosine similarity of the two embeddings.",
                "bias_share": "Share of the cosine that comes from pairs with a bias on at least one side, negative if they "
                "lower it; missing if the cosine is 0.",
                "gold": "Gold score; missing if there is none.",
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
            "What these tokens of both texts add to the mean cosine; over all spans, it adds up to it.",
            of="by_span.contribution",
            how="sum",
            label=f"{_ADDED} as part of the text",
        ),
        Rollup(
            "span_share/<span>",
            "The same, divided by the mean cosine.",
            of="by_span.share",
            how="sum",
            label="share of the mean cosine (%)",
        ),
        Rollup("gold/spearman", "Spearman's ρ of cosines and gold scores.", label=_WITH_GOLD),
        Rollup("gold/count", "Number of pairs with a gold score.", label="pairs with a gold score"),
        Rollup(
            "gold/category/<category>",
            "Spearman's ρ of the gold scores and what tokens of the category add: how well that part of the cosine ranks pairs "
            "as people do.",
            label=f"{_WITH_GOLD}, part of the cosine",
        ),
    ),
)
