"""The HTML page of a comparison of runs."""

import math
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from normscope.reporting.comparison.curve_figures import by_layer, over_steps
from normscope.reporting.comparison.map_figures import map_title, maps_of_groups
from normscope.reporting.comparison.run_comparison import RunComparison, Shown
from normscope.reporting.comparison.significance import FEWEST_PAIRS, FEWEST_UNPAIRED, is_extreme
from normscope.reporting.comparison.swept import short_keys
from normscope.reporting.comparison.training_figures import maps_over_steps
from normscope.reporting.comparison.verdict import verdict
from normscope.reporting.page.elements import (
    asset,
    environment,
    packed_data,
    script,
    script_data,
    table,
    table_data,
)
from normscope.reporting.page.inline_svg import figure_element
from normscope.rounding import duration
from normscope.statistics.intervals import RESAMPLES, smallest_p

_ROWS = 2_000
"""Rows of a table that the page holds at most."""

_SCRIPTS = (
    "rounding.js",
    "dom.js",
    "inflate.js",
    "tables.js",
    "comparison.js",
)

_EXTREMES = "-extremes"
"""What the names of tables of minima and maxima end in."""


def comparison_page(comparison: RunComparison, folder: Path) -> str:
    """The page as self-contained HTML.

    Args:
        comparison: The runs, compared.
        folder: Where the page will be, from which it links to the runs' reports.
    """
    tables, sections = _tables(comparison), _sections(comparison)
    return (
        environment()
        .get_template("comparison.html")
        .render(
            css=asset("page.css"),
            script=script(*_SCRIPTS),
            title=comparison.title,
            verdict=verdict(comparison),
            failures=comparison.failures,
            runs=table(_runs(comparison, folder), "Runs"),
            names=list(tables),
            tables=script_data(tables),
            baseline=comparison.baseline,
            baseline_group=comparison.baseline_group,
            has_means=len(comparison.seed_curves) > 0,
            sections={name: _placed(name, section) for name, section in sections.items()},
            values=packed_data(_values(sections)),
            trained=len(comparison.training) > 0,
            from_zero=bool((comparison.training["step"] == 0).any()),
            seeds=bool((comparison.training["runs"] > 1).any()),
            by_depth=comparison.heatmaps["depth"].nunique() > 1,
            resamples=RESAMPLES,
            fewest_pairs=FEWEST_PAIRS,
            fewest_unpaired=FEWEST_UNPAIRED,
        )
    )


_Section = Sequence[tuple[str, Sequence[Shown]]]
"""Titles, and what a section of the page shows under each; what follows the first is folded away."""


def _sections(comparison: RunComparison) -> dict[str, _Section]:
    """The sections with figures; curves of checkpoints are shown over training alone."""
    over_training = comparison.training
    only_checkpoints = len(over_training) > 0 and comparison.values["step"].notna().all()
    maps = maps_of_groups(comparison.heatmaps, comparison.baseline_group)
    return {
        "training": _alone(over_steps(over_training)),
        "steps": _alone(maps_over_steps(over_training)),
        "layers": [] if only_checkpoints else _alone(by_layer(comparison.values, comparison.seed_curves)),
        "maps": [(map_title(name, parts), parts) for name, parts in maps.items()],
    }


def _alone(parts: Sequence[Shown]) -> _Section:
    return [(part.title, [part]) for part in parts]


def _placed(name: str, section: _Section) -> list[tuple[str, list[dict[str, Any]]]]:
    """The elements of a section."""
    return [
        (
            title,
            [
                {
                    "title": part.title,
                    "figures": [figure_element(figure, f"{key}_{place}") for place, figure in enumerate(part.figures)],
                    "values": f"values_{key}",
                }
                for at, part in enumerate(parts)
                for key in [_key(name, number, at)]
            ],
        )
        for number, (title, parts) in enumerate(section)
    ]


def _key(name: str, number: int, at: int) -> str:
    """What the figures and the table of one part of a section are called in the page."""
    return f"{name}_{number}_{at}"


