"""The size of a difference relative to the natural range of its measure."""

from collections.abc import Iterable

from normscope.results.axes import SIGNED_SHARES
from normscope.results.declare import is_percentage
from normscope.results.measures import panel_of

COUNTS = 0.1
"""The part of a measure's natural range below which a difference counts as nothing."""
_PARTS = ("share of", "signed share of", "α")
"""How the labels of measures begin that are parts of a whole but not in per cent."""


def effect(metric: str, one: float, other: float) -> float:
    """A difference as a part of the measure's natural range: 1 for parts of a whole, the larger magnitude for others."""
    reach = 1.0 if is_part(metric) else max(abs(one), abs(other))
    return abs(one - other) / reach if reach else 0.0


def natural_range(label: str, furthest: float) -> float:
    """The natural range of values as a figure draws them: 100 for percentages, 1 for other parts of a whole.

    Args:
        label: Of the values' axis.
        furthest: The magnitude of the value furthest from zero, which is the range of all others.
    """
    return 100.0 if is_percentage(label) else 1.0 if label.startswith(_PARTS) else furthest


def is_part(metric: str) -> bool:
    """Whether a measure is a part of a whole: a share or a weight, in per cent or not."""
    label = panel_of(metric).label
    return is_percentage(label) or label.startswith(_PARTS)


def is_bounded(metric: str) -> bool:
    """Whether a measure is a part of a whole that has no sign, so that it lies between 0 and 1."""
    return is_part(metric) and "signed" not in panel_of(metric).label


def of_shares(texts: Iterable[str]) -> str:
    """What readers need to know about signed shares if a text names one; empty if none does."""
    return SIGNED_SHARES if any("signed share" in text.lower() for text in texts) else ""
