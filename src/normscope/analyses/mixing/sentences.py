"""The findings of the mixing analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.results.findings import Sentence
from normscope.rounding import brief_share, compared, shares_differ

_INCLUDED = {
    "attnresln_n": "the vectors, the residual connection and the layer normalisation",
    "attnres_n": "the vectors and the residual connection",
}
"""What the methods of whole blocks include; the first that is defined counts."""

_HALF = 0.5


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """The mixing ratio of the attention block beside that of the weights alone, and its range over tokens."""
    by_weights = metrics.get("attn_w/mean")
    method = next((name for name in _INCLUDED if f"{name}/mean" in metrics), None)
    if method is None:
        if by_weights is None:
            return []
        text = f"By attention weights alone, the mean mixing ratio is {brief_share(by_weights)}."
        return [Sentence(text, figure="by_layer", table="by_layer")]
    mean, low, high = (metrics[f"{method}/{name}"] for name in ("mean", "min", "max"))
    written, half, suggested = compared(brief_share, mean, _HALF, mean if by_weights is None else by_weights)
    lowest, highest = compared(brief_share, low, high)
    suggestion = "" if by_weights is None else f"; attention weights alone suggest {suggested}"
    others = "other tokens" if by_weights is not None else "the source"  # cross-attention has no ratio by weights alone
    # Nothing that is written as 50%, or differs too little from it to matter, is called more or less than half.
    amount = f"{'' if written == half else 'about '}as much from {others} as"
    if shares_differ(mean, _HALF):
        amount = f"{'less' if mean < _HALF else 'more'} from {others} than"
    return [
        Sentence(
            f"On average, tokens take {amount} they preserve of themselves: the mean mixing ratio of the attention blocks is "
            f"{written}{suggestion}.",
            figure="by_layer",
            table="by_layer",
            measure=method,
        ),
        Sentence(
            f"The mixing ratio, which includes {_INCLUDED[method]}, ranges from {lowest} to {highest} over "
            "tokens and layers.",
            figure="heatmap",
            table="by_layer",
        ),
        *_shares(method, metrics, others),
    ]


def _shares(method: str, metrics: Mapping[str, float], others: str) -> list[Sentence]:
    parts = [metrics.get(f"{method}/{part}") for part in ("share", "own", "residual", "bias")]
    if None in parts:
        return []
    share, own, residual, bias = compared(brief_share, *(part for part in parts if part is not None))
    through = "" if others == "the source" else f"{own} from the token itself through attention, "
    return [
        Sentence(
            f"Measured along the output vectors, where parts add up to 100%, {share} comes from {others}, {through}{residual} "
            f"from the residual connection and {bias} from biases.",
            figure="shares",
            table="shares",
            surprising=True,
        )
    ]
