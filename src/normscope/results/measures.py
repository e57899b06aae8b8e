"""Published numbers and curves as readers see them named: in the terminal, on pages, in Weights & Biases."""

from collections.abc import Mapping

from normscope.analyses.registry import analyses
from normscope.results.codes import in_words
from normscope.results.declare import Panel, Published, unitless


def metric_title(metric: str) -> str:
    """A number or curve in words: `mixing ratio (AttnResLn-N: the attention block)`.

    Args:
        metric: Its full name, `<analysis>/<name>`. It is returned if no analysis describes it.
    """
    panel = panel_of(metric)
    return panel.words if panel.label else metric


def short_metric_title(metric: str) -> str:
    """The same with its method's abbreviation alone: `mixing ratio (AttnResLn-N)`."""
    panel = panel_of(metric)
    return panel.short_words if panel.label else metric


def cell_title(table: str, column: str, at: Mapping[str, object]) -> str:
    """A cell of a published table in words: `mean of score contributions (layer 2, [CLS])`.

    Args:
        table: Its full name, `<analysis>_<table>`.
        column: The column.
        at: The values of the axes.
    """
    owner, _, name = table.partition("_")
    published = analyses()[owner].published
    label = unitless(published.tables[name].label(column)) or f"{in_words(column)} of {in_words(table)}"
    return f"{label} ({', '.join(published.title(axis, str(value)) for axis, value in at.items())})"


def has_curve(metric: str) -> bool:
    """Whether a number is also measured layer by layer. Verdicts leave out others: counts, extremes, choices."""
    owner, _, name = metric.partition("/")
    return owner in analyses() and analyses()[owner].published.curve(name) is not None


def panel_of(metric: str) -> Panel:
    """How a number or curve is shown."""
    owner, _, name = metric.partition("/")
    return (analyses()[owner].published if owner in analyses() else Published()).panel(name)
