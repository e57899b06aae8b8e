"""The findings of the outliers analysis in sentences, from its metrics. Missing metrics are skipped."""

from collections.abc import Mapping

from normscope.results.findings import Sentence
from normscope.results.rollups import by_axes
from normscope.rounding import brief_share, enumeration


def sentences_of(metrics: Mapping[str, float], *, given: bool = False) -> list[Sentence]:
    """The outlier dimensions.

    Args:
        given: Whether the dimensions were set by hand.
    """
    shares = by_axes("<dimension>/share_of_layers", metrics)
    if not shares:
        reason = "no dimension is set" if given else "no hidden dimension is an outlier in enough layers"
        text = f"The model has no outlier dimensions: {reason}."
        return [Sentence(text, figure="dimensions", table="dimensions")]
    (first, share), *others = shares.items()
    named = enumeration(
        [
            f"{first} ({'an outlier ' if given else ''}in {brief_share(share)} of the layers)",
            *(f"{dimension} ({brief_share(share)})" for dimension, share in others),
        ]
    )
    dimensions = "1 outlier dimension" if len(shares) == 1 else f"{len(shares)} outlier dimensions"
    start = (
        f"{dimensions} {'is' if len(shares) == 1 else 'are'} set by hand" if given else f"The model has {dimensions}"
    )
    return [Sentence(f"{start}: {named}.", figure="dimensions", table="model")]
