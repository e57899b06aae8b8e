"""What the similarity analysis publishes."""

from normscope.results.declare import Axis, Column, Published, Rollup, Table

_CATEGORY = "Category of the token of the {} text; `bias` stands for the model's biases, which belong to no token."

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
        "pairs": Table(
            rows=(Axis("row", "Row of the data, from 1.", kind="whole"),),
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
        Rollup("pairs", "Number of pairs of texts.", of="pairs.row", how="count"),
        Rollup("cosine", "Mean cosine similarity.", of="pairs.value"),
        Rollup("with_bias", "What pairs with a bias on at least one side add to the mean cosine."),
        Rollup(
            "category/<category>",
            "What tokens of the category add to the mean cosine; over all categories, it adds up to it. Half of what a pair "
            "adds belongs to either token. `bias` stands for the biases.",
        ),
        Rollup("gold/spearman", "Spearman's ρ of cosines and gold scores."),
        Rollup("gold/count", "Number of pairs with a gold score."),
    ),
)
