"""The findings of the frequency analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping


def sentences_of(metrics: Mapping[str, float]) -> list[str]:
    """Rank correlations with the frequency rank."""
    titles = {"alpha": "the weight that it receives", "f": "‖f(x)‖", "attnresln_n": "the mixing ratio of its block"}
    parts = [
        f"{metrics[key]:+.2f} with {title}"
        for measure, title in titles.items()
        if (key := f"spearman/{measure}/with_specials") in metrics
    ]
    return [f"Rank correlation of a token's frequency rank (1: most frequent): {', '.join(parts)}."] if parts else []
