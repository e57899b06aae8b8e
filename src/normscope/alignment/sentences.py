"""The findings of the alignment analysis in sentences, from its metrics. What was not measured is not mentioned."""

from collections.abc import Mapping


def sentences_of(metrics: Mapping[str, float]) -> list[str]:
    """Whether norms beat weights."""
    sentences: list[str] = []
    for setting, name in (("awo", "output"), ("awi", "input")):
        weights, vectors = (metrics.get(f"{method}/{setting}/best_layer/aer") for method in ("attn_w", "attn_n"))
        if weights is not None and vectors is not None:
            layers = [f"{metrics[f'{method}/{setting}/layer_mean/aer']:.1%}" for method in ("attn_n", "attn_w")]
            sentences.append(
                f"Alignment with {name}: the best layer errs by {vectors:.1%} (AER) by vector norms and by {weights:.1%} by "
                f"weights; the layers' mean is {layers[0]} against {layers[1]}."
            )
    others = {
        key.split("/")[0]: value for key, value in metrics.items() if key.count("/") == 1 and key.endswith("/aer")
    }
    sentences += [f"{name} errs by {value:.1%} on the same pairs." for name, value in others.items()]
    return sentences
