"""What an oracle says, and the comparison of an analysis's findings with all of it."""

import dataclasses
import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from normscope.analyses.registry import analyses
from normscope.results.figures import Dots, Figure, Heatmaps, Lines, Profiles, Scatter, WordMaps
from normscope.results.result import Result

Drawn = dict[tuple[Any, ...], Any]
"""What a figure shows: from panel, line and place to the number (or numbers) there."""


@dataclasses.dataclass
class Picture:
    """What a figure shows, however it is described."""

    drawn: Drawn
    axes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Scales and marks that are not at their defaults."""


@dataclasses.dataclass
class Expected:
    """Everything that an analysis returns. Indices of the tables are what tells their rows apart."""

    tables: Mapping[str, pd.DataFrame]
    metrics: Mapping[str, float]
    curves: Mapping[str, Mapping[int, float]]
    figures: Mapping[str, Picture]
    summary: pd.DataFrame
    sentences: Sequence[str] = ()
    notes: Sequence[str] = ()
    by_sequence: Mapping[str, Sequence[tuple[int, float]]] = dataclasses.field(default_factory=dict)
    """Number of terms and mean of each sequence, by metric."""


def spoken(category: str) -> str:
    """A category of tokens in a sentence: special tokens as they are written."""
    return {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}.get(category, category)


def three_digits(value: float) -> str:
    """Three significant digits with a sign, as sentences write numbers between 0.0001 and 1,000; halves are rounded up."""
    return f"{value * (1 + 1e-12):+#.3g}".replace("-", "−").removesuffix(".")


def visibly_apart(one: float, other: float) -> bool:
    """Whether two numbers differ by a unit of the third digit of the larger."""
    exponent = int(f"{max(abs(one), abs(other)):e}".partition("e")[2])
    return abs(one - other) * (1 + 1e-9) >= 10.0 ** (exponent - 2)


def percent(share: float) -> str:
    """One decimal; halves are rounded up."""
    return f"{100 * share * (1 + 1e-12):.1f}%".replace("-", "−")


def oracle(name: str) -> ModuleType:
    """The module that computes what an analysis returns."""
    return importlib.import_module(f"tests.oracles.{name}_oracle")


@functools.cache
def everything(name: str) -> Result:
    """Everything that an analysis can return, on a tiny model. Tests share it, and change nothing in it."""
    result: Result = oracle(name).everything()
    return result


def with_inputs_of_its_own(name: str, found: Result, run: Result) -> Result:
    """What an analysis returns of texts, with what it returns of images or sounds alone.

    Args:
        run: A run of the analysis on these.
    """
    own = [table for table in run.tables if table.startswith(f"{name}_")]
    tables = {table.removeprefix(f"{name}_"): run.tables[table] for table in own}
    metrics = {metric.removeprefix(f"{name}/"): value for metric, value in run.metrics.items()}
    return dataclasses.replace(found, tables=tables | found.tables, metrics=metrics | found.metrics)


def module_of_sentences(name: str) -> ModuleType:
    """The module with the sentences of an analysis: that of its implementation, or one of its package."""
    module = importlib.import_module(analyses()[name].implementation.partition(":")[0])
    function = getattr(module, "sentences_of", None)
    return importlib.import_module(f"{module.__package__}.sentences" if function is None else function.__module__)


def said(name: str, metrics: Mapping[str, float], *arguments: Any, **named: Any) -> Sequence[str]:
    """What an analysis says of the numbers that it should have found.

    The oracle's `CASES` are the sentences themselves, written out by hand for both sides of every boundary.
    """
    sentences: Sequence[str] = module_of_sentences(name).sentences_of(metrics, *arguments, **named)
    return sentences


NUMBER = re.compile(r"(?<![\w.])−?\d[\d,]*(?:\.\d+)?(?:×10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?%?")


def assert_sentences(found: Sequence[str], expected: Sequence[str]) -> None:
    """The same words, with numbers that are rounded further than those expected.

    How many digits a sentence has is up to the oracle's `CASES`, where they are written out.
    """
    assert [NUMBER.sub("#", sentence) for sentence in found] == [NUMBER.sub("#", sentence) for sentence in expected]
    for sentence, full in zip(found, expected, strict=True):
        for short, long in zip(NUMBER.findall(sentence), NUMBER.findall(full), strict=True):
            (value, unit), (exact, rounding) = read_number(short), read_number(long)
            assert abs(value - exact) <= (unit + rounding) / 2 * (1 + 1e-9), f"{short} instead of {long}: {sentence}"
            assert (
                len(short.lstrip("−0.,").replace(".", "")) >= min(2, len(long.lstrip("−0.,").replace(".", "")))
                or not value
            )


def read_number(number: str) -> tuple[float, float]:
    """A written number, and the unit of its last digit."""
    digits, _, power = number.removesuffix("%").replace("−", "-").replace(",", "").partition("×10")
    scale = 10.0 ** int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or 0)
    return float(digits) * scale, 10.0 ** -len(digits.partition(".")[2]) * scale


def assert_expected(found: Result, expected: Expected, tolerance: float = 1e-9) -> None:
    """The findings are the expected ones: names, numbers and words."""
    assert set(found.tables) - {"sequences"} == set(expected.tables)
    for name, table in expected.tables.items():
        assert_table(found.tables[name], table, name, tolerance)
    close = {"rel": tolerance, "abs": tolerance}
    assert dict(found.metrics) == pytest.approx(dict(expected.metrics), **close)
    assert set(found.curves) == set(expected.curves)
    for name, curve in expected.curves.items():
        assert found.curves[name].to_dict() == pytest.approx(dict(curve), **close), name
    assert set(found.figures) == set(expected.figures)
    for name, picture in expected.figures.items():
        shown = picture_of(found.figures[name])
        assert shown.axes == picture.axes, name
        assert shown.drawn.keys() == picture.drawn.keys(), name
        assert_drawn(shown.drawn, picture.drawn, name, tolerance)
    (summary,) = found.summaries.values()
    assert_table(summary.table.reset_index(names="row"), expected.summary.rename_axis("row"), "summary", tolerance)
    assert_sentences(found.sentences, expected.sentences)
    for sentence in found.sentences:
        assert sentence.figure in {"", *found.figures}, sentence
        assert sentence.table in found.tables, sentence
    assert list(found.notes) == list(expected.notes)
    by_metric = dict(iter(found.tables["sequences"].groupby("metric"))) if "sequences" in found.tables else {}
    assert set(by_metric) == set(expected.by_sequence)
    for name, sequences in expected.by_sequence.items():
        counts, means = by_metric[name]["count"], by_metric[name]["value"]
        np.testing.assert_allclose(
            sorted(zip(counts, means, strict=True)), sorted(sequences), rtol=tolerance, atol=tolerance
        )
        assert float((counts * means).sum() / counts.sum()) == pytest.approx(found.metrics[name], **close), name


def assert_drawn(found: Drawn, expected: Drawn, name: str, tolerance: float) -> None:
    """The same numbers at the same places."""
    places = list(expected)
    pairs = [(np.atleast_1d(found[place]), np.atleast_1d(expected[place])) for place in places]
    assert all(left.shape == right.shape for left, right in pairs), name
    lengths = [len(right) for _, right in pairs]
    left, right = (np.concatenate([np.zeros(0), *(pair[side] for pair in pairs)]) for side in (0, 1))
    bounds = tolerance * np.maximum(1.0, np.abs(np.nan_to_num(right, posinf=0.0, neginf=0.0)))
    wrong = ~np.isclose(left, right, rtol=0.0, atol=bounds, equal_nan=True)
    first = [places[at] for at in np.repeat(np.arange(len(places)), lengths)[wrong][:1]]
    assert not wrong.any(), (name, first, left[wrong], right[wrong])


def assert_table(found: pd.DataFrame, expected: pd.DataFrame, name: str, tolerance: float) -> None:
    """The same columns in the same order, and the same rows in any order."""
    keys = list(expected.index.names)
    assert list(found.columns) == [*keys, *expected.columns], name
    assert len(found) == len(expected), name
    if not len(expected):
        return
    # Rows of a sample have nothing that tells them apart but their numbers: these are sorted as far as rounding allows.
    places = [*keys, *([] if expected.index.is_unique else expected.columns)]
    left, right = (
        plain(rows).sort_values(places, key=lambda values: values.round(9) if values.dtype == float else values)
        for rows in (found, expected.reset_index())
    )
    left, right = left.set_index(keys), right.set_index(keys)
    assert left.index.equals(right.index), name
    close = {"rtol": tolerance, "atol": tolerance}
    for column in expected.columns:
        if column == "error_bound":
            assert (left[column] >= right[column]).all(), (name, left[column], right[column])
            assert (left[column] < 2).all(), name
            continue
        pd.testing.assert_series_equal(left[column], right[column], check_dtype=False, obj=f"{name}, {column}", **close)


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """Without pandas' own kinds of number, missing value and category."""

    kinds = {
        name: object if isinstance(kind, pd.CategoricalDtype) or kind == "string" else float
        for name, kind in table.dtypes.items()
        if pd.api.types.is_extension_array_dtype(kind)
    }
    return table.astype(kinds)


