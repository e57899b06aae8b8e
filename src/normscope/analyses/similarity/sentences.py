"""The findings of the similarity analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.findings import Sentence
from normscope.analyses.paper_tables import category_name
from normscope.rounding import counted, number

_CATEGORY = "category/"


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """How similar the texts are, what the similarity is made of, and how well it agrees with the gold scores."""
    sentences: list[Sentence] = []
    pairs, cosine, with_bias = (metrics.get(name) for name in ("pairs", "cosine", "with_bias"))
    if pairs is not None and cosine is not None and with_bias is not None:
        verb = "add" if with_bias >= 0 else "subtract"
        sentences.append(
            Sentence(
                f"The mean cosine similarity of {counted(pairs, 'pair')} of texts is {number(cosine)}: pairs of tokens add "
                f"{number(cosine - with_bias)}, and the model's biases, which depend on no word, {verb} "
                f"{number(abs(with_bias))}.",
                figure="by_category",
                table="by_category",
            )
        )
    parts = {name.removeprefix(_CATEGORY): value for name, value in metrics.items() if name.startswith(_CATEGORY)}
    tokens = {category: value for category, value in parts.items() if category != "bias"}
    if tokens and cosine is not None:
        first = max(tokens, key=lambda category: tokens[category])
        sentences.append(
            Sentence(
                f"Among the token categories, {category_name(first)} contributes most to the mean cosine: "
                f"{number(tokens[first])}.",
                figure="by_similarity",
                table="by_category",
            )
        )
    spearman, count = metrics.get("gold/spearman"), metrics.get("gold/count")
    if spearman is not None and count is not None:
        sentences.append(
            Sentence(
                f"Spearman's ρ between the cosines and the gold scores of {counted(count, 'pair')} is "
                f"{number(spearman, signed=True)}.",
                table="pairs",
            )
        )
    return sentences
