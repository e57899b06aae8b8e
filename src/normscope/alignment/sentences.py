"""The findings of the alignment analysis as sentences, from its metrics. Missing metrics are left out."""

from collections.abc import Mapping

from normscope.results.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import brief_share, compared


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """Whether norms align better than weights, and how other aligners do."""
    sentences: list[Sentence] = []
    for setting, name in (("awo", "output"), ("awi", "input")):
        weights, vectors = (metrics.get(f"{method}/{setting}/best_layer/aer") for method in ("attn_w", "attn_n"))
        if weights is not None and vectors is not None:
            means = compared(
                brief_share, *(metrics[f"{method}/{setting}/layer_mean/aer"] for method in ("attn_n", "attn_w"))
            )
            text = (
                f"Alignment with {name}: vector norms have an alignment error rate of "
                f"{brief_share(vectors, weights)} and attention weights of {brief_share(weights, vectors)}, "
                f"each in its best layer; averaged over layers, {means[0]} and {means[1]}."
            )
            sentences.append(Sentence(text, figure="by_layer", table="aer"))
    others = by_axes("<aligner>/aer", metrics)
    return sentences + [
        Sentence(f"{name} has an alignment error rate of {brief_share(value)} on the same pairs.", table="aer")
        for name, value in others.items()
    ]
