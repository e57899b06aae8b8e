"""The findings of the mixing analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.findings import Sentence
from normscope.rounding import percentage


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """The mixing ratio of the attention block beside that of the weights alone, and its range over tokens."""
    by_weights, by_block = metrics.get("attn_w/mean"), metrics.get("attnresln_n/mean", metrics.get("attnres_n/mean"))
    if by_block is None:
        if by_weights is None:
            return []
        text = f"By attention weights alone, {percentage(by_weights)} of a token's output vector would come from other tokens."
        return [Sentence(text, figure="by_layer", table="by_layer")]
    whole = "attnresln_n/mean" in metrics
    name = "attnresln_n" if whole else "attnres_n"
    suggestion = "" if by_weights is None else f"; attention weights alone suggest {percentage(by_weights)}"
    others = "other tokens" if by_weights is not None else "the source"  # cross-attention has no ratio by weights alone
    included = (
        "the vectors, the residual connection and the layer normalisation"
        if whole
        else "the vectors and the residual connection"
    )
    low, high = percentage(metrics[f"{name}/min"]), percentage(metrics[f"{name}/max"])
    more, less = ("preserve", "mix") if by_block < 0.5 else ("mix", "preserve")
    return [
        Sentence(
            f"On average, {percentage(by_block)} of a token's output vector comes from {others}{suggestion}.",
            figure="by_layer",
            table="by_layer",
        ),
        Sentence(
            f"This mixing ratio, which includes {included}, ranges from {low} to {high} across tokens; on average, the blocks "
            f"{more} more than they {less}.",
            figure="heatmap",
            table="by_layer",
        ),
    ]
