"""Text in figures. Tokens and names are drawn literally, never parsed as mathematics."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import Formatter, LogLocator, NullFormatter

from normscope.errors import cut, visible
from normscope.results.codes import category_name
from normscope.results.figures import Figure, Heatmaps, Lines, Profiles, Scatter, WordMaps
from normscope.results.token_labels import label
from normscope.rounding import number, power_of_ten

D = TypeVar("D", bound=Figure)

# A figure can be at most 65,536 pixels wide, and a corpus may contain words longer than that.
_LONGEST_LABEL = 40


def word_label(word: str) -> str:
    """A word or a token as a label, shortened if long."""
    return cut(label(word), _LONGEST_LABEL)


def with_visible_text(figure: D) -> D:
    """A figure whose texts can all be drawn: of its table, its titles and its caption, whoever wrote them."""
    changes = {field.name: _visible(getattr(figure, field.name)) for field in dataclasses.fields(figure)}
    return dataclasses.replace(figure, **changes)


def _visible(value: Any) -> Any:
    match value:
        case str():
            return visible(value)
        case pd.DataFrame():
            texts = value.apply(lambda own: own if pd.api.types.is_numeric_dtype(own) else own.map(_visible))
            return texts.rename(columns=_visible)
        case Mapping():
            return {_visible(key): _visible(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(map(_visible, value))
    return value


def token_name(category: Any) -> Any:
    """A category of tokens as papers write it: `[CLS]`. Other names stay."""
    return category_name(category) if isinstance(category, str) else category


def with_token_names(figure: D) -> D:
    """A figure that names special tokens as papers do. Their colours still go by category."""
    match figure:
        case Heatmaps():
            table = figure.table.assign(**{figure.column: [token_name(value) for value in figure.table[figure.column]]})
            titles = figure.panel_titles
            if figure.panel is not None and titles is None:
                titles = {name: str(name) for name in table[figure.panel].unique()}
            return dataclasses.replace(figure, table=table, panel_titles=_named(titles))
        case Lines():
            return dataclasses.replace(
                figure, series_titles=_named(figure.series_titles), panel_titles=_named(figure.panel_titles)
            )
        case Scatter():
            return dataclasses.replace(
                figure, panel_titles=_named(figure.panel_titles), series_titles=_named(figure.series_titles)
            )
        case _:
            return figure


def caption_of(figure: Figure) -> str:
    """The caption, which says so if panels do not share a scale, and what grey means where it occurs."""
    return visible(" ".join(filter(None, (figure.caption, _own_scales(figure), _missing(figure)))))


OWN_RANGE = "own range"
"""In the titles of panels that do not share the range of the others."""

_EACH = "Each panel has its own range."


def profile_titles(figure: Profiles) -> dict[Any, str]:
    """The titles of the panels, which say which of them have a range of their own if others share one."""
    panels, apart = sorted(figure.table[figure.panel].unique()), figure.panels_apart()
    marked = apart if len(apart) < len(panels) else []
    return {panel: f"{figure.panel} {panel}{f' ({OWN_RANGE})' * (panel in marked)}" for panel in panels}


def _missing(figure: Figure) -> str:
    if isinstance(figure, WordMaps) and figure.table[figure.value].isna().any():
        return "Hatched: the token of the row cannot see that of the column."
    if not isinstance(figure, Heatmaps):
        return ""
    cells = figure.table[figure.row].nunique() * figure.table[figure.column].nunique()
    full = all(rows[value].notna().sum() == cells for _, rows, value in figure.maps())
    return "" if full else "Grey cells have no value."


def _own_scales(figure: Figure) -> str:
    match figure:
        case Lines(panel=str(panel), sharey=False, limits=None) | Scatter(panel=panel, sharey=False):
            return _EACH if figure.table[panel].nunique() > 1 else ""
        case Profiles():
            apart, panels = len(figure.panels_apart()), figure.table[figure.panel].nunique()
            if apart < panels:
                return f"The panels share one range, except those marked “{OWN_RANGE}”." if apart else ""
            return _EACH if panels > 1 else ""
        case Heatmaps(own_scales=True):
            return "Each map has its own scale." if len(figure.maps()) > 1 else ""
        case Heatmaps(diverging=False, limits=None):
            return "Each column of maps has its own scale." if len(figure.values) > 1 else ""
        case WordMaps(largest=None):
            scales = "Each map has its own scale." if len(figure.panel_titles) > 1 else ""
            beyond = "Numbers are the values of cells that lie beyond the scale."
            return " ".join(filter(None, [scales, beyond if figure.goes_beyond and figure.digits is None else ""]))
    return ""


def _named(titles: Mapping[Any, str] | None) -> Any:
    return None if titles is None else {key: token_name(title) for key, title in titles.items()}


def step_label(step: float) -> str:
    """A training step in a few characters: `512`, `1234`, `2k`, `20k`, `1.5M`."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        short = f"{step / size:.3g}"
        if step >= max(size, 1e4) or (step >= size and float(short) * size == step):
            return f"{short}{unit}"
    return f"{step:.0f}"


_DECADES = 100
"""An axis that spans less shows numbers instead of powers."""

_DIGITS_OF_TICKS = 1
"""Number of significant digits of 1, 2 and 5 times a power of ten."""


class _Ticks(LogLocator):
    """Powers of ten; 1, 2 and 5 times them if the axis spans less than two; all digits if only one of these is on it."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        low, high = sorted((vmin, vmax))
        self.set_params(subs=(1.0,) if high / max(low, 1e-300) >= _DECADES else (1.0, 2.0, 5.0))
        ticks = np.asarray(super().tick_values(vmin, vmax))
        if high / max(low, 1e-300) >= _DECADES or ((ticks >= low) & (ticks <= high)).sum() > 1:
            return ticks
        self.set_params(subs=tuple(map(float, range(1, 10))))
        return super().tick_values(vmin, vmax)


class _Labels(Formatter):
    """Powers of ten in plain characters, since parsing of mathematics is switched off; numbers on an axis of less than two."""

    def __call__(self, x: float, pos: Any = None) -> str:  # noqa: ARG002  (matplotlib passes both)
        low, high = sorted(self.axis.get_view_interval())  # type: ignore[union-attr]
        if high / max(low, 1e-300) < _DECADES:
            return number(x, digits=_DIGITS_OF_TICKS)
        return power_of_ten(round(math.log10(x)))


def log_scale(axes: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with labels such as 10⁻³, or plain numbers if it spans less than two powers of ten.

    Does nothing to axes without positive numbers, such as those of vectors that are all zero.
    """
    if math.isinf(axes.dataLim.minposx if name == "x" else axes.dataLim.minposy):
        return
    axes.set(**{f"{name}scale": "log"})
    axis = axes.xaxis if name == "x" else axes.yaxis
    axis.set_major_locator(_Ticks(numticks=6))
    axis.set_major_formatter(_Labels())
    axis.set_minor_formatter(NullFormatter())
