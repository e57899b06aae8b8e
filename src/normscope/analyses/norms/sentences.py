"""The findings of the norms analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping


def sentences_of(metrics: Mapping[str, float]) -> list[str]:
    """The weight and the contribution of the special categories, the rank correlations, and the dispersion of ‖f(x)‖."""
    sentences: list[str] = []
    total, handed = metrics.get("alpha/all"), metrics.get("alpha_f/all")
    for category in ("cls", "sep", "first", "punctuation"):
        weight, vector = metrics.get(f"alpha/{category}"), metrics.get(f"alpha_f/{category}")
        if weight is not None and vector is not None and total and handed:
            sentences.append(
                f"Keys of category {category} get {weight / total:.1%} of the attention weight and contribute "
                f"{vector / handed:.1%} of Σ‖αf(x)‖."
            )
    correlations = [
        f"{metrics[key]:+.2f} for {key.removeprefix('spearman/')}" for key in metrics if key.startswith("spearman/")
    ]
    if correlations:
        sentences.append(
            f"Rank correlation of α and ‖f(x)‖: {', '.join(correlations)}; negative means that short vectors get large weights."
        )
    if "f/cv_mean" in metrics:
        low, high = metrics["f/cv_min"], metrics["f/cv_max"]
        sentences.append(
            f"The length ‖f(x)‖ varies by {metrics['f/cv_mean']:.0%} of its mean in an average head ({low:.0%} to "
            f"{high:.0%}); that of the inputs by {metrics['x/cv_mean']:.0%}."
        )
    return sentences
