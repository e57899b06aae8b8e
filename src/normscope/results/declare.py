"""What an analysis returns, declared once: tables with named axes, and the numbers and curves rolled up from those tables.

Documentation, the page, the terminal, trackers, comparisons and the completeness of the oracles follow from the declaration.
Nothing here imports torch or pandas, to keep `--help` and shell completion instant.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from normscope.results.codes import bracketed, in_words, plain

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["number", "text", "truth", "whole"]
"""What the cells of a column hold: decimal numbers, text, true or false, or whole numbers."""

_PLACEHOLDER = re.compile(r"<(\w+)>")


@dataclasses.dataclass(frozen=True)
class Axis:
    """What distinguishes the rows of a table, and the numbers in a name such as `<method>/mean`."""

    name: str
    """The column."""
    meaning: str
    noun: str = ""
    """What it is called in "one row per layer and method"; by default its name."""
    titles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Titles of its values, such as `attn_w`, that `codes` does not have or words in another way."""
    names: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    """How values are written in names if not as they are: `with_bos` for True."""
    kind: Kind = "text"
    nested: bool = False
    """Whether each of its values takes in what those before it do, so that the last stands for all."""

    @property
    def of_texts(self) -> bool:
        """Whether its values are parts of texts, which people read as they are."""
        return self.name.endswith(("token", "span"))

    def title(self, value: str) -> str:
        """What people read for a value."""
        return value if self.of_texts else self.titles.get(value) or in_words(value)

    def but(self, meaning: str = "", noun: str = "") -> "Axis":
        """The axis with another meaning or noun."""
        return dataclasses.replace(self, meaning=meaning or self.meaning, noun=noun or self.noun)


@dataclasses.dataclass(frozen=True)
class Column:
    """The values of a table."""

    meaning: str
    label: str = ""
    """What is on the y-axis of its curves. Values are drawn in per cent where it ends in `(%)`."""
    kind: Kind = "number"
    unit: str = ""
    """What 1 stands for; empty for counts, ratios, shares and whatever else has no unit."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: one row for each combination of the values of its axes that occurs."""

    rows: tuple[Axis, ...]
    """Its axes, which are its first columns."""
    values: Mapping[str, Column | str]
    """Its other columns, in order; a text is the meaning of a number. `head_<head>` stands for several columns."""
    per: str = ""
    """What there is one row for, if the axes do not say it."""
    ranked_by: Sequence[str] = ()
    """Columns by which reports sort it, largest magnitude first; its own order otherwise."""
    repeats: bool = False
    """Whether several rows may have the same values of the axes."""

    @cached_property
    def columns(self) -> dict[str, str]:
        """The meaning of each column, in order."""
        of_axes = {axis.name: axis.meaning for axis in self.rows}
        return of_axes | {name: column.meaning for name, column in self._values.items()}

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What the cells of each column hold."""
        of_axes: dict[str, Kind] = {axis.name: axis.kind for axis in self.rows}
        return of_axes | {name: column.kind for name, column in self._values.items()}

    @cached_property
    def units(self) -> dict[str, str]:
        """The units of the columns that have one."""
        return {name: column.unit for name, column in self._values.items() if column.unit}

    @property
    def row(self) -> str:
        """What there is one row for: "layer, method and category"."""
        nouns = [axis.noun or axis.name for axis in self.rows]
        return self.per or " and ".join(part for part in (", ".join(nouns[:-1]), nouns[-1]) if part)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns whose values no two rows share."""
        return () if self.repeats else tuple(axis.name for axis in self.rows)

    def label(self, column: str) -> str:
        """What is on the y-axis where a column is drawn; empty if nothing was declared."""
        return self._values[column].label if column in self._values else ""

    @cached_property
    def _values(self) -> dict[str, Column]:
        return {name: Column(column) if isinstance(column, str) else column for name, column in self.values.items()}


def at_largest(criterion: str) -> "Callable[[pd.DataFrame, str], Any]":
    """Reduces rows to the one with the largest magnitude of a column, the first of several."""
    return lambda rows, column: rows[column].iloc[int(rows[criterion].abs().to_numpy().argmax())]


def at_smallest(criterion: str) -> "Callable[[pd.DataFrame, str], Any]":
    """Reduces rows to the one with the smallest value of a column, the first of several."""
    return lambda rows, column: rows[column].iloc[int(rows[criterion].to_numpy().argmin())]


Where = Mapping[str, object]
"""The rows that count, by column: one value, or a function from the column to which of its rows count. Later columns see only
the rows that earlier ones have left."""