def picture_of(figure: Figure) -> Picture:
    """What a description draws, as `reporting.drawing` reads it."""
    match figure:
        case Heatmaps():
            panels = figure.table[figure.panel] if figure.panel else [None] * len(figure.table)
            titles = dict(figure.panel_titles) if figure.panel_titles else {panel: panel for panel in panels}
            drawn = {
                ((titles[panel], row, column) if figure.numbered else (titles[panel], title, row, column)): value
                for name, title in figure.values.items()
                for panel, (row, column, value) in zip(
                    panels, _rows(figure.table, figure.row, figure.column, name), strict=True
                )
                if panel in titles
            }
            return Picture(drawn, _set(figure, "diverging", "limits", "own_scales"))
        case Lines():
            return Picture(_lines(figure), _set(figure, "limits", "log_y"))
        case Profiles():
            series = figure.table[figure.series] if figure.series else [None] * len(figure.table)
            rows = zip(series, _rows(figure.table, figure.panel, figure.x, figure.y), strict=True)
            drawn = {(panel, line, x): y for line, (panel, x, y) in rows}
            return Picture(drawn, {"labelled": list(figure.labelled)})
        case Scatter():
            points: dict[Any, list[tuple[float, float]]] = {}
            for panel, x, y in _rows(figure.table, figure.panel, figure.x, figure.y):
                if panel in figure.panel_titles:
                    points.setdefault(figure.panel_titles[panel], []).append((x, y))
            axes = _set(figure, "log_x", "log_y", "sharey", "medians")
            if figure.series is not None:
                shown = figure.table[figure.table[figure.panel].isin(list(figure.panel_titles))]
                assert set(shown[figure.series]) <= set(figure.series_titles or {})
                axes["kinds"] = shown[figure.series].value_counts().to_dict()
            return Picture(cloud(points), axes)
        case Dots():
            drawn = {
                (figure.panel_titles[panel], figure.row_titles.get(row, row)): value
                for panel, row, value in _rows(figure.table, figure.panel, figure.row, figure.value)
            }
            if figure.interval is not None:
                ends = zip(*(figure.table[end] for end in figure.interval), strict=True)
                drawn = {key: (value, *pair) for (key, value), pair in zip(drawn.items(), ends, strict=True)}
            return Picture(drawn, {"order": list(dict.fromkeys(row for _, row in drawn))})
        case WordMaps():
            columns = (figure.panel, figure.row, figure.row_label, figure.column, figure.column_label)
            drawn = {}
            for panel, *place, value, frame in _rows(figure.table, *columns, figure.value, figure.frame):
                drawn[(figure.panel_titles[panel], *place, frame)] = value
            return Picture(drawn)