def _values(sections: Mapping[str, _Section]) -> dict[str, Any]:
    """The tables below the figures, by the keys that `_placed` gives them."""
    return {
        f"values_{_key(name, number, at)}": table_data(part.values, part.title, limit=_ROWS)
        for name, section in sections.items()
        for number, (_, parts) in enumerate(section)
        for at, part in enumerate(parts)
    }


def _runs(comparison: RunComparison, folder: Path) -> pd.DataFrame:
    """One row per run: a link to its report, what was swept, and the size of the run."""
    facts = comparison.runs
    titles = short_keys(comparison.swept, parts=1) | {"model.name": "model", "dataset.name": "dataset"}
    columns: dict[str, Any] = {"run": pd.Series([_link(run, folder) for run in comparison.folders], dtype=object)}
    columns |= {titles[key]: facts[key] for key in comparison.swept}
    if (facts["status"] != "completed").any():
        columns["status"] = facts["status"]
    columns |= {name: facts[name] for name in ("sequences", "tokens")}
    seconds = pd.to_numeric(facts["seconds"], errors="coerce")
    columns["time"] = ["" if not math.isfinite(number) else duration(number) for number in seconds]
    return pd.DataFrame(columns)


def _link(run: Path, folder: Path) -> Markup:
    """A run's name, as a link if it has a report."""
    report = run / "report.html"
    name = run.resolve().name
    if not report.is_file():
        return escape(name)
    address = urllib.parse.quote(Path(os.path.relpath(report.resolve(), folder.resolve())).as_posix())
    return Markup('<a href="{}">{}</a>').format(address, name)


def _tables(comparison: RunComparison) -> dict[str, Any]:
    """The tables for the page's script, each without minima and maxima, which have tables of their own."""
    whole = {"metrics-table": (comparison.metrics, "Metrics of the runs")}
    if len(comparison.metrics.columns) > 2:
        whole["differences-table"] = (_differences(comparison), f"Metrics minus those of {comparison.baseline}")
    if len(comparison.seeds):
        whole["seeds-table"] = (comparison.seeds, "Means over seeds")
    tables = {}
    for name, (rows, caption) in whole.items():
        extreme = rows["metric"].map(is_extreme).astype(bool)
        tables[name] = table_data(rows[~extreme], caption, limit=_ROWS, digits=9)
        if extreme.any():
            tables[name + _EXTREMES] = table_data(rows[extreme], f"{caption}: minima and maxima", limit=_ROWS, digits=9)
    if len(comparison.crossings):
        tables["crossings-table"] = table_data(
            _shown_crossings(comparison.crossings), "First step beyond the threshold", limit=_ROWS, digits=9
        )
    if len(comparison.tests):
        caption = f"Mean differences from {comparison.baseline_group}"
        tables["tests-table"] = table_data(
            comparison.tests.sort_values("adjusted", kind="stable"), caption, limit=_ROWS, digits=9
        )
    if len(comparison.sequence_tests):
        rows = comparison.sequence_tests.assign(paired=comparison.sequence_tests["paired"].astype(bool))
        rows = rows.sort_values("adjusted", kind="stable")
        caption = f"Differences from {comparison.baseline_group} over sequences"
        at_floor = (rows["p"] <= smallest_p()).tolist()
        tables["sequences-table"] = table_data(
            rows, caption, limit=_ROWS, digits=9, upper_bounds={"p": at_floor, "adjusted": at_floor}
        )
    return tables


def _shown_crossings(crossings: pd.DataFrame) -> pd.DataFrame:
    """Whole steps as such, and only the columns that say something."""
    steps = crossings["step"].dropna()
    shown = crossings.astype({"step": "Int64"}) if (steps == steps.round()).all() else crossings
    return shown.dropna(axis="columns", how="all")


def _differences(comparison: RunComparison) -> pd.DataFrame:
    numbers = comparison.metrics.drop(columns="metric")
    return pd.concat([comparison.metrics["metric"], numbers.sub(numbers[comparison.baseline], axis=0)], axis=1)
