"""The findings of the syntax analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.findings import Sentence
from normscope.rounding import percentage


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """The best single head, the trees and the probes, by weights and by vectors."""
    sentences: list[Sentence] = []
    weights, vectors = (metrics.get(f"{measure}/best/all") for measure in ("attn_w", "attn_n"))
    baseline = metrics.get("right_branching/all")
    if weights is not None and vectors is not None and baseline is not None:
        sentences.append(
            Sentence(
                f"The best single head finds {percentage(weights)} of the arcs by its weights and {percentage(vectors)} by the "
                f"norms of its vectors, on the half of the corpus not used to select it; always choosing the next word finds "
                f"{percentage(baseline)}.",
                figure="gain",
                table="best",
            )
        )
    gains = [metrics[name] for name in ("gain/with_sinks", "gain/sinks_masked") if name in metrics]
    if len(gains) == 2:
        with_sinks, masked = (percentage(gain, signed=True).removesuffix("%") for gain in gains)
        sentences.append(
            Sentence(
                f"Where special tokens compete with words, norms change the accuracy of the best head by {with_sinks} "
                f"percentage points; where special tokens are masked, by {masked}.",
                figure="gain",
                table="best",
            )
        )
    trees = {measure: metrics[f"{measure}/uuas"] for measure in _BLOCKS if f"{measure}/uuas" in metrics}
    chain = metrics.get("right_branching/uuas")
    if trees and chain is not None:
        best = max(trees, key=lambda measure: trees[measure])
        sentences.append(
            Sentence(
                f"The maximum spanning trees of whole blocks contain at most {percentage(trees[best])} of the undirected arcs "
                f"({_BLOCKS[best]}); trees that join adjacent words contain {percentage(chain)}.",
                figure="trees",
                table="trees",
            )
        )
    probes = [metrics.get(f"probe/{model}/attn_w/raw") for model in ("trained", "random")]
    norms = metrics.get("probe/trained/attn_n/raw")
    if probes[0] is not None and probes[1] is not None and norms is not None:
        sentences.append(
            Sentence(
                f"A probe on all heads finds the syntactic head of {percentage(probes[0])} of the words by weights and of "
                f"{percentage(norms)} by norms; on a random model of the same shape, it finds {percentage(probes[1])} by "
                "weights.",
                table="probe",
            )
        )
    return sentences


_BLOCKS = {
    "attn_w": "those of weights",
    "attn_n": "those of vectors",
    "attnres_n": "those with the residual connection",
    "attnresln_n": "those with the layer normalisation",
    "layer": "those of whole layers",
}
