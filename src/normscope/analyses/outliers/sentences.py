"""The findings of the outliers analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping


def sentences_of(metrics: Mapping[str, float]) -> list[str]:
    """The outlier dimensions."""
    shares = {key.split("/")[0]: value for key, value in metrics.items() if key.endswith("/share_of_layers")}
    if not shares:
        return ["No hidden dimension is an outlier in enough layers to be one of the model."]
    named = ", ".join(f"{dimension} ({share:.0%} of the layers)" for dimension, share in shares.items())
    return [f"Outlier dimensions of the hidden vectors: {named}."]
