"""The findings of the feed-forward analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.results.findings import Sentence
from normscope.rounding import brief, brief_share, compared, differ

_LAST = ("atbffresln_n", "atbffres_n")


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """The mixing ratio of the whole layer beside that of the attention block, and what the network does to the maps."""
    sentences: list[Sentence] = []
    block = metrics.get("atb_n/mean")
    last = next((metrics[f"{name}/mean"] for name in _LAST if f"{name}/mean" in metrics), None)
    if block is not None and last is not None:
        sentences.append(
            Sentence(
                f"After the whole layer, the mean mixing ratio is {brief_share(last, block)}; after the attention block, it is "
                f"{brief_share(block, last)}.",
                figure="by_layer",
                table="mixing_by_layer",
            )
        )
    alone = metrics.get("change/ff")
    whole = metrics.get("change/ff+res+ln", metrics.get("change/ff+res"))
    if alone is not None and whole is not None:
        first, then = compared(brief, alone, whole)
        change = "the same" if first == then else f"about the same: {then}"
        if differ(alone, whole):
            change = f"{'smaller' if whole < alone else 'larger'}: {then}"
        sentences.append(
            Sentence(
                f"The feed-forward network alone changes the order of contributions by {first} (1 − Spearman's ρ); "
                f"with what follows it in the layer, the change is {change}.",
                figure="change",
                table="change",
            )
        )
    return sentences
