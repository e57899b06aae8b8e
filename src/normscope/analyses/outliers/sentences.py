"""The findings of the outliers analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.analyses.findings import Sentence
from normscope.rounding import enumeration, percentage


def sentences_of(metrics: Mapping[str, float]) -> list[Sentence]:
    """The outlier dimensions."""
    shares = {key.split("/")[0]: value for key, value in metrics.items() if key.endswith("/share_of_layers")}
    if not shares:
        text = "No hidden dimension is an outlier in enough layers to be one of the model's."
        return [Sentence(text, figure="dimensions", table="dimensions")]
    (first, share), *others = shares.items()
    named = enumeration(
        [
            f"{first} (in {percentage(share)} of the layers)",
            *(f"{dimension} ({percentage(share)})" for dimension, share in others),
        ]
    )
    dimensions = "1 outlier dimension" if len(shares) == 1 else f"{len(shares)} outlier dimensions"
    return [Sentence(f"The model has {dimensions}: {named}.", figure="dimensions", table="model")]
