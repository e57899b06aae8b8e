"""The findings of the similarity analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from normscope.analyses.similarity.pair_maps import DrawnPair
from normscope.results.codes import category_name
from normscope.results.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import begun, brief, compared, counted, differ, enumeration, number

_FRIENDS = 3
"""Words in a sentence."""


def sentences_of(
    metrics: Mapping[str, float],
    friends: Sequence[str] = (),
    drawn: Mapping[int, DrawnPair] = MappingProxyType({}),
    *,
    maps: bool = True,
) -> list[Sentence]:
    """Why two texts are similar; how similar all are, what that is made of, and how well it agrees with the gold scores.

    Args:
        friends: The tokens that add most to pairs with low gold scores, the largest first.
        drawn: Pairs that are drawn, by their rows.
        maps: Whether there is a table of pairs of categories.
    """
    table = "by_category" if maps else "by_span"
    sentences = [_similar(row, pair) for row, pair in list(drawn.items())[:1]]
    pairs, cosine, with_bias = (metrics.get(name) for name in ("pairs", "cosine", "with_bias"))
    if pairs is not None and cosine is not None and with_bias is not None:
        whole, tokens_alone, biases = compared(brief, cosine, abs(cosine - with_bias), abs(with_bias))
        sentences.append(
            Sentence(
                f"The mean cosine similarity of {counted(pairs, 'pair')} of texts is {whole}: pairs of tokens "
                f"{_verb(cosine - with_bias)} {tokens_alone}, and pairs with the model's biases on at least one side "
                f"{_verb(with_bias)} {biases}.",
                figure="by_category" if maps else "",
                table=table,
            )
        )
    parts = by_axes("category/<category>", metrics)
    tokens = {category: value for category, value in parts.items() if category != "bias"}
    first = max(tokens, key=lambda category: tokens[category], default=None)
    if first is not None and len(tokens) > 1 and tokens[first] > 0:
        most = [category for category in tokens if category == first or not differ(tokens[category], tokens[first])]
        name = enumeration(["ordinary" if category == "other" else category_name(category) for category in most])
        each = "" if len(most) == 1 else "about "
        sentences.append(
            Sentence(
                f"{begun(name)} tokens add most to the mean cosine: {each}{brief(tokens[first])}"
                f"{'' if len(most) == 1 else ' each'}.",
                figure="by_similarity",
                table=table,
            )
        )
    spearman, count = metrics.get("gold/spearman"), metrics.get("gold/count")
    if spearman is not None and count is not None:
        sentences.append(
            Sentence(
                f"Spearman's ρ between the cosines and the gold scores of {counted(count, 'pair')} is "
                f"{brief(spearman, signed=True)}.",
                table="pairs",
            )
        )
    return [*sentences, _between_others(friends)] if friends else sentences


def _between_others(friends: Sequence[str]) -> Sentence:
    """The words that make texts similar which people find different."""
    return Sentence(
        f"In the quarter of the pairs with the lowest gold scores, these words add most to the cosines: "
        f"{enumeration([f'“{friend}”' for friend in friends[:_FRIENDS]])}.",
        table="false_friends",
    )


def _similar(row: int, drawn: DrawnPair) -> Sentence:
    """Why two texts are similar."""
    texts, document, strongest = drawn
    most = enumeration([f"{a}–{b} ({number(value, signed=True)})" for a, b, value in strongest])
    name = f"pair {row}" if not document else f"query 1 and document {document}, the most similar one,"
    return Sentence(
        f"The cosine similarity of {name} is {number(texts.value)}; "
        + (f"the pairs of words that add most are {most}." if most else "no pair of words adds to it."),
        figure=f"pair_{row}",
        table="rankings" if document else "pairs",
    )


def _verb(amount: float) -> str:
    return "add" if amount >= 0 else "subtract"
