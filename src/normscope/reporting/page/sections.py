"""The one page of results: a title, and sections of findings, figures and tables, whether of one run or of several."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from normscope.reporting.page.elements import EXPLORER_SCRIPTS, environment, packed_data, script, script_data, style
from normscope.rounding import counted

_NOTHING = Markup()


@dataclasses.dataclass(frozen=True)
class Finding:
    """A sentence, with the names of the elements that show it; empty if there is none."""

    text: str
    figure: str = ""
    table: str = ""


@dataclasses.dataclass(frozen=True)
class Folded:
    """A table that is built when the reader opens it."""

    id: str
    """Its name in the page's data."""
    title: str
    extent: str = ""
    """How many rows it has, and what there is a row for."""
    note: str = ""
    """How to read it."""


@dataclasses.dataclass(frozen=True)
class Measure:
    """Figures that belong together."""

    figures: Sequence[Markup]
    title: str = ""
    table: Folded | None = None
    """What the figures draw, in numbers."""


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page. Its first findings and figures are shown; what else it has is one click away."""

    id: str
    title: str
    question: str = ""
    """What it answers."""
    findings: Sequence[Finding] = ()
    note: str = ""
    """How to read it."""
    remarks: Sequence[str] = ()
    content: Markup = _NOTHING
    """Elements that are neither findings nor figures nor tables."""
    measures: Sequence[Measure] = ()
    tables: Sequence[Folded] = ()
    more_findings: Sequence[Finding] = ()
    more_measures: Sequence[Measure] = ()
    ordered: bool = False
    """Whether its findings are ranked, and numbered."""

    @property
    def more(self) -> str:
        """What is folded away, in a few words; empty if nothing is."""
        figures = sum(len(measure.figures) for measure in self.more_measures)
        counts = {"finding": len(self.more_findings), "figure": figures, "table": len(self.tables)}
        return ", ".join(counted(count, noun) for noun, count in counts.items() if count)


def render(
    title: str,
    sections: Sequence[Section],
    tables: Mapping[str, Any],
    *,
    subtitle: str = "",
    facts: Sequence[str] = (),
    explorer: Mapping[str, Any] | None = None,
    pairs: Mapping[str, Any] | None = None,
) -> str:
    """The page as self-contained HTML.

    Args:
        title: What the results are about.
        sections: In order.
        tables: The data of all folded tables, by their ids.
        subtitle: What was measured.
        facts: What was run.
        explorer: The data of the explorer, if a section has a place for it.
        pairs: The data of the maps of two texts, by the names of their places.
    """
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            sections=sections,
            subtitle=subtitle,
            facts=facts,
            css=style("page.css", "explorer.css", "pairs.css"),
            script=script(*EXPLORER_SCRIPTS, "ranking.js", "tables.js", "page.js"),
            tables=packed_data(tables),
            explorer=None if explorer is None else script_data(explorer),
            pairs=script_data(pairs or {}),
        )
    )