def cloud(points: Mapping[Any, Sequence[tuple[float, float]]]) -> Drawn:
    """Points by panel, numbered in order of their places."""
    return {(panel, number): point for panel, some in points.items() for number, point in enumerate(sorted(some))}


def _lines(figure: Lines) -> Drawn:
    drawn: Drawn = {}
    ends = list(figure.band or ())
    panels = figure.table[figure.panel] if figure.panel else [None] * len(figure.table)
    rows = zip(panels, _rows(figure.table, figure.series, figure.x, figure.y, *ends), strict=True)
    for panel, (series, x, *values) in rows:
        if figure.panel_titles is not None:
            if panel not in figure.panel_titles:
                continue
            panel = figure.panel_titles[panel]
        if figure.series_titles is not None:
            if series not in figure.series_titles:
                continue
            series = figure.series_titles[series]
        assert (panel, series, x) not in drawn, "a line goes through one point at each x"
        drawn[panel, series, x] = values[0] if len(values) == 1 else tuple(values)
    return drawn


def _rows(table: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    table = plain(table[[*dict.fromkeys(columns)]])
    values = [table[column].tolist() for column in columns]
    return list(zip(*values, strict=True))


def _set(figure: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(figure, name) for name in names if getattr(figure, name) != _DEFAULTS[name]}


_DEFAULTS = {
    "diverging": False,
    "own_scales": False,
    "limits": None,
    "log_x": False,
    "log_y": False,
    "sharey": True,
    "medians": False,
}
"""What a figure is unless its analysis says otherwise."""


def table(keys: Sequence[str], rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> pd.DataFrame:
    """A table of an oracle's: `columns` names them where there may be no row."""
    return pd.DataFrame(rows, columns=None if rows else [*keys, *columns]).set_index(list(keys))


CONSTANT = "one side is constant, or varies too little for an estimate"


def spearman(first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
    """The columns of an exact rank correlation, by SciPy. Numbers that rounding alone tells apart are equal."""
    import scipy.stats

    count = len(first)
    if count < 3:
        reason = "fewer than three pairs" if count else "no pairs"
        return {"spearman": np.nan, "count": count, "error_bound": 0.0, "reason": reason}
    first, second = (np.array([float(f"{value:.11g}") for value in side]) for side in (first, second))
    if len(np.unique(first)) == 1 or len(np.unique(second)) == 1:
        return {"spearman": np.nan, "count": count, "error_bound": 0.0, "reason": CONSTANT}
    rho = scipy.stats.spearmanr(first, second).statistic
    return {"spearman": float(rho), "count": count, "error_bound": 0.0, "reason": ""}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, and the ends of its 95% interval."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, np.nan, np.nan
    if np.ptp(values) == 0:
        return mean, mean, mean
    import scipy.stats

    low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=mean, scale=scipy.stats.sem(values))
    return mean, float(low), float(high)
