"""The one page of results: a title, and sections of findings, figures and tables, whether of one run or of several."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd
from markupsafe import Markup

from normscope.errors import visible
from normscope.reporting.page.elements import (
    EXPLORER_SCRIPTS,
    environment,
    packed_data,
    script,
    script_data,
    style,
    table_data,
)
from normscope.reporting.page.inline_svg import figure_element
from normscope.results.figures import Figure
from normscope.results.findings import Sentence
from normscope.rounding import counted

_NOTHING = Markup()

LONGEST_COMPARED = 2_000
"""Rows of a table that compares runs, or of the values of a figure, which the page holds at most."""


@dataclasses.dataclass(frozen=True)
class Folded:
    """A table that is built when the reader opens it."""

    id: str
    """Its name in the page's data."""
    title: str
    data: Mapping[str, Any]
    """What `table_data` returned."""
    extent: str = ""
    """How many rows it has, and what there is a row for."""
    note: str = ""
    """How to read it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Measure:
    """Figures that belong together."""

    figures: Sequence[Figure]
    title: str = ""
    values: pd.DataFrame | None = None
    """What the figures draw, in numbers."""
    id: str = ""
    """The name of its first figure's element, with which those of the others begin."""

    @cached_property
    def table(self) -> Folded | None:
        """The values below the figures."""
        if self.values is None:
            return None
        data = table_data(self.values, self.title, limit=LONGEST_COMPARED, titled=False)
        return Folded(f"values_{self.id}", "Values", data)

    def elements(self, *, folded: bool) -> Markup:
        """The figures as elements of the page.

        Args:
            folded: Whether the reader unfolds them first.
        """
        names = [f"{self.id}_{place}" if place else self.id for place in range(len(self.figures))]
        drawn = zip(self.figures, names, strict=True)
        return Markup().join(figure_element(figure, name, first=not folded) for figure, name in drawn)


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page. Its first finding and figures are shown; what else it has is one click away."""

    id: str
    title: str
    question: str = ""
    """What it answers."""
    findings: Sequence[Sentence] = ()
    """With the names of the elements that show them."""
    ordered: bool = False
    """Whether its findings are ranked: all are shown, and numbered."""
    note: str = ""
    """How to read it."""
    remarks: Sequence[str] = ()
    content: Markup = _NOTHING
    """Elements that are neither findings nor figures nor tables."""
    measures: Sequence[Measure] = ()
    shown: int = 1
    """How many of the measures are not folded away."""
    tables: Sequence[Folded] = ()

    @property
    def first_findings(self) -> int:
        """How many findings are not folded away."""
        return len(self.findings) if self.ordered else 1

    @property
    def more(self) -> str:
        """What is folded away, in a few words; empty if nothing is."""
        findings = len(self.findings[self.first_findings :])
        figures = sum(len(measure.figures) for measure in self.measures[self.shown :])
        counts = {"finding": findings, "figure": figures, "table": len(self.tables)}
        return ", ".join(counted(count, noun) for noun, count in counts.items() if count)

    @property
    def all_tables(self) -> list[Folded]:
        """Its tables, and those of its figures' values."""
        return [*self.tables, *(measure.table for measure in self.measures if measure.table is not None)]


def render(
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    facts: Sequence[str] = (),
    explorer: Mapping[str, Any] | None = None,
    pairs: Mapping[str, Any] | None = None,
    row: Mapping[str, Any] | None = None,
    sources: Mapping[str, Any] | None = None,
) -> str:
    """The page as self-contained HTML.

    Args:
        title: What the results are about.
        sections: In order.
        subtitle: What was measured.
        facts: What was run.
        explorer: The data of the explorer, if a section has a place for it.
        pairs: The data of the maps of two texts, by the names of their places.
        row: The data of a text that is read for one query, if a section has a place for it.
        sources: The data of an answer and its sources, likewise.
    """
    return visible(
        environment()
        .get_template("page.html")
        .render(
            title=title,
            sections=sections,
            subtitle=subtitle,
            facts=facts,
            css=style("page.css", "explorer.css", "pairs.css", "row.css", "sources.css"),
            script=script(*EXPLORER_SCRIPTS, "ranking.js", "row.js", "sources.js", "tables.js", "page.js"),
            tables=packed_data({table.id: table.data for section in sections for table in section.all_tables}),
            explorer=None if explorer is None else script_data(explorer),
            pairs=script_data(pairs or {}),
            row=None if row is None else script_data(row),
            sources=None if sources is None else script_data(sources),
        )
    )
