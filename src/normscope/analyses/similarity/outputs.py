"""What the similarity analysis publishes."""

from normscope.analyses.info import Outputs, TableInfo

_CATEGORY = "Category of the token of the {} text; `bias` stands for the model's biases, which belong to no token."

OUTPUTS = Outputs(
    tables={
        "by_category": TableInfo(
            row="pair of categories",
            columns={
                "category_a": _CATEGORY.format("first"),
                "category_b": _CATEGORY.format("second"),
                "contribution": "What pairs of such tokens add to the mean cosine. Over all categories, it adds up to the "
                "mean cosine.",
                "share": "`contribution` divided by the mean cosine.",
                "mean": "What one pair of such tokens adds to a cosine, on average.",
                "count": "Number of pairs of such tokens.",
            },
        ),
        "pairs": TableInfo(
            row="pair of texts",
            columns={
                "row": "Row of the data, from 1.",
                "value": "Cosine similarity of the two embeddings.",
                "bias_share": "Share of the cosine that comes from pairs with a bias on at least one side, negative if they "
                "lower it; missing if the cosine is 0.",
                "gold": "Gold score; missing if there is none.",
            },
        ),
    },
    metrics={
        "pairs": "Number of pairs of texts.",
        "cosine": "Mean cosine similarity.",
        "with_bias": "What pairs with a bias on at least one side add to the mean cosine.",
        "category/<category>": "What tokens of the category add to the mean cosine; over all categories, it adds up to it. "
        "Half "
        "of what a pair adds belongs to either token. `bias` stands for the biases.",
        "gold/spearman": "Spearman's ρ of cosines and gold scores.",
        "gold/count": "Number of pairs with a gold score.",
    },
)
