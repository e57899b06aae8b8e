"""Figures, described as data: a table, and which of its columns go where.

Nothing is drawn here. `reporting` draws figures, so analyses need no plotting library, and files, the report page and the
tracker all show the same figure. A run keeps each in a file: its table as Parquet, and the rest in the file's metadata.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
from jaxtyping import Float

from normscope.errors import InputError, one_line
from normscope.results import figures
from normscope.results.table_files import parquet_metadata, write_parquet
from normscope.rounding import number
from normscope.statistics.tidy import tidy
from normscope.untrusted.plain_data import parsed_json
from normscope.untrusted.tables import table


@dataclasses.dataclass(frozen=True)
class Heatmaps:
    """One heat map or several: a map for each panel and value."""

    table: pd.DataFrame
    values: Mapping[str, str]
    """Columns of the table to draw, and their titles; a single one needs no title beside those of panels."""
    row: str
    column: str
    caption: str
    panel: str | None = None
    """Column that assigns rows of the table to panels."""
    panel_titles: Mapping[Any, str] | None = None
    """Titles of the panels, in order; panels without rows in the table are left out. By default, their names in the table."""
    diverging: bool = False
    """Whether values are positive and negative. All maps then share one scale, centred at zero."""
    limits: tuple[float, float] | None = None
    """Range of the colour scale of all maps; by default, maps of the same value share one that begins at zero."""
    value_label: str = ""
    """What the colours of a shared scale mean."""
    numbered: bool = False
    """Whether values, which are then of one scale, are written into the cells as whole numbers where they fit."""
    own_scales: bool = False
    """Whether each map has a scale of its own, beginning at zero, instead of one with the others of its value."""

    def panels(self) -> list[tuple[str, pd.DataFrame]]:
        """The panels in order: their titles, and their rows of the table. A single panel has no title."""
        if self.panel is None:
            return [("", self.table)]
        groups = dict(iter(self.table.groupby(self.panel, sort=False, observed=True)))
        titles = self.panel_titles or {name: str(name) for name in groups}
        return [(title, groups[name]) for name, title in titles.items() if name in groups]

    def maps(self) -> list[tuple[str, pd.DataFrame, str]]:
        """All maps: their titles, their rows of the table, and the column that each draws."""
        return [
            (", ".join(filter(None, (title, name))), rows, value)
            for name, rows in self.panels()
            for value, title in self.values.items()
        ]


@dataclasses.dataclass(frozen=True)
class Lines:
    """Line plots in one panel or several."""

    table: pd.DataFrame
    x: str
    y: str
    series: str
    """Column that assigns rows of the table to lines."""
    caption: str
    y_label: str
    series_titles: Mapping[Any, str] | None = None
    """Titles of the lines, in order; lines without rows in the table are left out. None draws all lines alike, without a
    legend."""
    panel: str | None = None
    """Column that assigns rows of the table to panels."""
    panel_titles: Mapping[Any, str] | None = None
    sharey: bool = False
    """Whether the panels share the y axis."""
    limits: tuple[float, float] | None = None
    log_y: bool = False
    band: tuple[str, str] | None = None
    """Columns with the lower and upper edge of a band around each line; NaN where there is no band."""
    x_label: str = ""
    """By default the name of `x`."""
    steps: bool = False
    """Whether x counts training steps, on a logarithmic axis that has room for step 0."""
    leading: str = ""
    """The line that the figure is about, which is the strongest; empty if all are equal."""
    behind: Sequence[str] = ()
    """Lines that the figure is not about, which are thin and grey."""

    def __post_init__(self) -> None:
        if self.series_titles is not None:
            present = set(self.table[self.series])
            titles = {line: title for line, title in self.series_titles.items() if line in present}
            object.__setattr__(self, "series_titles", titles)  # the class is frozen


@dataclasses.dataclass(frozen=True)
class Profiles:
    """Values of all hidden dimensions, one panel per layer, with some dimensions labelled."""

    table: pd.DataFrame
    panel: str
    x: str
    y: str
    labelled: Sequence[int]
    y_label: str
    caption: str
    series: str | None = None
    """Column that assigns rows of the table to lines of a panel, which are all drawn alike."""
    marked: str | None = None
    """Column that says in which rows a labelled dimension has its label; without one, in all."""

    def panels_apart(self) -> list[Any]:
        """Panels with a range of their own: in the range that most panels share, they would be flat or cut off.

        The values of panels that share a range reach at least a fifth as far from zero as those of the furthest of them. If
        at most half of the panels could share one, all are apart.
        """
        reach = self.table[self.y].abs().groupby(self.table[self.panel]).max()
        groups = [reach.between(furthest / 5, furthest) for furthest in sorted(reach, reverse=True)]
        together = max(groups, key=lambda group: int(group.sum()))
        return list(reach.index[~together]) if 2 * int(together.sum()) > len(reach) else list(reach.index)

    def ranges(self) -> dict[Any, tuple[float, float]]:
        """The smallest and the largest value on the y-axis of each panel."""
        by_panel = self.table.groupby(self.panel)[self.y]
        ends = pd.DataFrame({"low": by_panel.min().clip(upper=0.0), "high": by_panel.max().clip(lower=0.0)})
        shared = ends.drop(index=self.panels_apart())
        if len(shared):
            ends.loc[shared.index, ["low", "high"]] = shared["low"].min(), shared["high"].max()
        return {panel: (float(low), float(high)) for panel, low, high in ends.itertuples()}

    def labels(self) -> pd.DataFrame:
        """The rows that labels point at: for each labelled dimension in each panel, the marked value furthest from zero.

        Values nearer to zero than a twentieth of the panel's range cannot be seen, and have no label.
        """
        chosen = self.table[self.table[self.x].isin(list(self.labelled))]
        if self.marked is not None:
            chosen = chosen[chosen[self.marked]]
        far = chosen.assign(reach=chosen[self.y].abs()).sort_values("reach", ascending=False, kind="stable")
        far = far.drop_duplicates([self.panel, self.x]).sort_values([self.panel, self.x])
        span = far[self.panel].map({panel: high - low for panel, (low, high) in self.ranges().items()})
        return far[far["reach"] >= span.astype(float) / 20].drop(columns="reach")


@dataclasses.dataclass(frozen=True)
class Scatter:
    """Scatter plots, one panel per series, optionally with the median along x."""

    table: pd.DataFrame
    x: str
    y: str
    panel: str
    panel_titles: Mapping[str, str]
    x_label: str
    y_label: str
    caption: str
    log_x: bool = False
    log_y: bool = False
    sharey: bool = True
    """Whether the panels share the y axis."""
    medians: bool = False
    """Whether to draw the median of each bin along x."""
    trim: float = 0.0
    """Share of the points at either end of each shared axis that its range leaves out, so that it shows the cloud."""
    series: str | None = None
    """Column that assigns points to kinds, which differ in colour and have a legend; by default, panels differ in colour."""
    series_titles: Mapping[str, str] | None = None
    """Titles of the kinds, in order; those without points are left out."""


@dataclasses.dataclass(frozen=True)
class Dots:
    """One number with its interval for each row, in one or more panels: a ranking, or gains compared with zero."""

    table: pd.DataFrame
    """In the order in which rows are drawn, from top to bottom."""
    row: str
    """Column with the names of the rows."""
    value: str
    panel: str
    panel_titles: Mapping[str, str]
    value_label: str
    caption: str
    row_titles: Mapping[Any, str] = dataclasses.field(default_factory=dict)
    """Titles of the rows, where they differ from the names."""
    interval: tuple[str, str] | None = None
    """Columns with the ends of the intervals; NaN where there is none."""
    reference: float | None = 0.0
    """Position of the line that values are compared with; None for no line."""


_FEW, _FAR = 3, 3.0
"""Few cells far beyond all others would leave a map without colour: these do not decide where its scale ends."""


def end_of_scale(values: np.ndarray) -> tuple[float, list[tuple[int, int]]]:
    """Where the scale of a map ends, and the cells beyond: at most three, more than three times as large as the next.

    The explorer's pages have the same rule (`endOfScale`).
    """
    order = np.argsort(-np.nan_to_num(values), axis=None, kind="stable")[: _FEW + 1]
    sizes = np.nan_to_num(values).ravel()[order]
    for at in range(1, len(sizes)):
        if 0 < sizes[at] < sizes[at - 1] / _FAR:
            rows, columns = np.unravel_index(order[:at], values.shape)
            return float(sizes[at]), list(zip(rows.tolist(), columns.tolist(), strict=True))
    return float(sizes[0]) if len(sizes) else 0.0, []


@dataclasses.dataclass(frozen=True)
class WordMaps:
    """Word-by-word matrices side by side, each with its own colour scale; some cells are framed."""

    table: pd.DataFrame
    panel: str
    panel_titles: Mapping[str, str]
    caption: str
    row: str = "query"
    """Column with the number of the matrix row; `row_label` has its word."""
    row_label: str = "query_token"
    column: str = "key"
    column_label: str = "key_token"
    value: str = "value"
    frame: str = "frame"
    """Column with `sure` for cells with a solid frame and `possible` for cells with a dashed frame."""
    largest: float | None = None
    """The end of the colour scale on both sides of zero, for values of both signs; None if no value is negative."""
    digits: int | None = None
    """Decimals of the values that are written into the cells; None writes none."""
    measure: str = ""
    """What all cells add up to, if the rows and columns are those of a `TextPair`; pages then show it as an interactive map."""
    number: int = 0
    """That of the `TextPair`."""
    value_label: str = ""
    """What the colours mean; by default what `measure` says, or else the titles of the panels do."""

    def values_of(self, panel: str) -> pd.DataFrame:
        """The matrix of a panel."""
        rows = self.table[self.table[self.panel] == panel]
        return rows.pivot(index=self.row, columns=self.column, values=self.value)

    @property
    def goes_beyond(self) -> bool:
        """Whether any cell lies beyond the colour scale of its panel."""
        if self.largest is not None:
            return False
        return any(end_of_scale(self.values_of(panel).to_numpy(dtype=float))[1] for panel in self.panel_titles)


@dataclasses.dataclass(frozen=True)
class PatchMaps:
    """What the patches of an image give, laid on the image, side by side; each map has its own scale.

    Where values may be negative, the scale is the same on both sides of zero.
    """

    table: pd.DataFrame
    """The columns `panel`, `row` and `column` of a patch, from 0, and `value`."""
    image: str
    """The image as the model has read it: the content of a PNG file in base 64."""
    panel_titles: Mapping[str, str]
    beside: Mapping[str, str]
    """What tokens other than patches give, in words, by panel."""
    caption: str
    signed: bool = False
    """Whether values could be negative, even if none is."""

    def values_of(self, panel: str) -> pd.DataFrame:
        """The patches of a panel, as they lie in the image."""
        rows = self.table[self.table["panel"] == panel]
        return rows.pivot(index="row", columns="column", values="value")


@dataclasses.dataclass(frozen=True)
class SoundMaps:
    """What the frames of a sound give, over time, below its wave: a curve for each row, in panels with scales of their own."""

    table: pd.DataFrame
    """The columns `panel`, `row` from 0, `label` of the row, `place` in time from 0, and `value`, which is not negative."""
    low: Sequence[float]
    """The lowest sample of each frame, from −1 to 1."""
    high: Sequence[float]
    """The highest one."""
    seconds: float
    """From one value to the next."""
    wave_seconds: float
    """From one frame to the next."""
    panel_titles: Mapping[str, str]
    caption: str
    starts: Sequence[float] = ()
    """Where what a row is about begins in the sound, in seconds; empty if rows are about no part of it."""
    ends: Sequence[float] = ()

    @classmethod
    def of(
        cls,
        values: Mapping[str, Float[np.ndarray, "row place"]],
        labels: Sequence[str],
        panel_titles: Mapping[str, str],
        wave: Float[np.ndarray, "frame 2"],
        seconds: float,
        wave_seconds: float,
        spans: Sequence[tuple[float, float]] = (),
        *,
        caption: str,
    ) -> "SoundMaps":
        """A figure of arrays.

        Args:
            values: By panel.
            labels: The names of the rows.
            wave: `low` and `high`.
            spans: `starts` and `ends`.
        """
        cells = tidy(
            {"label": np.array(labels, dtype=object)[:, None], "value": np.stack([*values.values()]).astype(float)},
            panel=list(values),
            row=range(len(labels)),
            place=range(next(iter(values.values())).shape[1]),
        )
        low, high = (tuple(map(float, ends)) for ends in wave.T)
        starts, ends = (tuple(float(span[end]) for span in spans) for end in (0, 1))
        return cls(cells, low, high, seconds, wave_seconds, panel_titles, caption, starts, ends)

    def rows_of(self, panel: str) -> pd.DataFrame:
        """The curves of a panel: a row for each, with its label, and a column for each value."""
        cells = self.table[self.table["panel"] == panel]
        return cells.pivot(index=["row", "label"], columns="place", values="value").reset_index("row", drop=True)


@dataclasses.dataclass(frozen=True)
class ColouredText:
    """Texts whose tokens are coloured by what each adds or subtracts, with one scale."""

    table: pd.DataFrame
    """One row per token, in order, with the columns `token` and `value`, and `side` if each side of a text begins a line."""
    text: str
    """Column that assigns rows to texts; it has their titles, which are drawn if there are several."""
    caption: str
    value_label: str


@dataclasses.dataclass(frozen=True, eq=False)
class TextPair:
    """What each pair of tokens of two texts adds to their similarity."""

    title: str
    tokens_a: Sequence[str]
    tokens_b: Sequence[str]
    matrix: Float[np.ndarray, "a b"]
    """The last row and column are those of the biases."""
    measure: str = "cosine similarity"
    """What all cells add up to."""
    number: int = 0
    """The number of the second text among those that are compared with the first one, from 1; 0 if there are no others."""

    @classmethod
    def of(cls, figure: WordMaps) -> "TextPair":
        """The pair that a figure shows; see `figure`."""
        ((panel, title),) = figure.panel_titles.items()
        rows = figure.table[figure.table[figure.panel] == panel]
        matrix = figure.values_of(panel).sort_index(axis=0).sort_index(axis=1)
        tokens_a, tokens_b = (
            rows.drop_duplicates(number).sort_values(number)[label].tolist()[:-1]
            for number, label in ((figure.row, figure.row_label), (figure.column, figure.column_label))
        )
        return cls(title, tokens_a, tokens_b, matrix.to_numpy(dtype=float), figure.measure, figure.number)

    @property
    def table(self) -> pd.DataFrame:
        """One row per pair; tokens are numbered from 0, and the biases come last."""
        return tidy(
            {
                "token_a": np.array([*self.tokens_a, "bias"], dtype=object)[:, None],
                "token_b": np.array([*self.tokens_b, "bias"], dtype=object),
                "value": self.matrix,
            },
            a=range(len(self.tokens_a) + 1),
            b=range(len(self.tokens_b) + 1),
        )

    @property
    def value(self) -> float:
        """The similarity."""
        return float(self.matrix.sum())

    def figure(self) -> WordMaps:
        """The matrix, as a figure."""
        return WordMaps(
            table=self.table.assign(panel=self.title, frame="none"),
            panel="panel",
            panel_titles={self.title: self.title},
            row="a",
            row_label="token_a",
            column="b",
            column_label="token_b",
            measure=self.measure,
            number=self.number,
            # Biases belong to no word, and would often make all other cells look pale.
            largest=float(np.abs(self.matrix[:-1, :-1]).max()) or 1.0,
            caption=(
                f"What each pair of tokens adds to the {self.measure} of two texts (rows: the first text, columns: the "
                f"second). All cells add up to {number(self.value)}: orange raises it, purple lowers it."
            ),
        )


def are_ranked(pairs: Sequence[TextPair]) -> bool:
    """Whether pairs are a query and its documents: all have the same first text."""
    return len(pairs) > 1 and len({tuple(pair.tokens_a) for pair in pairs}) == 1


Figure = Heatmaps | Lines | Profiles | Scatter | Dots | WordMaps | PatchMaps | SoundMaps | ColouredText
"""What can be drawn."""


def pairs_of(figures: Iterable[Figure]) -> list[TextPair]:
    """The pairs of texts among figures; the documents of a query are in order, the most similar first."""
    pairs = [TextPair.of(figure) for figure in figures if isinstance(figure, WordMaps) and figure.measure]
    return sorted(pairs, key=lambda pair: -pair.value) if are_ranked(pairs) else pairs


_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in typing.get_args(Figure)}
_KEY = "normscope.figure"


def write_figure(stream: BinaryIO, figure: Figure) -> None:
    """Write a figure."""
    fields = {field.name: getattr(figure, field.name) for field in dataclasses.fields(figure) if field.name != "table"}
    about = {"kind": type(figure).__name__, "fields": {name: _plain(value) for name, value in fields.items()}}
    rows = figure.table.reset_index(drop=True)
    plain = {name: kind.categories.dtype for name, kind in rows.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    write_parquet(stream, rows.astype(plain), {_KEY: json.dumps(about, ensure_ascii=False)})


def read_figure(path: Path) -> Figure:
    """Read what `write_figure` wrote.

    Raises:
        InputError: If the file is damaged, or holds something else.
    """
    rows = table(path)
    try:
        about = parsed_json(parquet_metadata(path).get(_KEY, "{}"), finite=False)
        kind = _KINDS[about["kind"]]
        hints = typing.get_type_hints(kind, vars(figures))
        fields = {name: _decoded(value) for name, value in about["fields"].items()}
        for name, value in fields.items():
            if not _fits(value, hints[name]):
                raise TypeError(f"{name}: expected {hints[name]}, got {type(value).__name__}")
        figure: Figure = kind(table=rows, **fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: expected a figure that a run has written: {one_line(error)}") from error
    return figure


def _plain(value: Any) -> Any:
    """A value for JSON, whose keys can only be texts: mappings become lists of pairs."""
    match value:
        case Mapping():
            return {"pairs": [[_plain(key), _plain(item)] for key, item in value.items()]}
        case str() | bool() | int() | float() | None:
            return value
        case np.generic():
            return value.item()
        case _:
            return [_plain(item) for item in value]


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {_decoded(key): _decoded(item) for key, item in value["pairs"]}
    return tuple(map(_decoded, value)) if isinstance(value, list) else value


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an annotation."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind is Any:
        return True
    if kind in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if kind is tuple:
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_fits, value, inner))
    if kind is Sequence:
        return isinstance(value, tuple) and all(_fits(each, inner[0]) for each in value)
    if kind is Mapping:
        return isinstance(value, dict) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
