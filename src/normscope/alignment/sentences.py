"""The findings of the alignment analysis as sentences, from its metrics. Missing metrics are left out."""

from collections.abc import Mapping


def sentences_of(metrics: Mapping[str, float]) -> list[str]:
    """Whether norms align better than weights, and how other aligners do."""
    sentences: list[str] = []
    for setting, name in (("awo", "output"), ("awi", "input")):
        weights, vectors = (metrics.get(f"{method}/{setting}/best_layer/aer") for method in ("attn_w", "attn_n"))
        if weights is not None and vectors is not None:
            layers = [f"{metrics[f'{method}/{setting}/layer_mean/aer']:.1%}" for method in ("attn_n", "attn_w")]
            sentences.append(
                f"Alignment with {name}: the best layer has an AER of {vectors:.1%} by vector norms and of {weights:.1%} by "
                f"weights; the mean over layers is {layers[0]} and {layers[1]}."
            )
    others = {
        key.split("/")[0]: value for key, value in metrics.items() if key.count("/") == 1 and key.endswith("/aer")
    }
    sentences += [f"{name} has an AER of {value:.1%} on the same pairs." for name, value in others.items()]
    return sentences
