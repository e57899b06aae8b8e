"""The findings of the syntax analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.results.findings import Sentence
from normscope.rounding import brief_share, compared, percentage


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """The best single head, by weights and by vectors."""
    sentences: list[Sentence] = []
    weights, vectors = (metrics.get(f"{measure}/best/all") for measure in ("attn_w", "attn_n"))
    baseline = metrics.get("right_branching/all")
    if weights is not None and vectors is not None and baseline is not None:
        found = compared(brief_share, weights, vectors, baseline)
        sentences.append(
            Sentence(
                f"The best head by weights finds {found[0]} of the arcs and the best head by vector norms "
                f"{found[1]}, each on the half of the corpus not used to select it; always choosing the next word "
                f"finds {found[2]}.",
                figure="gain",
                table="best",
            )
        )
    gains = [metrics[name] for name in ("gain/with_sinks", "gain/sinks_masked") if name in metrics]
    if len(gains) == 2:
        with_sinks, masked = _gain(*gains), _gain(*reversed(gains))
        sentences.append(
            Sentence(
                f"With special tokens allowed, norms {with_sinks}; with special tokens excluded, they {masked}.",
                figure="gain",
                table="best",
            )
        )
    return sentences


def _gain(gain: float, other: float) -> str:
    """What norms do to the accuracy of the best head, beside what they do otherwise."""
    points = brief_share(abs(gain), abs(other)).removesuffix("%")
    if percentage(gain) == percentage(0.0):
        return "change the accuracy of the best head by less than 0.1 points"
    return f"{'raise' if gain > 0 else 'lower'} the accuracy of the best head by {points} percentage points"
