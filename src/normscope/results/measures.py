"""Numbers and curves as readers see them named and grouped: in the terminal, on pages, in Weights & Biases."""

import dataclasses
from collections.abc import Iterable, Mapping

from normscope.analyses.registry import analyses
from normscope.results.codes import in_prose, in_words
from normscope.results.declare import Declared, Panel, Rollup, declared, unitless


def title(analysis: str) -> str:
    """The title of an analysis; its name if it is not installed."""
    info = analyses().get(analysis)
    return analysis if info is None else info.title


def heading(analysis: str, quantity: str) -> str:
    """The title of an analysis, with one of its quantities unless the title says it."""
    own = title(analysis)
    return own if quantity in own.lower() else f"{own}: {quantity}"


def metric_title(metric: str) -> str:
    """A number or curve in words: `mixing ratio (attention block, AttnResLn-N)`.

    Args:
        metric: Its full name, `<analysis>/<name>`. It is returned if no analysis describes it.
    """
    panel = panel_of(metric)
    return panel.words if panel.label else metric


def short_metric_title(metric: str) -> str:
    """The same without the paper's name of its method: `mixing ratio (attention block)`."""
    panel = panel_of(metric)
    return panel.short_words if panel.label else metric


def cell_title(table: str, column: str, at: Mapping[str, object]) -> str:
    """A cell of a table in words: `mean of score contributions (layer 2, [CLS])`.

    Args:
        table: Its full name, `<analysis>_<table>`.
        column: The column.
        at: The values of the axes.
    """
    owner, _, name = table.partition("_")
    known = analyses()[owner].declared
    label = unitless(known.tables[name].label(column)) or f"{in_words(column)} of {in_words(table)}"
    return f"{label} ({', '.join(known.title(axis, str(value)) for axis, value in at.items())})"


def has_curve(metric: str) -> bool:
    """Whether a number is also measured layer by layer. Verdicts leave out others: counts, extremes, choices."""
    owner, _, name = metric.partition("/")
    return _declared(owner).curve(name) is not None


def leading(metrics: Iterable[str]) -> str:
    """The measure that stands for all in one line: of the first analysis with a curve, the first that it declares.

    Of those that are declared together along an axis that is `nested`, it is the last: of mixing ratios, that which takes in
    the most of the attention block. Empty if none has a curve.
    """
    named = [metric.partition("/") for metric in metrics if has_curve(metric)]
    known = _declared(named[0][0] if named else "")
    for rollup in known.curves:
        own = [name for analysis, _, name in named if analysis == named[0][0]]
        alike = [name for name in own if (found := known.curve(name)) is not None and found[0] is rollup]
        nested = any(axis is not None and axis.nested for axis in map(known.axis, rollup.placeholders))
        if alike:
            return f"{named[0][0]}/{alike[-1 if nested else 0]}"
    return ""


def panel_of(metric: str) -> Panel:
    """How a number or curve is shown."""
    owner, _, name = metric.partition("/")
    return _declared(owner).panel(name)


def _declared(analysis: str) -> Declared:
    """What an analysis declares; nothing if it is not installed."""
    info = analyses().get(analysis)
    return Declared() if info is None else info.declared


@dataclasses.dataclass(frozen=True)
class Family:
    """Numbers or curves that are shown together: those that an analysis declares under one name, such as `<method>/mean`."""

    analysis: str
    declaration: Rollup | None
    """None for measures of several declarations."""
    panels: dict[str, Panel] = dataclasses.field(default_factory=dict)
    """By their full names."""

    @property
    def name(self) -> str:
        """`mixing/share`: their full names without what tells them apart."""
        return f"{self.analysis}/{self.declaration.plain_name}" if self.declaration else self.analysis

    @property
    def label(self) -> str:
        """The label of all y-axes; empty if they differ."""
        labels = {panel.label for panel in self.panels.values()}
        return labels.pop() if len(labels) == 1 else ""

    @property
    def measure(self) -> str:
        """What they measure, with its unit."""
        return self.label or next(iter(self.panels.values())).title

    @property
    def title(self) -> str:
        """The title of the analysis, with what they measure unless that says it."""
        return heading(self.analysis, unitless(self.label)) if self.declaration else title(self.analysis)

    @property
    def meaning(self) -> str:
        """What their declaration says of them; empty if there is none."""
        return in_prose(self.declaration.meaning) if self.declaration else ""

    def titles(self) -> dict[str, str]:
        """The panels' titles, with the labels of their y-axes where these differ."""
        both = (
            (name, panel.title, "" if self.label and panel.title else panel.label)
            for name, panel in self.panels.items()
        )
        return {name: ": ".join(filter(None, (title, label))) for name, title, label in both}


def families(names: Iterable[str], *, of_numbers: bool = False, together: bool = False) -> list[Family]:
    """The families of numbers or curves, in the order of their first members.

    Those that no analysis declares, as those of other packages' analyses may be, are families of their own.

    Args:
        names: Full names, `<analysis>/<curve>`.
        of_numbers: Whether they are numbers of whole runs, whose declarations are others than those of curves.
        together: Whether measures of an analysis whose declarations are of one measure each are one family.
    """
    found: dict[tuple[str, str], Family] = {}
    for full in dict.fromkeys(names):
        analysis, _, name = full.partition("/")
        known = _declared(analysis)
        own = declared(known.metrics, name) if of_numbers else known.curve(name)
        declaration = own[0] if own else Rollup(name, "")
        alone = together and not declaration.placeholders
        key = (analysis, "" if alone else declaration.name)
        family = found.setdefault(key, Family(analysis, None if alone else declaration))
        family.panels[full] = known.panel(name)
    return list(found.values())
