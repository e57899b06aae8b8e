"""The findings of the frequency analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.results.findings import Sentence
from normscope.rounding import brief, enumeration


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """Rank correlations with the frequency rank."""
    titles = {
        "alpha": "the weight that it receives",
        "f": "‖f(x)‖",
        "attnresln_n": "its mixing ratio",
    }
    parts = [
        f"{brief(metrics[key], signed=True)} with {title}"
        for measure, title in titles.items()
        if (key := f"spearman/{measure}/with_specials") in metrics
    ]
    if not parts:
        return []
    listed = enumeration(parts)
    text = f"Special tokens included, a token's frequency rank (1: most frequent) has a rank correlation of {listed}."
    return [Sentence(text, figure="scatter", table="correlation")]
