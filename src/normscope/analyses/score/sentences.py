"""The findings of the score analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping, Sequence

from normscope.analyses.categories import category_name
from normscope.results.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import brief, brief_share, compared, enumeration, movement

# What the outliers do to the attention on special tokens is the finding; ordinary tokens get what those lose.
_REMAINDER = ("other", "all")


def sentences_of(metrics: Mapping[str, float], outliers: Sequence[int] = ()) -> list[Sentence]:
    """How few dimensions explain the scores, and the effect of removing the outliers.

    Args:
        outliers: The outlier dimensions, if they are few enough to be named.
    """
    sentences: list[Sentence] = []
    half, ninety = metrics.get("dimensions_for_half/mean"), metrics.get("dimensions_for_90_percent/mean")
    if half is not None:
        dimensions, *of_ninety = compared(brief, half, *([] if ninety is None else [ninety]))
        more = f", and {of_ninety[0]} make up 90%" if of_ninety else ""
        some = any(metrics.get(f"heads_below_{part}/share") for part in ("half", "90_percent"))
        left_out = " (heads whose dimensions never reach that share are left out)" if some else ""
        text = (
            f"On average over heads, {dimensions} dimensions make up half of the spread of a query's scores over its keys"
            f"{more}{left_out}."
        )
        sentences.append(Sentence(text, figure="concentration", table="concentration"))
    sentences += _key_bias(metrics)
    if metrics.get("share_of_outliers/mean"):  # exactly 0 if there are no outliers
        share = brief_share(metrics["share_of_outliers/mean"])
        named = f" ({enumeration([str(dimension) for dimension in outliers])})" if outliers else ""
        text = f"The share of the outlier dimensions{named} in the spread of a query's scores is {share}."
        sentences.append(Sentence(text, table="concentration"))
    return sentences + _intervention(metrics)


def _intervention(metrics: Mapping[str, float]) -> list[Sentence]:
    """The attention weight of the category that changes most without the outliers."""
    befores, afters = (by_axes(f"intervention/<category>/{column}", metrics) for column in ("before", "after"))
    weights = {category: (before, afters[category]) for category, before in befores.items() if category in afters}
    special = {category: pair for category, pair in weights.items() if category not in _REMAINDER} or weights
    if not special:
        return []
    most = max(special, key=lambda category: abs(special[category][1] - special[category][0]))
    before, after = special[most]
    controls = metrics.get(f"intervention/{most}/controls_mean")
    controlled = [] if controls is None else [before + controls]
    comparison = "".join(
        f"; with as many random dimensions removed instead, it is {brief_share(weight, before, after)}"
        for weight in controlled
    )
    text = (
        f"Without the outlier dimensions' part of the scores, in one block at a time, the attention weight on "
        f"{category_name(most)} tokens {movement(before, after, *controlled)}{comparison}."
    )
    return [Sentence(text, figure="intervention", table="intervention")]


def _key_bias(metrics: Mapping[str, float]) -> list[Sentence]:
    """The share of b_K, if it is not zero."""
    share = metrics.get("share_of_key_bias/mean", 0.0)
    below_half, below_ninety = (metrics.get(f"heads_below_{part}/share", 0.0) for part in ("half", "90_percent"))
    if not below_ninety and abs(share) < 0.0005:  # 0.0% when written
        return []
    heads = (
        f"; in {brief_share(below_ninety, below_half)} of the heads, the dimensions never make up 90% of it, and in "
        f"{brief_share(below_half, below_ninety)} not even half"
    )
    text = (
        f"The share of the key bias b_K in the spread of a query's scores over its keys is {brief_share(share)}"
        f"{heads if below_ninety else ''}."
    )
    return [Sentence(text, table="concentration")]
