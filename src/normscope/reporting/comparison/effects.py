"""Measures in words, and the size of a difference beside the natural range of its measure."""

from normscope.reporting.comparison.curve_families import Panel, families, is_percentage, unitless

COUNTS = 0.1
"""The part of a measure's natural range below which a difference counts as nothing."""
_PARTS = ("share of", "α")
"""How the labels of measures begin that are parts of a whole but not in per cent."""


def effect(metric: str, one: float, other: float) -> float:
    """A difference as a part of the measure's natural range: 1 for parts of a whole, the larger magnitude for others."""
    reach = 1.0 if is_part(metric) else max(abs(one), abs(other))
    return abs(one - other) / reach if reach else 0.0


def is_part(metric: str) -> bool:
    """Whether a measure is a part of a whole: a share or a weight, in per cent or not."""
    label = panel_of(metric).label
    return is_percentage(label) or label.startswith(_PARTS)


def title(metric: str) -> str:
    """A metric in words: `mixing ratio (AttnResLn-N: the attention block)`; its name if no analysis describes it."""
    panel = panel_of(metric)
    if not panel.label:
        return metric
    label = unitless(panel.label)
    return f"{label} ({panel.title})" if panel.title else label


def short_title(metric: str) -> str:
    """The same with its method's abbreviation alone: `mixing ratio (AttnResLn-N)`."""
    abbreviation, explained, _ = panel_of(metric).title.partition(": ")
    return f"{unitless(panel_of(metric).label)} ({abbreviation})" if explained else title(metric)


def panel_of(metric: str) -> Panel:
    """How a metric is shown."""
    (family,) = families([metric]).values()
    return family.panels[metric]
