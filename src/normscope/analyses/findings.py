"""What an analysis found: numbers, tables, and figures described as data.

Figures are described here and drawn in `reporting`, so an analysis knows no drawing library and every output (picture,
page, tracker) draws from one description.
"""

import dataclasses
from collections.abc import Mapping, Sequence

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
class LinesByLayer:
    """One line per series over the layers."""

    table: pd.DataFrame
    series: str
    """Column that tells the lines apart."""
    value: str
    caption: str
    series_titles: Mapping[str, str]
    """Titles of the lines, in order."""
    value_label: str
    limits: tuple[float, float] | None = None


Figure = HeatmapPanels | LinesByLayer


@dataclasses.dataclass(frozen=True)
class Findings:
    """The results of one analysis. Names are made unique by the analysis's own name in front."""

    tables: Mapping[str, pd.DataFrame]
    """Tidy: one row per observation."""
    metrics: Mapping[str, float]
    """Flat names and finite values."""
    curves: Mapping[str, pd.Series]
    """Values by layer, for trackers that draw them against `layer`."""
    figures: Mapping[str, Figure]
    summary: pd.DataFrame
    """The few numbers for the terminal, ready to print."""
    notes: Sequence[str] = ()
    """Sentences that the user must read beside the numbers."""