@dataclasses.dataclass(frozen=True)
class Rollup:
    """Numbers or curves: one for each value of the axes that the name keeps. Curves also keep the axis `layer`.

    A number that has no value in the table (NaN) is left out, and so is a point of a curve.
    """

    name: str
    """`<inputs>/<bos>/mass/<position>`; placeholders are columns of the table."""
    meaning: str
    of: str = ""
    """`table.column`. Empty if the analysis computes it itself."""
    how: "str | Callable[[pd.DataFrame, str], Any]" = "mean"
    """How the remaining axes are reduced: a reduction of pandas, or a function of the rows and the name of the column."""
    where: Where = dataclasses.field(default_factory=dict)
    label: str = ""
    """Its name in words and the label of the curve's y-axis; by default, the column's label."""

    @property
    def placeholders(self) -> list[str]:
        """The axes that the name keeps."""
        return _PLACEHOLDER.findall(self.name)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches the names that it declares."""
        return re.compile(_PLACEHOLDER.sub(r"(?P<\1>[^/]+)", self.name))

    @property
    def plain_name(self) -> str:
        """`sink_rate` of `<inputs>/<bos>/sink_rate/<position>`."""
        parts = (_PLACEHOLDER.sub("", part).strip("_") for part in self.name.split("/") if not part.startswith("<"))
        return "/".join(filter(None, parts)) or self.name

    def filled(self, values: Mapping[str, str]) -> str:
        """A declared name, given what its placeholders stand for."""
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self.name)


def is_percentage(label: str) -> bool:
    """Whether the label of an axis or of colours is that of numbers in per cent."""
    return label.endswith("(%)")


def unitless(label: str) -> str:
    """The label without its unit."""
    return label.removesuffix(" (%)")


@dataclasses.dataclass(frozen=True)
class Panel:
    """How a number or a curve is shown: in words, or as a panel of a figure."""

    title: str
    """What distinguishes it from others with the same label, such as `attention block (AttnResLn-N)`; else empty."""
    label: str
    """The measure: the label of the y-axis. Empty if no analysis describes it; the title is then its name."""

    @property
    def factor(self) -> float:
        """The factor by which values are multiplied when they are drawn: 100 for percentages."""
        return 100.0 if is_percentage(self.label) else 1.0

    @property
    def words(self) -> str:
        """The measure in words: `mixing ratio (attention block, AttnResLn-N)`."""
        label = unitless(self.label)
        return f"{label} {bracketed(self.title)}" if label and self.title else label or self.title

    @property
    def short_words(self) -> str:
        """The measure in words, without the paper's name of its method: `mixing ratio (attention block)`."""
        return dataclasses.replace(self, title=plain(self.title)).words


@dataclasses.dataclass(frozen=True)
class Declared:
    """Everything that an analysis returns. Names have no prefix; the analysis's name is added in the results of a run."""

    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    metrics: tuple[Rollup, ...] = ()
    """The numbers in results.json."""
    curves: tuple[Rollup, ...] = ()
    """Values by layer."""

    def axis(self, name: str) -> Axis | None:
        """The axis of that name, if a table has one."""
        return next((axis for table in self.tables.values() for axis in table.rows if axis.name == name), None)

    def title(self, placeholder: str, value: str) -> str:
        """The title of what stands for a placeholder in a name."""
        axis = self.axis(placeholder)
        own = in_words(value) if axis is None else axis.title(value)
        return f"{placeholder} {value}" if own == value and value.isdecimal() else own

    def label(self, rollup: Rollup) -> str:
        """The name in words, also the label of the y-axis; by default, the declared name without placeholders."""
        table, _, column = rollup.of.partition(".")
        own = rollup.label or (self.tables[table].label(column) if table in self.tables else "")
        return own or " ".join(map(in_words, rollup.plain_name.split("/")))

    def curve(self, name: str) -> "tuple[Rollup, dict[str, str]] | None":
        """The declaration of a curve; None for other names: `share/heads` is a number, not one of `share/<category>`."""
        found = declared(self.curves, name)
        return None if found is not None and found[1] and any(one.name == name for one in self.metrics) else found

    def panel(self, name: str) -> Panel:
        """How a number or a curve is shown."""
        found = self.curve(name) or declared(self.metrics, name)
        if found is None:
            return Panel(" ".join(map(in_words, name.split("/"))), "")
        return Panel(", ".join(self.title(*item) for item in found[1].items()), self.label(found[0]))


def declared(rollups: Iterable[Rollup], name: str) -> "tuple[Rollup, dict[str, str]] | None":
    """The declaration of a name, with what its placeholders stand for; None if there is none.

    A name without placeholders wins over a pattern that also matches it: `f/mean` over `f/<category>`.
    """
    for rollup in sorted(rollups, key=lambda one: "<" in one.name):
        match = rollup.pattern.fullmatch(name)
        if match is not None:
            return rollup, match.groupdict()
    return None
