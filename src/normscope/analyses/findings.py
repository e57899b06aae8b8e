"""What an analysis found: numbers, tables, and figures described as data.

Figures are described here and drawn in `reporting`, so an analysis knows no drawing library and every output (picture,
page, tracker) draws from one description.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd


@dataclasses.dataclass(frozen=True)
class HeatmapPanels:
    """Annotated heatmaps side by side on one colour scale."""

    table: pd.DataFrame
    panel: str
    """Column that tells the panels apart."""
    row: str
    column: str
    value: str
    caption: str
    """One sentence that says what is seen."""
    panel_titles: Mapping[str, str]
    """Titles of the panels, in order; panels that the table lacks are left out."""
    value_label: str
    limits: tuple[float, float]
    """Ends of the colour scale."""


@dataclasses.dataclass(frozen=True)
class HeatmapGrid:
    """Heatmaps in rows and columns; each column has a colour scale of its own, the same in all its rows."""

    table: pd.DataFrame
    grid_row: str
    """Column that tells the rows of panels apart."""
    values: Mapping[str, str]
    """Columns of the table that are drawn, one per column of panels, with their titles."""
    row: str
    column: str
    caption: str
    diverging: bool = False
    """Whether the values have two signs: all panels then share one scale, whose middle is zero."""
    limits: tuple[float, float] | None = None
    """Ends of the colour scale of all panels, where they should be the same as elsewhere."""


@dataclasses.dataclass(frozen=True)
class Lines:
    """Lines over a quantity, in one panel or several."""

    table: pd.DataFrame
    x: str
    y: str
    series: str
    """Column that tells the lines apart."""
    caption: str
    y_label: str
    series_titles: Mapping[Any, str] | None = None
    """Titles of the lines, in order; None draws all alike and without a legend."""
    panel: str | None = None
    """Column that tells the panels apart; each has a scale of its own."""
    panel_titles: Mapping[Any, str] | None = None
    limits: tuple[float, float] | None = None
    log_y: bool = False
    band: tuple[str, str] | None = None
    """Columns of the lower and upper end of a band around each line; NaN where a line has none."""


@dataclasses.dataclass(frozen=True)
class Profiles:
    """Values over all hidden dimensions, one panel per layer, with some dimensions labelled."""

    table: pd.DataFrame
    panel: str
    x: str
    y: str
    labelled: Sequence[int]
    y_label: str
    caption: str
    series: str | None = None
    """Column that tells several lines of a panel apart; all are drawn alike."""


@dataclasses.dataclass(frozen=True)
class Scatter:
    """Points of one series after another in a panel each, with the median along x where that is asked for."""

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
    """Whether the panels have one scale for y."""
    medians: bool = False
    """Whether the medians of bins along x are drawn over the points."""


@dataclasses.dataclass(frozen=True)
class WordMaps:
    """Matrices of words by words side by side, each with a colour scale of its own, some cells framed."""

    table: pd.DataFrame
    panel: str
    panel_titles: Mapping[str, str]
    row: str
    """Column of a row's number; `row_label` of its word."""
    row_label: str
    column: str
    column_label: str
    value: str
    frame: str
    """Column that is `sure` for cells with a frame, `possible` for those with a dashed one."""
    caption: str


Figure = HeatmapPanels | HeatmapGrid | Lines | Profiles | Scatter | WordMaps


@dataclasses.dataclass(frozen=True)
class Findings:
    """The results of one analysis. Names are made unique by the analysis's own name in front."""

    tables: Mapping[str, pd.DataFrame]
    """Tidy: one row per observation."""
    metrics: Mapping[str, float]
    """Flat names and finite values."""
    curves: Mapping[str, pd.Series] = dataclasses.field(default_factory=dict)
    """Values by layer, for trackers that draw them against `layer`."""
    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    summary: pd.DataFrame = dataclasses.field(default_factory=pd.DataFrame)
    """The few numbers for the terminal, ready to print."""
    summary_digits: int = 2
    sentences: Sequence[str] = ()
    """The findings in plain words, with their numbers."""
    notes: Sequence[str] = ()
    """What users must read beside the numbers."""
