"""The findings of the mixing analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping


def sentences_of(metrics: Mapping[str, float]) -> list[str]:
    """The mixing ratio by the weights alone, and by the whole block."""
    by_weights, by_block = metrics.get("attn_w/mean"), metrics.get("attnresln_n/mean", metrics.get("attnres_n/mean"))
    sentences: list[str] = []
    if by_weights is not None:
        sentences.append(
            f"By attention weights alone, {by_weights:.1%} of a token's output vector would come from other tokens."
        )
    if by_block is not None:
        whole = "attnresln_n/mean" in metrics
        name = "attnresln_n" if whole else "attnres_n"
        included = ", the residual connection and the layer normalisation" if whole else " and the residual connection"
        low, high = metrics[f"{name}/min"], metrics[f"{name}/max"]
        sentences.append(
            f"With vectors{included}, it is "
            f"{by_block:.1%} on average ({name}), from {low:.1%} to {high:.1%} for single "
            f"tokens: the blocks mostly {'preserve' if by_block < 0.5 else 'mix'}."
        )
    return sentences
